//! `venice run --mode swap`: the program in a memory cgroup, and a swap device of borrowed memory for
//! what the cgroup does not let it keep. The program needs no shim: static ones and others run as
//! they are.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use venice_recipient::runs::About;
use venice_swap::SwapError;
use venice_swap::cgroup::{Hierarchy, MemoryCgroup};

use super::child::Child;
use super::{Faults, RunArgs, shown};
use crate::place;
use crate::rack::{self, RunDir};
use crate::runs::{Swapped, open_desk};
use crate::swap::{self, Plan, RUN_GROUP, Reclaim, Size, Status};
use venice_cli::failure::Usage;
use venice_cli::terminal::{self, remark};

/// Above areas that others have, so that the program's pages come here.
const PRIORITY: u16 = 32_000;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs the program to its end; the exit code is the program's.
pub fn execute(
    args: &RunArgs,
    monitor: Option<&str>,
    local_bytes: u64,
    program: &Path,
) -> anyhow::Result<i32> {
    check(args)?;
    let reclaim_to = reclaim_to(args)?;
    require_swap()?;
    let dir = RunDir::locate()?;
    let port = args.port.map_or_else(rack::default_port, Ok)?;
    let pid = std::process::id();
    let default_bytes = local_bytes.saturating_mul(3);
    let plan = Plan {
        name: format!("run-{pid}"),
        size: args.remote.map_or(Size::UpTo(default_bytes), |size| Size::Exactly(size.0)),
        monitor: rack::monitor_address(monitor)?,
        port,
        donors: args.donor.clone(),
        placement: args.placement,
        bandwidth_bps: args.bandwidth.map_or(0, NonZeroU64::get),
        waiting: args.waiting.waiting().into(),
        copies: args.copies,
        reclaim_to,
        node: args.node.clone(),
        queues: Plan::default_queues(),
        priority: PRIORITY,
        device: None,
        purpose: program.display().to_string(),
        owner_pid: Some(pid),
    };
    if args.dry_run {
        return place::show(&plan.access(), &plan.wish(), (port, plan.node.as_deref()), args.json);
    }
    let device = Device { status: swap::attach(&dir, &plan)?, dir: &dir };
    swap::warn_of_one_copy(&device.status);
    let mut group = MemoryCgroup::create(RUN_GROUP, local_bytes, Some(device.status.size_bytes))?;
    group.anchor_on(&device.status.device)?;
    let group = Arc::new(group);
    let mut child = Child::start(group.command(program), program, &args.command)?;
    let about = About { pid: child.pid(), command: shown(&args.command) };
    let run = Swapped::new(group.clone(), dir.clone(), device.status.clone(), local_bytes);
    let desk = open_desk(about, run);
    let ended = child.wait()?;
    // What it left behind (a daemon's processes) has its memory here.
    while group.has_members() {
        std::thread::sleep(LOOK_EVERY);
    }
    drop(desk);
    let after = swap::status(&dir, &plan.name).unwrap_or_else(|| device.status.clone());
    tell_losses(&after, &group);
    if args.stats {
        tell_summary(&after, &group);
    }
    drop(group);
    drop(device);
    Ok(ended.pass_on())
}

/// What can be known before anything is borrowed.
fn check(args: &RunArgs) -> anyhow::Result<()> {
    if args.faults == Faults::InThread {
        let said = "--faults is of --mode paged: with --mode swap the kernel serves page faults";
        return Err(Usage(said.to_owned()).into());
    }
    if args.read_ahead.is_some() {
        let said = "--read-ahead is of --mode paged: with --mode swap the kernel reads ahead \
                    (sysctl vm.page-cluster)";
        return Err(Usage(said.to_owned()).into());
    }
    if args.page_size.is_some() {
        let said = "--page-size is of --mode paged: with --mode swap the kernel chooses how much it \
                    swaps at once (sysctl vm.page-cluster)";
        return Err(Usage(said.to_owned()).into());
    }
    if let Some(size) = args.remote {
        swap::check_size(size).map_err(Usage)?;
    }
    Ok(())
}

/// Where to put what nodes want back.
fn reclaim_to(args: &RunArgs) -> anyhow::Result<Vec<Reclaim>> {
    let Some(places) = &args.reclaim_to else { return Ok(Reclaim::by_default()) };
    let places = places.iter().cloned().map(Reclaim::try_from).collect::<Result<_, _>>();
    places.map_err(|why| Usage(format!("--reclaim-to with --mode swap: {why}")).into())
}

/// What the machine has to have.
fn require_swap() -> anyhow::Result<()> {
    venice_swap::require_root()?;
    if Hierarchy::find().is_none() {
        return Err(SwapError::no_memory_cgroup().into());
    }
    Ok(())
}

/// The run's device. Dropped, it is detached, or else goes by itself once it can.
struct Device<'a> {
    status: Status,
    dir: &'a RunDir,
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        if let Err(error) = swap::detach(self.dir, &self.status.name) {
            remark(format!("venice: {error:#}; it goes as soon as it can"));
        }
    }
}

fn tell_losses(status: &Status, group: &MemoryCgroup) {
    let lost = status.copies.lost_donors.join(", ");
    if status.copies.lost_slabs > 0 {
        remark(format!(
            "venice: lost with what only they held of this program: {lost}; {} requests asked for \
             it: SIGBUS",
            status.failed_requests
        ));
    } else if !lost.is_empty() {
        remark(format!("venice: lost, of which other nodes had copies: {lost}"));
    }
    if group.killed_for_memory() > 0 {
        let size = terminal::bytes(status.size_bytes);
        let why = match group.has_outgrown_swap() {
            true => format!(
                "it outgrew --local and the {size} of its swap device: give it more --remote"
            ),
            false => format!(
                "it had not used all {size} of its swap device, so that it has more than --local that \
                 cannot be swapped (locked, or the kernel's own), or others fill the device: give it \
                 more --local or --remote"
            ),
        };
        remark(format!("venice: the kernel killed the program for want of memory: {why}"));
    }
}

fn tell_summary(status: &Status, group: &MemoryCgroup) {
    let bytes = terminal::bytes;
    let peak = group.peak_bytes().map_or("unknown".to_owned(), bytes);
    remark(format!(
        "venice: {} local, at most {peak} used; swapped to {} of {} by {}; copies {}",
        group.limit_bytes().map_or("unknown".to_owned(), bytes),
        bytes(status.size_bytes),
        status.donors.join(", "),
        status.kind,
        status.copies.copies
    ));
    let micros = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} us"));
    remark(format!(
        "venice: read {}, written {}; {} pages of zeros did not travel; {} were given back early; \
         requests p50 {}, p99 {}",
        bytes(status.read_bytes),
        bytes(status.written_bytes),
        status.zero_pages,
        status.discarded_pages,
        micros(status.request_p50_us),
        micros(status.request_p99_us)
    ));
}
