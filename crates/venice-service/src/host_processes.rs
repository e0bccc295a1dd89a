//! The processes of one host, as a supervisor holds them: pidfds, gate and log.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use venice_ports::monotonic_ns;
use venice_wire::GrantId;

use crate::gate::{Gate, HostExit};
use crate::log_budget::LogBudget;

/// Bytes of standard error read from one host at a time; its surplus waits in the pipe.
const LOG_READ_BYTES: usize = 8192;
/// Time that a launcher has to end after its init, in nanoseconds; then it is killed.
const LAUNCHER_NS: u64 = 200_000_000;
/// Bytes that a pipe holds (pipe(7)).
const LOG_PIPE_BYTES: usize = 64 << 10;
/// Pause before standard error of a host is read again, in nanoseconds: a flood costs the supervisor
/// no more than this.
const LOG_PAUSE_NS: u64 = 20_000_000;

/// The processes of one host, as the supervisor holds them.
#[derive(Debug)]
pub(crate) struct HostProcesses {
    launcher: Child,
    pidfd: OwnedFd,
    pub launcher_exit: Option<HostExit>,
    pub init: Option<OwnedFd>,
    /// Time at which init was seen to be gone.
    init_gone_ns: Option<u64>,
    kills: u32,
    pub gate: Option<Gate>,
    stderr: Option<ChildStderr>,
    pub log: LogBudget,
    log_after_ns: u64,
}

impl HostProcesses {
    /// Takes a launcher that was started, with its pidfd and the gate to it.
    pub(crate) fn new(
        mut launcher: Child,
        pidfd: OwnedFd,
        gate: Gate,
        log_bytes_per_s: u32,
    ) -> io::Result<Self> {
        let stderr = launcher.stderr.take();
        if let Some(stderr) = &stderr {
            rustix::io::ioctl_fionbio(stderr, true)?;
        }
        let now_ns = monotonic_ns();
        Ok(Self {
            launcher,
            pidfd,
            launcher_exit: None,
            init: None,
            init_gone_ns: None,
            kills: 0,
            gate: Some(gate),
            stderr,
            log: LogBudget::new(now_ns, log_bytes_per_s),
            log_after_ns: now_ns,
        })
    }

    /// Kills init, with which every process of its namespace ends; the launcher reaps it and ends
    /// by itself. One that does not, because someone stopped it, is killed at the next call.
    pub(crate) fn kill(&mut self) {
        let init = self.init.as_ref().filter(|_| self.init_gone_ns.is_none());
        let launcher = (init.is_none() || self.kills > 0).then_some(&self.pidfd);
        self.kills += 1;
        for pidfd in init.into_iter().chain(launcher) {
            // Either may have ended meanwhile.
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    pub(crate) fn look_for_ends(&mut self) {
        if self.launcher_exit.is_none() {
            self.launcher_exit = match self.launcher.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(match (status.code(), status.signal()) {
                    (Some(code), _) => HostExit::from_code(code),
                    (None, signal) => HostExit::Signalled(signal.unwrap_or(0)),
                }),
                // Reaped by other code of this process, which keeps the exit code.
                Err(_) => Some(HostExit::Exited(-1)),
            };
        }
        // A pidfd is readable once the process is gone, and an init once its namespace is empty.
        if self.init.as_ref().is_some_and(|init| is_readable(init.as_fd())) {
            self.init_gone_ns.get_or_insert_with(monotonic_ns);
        }
    }

    /// True if the launcher should have ended after its init.
    pub(crate) fn is_launcher_late(&self, now_ns: u64) -> bool {
        self.init_gone_ns.is_some_and(|at_ns| at_ns + LAUNCHER_NS <= now_ns)
    }

    /// Returns the launcher's exit once no process is left.
    pub(crate) fn gone(&self) -> Option<HostExit> {
        let is_init_gone = self.init_gone_ns.is_some() || self.init.is_none();
        self.launcher_exit.filter(|_| is_init_gone)
    }

    pub(crate) fn read_log(&mut self, grant: GrantId, now_ns: u64) {
        if now_ns < self.log_after_ns {
            return;
        }
        let Some(stderr) = &mut self.stderr else { return };
        let mut bytes = [0; LOG_READ_BYTES];
        let lines = match stderr.read(&mut bytes) {
            Ok(0) => {
                self.stderr = None;
                self.log.handle_end().into_iter().collect()
            }
            Ok(len) => self.log.handle_bytes(monotonic_ns(), &bytes[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => {
                self.stderr = None;
                return;
            }
        };
        self.log_after_ns = monotonic_ns() + LOG_PAUSE_NS;
        for line in lines {
            if line.dropped > 0 {
                tracing::warn!(grant = grant.0, bytes = line.dropped, "dropped log of a host");
            }
            tracing::info!(target: "venice_service::host", grant = grant.0, "{}", line.text);
        }
    }

    /// Takes all that is left of standard error.
    pub(crate) fn finish_log(&mut self, grant: GrantId) {
        for _ in 0..LOG_PIPE_BYTES / LOG_READ_BYTES {
            self.read_log(grant, u64::MAX);
        }
        self.log.handle_end();
    }

    /// Returns the descriptors to sleep on; brings `until_ns` forward to the next look at the log.
    pub(crate) fn watched(
        &self,
        now_ns: u64,
        until_ns: &mut u64,
    ) -> impl Iterator<Item = PollFd<'_>> {
        let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let launcher = self.launcher_exit.is_none().then(|| self.pidfd.as_fd());
        let init = self.init.as_ref().filter(|_| self.init_gone_ns.is_none()).map(AsFd::as_fd);
        let gate = self.gate.as_ref().map(AsFd::as_fd);
        let late_ns = self.init_gone_ns.map(|at_ns| at_ns + LAUNCHER_NS);
        if let Some(late_ns) = late_ns.filter(|late_ns| *late_ns > now_ns) {
            *until_ns = (*until_ns).min(late_ns);
        }
        let may_read = now_ns >= self.log_after_ns;
        if !may_read && self.stderr.is_some() {
            *until_ns = (*until_ns).min(self.log_after_ns);
        }
        let stderr = self.stderr.as_ref().filter(|_| may_read).map(AsFd::as_fd);
        [launcher, init, gate, stderr].into_iter().flatten().map(watch)
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}
