//! `venice down`: stops a rack, whatever its state.

use clap::Args;

use super::network::{self, Network};
use super::process::{self, Lives};
use super::record::Record;
use super::run_dir::RunDir;
use super::up::clear;
use crate::registry::{self, block_on};
use venice_cli::terminal;
use venice_recipient::local_rack;

/// `venice down`
#[derive(Args, Debug)]
pub struct DownArgs {}

/// Stops every process of the rack and removes its files. Without a rack it succeeds.
pub fn execute(_args: &DownArgs) -> anyhow::Result<i32> {
    let dir = RunDir::locate()?;
    let nothing =
        || terminal::say(format!("No rack is up in {}.{}", dir.path().display(), others(&dir)));
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

/// Says that daemons go on which `venice up` has not started; empty: there are none.
fn others(dir: &RunDir) -> String {
    let socket = local_rack::living_socket(dir.path());
    socket.map_or_else(String::new, |socket| {
        format!(
            " The daemon at {} goes on: `venice up` has not started it (services: systemctl stop)",
            socket.display()
        )
    })
}

/// Warns of programs that lose memory or devices, if the Monitor Node answers.
fn warn_of_grants(record: &Record, dir: &RunDir) {
    if !record.monitor.process.is_some_and(|process| process.is_alive(dir)) {
        return;
    }
    let ask = async { registry::connect(&record.monitor.addr).await?.grants().await };
    let Ok(grants) = block_on(ask) else { return };
    let held = grants.iter().filter(|grant| grant.state == "committed");
    if let Some(lost) = lost(held.map(|grant| (&*grant.address, grant.bytes))) {
        terminal::remark(format!("venice: programs lose {lost}"));
    }
}

/// Describes grants that end, each by its device (memory: none) and bytes; `None`: there are none.
fn lost<'a>(held: impl Iterator<Item = (&'a str, u64)>) -> Option<String> {
    let (memory, devices): (Vec<_>, Vec<_>) = held.partition(|(device, _)| device.is_empty());
    let bytes: u64 = memory.iter().map(|(_, bytes)| bytes).sum();
    let memory = (bytes > 0).then(|| format!("{} of borrowed memory", terminal::bytes(bytes)));
    let devices: Vec<&str> = devices.into_iter().map(|(device, _)| device).collect();
    let devices = match &devices[..] {
        [] => None,
        [one] => Some(format!("the device {one}")),
        several => Some(format!("{} devices ({})", several.len(), several.join(", "))),
    };
    let all: Vec<String> = memory.into_iter().chain(devices).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_devices_are_named() {
        let said = |held: &[(&str, u64)]| lost(held.iter().copied());
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[("opencl0", 256 << 20)]).unwrap(), "the device opencl0");
        let all = [("", 16 << 20), ("opencl0", 1), ("", 16 << 20), ("/dev/zero", 0)];
        let expected = "32MiB of borrowed memory and 2 devices (opencl0, /dev/zero)";
        assert_eq!(said(&all).unwrap(), expected);
    }
}
