//! A run that has devices and no borrowed memory: the program starts as it is, without the shim.

use std::path::Path;
use std::process::Command;

use venice_recipient::AllocationSpec;
use venice_recipient::local_rack::access;
use venice_recipient::runs::About;

use super::child::Child;
use super::devices::Devices;
use super::mode_choice::AskedMode;
use super::{Faults, RunArgs, shown};
use crate::runs::{DevicesOnly, open_desk};
use crate::{plan, rack};
use venice_cli::failure::EXIT_RUNNER;
use venice_cli::terminal::remark;

/// Options that say something about memory. With one of them a run borrows memory, devices or not.
const MEMORY_OPTIONS: [fn(&RunArgs) -> bool; 14] = [
    |args| args.local.is_some(),
    |args| args.remote.is_some(),
    |args| args.port.is_some(),
    |args| args.copies.is_some(),
    |args| args.coding.is_some(),
    |args| args.reclaim_to.is_some(),
    |args| args.write_behind.is_some(),
    |args| args.placement.is_some(),
    |args| args.bandwidth.is_some(),
    |args| args.mode != AskedMode::Auto,
    |args| args.faults != Faults::Handler,
    |args| args.read_ahead.is_some(),
    |args| args.page_size.is_some(),
    |args| args.strict,
];

/// True for a run that asks for devices, and says nothing about memory.
pub fn applies_to(args: &RunArgs) -> bool {
    args.devices.any() && !MEMORY_OPTIONS.iter().any(|is_given| is_given(args))
}

/// Runs the program to its end; returns its exit code, or a failure if a lost device ended it.
pub fn execute(args: &RunArgs, monitor: Option<&str>, program: &Path) -> anyhow::Result<i32> {
    let access = access(&rack::monitor_address(monitor)?);
    let spec = AllocationSpec {
        memory: None,
        devices: args.devices.wants()?,
        donors: args.donor.clone(),
        home: args.node.clone().unwrap_or_default(),
        placement: None,
        waiting: args.waiting.waiting(),
        purpose: program.display().to_string(),
    };
    if args.dry_run {
        return plan::show(&access, &spec, args.json);
    }
    let mut devices = Devices::allocate(&access, &spec)?;
    let mut start = Command::new(program);
    let granted = devices.rows();
    devices.describe_to(&mut start)?;
    let mut child = Child::start_bound(start, program, &args.command)?;
    let about = About {
        pid: child.pid(),
        command: shown(&args.command),
        devices: granted,
        monitor: access.monitor.clone(),
    };
    let desk = open_desk(about, DevicesOnly { program: child.pid() });
    let watch = devices.watch(&child);
    let ended = child.wait(|| ());
    drop(desk);
    let has_lost_device = watch.finish();
    if has_lost_device {
        // Its children may still use the device.
        child.kill_group();
    }
    let ended = ended?;
    if args.stats {
        remark("venice: no memory was borrowed (--remote borrows some)");
    }
    Ok(if has_lost_device { EXIT_RUNNER } else { ended.pass_on() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn applies(words: &str) -> bool {
        let words = ["run"].into_iter().chain(words.split_whitespace()).chain(["true"]);
        let line = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
        applies_to(&line.run)
    }

    #[test]
    fn memory_options_borrow_memory() {
        let devices =
            ["--accelerators 2", "--with nic", "--accelerators 1 --accel-needs fp64,images"];
        for words in devices {
            assert!(applies(words), "{words}");
            assert!(applies(&format!("{words} --stats --donor node2 --wait 1m --dry-run")));
        }
        for option in [
            "--local 1GiB",
            "--remote 1GiB",
            "--port shm",
            "--copies 1",
            "--coding 2+1",
            "--reclaim-to local",
            "--write-behind /tmp",
            "--placement spread",
            "--bandwidth 1Gbps",
            "--mode paged",
            "--faults in-thread",
            "--read-ahead off",
            "--page-size 64k",
            "--strict",
        ] {
            assert!(!applies(&format!("--accelerators 1 {option}")), "{option}");
        }
        assert!(!applies(""));
    }
}
