//! `venice run --mode swap`: the program in a memory cgroup, and a swap device of borrowed memory
//! for pages above the cgroup's limit. The program needs no shim: static programs run unchanged.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use venice_recipient::runs::About;

use super::{RunArgs, shown};
use crate::place;
use crate::rack;
use crate::runs::{Swapped, open_desk};
use crate::swap::{self, GroupState, Reclaim, RunSession, Size, Status, Wants};
use venice_cli::failure::Usage;
use venice_cli::terminal::{self, remark};

/// Interval between looks at processes that the program has left behind.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs the program to its end; returns the program's exit code.
pub fn execute(
    args: &RunArgs,
    monitor: Option<&str>,
    local_bytes: u64,
    program: &Path,
    mode_reason: String,
) -> anyhow::Result<i32> {
    if let Some(size) = args.remote {
        swap::check_size(size).map_err(Usage)?;
    }
    let wants = wants(args, monitor, local_bytes, program)?;
    if args.dry_run {
        let port = wants.port.map_or_else(rack::default_port, Ok)?;
        let monitor = rack::monitor_address(monitor)?;
        let plan = wants.plan("run".to_owned(), monitor, port, std::process::id());
        return place::show(&plan.access(), &plan.spec(), (port, plan.node.as_deref()), args.json);
    }
    let session = Arc::new(RunSession::open(&wants)?);
    let attached = session.attached().clone();
    swap::warn_of_one_copy(&attached);
    let mut child = session.start(program, &args.command)?;
    let about = About { pid: child.pid(), command: shown(&args.command), ..About::default() };
    let desk = open_desk(about, Swapped::new(session.clone(), local_bytes, mode_reason));
    let ended = child.wait(|| ())?;
    // Processes left behind (a daemon's) still have memory on the device.
    let group = loop {
        match session.group() {
            Ok(group) if group.members.is_empty() => break group,
            Ok(_) => std::thread::sleep(LOOK_EVERY),
            Err(error) => {
                remark(format!("venice: {error:#}"));
                break GroupState::default();
            }
        }
    };
    drop(desk);
    let after = session.device();
    tell_losses(&after, &group);
    if args.stats {
        tell_summary(&after, &group);
    }
    drop(session);
    Ok(ended.pass_on())
}

fn wants(
    args: &RunArgs,
    monitor: Option<&str>,
    local_bytes: u64,
    program: &Path,
) -> anyhow::Result<Wants> {
    let default_bytes = local_bytes.saturating_mul(3);
    Ok(Wants {
        local_bytes,
        size: args.remote.map_or(Size::UpTo(default_bytes), |size| Size::Exactly(size.0)),
        monitor: rack::explicit_address(monitor)?,
        port: args.port,
        donors: args.donor.clone(),
        placement: args.placement,
        bandwidth_bps: args.bandwidth.map_or(0, NonZeroU64::get),
        waiting: args.waiting.waiting().into(),
        copies: args.copies,
        reclaim_to: reclaim_to(args)?,
        node: args.node.clone(),
        purpose: program.display().to_string(),
    })
}

/// Returns the destinations for reclaimed memory (`--reclaim-to`).
fn reclaim_to(args: &RunArgs) -> anyhow::Result<Vec<Reclaim>> {
    let Some(places) = &args.reclaim_to else { return Ok(Reclaim::by_default()) };
    let places = places.iter().cloned().map(Reclaim::try_from).collect::<Result<_, _>>();
    places.map_err(|why| Usage(format!("--reclaim-to with --mode swap: {why}")).into())
}

fn tell_losses(status: &Status, group: &GroupState) {
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
    if group.killed_for_memory > 0 {
        let size = terminal::bytes(status.size_bytes);
        let why = match group.has_outgrown_swap {
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

fn tell_summary(status: &Status, group: &GroupState) {
    let bytes = terminal::bytes;
    let peak = group.peak_bytes.map_or("unknown".to_owned(), bytes);
    remark(format!(
        "venice: mode swap, port {}; {} local, peak {peak}; swapped to {} of {} by {}; copies {}",
        status.port,
        group.limit_bytes.map_or("unknown".to_owned(), bytes),
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
