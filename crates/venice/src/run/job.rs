//! Job control: `venice run` stops with its program, as a shell expects of a job, and its leases are
//! renewed meanwhile.
//!
//! A stopped process renews nothing, and its grants would end a lease later. So before it stops it
//! starts a stand-in, `venice renew-leases`, which reads the leases from a pipe and renews them
//! until the run goes on and kills it, or until the pipe closes because the run was killed.

use std::io::{BufRead, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use venice_cli::terminal::remark;
use venice_recipient::runs::state_of;
use venice_recipient::{Holding, LeaseList};

/// Interval between two checks of the run and its program.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Checks in a row that find the run stopped and its program not: a shell continues both, one after
/// the other.
const CHECKS: u32 = 3;

/// The stand-in of a stopped run. Dropping it ends it.
pub struct StandIn(std::process::Child);

impl StandIn {
    /// Starts one for the leases of `holding`. `None`, with a warning: it cannot be started, and the
    /// run must not stop for longer than a lease.
    pub fn start(holding: &Holding, program: u32) -> Option<StandIn> {
        let started = try_start(&holding.lease_list(), program);
        started
            .inspect_err(|error| {
                remark(format!(
                    "venice: {error:#}: the borrowed memory is lost if this job stays stopped for \
                     longer than its lease"
                ));
            })
            .ok()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // It may wait for a donor that does not answer. One that has ended needs no signal.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn try_start(leases: &LeaseList, program: u32) -> anyhow::Result<StandIn> {
    let venice = std::env::current_exe().context("finding the venice program itself")?;
    let mut command = Command::new(venice);
    command.args(["renew-leases", "--run", &std::process::id().to_string()]);
    command.args(["--program", &program.to_string()]);
    // Out of reach of the signals that the terminal sends to the job.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut process = command.spawn().context("starting `venice renew-leases`")?;
    let pipe = process.stdin.as_mut().expect("it is piped");
    let mut text = serde_json::to_vec(leases).context("writing the leases")?;
    text.push(b'\n');
    let written = pipe.write_all(&text).context("passing the leases on");
    let stand_in = StandIn(process);
    written.map(|()| stand_in)
}

/// `venice renew-leases`
#[derive(Args, Debug)]
pub struct StandInArgs {
    /// Process id of the stopped run
    #[arg(long, value_name = "PID")]
    run: u32,
    /// Process id of its program
    #[arg(long, value_name = "PID")]
    program: u32,
}

/// Renews the leases that come on standard input, until it is closed.
pub fn execute(args: &StandInArgs) -> anyhow::Result<i32> {
    let mut input = std::io::BufReader::new(std::io::stdin());
    let mut text = String::new();
    input.read_line(&mut text).context("reading the leases")?;
    let leases: LeaseList = serde_json::from_str(&text).context("reading the leases")?;
    let is_over = Arc::new(AtomicBool::new(false));
    let closed = is_over.clone();
    std::thread::spawn(move || {
        let _ = input.read_to_end(&mut Vec::new());
        closed.store(true, Ordering::Release);
    });
    let mut left_behind = 0;
    leases.renew_until(LOOK_EVERY, || {
        left_behind = if has_left_behind(args) { left_behind + 1 } else { 0 };
        if left_behind == CHECKS {
            continue_run(args.run);
        }
        is_over.load(Ordering::Acquire)
    })?;
    Ok(0)
}

/// True if the program goes on, or has ended, and the run is still stopped: somebody has continued
/// or killed the program alone.
fn has_left_behind(args: &StandInArgs) -> bool {
    state_of(args.run) == Some('T') && !matches!(state_of(args.program), Some('T' | 't'))
}

fn continue_run(run: u32) {
    let parent = rustix::process::getppid();
    if let Some(run) = Pid::from_raw(run as i32).filter(|run| parent == Some(*run)) {
        // A run that has been killed meanwhile needs no signal.
        let _ = kill_process(run, Signal::CONT);
    }
}
