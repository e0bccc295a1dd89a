//! `venice swap attach`: starts a device's server and waits until the kernel swaps to the device.

use std::num::NonZeroU64;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::AttachArgs;
use super::control::{Answer, Question, ask};
use super::plan::{self, Plan, Reclaim, Size, Waits};
use super::status::Status;
use crate::place;
use crate::rack::{self, RunDir};
use crate::waiting::{self, Signals};
use venice_cli::failure::Usage;
use venice_cli::terminal;

/// Timeout for a server to borrow and set up its device; donors zero the memory they lend.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Timeout for ending a server that was not ready.
const ENDED_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// `venice swap attach`
pub fn execute(args: &AttachArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    plan::check_size(args.size).map_err(Usage)?;
    venice_swap::require_root()?;
    let port = args.port.map_or_else(rack::default_port, Ok)?;
    let dir = RunDir::locate()?;
    let wait_ms = args.wait.map_or(0, |wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    let name = args.name.clone().unwrap_or_else(|| free_name(&dir));
    let plan = Plan {
        purpose: format!("swap device {name}"),
        name,
        size: Size::Exactly(args.size.0),
        monitor: rack::monitor_address(monitor)?,
        port,
        donors: args.donor.clone(),
        placement: args.placement,
        bandwidth_bps: args.bandwidth.map_or(0, NonZeroU64::get),
        waiting: Waits { wait_ms, rack_priority: args.rack_priority, preempt: args.preempt },
        copies: args.copies,
        reclaim_to: args.reclaim_to.clone().unwrap_or_else(Reclaim::by_default),
        node: args.node.clone(),
        queues: args.queues.unwrap_or_else(Plan::default_queues),
        priority: args.priority,
        device: args.device,
        owner_pid: None,
        user: None,
    };
    if args.dry_run {
        return place::show(&plan.access(), &plan.spec(), (port, plan.node.as_deref()), args.json);
    }
    let status = attach(&dir, &plan)?;
    let copies = match status.copies.copies {
        1 => String::new(),
        copies => format!(", {copies} copies"),
    };
    terminal::say(format!(
        "{}: {} from {} on {}{copies}",
        status.name,
        terminal::bytes(status.size_bytes),
        status.donors.join(", "),
        status.device.display()
    ))?;
    warn_of_one_copy(&status);
    warn_of_gaps(&status);
    Ok(0)
}

/// Warns that a dying node takes pages along, unless a single copy was requested.
pub fn warn_of_one_copy(status: &Status) {
    if status.is_short {
        let unusable = in_words(&status.unusable_donors);
        terminal::remark(format!(
            "venice: the rack, or your quota, has no room for two copies on different \
             nodes{unusable}: a node that dies takes some of the swapped memory along (--copies 1 \
             silences this)"
        ));
    }
}

/// Formats the reasons why nodes could not be asked, to stand in a sentence.
pub fn in_words(unusable: &[String]) -> String {
    match unusable {
        [] => String::new(),
        reasons => format!(" ({})", reasons.join("; ")),
    }
}

/// Warns of missing protections, for the case that the whole machine runs out of memory.
pub fn warn_of_gaps(status: &Status) {
    if !status.gaps.is_empty() {
        let gaps = status.gaps.join("; ");
        terminal::remark(format!(
            "venice: missing privileges: {gaps}: keep programs in memory cgroups, so that the machine as \
             a whole does not run out of memory"
        ));
    }
}

fn free_name(dir: &RunDir) -> String {
    let taken = plan::names(dir);
    let mut candidates = (0..).map(|number| format!("swap{number}"));
    candidates.find(|name| !taken.contains(name)).expect("there are more numbers than devices")
}

/// Starts the server of `plan`'s device and waits until the device is in use. A signal that cancels the
/// wait in the queue then ends this process.
pub fn attach(dir: &RunDir, plan: &Plan) -> anyhow::Result<Status> {
    let waits = plan.waiting.wait_ms > 0;
    let signals = waits.then(Signals::catch).transpose()?;
    let caught = || signals.as_ref().and_then(Signals::caught);
    let attached = attach_until(dir, plan, &|| caught().is_some());
    if let (Err(_), Some(signal)) = (&attached, caught()) {
        waiting::end_by(signal);
    }
    attached
}

/// Starts the server of `plan`'s device and waits until the device is in use, or cancels it once
/// `is_over` is true.
pub fn attach_until(
    dir: &RunDir,
    plan: &Plan,
    is_over: &dyn Fn() -> bool,
) -> anyhow::Result<Status> {
    dir.create()?;
    let process = plan.process_name();
    if dir.process_dir(&process).exists() {
        let name = &plan.name;
        bail!("a swap device {name} exists already: see `venice swap list`");
    }
    dir.create_process_dir(&process)?;
    let attached = start(dir, plan, &process, is_over);
    if attached.is_err() {
        // The error message already quotes its log.
        let _ = dir.remove_processes(&[process]);
    }
    attached
}

fn start(
    dir: &RunDir,
    plan: &Plan,
    process: &str,
    is_over: &dyn Fn() -> bool,
) -> anyhow::Result<Status> {
    plan.save(dir)?;
    let folder = dir.process_dir(process);
    let words = ["swap", "serve", "--folder", &folder.display().to_string()].map(str::to_owned);
    let mut server = rack::spawn(dir, process, &words)?;
    let outcome = wait_ready(dir, plan, process, &mut server, is_over);
    if outcome.is_err() {
        let _ = server.kill();
        let _ = server.wait();
        // The reason why it did not start comes first.
        if let Err(error) = venice_swap::clear_after(server.id()) {
            let error = anyhow::Error::from(error);
            terminal::remark(format!("venice: cannot clean up after its server: {error:#}"));
        }
    }
    outcome
}

/// Reports that a request may wait in the rack's queue.
pub fn tell_of_queue(name: &str, wait: Duration) {
    if !wait.is_zero() {
        terminal::remark(format!(
            "venice: {name} waits in the queue while there is no room, {} at most (`venice queue`; Ctrl-C \
             cancels)",
            terminal::seconds(wait.as_secs_f64())
        ));
    }
}

fn wait_ready(
    dir: &RunDir,
    plan: &Plan,
    process: &str,
    server: &mut Child,
    is_over: &dyn Fn() -> bool,
) -> anyhow::Result<Status> {
    let folder = dir.process_dir(process);
    let wait = plan.spec().waiting.at_most;
    tell_of_queue(&plan.name, wait);
    let deadline = Instant::now().checked_add(READY_WITHIN.saturating_add(wait));
    loop {
        // The server listens once the kernel swaps to its device.
        if let Some(Answer::Status(status)) = ask(&folder, Question::Status)? {
            return Ok(*status);
        }
        if let Some(status) = server.try_wait().context("waiting for the server")? {
            let why = rack::last_error(dir, process);
            let why = why.unwrap_or_else(|| format!("its server ended: {status}"));
            bail!("{}: {why}", plan.name);
        }
        if is_over() {
            end(server);
            bail!("{}: cancelled", plan.name);
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            bail!("{} was not ready within {} s", plan.name, READY_WITHIN.as_secs());
        }
        std::thread::sleep(POLL);
    }
}

/// Makes a waiting server cancel its request and end.
fn end(server: &mut Child) {
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::TERM);
    }
    let until = Instant::now() + ENDED_WITHIN;
    while matches!(server.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(POLL);
    }
    let _ = server.kill();
    let _ = server.wait();
}
