//! `venice down`: stops a rack, whatever its state.

use clap::Args;

use super::network::{self, Network};
use super::process::{self, Lives};
use super::record::Record;
use super::run_dir::RunDir;
use super::up::clear;
use crate::registry::{self, block_on};
use venice_cli::terminal;

/// `venice down`
#[derive(Args, Debug)]
pub struct DownArgs {}

/// Stops every process of the rack and removes its files. Without a rack it succeeds.
pub fn execute(_args: &DownArgs) -> anyhow::Result<i32> {
    let dir = RunDir::locate()?;
    let nothing = || terminal::say(format!("No rack is up in {}.", dir.path().display()));
    if !dir.path().exists() && process::find_all(&dir).is_empty() && !Network::exists(&dir) {
        nothing()?;
        return Ok(0);
    }
    // First the swap devices on this rack's memory: the kernel would wait for answers, or lose
    // pages.
    crate::swap::detach_all(&dir)?;
    let lock = dir.lock()?;
    // A damaged record must not prevent the rest of the cleanup.
    let record = Record::load(&dir).ok().flatten();
    let was_there = dir.record_path().exists();
    let mut processes = process::find_all(&dir);
    let recorded = record.iter().flat_map(Record::processes);
    processes.extend(recorded.filter(|p| p.is_alive(&dir)).collect::<Vec<_>>());
    processes.sort_by_key(|process| process.pid);
    processes.dedup();
    if let Some(record) = &record {
        warn_of_grants(record, &dir);
    }
    let count = processes.len();
    let killed = process::stop_all(&processes, &dir)?;
    if Network::exists(&dir) {
        network::check_possible()?;
    }
    clear(&dir, &lock, &dir.process_dirs())?;
    if count == 0 && !was_there {
        nothing()?;
        return Ok(0);
    }
    let plural = if count == 1 { "" } else { "es" };
    terminal::say(match killed {
        0 => format!("The rack is down: {count} process{plural} stopped."),
        n => format!("The rack is down: {count} process{plural} stopped, {n} of them killed."),
    })?;
    Ok(0)
}

/// Warns of programs that lose memory, if the Monitor Node answers.
fn warn_of_grants(record: &Record, dir: &RunDir) {
    if !record.monitor.process.is_some_and(|process| process.is_alive(dir)) {
        return;
    }
    let ask = async { registry::connect(&record.monitor.addr).await?.grants().await };
    let Ok(grants) = block_on(ask) else { return };
    let held: u64 = grants.iter().filter(|g| g.state == "committed").map(|g| g.bytes).sum();
    if held > 0 {
        let held = terminal::bytes(held);
        terminal::remark(format!("venice: programs lose {held} of borrowed memory"));
    }
}
