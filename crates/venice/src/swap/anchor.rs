//! `venice swap anchor`: a page that keeps the kernel from killing programs in a cgroup of the user's own.

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
    /// The memory cgroup: its folder, or its path below where the memory controller is mounted
    #[arg(value_name = "CGROUP")]
    group: PathBuf,
}

/// Text below `venice swap anchor --help`.
pub const HELP: &str = "\
EXAMPLES:
  sudo venice swap anchor /sys/fs/cgroup/jobs
  sudo venice swap anchor jobs/render &       the same by its name, beside what runs there
  sudo systemd-run -p MemoryMax=2G --unit job ./job
  sudo venice swap anchor system.slice/job.service

For programs in a memory cgroup of your own, v1 or v2, that swap to `venice swap attach`. Where such
a group has no page of any file, the kernel may kill programs that go over to using all their memory
at once, although swap has room. This keeps one page, 4 KiB of the swap device, charged to the group
until it is interrupted or the group is removed; then it ends. It leaves no process in the group.
`venice run --mode swap` does the same by itself.";

/// Holds the page until it is told to end, or the group is gone.
pub fn execute(args: &AnchorArgs) -> anyhow::Result<i32> {
    venice_swap::require_root()?;
    let asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked_to_end))
            .context("catching signals")?;
    }
    let anchor = GroupAnchor::lay(&args.group, &swap_device()?)?;
    let folder = anchor.folder().display();
    terminal::say(format!("{folder} keeps a page until Ctrl-C, or until it is removed."))?;
    while !asked_to_end.load(Ordering::Relaxed) {
        if !anchor.has_group() {
            terminal::say(format!("{folder} was removed."))?;
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(0)
}

/// One that this machine swaps to: any will do.
fn swap_device() -> anyhow::Result<PathBuf> {
    let dir = RunDir::locate()?;
    let mut devices = names(&dir).into_iter().filter_map(|name| of_device(&dir, &name));
    match devices.find(|device| device.state == UP) {
        Some(device) => Ok(device.device),
        None => bail!("no swap device is attached here: `venice swap attach SIZE` first"),
    }
}
