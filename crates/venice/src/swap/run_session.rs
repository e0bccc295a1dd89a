//! A run's session: this process's own, as root, or one of the swap helper.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Context;
use venice_swap::Gate;

use super::Status;
use super::helper::{self, HelperSession};
use super::session::{GroupState, Session, require_swap};
use super::wants::Wants;
use crate::rack::{self, RunDir};
use crate::run::Child;

/// A run's device and cgroup. Dropping it ends both.
pub enum RunSession {
    /// In this process.
    Own(Box<Session>),
    /// At the helper.
    Helper(Box<HelperSession>),
}

impl RunSession {
    /// Opens a session: attaches the device that `wants` describes.
    pub fn open(wants: &Wants) -> anyhow::Result<RunSession> {
        if !is_root() {
            return Ok(RunSession::Helper(Box::new(HelperSession::open(wants)?)));
        }
        require_swap()?;
        let pid = std::process::id();
        let port = wants.port.map_or_else(rack::default_port, Ok)?;
        let monitor = rack::monitor_address(wants.monitor.as_deref())?;
        let plan = wants.plan(format!("run-{pid}"), monitor, port, pid);
        let mut session = Session::open_here(RunDir::locate()?, &plan)?;
        session.limit_to(wants.local_bytes)?;
        Ok(RunSession::Own(Box::new(session)))
    }

    /// Returns the status of the device at its start.
    pub fn attached(&self) -> &Status {
        match self {
            RunSession::Own(session) => session.attached(),
            RunSession::Helper(session) => session.attached(),
        }
    }

    /// Starts the program in the cgroup.
    pub fn start(&self, program: &Path, command: &[OsString]) -> anyhow::Result<Child> {
        match self {
            RunSession::Own(session) => Child::start(session.command(program)?, program, command),
            RunSession::Helper(session) => {
                let (start, gate) = Gate::command(program)?;
                std::thread::scope(|scope| {
                    let admitted = scope.spawn(|| admit(session, gate));
                    let child = Child::start(start, program, command);
                    // Its reason comes first: the program does not start then.
                    admitted.join().expect("it does not panic").and(child)
                })
            }
        }
    }

    /// Returns the status of the device; that of its start, if nobody knows another.
    pub fn device(&self) -> Status {
        match self {
            RunSession::Own(session) => session.device(),
            RunSession::Helper(session) => {
                session.device().unwrap_or_else(|_| session.attached().clone())
            }
        }
    }

    /// Returns the state of the cgroup.
    pub fn group(&self) -> anyhow::Result<GroupState> {
        match self {
            RunSession::Own(session) => Ok(session.group()),
            RunSession::Helper(session) => session.group(),
        }
    }

    /// Changes the limit.
    ///
    /// # Errors
    /// The reason of a refusal, for users.
    pub fn limit(&self, local_bytes: u64) -> Result<(), String> {
        match self {
            RunSession::Own(session) => session.limit(local_bytes),
            RunSession::Helper(session) => {
                session.limit(local_bytes).map_err(|error| format!("{error:#}"))
            }
        }
    }
}

/// Has the process at the gate admitted, and opens it.
fn admit(session: &HelperSession, gate: Gate) -> anyhow::Result<()> {
    // Without a process the command has its own reason.
    if let Some(process) = gate.process().context("waiting for the program's process")? {
        session.admit(&process)?;
        gate.open();
    }
    Ok(())
}

/// True if this process does for itself what the helper does for users.
pub fn is_root() -> bool {
    venice_swap::require_root().is_ok()
}

/// Checks that this user can run programs on swap.
///
/// # Errors
/// The reason, for users.
pub fn check_user() -> anyhow::Result<()> {
    match is_root() {
        true => Ok(require_swap()?),
        false => helper::check().map(drop),
    }
}
