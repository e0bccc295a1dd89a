//! Runs one way: sets up its requirements, and a worker that touches pages.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use venice_wire::ByteSize;

use super::touch::Pattern;
use super::umap::UmapMemory;
use super::way::{FailedWay, Redundancy, SkippedWay, Way, WayReport};
use super::worker::WorkerReport;
use super::{FaultArgs, PAGE_BYTES};
use venice_measure::child::ChildGuard;
use venice_measure::interrupt;
use venice_measure::kernel_swap::fuse_loop::FuseLoopSwap;
use venice_measure::kernel_swap::venice_swap::VeniceSwap;
use venice_measure::kernel_swap::zram::ZramSwap;
use venice_measure::kernel_swap::{self, SwapDevice};
use venice_measure::launch::{Launch, ONE_COPY};
use venice_measure::progress::{Phase, note};
use venice_measure::rack::{Port, Rack};
use venice_measure::scratch;

/// Time limit for a program to borrow its memory.
const BORROWED_WITHIN: Duration = Duration::from_secs(30);

/// Outcome of a way.
#[derive(Debug)]
pub(crate) enum Outcome {
    Measured(WayReport),
    Skipped(SkippedWay),
    Failed(FailedWay),
}

/// Runs one way. A missing requirement makes it skipped, an error makes it failed; both are printed
/// at once.
///
/// # Errors
/// On an interrupt only.
pub(crate) fn run(way: Way, args: &FaultArgs) -> Result<Outcome> {
    let measured = match way {
        Way::Resident | Way::UffdFloor | Way::SigbusFloor => {
            run_worker(way, args, &Launch::Local, &[]).map(Ok)
        }
        Way::Umap => run_on_umap(way, args),
        Way::VeniceShm
        | Way::VeniceShmUnpinned
        | Way::VeniceShmInThread
        | Way::VeniceShmOnePage
        | Way::VeniceShmLarge
        | Way::VeniceShmHuge => run_on_rack(way, args, Port::Shm).map(Ok),
        Way::VeniceShmTwoCopies
        | Way::VeniceShmTwoCopiesDegraded
        | Way::VeniceShmCoded
        | Way::VeniceShmCodedDegraded
        | Way::VeniceShmBehind
        | Way::VeniceShmBehindDegraded => run_on_rack(way, args, Port::Shm).map(Ok),
        Way::VeniceUdp
        | Way::VeniceUdpLarge
        | Way::VeniceUdpTwoCopies
        | Way::VeniceUdpCoded
        | Way::VeniceUdpCodedDegraded
        | Way::VeniceUdpBehind => run_on_rack(way, args, Port::Udp).map(Ok),
        Way::VeniceSwapShm => run_on_venice_swap(way, args, Port::Shm),
        Way::VeniceSwapUdp => run_on_venice_swap(way, args, Port::Udp),
        Way::Zram => run_on_swap(way, args, ZramSwap::create, |swap| SwapFacts {
            device: format!("compressed by {}", swap.algorithm()),
            servers: Vec::new(),
        }),
        Way::FuseLoop => run_on_swap(way, args, FuseLoopSwap::create, |swap| SwapFacts {
            device: "nbdkit memory, nbdfuse, loop with direct I/O".to_owned(),
            servers: swap.server_pids(),
        }),
    };
    interrupt::check()?;
    Ok(match measured {
        Ok(Ok(report)) => Outcome::Measured(report),
        Ok(Err(lacking)) => {
            let reason = format!("{lacking:#}");
            note(&format!("SKIPPED {way}: {reason}"));
            Outcome::Skipped(SkippedWay { way, reason })
        }
        Err(error) => {
            let reason = format!("{error:#}");
            note(&format!("FAILED {way}: {reason}"));
            Outcome::Failed(FailedWay { way, reason })
        }
    })
}

