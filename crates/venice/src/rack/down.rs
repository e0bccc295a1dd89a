//! `venice down`: the end of a rack, whatever state it is in.

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

/// Stops every process of the rack and removes what it made. No rack is no error.
pub fn execute(_args: &DownArgs) -> anyhow::Result<i32> {
    let dir = RunDir::locate()?;
    let nothing = || terminal::say(format!("No rack is up in {}.", dir.path().display()));
    if !dir.path().exists() && process::find_all(&dir).is_empty() && !Network::exists(&dir) {
        nothing()?;
        return Ok(0);
    }
    // Whose memory is this rack's: the kernel would wait for answers, or lose what is there.
    crate::swap::detach_all(&dir)?;
    let lock = dir.lock()?;
    // A damaged record must not keep the rest from being cleared away.
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
        n => format!("The rack is down: {count} process{plural} stopped, {n} of them by a kill."),
    })?;
    Ok(0)
}

/// Says who loses memory by this, where a Monitor Node can be asked.
fn warn_of_grants(record: &Record, dir: &RunDir) {
    if !record.monitor.process.is_some_and(|process| process.is_alive(dir)) {
        return;
    }
    let ask = async { registry::connect(&record.monitor.addr).await?.grants().await };
    let Ok(grants) = block_on(ask) else { return };
    let held: u64 = grants.iter().filter(|g| g.state == "committed").map(|g| g.bytes).sum();
    if held > 0 {
        let held = terminal::bytes(held);
        terminal::remark(format!("venice: programs still hold {held} of this rack and lose it"));
    }
}
