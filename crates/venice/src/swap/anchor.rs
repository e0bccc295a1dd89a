//! `venice swap anchor`: keeps the kernel from killing programs in a user's own cgroup.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use venice_swap::GroupAnchor;

use super::list::of_device;
use super::plan::names;
use super::status::UP;
use crate::rack::RunDir;
use venice_cli::terminal;

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// `venice swap anchor`
#[derive(Args, Debug)]
pub struct AnchorArgs {
    /// Memory cgroup: its directory, or its path below the memory controller's mount point
    #[arg(value_name = "CGROUP")]
    group: PathBuf,
}

/// Text below `venice swap anchor --help`.
pub const HELP: &str = "\
EXAMPLES:
  sudo venice swap anchor /sys/fs/cgroup/jobs
  sudo venice swap anchor jobs/render &       the same by name, beside its programs
  sudo systemd-run -p MemoryMax=2G --unit job ./job
  sudo venice swap anchor system.slice/job.service

For programs in your own memory cgroup (v1 or v2) that swap to `venice swap attach`. If such a group has
no page of any file, the kernel may kill programs that suddenly use all their memory, although swap has
room. This command keeps one page (4 KiB of the swap device) charged to the group until it is
interrupted or the group is removed. It leaves no process in the group. `venice run --mode swap` does
the same by itself.";

/// Holds the page until a signal, or until the group is removed.
pub fn execute(args: &AnchorArgs) -> anyhow::Result<i32> {
    venice_swap::require_root()?;
    let asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked_to_end))
            .context("catching signals")?;
    }
    let anchor = GroupAnchor::lay(&args.group, &swap_device()?)?;
    let folder = anchor.folder().display();
    terminal::say(format!("{folder} keeps a page until Ctrl-C or its removal."))?;
    while !asked_to_end.load(Ordering::Relaxed) {
        if !anchor.has_group() {
            terminal::say(format!("{folder} was removed."))?;
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(0)
}

/// Returns any swap device of this machine.
fn swap_device() -> anyhow::Result<PathBuf> {
    let dir = RunDir::locate()?;
    let mut devices = names(&dir).into_iter().filter_map(|name| of_device(&dir, &name));
    match devices.find(|device| device.state == UP) {
        Some(device) => Ok(device.device),
        None => bail!("no swap device is attached: run `venice swap attach SIZE` first"),
    }
}