fn run_on_rack(way: Way, args: &FaultArgs, port: Port) -> Result<WayReport> {
    let remote_bytes = args.size.0 + args.size.0 / 4 + (64 << 20);
    let redundancy = way.redundancy();
    let rack = {
        let _phase = Phase::waiting(format!("{way}: start a rack"));
        match redundancy {
            None => Rack::up(port, remote_bytes)?,
            // Room for the largest need: two of each byte.
            Some(of) => Rack::of(of.nodes, port, 2 * remote_bytes)?,
        }
    };
    let launch = Launch::OnRack {
        rack: &rack,
        local_bytes: args.local.0,
        remote_bytes,
        kept: redundancy.map_or(ONE_COPY, |of| of.kept),
        extra: match way {
            Way::VeniceShmOnePage => &["--read-ahead", "off"],
            Way::VeniceShmInThread => &["--faults", "in-thread"],
            Way::VeniceShmLarge | Way::VeniceUdpLarge => &["--page-size", "64k"],
            Way::VeniceShmHuge => &["--page-size", "2m"],
            _ => &[],
        },
    };
    let Some(redundancy) = redundancy else {
        return run_worker(way, args, &launch, &rack.agent_pids());
    };
    std::thread::scope(|scope| {
        let lent = scope.spawn(|| degrade(&rack, redundancy));
        let mut report = run_worker(way, args, &launch, &rack.agent_pids())?;
        let (lent_bytes, killed) = lent.join().expect("it does not panic")?;
        let dead = if killed { ", one of which is dead" } else { "" };
        report.detail = Some(format!(
            "{} for {} on {} nodes{dead}",
            ByteSize(lent_bytes),
            ByteSize(remote_bytes),
            redundancy.nodes
        ));
        Ok(report)
    })
}

/// Waits until the program has borrowed; returns the lent bytes, and true if a donor was killed
/// then.
///
/// # Errors
/// On an interrupt, or when it never borrows.
fn degrade(rack: &Rack, redundancy: Redundancy) -> Result<(u64, bool)> {
    let agents = rack.agent_pids();
    interrupt::wait_until("the program to borrow", BORROWED_WITHIN, || {
        Ok(rack.has_run().then_some(()))
    })?;
    let lent_bytes = rack.granted_bytes();
    let victim = agents.first().filter(|_| redundancy.is_degraded);
    if let Some(pid) = victim.and_then(|pid| Pid::from_raw(*pid as i32)) {
        kill_process(pid, Signal::KILL).context("cannot kill an agent")?;
    }
    Ok((lent_bytes, victim.is_some()))
}

/// Runs on UMap; the way is skipped unless `--umap` names the library.
fn run_on_umap(way: Way, args: &FaultArgs) -> Result<Result<WayReport>> {
    if args.umap.is_none() {
        return Ok(Err(anyhow!("no UMap here: --umap LIBRARY names it")));
    }
    run_worker(way, args, &Launch::Local, &[]).map(Ok)
}

/// Runs on Venice's swap device. Without root the way is skipped; any other error is a failure.
fn run_on_venice_swap(way: Way, args: &FaultArgs, port: Port) -> Result<Result<WayReport>> {
    if let Err(lacking) = venice_swap::require_root() {
        return Ok(Err(lacking.into()));
    }
    let create = |len_bytes| {
        let _phase = Phase::waiting(format!("{way}: start a rack"));
        VeniceSwap::create(port, len_bytes, args.swap_queues)
    };
    let measured = run_on_swap(way, args, create, |swap| SwapFacts {
        device: swap.describe(),
        servers: swap.server_pids(),
    });
    measured.flatten().map(Ok)
}

/// Facts about a swap device for the report.
struct SwapFacts {
    device: String,
    /// Processes that serve its pages.
    servers: Vec<u32>,
}

