//! `venice run --mode swap`: the program in a memory cgroup, and a swap device of borrowed memory
//! for pages above the cgroup's limit. The program needs no shim: static programs run unchanged.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use venice_recipient::runs::About;
use venice_swap::SwapError;
use venice_swap::cgroup::{Hierarchy, MemoryCgroup};

use super::child::Child;
use super::{RunArgs, shown};
use crate::place;
use crate::rack::{self, RunDir};
use crate::runs::{Swapped, open_desk};
use crate::swap::{self, Plan, RUN_GROUP, Reclaim, Size, Status};
use venice_cli::failure::Usage;
use venice_cli::terminal::{self, remark};

/// Above the usual priorities of swap areas, so that the program's pages go to this device.
const PRIORITY: u16 = 32_000;
const LOOK_EVERY: Duration = Duration::from_millis(20);
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the program to its end; returns the program's exit code.
pub fn execute(
    args: &RunArgs,
    monitor: Option<&str>,
    local_bytes: u64,
    program: &Path,
) -> anyhow::Result<i32> {
    if let Some(size) = args.remote {
        swap::check_size(size).map_err(Usage)?;
    }
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
        return place::show(&plan.access(), &plan.spec(), (port, plan.node.as_deref()), args.json);
    }
    let device = Device { status: swap::attach(&dir, &plan)?, dir: &dir };
    swap::warn_of_one_copy(&device.status);
    let mut group = MemoryCgroup::create(RUN_GROUP, local_bytes, Some(device.status.size_bytes))?;
    group.anchor_on(&device.status.device)?;
    let group = Arc::new(group);
    let mut child = Child::start(group.command(program), program, &args.command)?;
    let about = About { pid: child.pid(), command: shown(&args.command), ..About::default() };
    let run = Swapped::new(group.clone(), dir.clone(), device.status.clone(), local_bytes);
    let desk = open_desk(about, run);
    let ended = child.wait(|| ())?;
    // Processes left behind (a daemon's) still have memory on the device.
    while group.has_members() {
        std::thread::sleep(LOOK_EVERY);
    }
    drop(desk);
    if group.killed_for_memory() > 0 {
        // What the device has got in all tells whether it was full.
        group.wait_written(WRITE_PATIENCE);
    }
    let after = swap::status(&dir, &plan.name).unwrap_or_else(|| device.status.clone());
    tell_losses(&after, &group);
    if args.stats {
        tell_summary(&after, &group);
    }
    drop(group);
    drop(device);
    Ok(ended.pass_on())
}

/// Returns the destinations for reclaimed memory (`--reclaim-to`).
fn reclaim_to(args: &RunArgs) -> anyhow::Result<Vec<Reclaim>> {
    let Some(places) = &args.reclaim_to else { return Ok(Reclaim::by_default()) };
    let places = places.iter().cloned().map(Reclaim::try_from).collect::<Result<_, _>>();
    places.map_err(|why| Usage(format!("--reclaim-to with --mode swap: {why}")).into())
}

/// Checks that the machine can swap and has memory cgroups.
fn require_swap() -> anyhow::Result<()> {
    venice_swap::require_root()?;
    if Hierarchy::find().is_none() {
        return Err(SwapError::no_memory_cgroup().into());
    }
    Ok(())
}

/// The run's swap device. Dropping it detaches it; if that fails, it detaches itself as soon as
/// possible.
struct Device<'a> {
    status: Status,
    dir: &'a RunDir,
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        if let Err(error) = swap::detach(self.dir, &self.status.name) {
            remark(format!("venice: {error:#}; it detaches as soon as it can"));
        }
    }
}

fn tell_losses(status: &Status, group: &MemoryCgroup) {
    let lost = status.copies.lost_donors.join(", ");
    if status.copies.lost_slabs > 0 {
        remark(format!(
            "venice: donors lost with the only copy of some pages: {lost}; {} requests failed \
             (SIGBUS)",
            status.failed_requests
        ));
    } else if !lost.is_empty() {
        remark(format!("venice: donors lost, other copies remain: {lost}"));
    }
    if group.killed_for_memory() > 0 {
        let size = terminal::bytes(status.size_bytes);
        let why = match group.has_outgrown_swap(status.written_bytes) {
            true => format!(
                "it outgrew --local and the {size} of its swap device: give it more --remote"
            ),
            false => format!(
                "it had not used all {size} of its swap device: it has more than --local that cannot be \
                 swapped (locked or kernel memory), or other programs fill the device: give it more \
                 --local or --remote"
            ),
        };
        remark(format!("venice: the kernel killed the program (out of memory): {why}"));
    }
}

fn tell_summary(status: &Status, group: &MemoryCgroup) {
    let bytes = terminal::bytes;
    let peak = group.peak_bytes().map_or("unknown".to_owned(), bytes);
    remark(format!(
        "venice: mode swap, port {}; {} local, peak {peak}; swapped to {} of {} by {}; copies {}",
        status.port,
        group.limit_bytes().map_or("unknown".to_owned(), bytes),
        bytes(status.size_bytes),
        status.donors.join(", "),
        status.kind,
        status.copies.copies
    ));
    let micros = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1} us"));
    remark(format!(
        "venice: read {}, written {}; {} zero pages not sent, {} pages discarded; \
         requests p50 {}, p99 {}",
        bytes(status.read_bytes),
        bytes(status.written_bytes),
        status.zero_pages,
        status.discarded_pages,
        micros(status.request_p50_us),
        micros(status.request_p99_us)
    ));
}