/// Runs on a swap device. The outer error is a failure, the inner one a missing requirement.
fn run_on_swap<S: SwapDevice>(
    way: Way,
    args: &FaultArgs,
    create: impl FnOnce(u64) -> Result<S>,
    facts: impl FnOnce(&S) -> SwapFacts,
) -> Result<Result<WayReport>> {
    // The swap area's own header takes a page more than the pages that do not fit; the rest is
    // slack.
    let area_bytes = args.size.0 + (64 << 20);
    let prepared = create(area_bytes).and_then(|swap| {
        let group = kernel_swap::group_on("bench", args.local.0, &swap)?;
        Ok((swap, group))
    });
    match prepared {
        Ok((swap, group)) => {
            // The group is dropped before the swap device.
            let facts = facts(&swap);
            let mut report = run_worker(way, args, &Launch::InCgroup(&group), &facts.servers)?;
            report.detail = Some(format!(
                "{}; memory cgroup {}, at most {} charged",
                facts.device,
                group.version(),
                group.peak_bytes().map_or("unknown".to_owned(), |peak| ByteSize(peak).to_string()),
            ));
            Ok(Ok(report))
        }
        Err(lacking) => Ok(Err(lacking)),
    }
}

fn run_worker(
    way: Way,
    args: &FaultArgs,
    launch: &Launch<'_>,
    helpers: &[u32],
) -> Result<WayReport> {
    let folder = scratch::folder(scratch::FOLDER)?;
    let json = folder.path().join("report.json");
    let command = worker_command(way, args, launch, helpers, &json)?;
    let _phase = Phase::waiting(format!("{way}: touch pages"));
    let mut worker = ChildGuard::spawn("the worker", command, &folder.path().join("log"))?;
    worker.wait_success(time_limit(args))?;
    let report = read_report(&folder, &json)?;
    Ok(WayReport {
        way,
        detail: None,
        fill_s: report.fill_s,
        clock_cost_ns: report.clock_cost_ns,
        cases: report.cases,
    })
}

fn worker_command(
    way: Way,
    args: &FaultArgs,
    launch: &Launch<'_>,
    helpers: &[u32],
    json: &PathBuf,
) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find the running program")?;
    let mut command = launch.command(&program);
    command
        .args(["bench", "fault-worker", "--size", &args.size.0.to_string()])
        .args(["--seconds", &args.seconds.to_string(), "--json"])
        .arg(json);
    match way {
        Way::UffdFloor => drop(command.args(["--floor", "handler"])),
        Way::SigbusFloor => drop(command.args(["--floor", "sigbus"])),
        Way::VeniceShmUnpinned => drop(command.arg("--unpinned")),
        Way::VeniceShmLarge | Way::VeniceShmHuge | Way::VeniceUdpLarge => {
            command.arg("--large-pages");
        }
        _ => {}
    }
    if let Some(library) = args.umap.as_ref().filter(|_| way == Way::Umap) {
        command.arg("--umap").arg(library);
        UmapMemory::configure(&mut command, args.local.0);
    }
    let patterns: Vec<&str> = patterns(way).iter().map(|pattern| pattern.name()).collect();
    command.args(["--patterns", &patterns.join(",")]);
    if !helpers.is_empty() {
        let pids: Vec<String> = helpers.iter().map(u32::to_string).collect();
        command.args(["--helpers", &pids.join(",")]);
    }
    Ok(command)
}

/// Returns the meaningful page orders of a way.
fn patterns(way: Way) -> &'static [Pattern] {
    match way {
        Way::VeniceShmOnePage => &[Pattern::Sequential],
        Way::VeniceShm
        | Way::VeniceShmLarge
        | Way::VeniceShmHuge
        | Way::VeniceUdp
        | Way::VeniceUdpLarge => &[Pattern::Random, Pattern::Sequential, Pattern::Runs],
        _ => &[Pattern::Random, Pattern::Sequential],
    }
}

/// Returns a generous limit: filling at a tenth of a slow disk's speed, and the cases at twice
/// their length.
fn time_limit(args: &FaultArgs) -> Duration {
    let pages = (args.size.0 / PAGE_BYTES) as f64;
    Duration::from_secs_f64(60.0 + pages / 2_000.0 + 12.0 * 2.0 * (args.seconds + 1.0))
}

fn read_report(folder: &TempDir, json: &PathBuf) -> Result<WorkerReport> {
    let text = std::fs::read_to_string(json).with_context(|| {
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        format!("the worker left no report; its log: {}", log.trim())
    })?;
    serde_json::from_str(&text).context("the worker's report cannot be read")
}
