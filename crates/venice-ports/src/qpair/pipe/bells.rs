//! The doorbell of a pipe. Its two halves and its pollers sleep on one socket: a sleeper that takes
//! the bells in wakes the others, because the bells may be for any of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::PortError;

/// Interval of checks for the end of the other side while no thread sleeps, in nanoseconds.
const LOOK_FOR_END_NS: u64 = 1_000_000;
/// Longest sleep of one of several threads in the same call, in nanoseconds.
const SHARED_SLEEP_NS: u64 = 1_000_000;
/// Bells taken in at once; the other side can ring faster than this side reads.
const BELLS_PER_LOOK: usize = 16;

/// A class of sleepers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleeper {
    Sender,
    Receiver,
    Pollers,
}

#[derive(Debug)]
pub(super) struct Bells {
    socket: OwnedFd,
    /// One for each class, and the number of its sleepers.
    kicks: [OwnedFd; 3],
    sleeping: [AtomicU32; 3],
    /// The socket and the pollers' kick, in one epoll.
    watch: OwnedFd,
    is_peer_gone: AtomicBool,
    look_for_end_ns: AtomicU64,
}

impl Bells {
    pub(super) fn new(socket: OwnedFd) -> Result<Self, PortError> {
        let kick = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(PortError::at("making an eventfd"))
        };
        let kicks = [kick()?, kick()?, kick()?];
        let watch =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(PortError::at("making an epoll"))?;
        for fd in [&socket, &kicks[Sleeper::Pollers as usize]] {
            epoll::add(&watch, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(PortError::at("watching a descriptor"))?;
        }
        Ok(Self {
            socket,
            kicks,
            sleeping: [const { AtomicU32::new(0) }; 3],
            watch,
            is_peer_gone: AtomicBool::new(false),
            look_for_end_ns: AtomicU64::new(0),
        })
    }

    /// Returns the descriptor for pollers.
    pub(super) fn watch(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    pub(super) fn is_peer_gone(&self) -> bool {
        self.is_peer_gone.load(Ordering::Acquire)
    }

    /// Wakes the other side.
    pub(super) fn ring(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // A full socket holds bells enough; a dead one is detected by its reader.
        while send(&self.socket, &[1], flags) == Err(Errno::INTR) {}
    }

    /// Announces a sleep. Look once more after this, before [`Bells::sleep`].
    pub(super) fn begin(&self, sleeper: Sleeper) {
        self.sleeping[sleeper as usize].fetch_add(1, Ordering::SeqCst);
    }

    /// Sleeps until a bell, a kick, or for `timeout_ns`.
    /// Returns true if there may be a kick.
    pub(super) fn sleep(&self, sleeper: Sleeper, timeout_ns: u64) -> bool {
        // One of several threads may take the kick of all.
        let is_alone = self.sleeping[sleeper as usize].load(Ordering::Relaxed) == 1;
        let timeout_ns = if is_alone { timeout_ns } else { timeout_ns.min(SHARED_SLEEP_NS) };
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        let kick = &self.kicks[sleeper as usize];
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(kick, PollFlags::IN)];
        // The result is irrelevant: the caller checks again.
        let _ = poll(&mut fds, Some(&timeout));
        !fds[1].revents().is_empty()
    }

    /// Ends a sleep, or a poller's wait: takes the bells in. A kick that comes after `has_kick` was
    /// found out ends the next sleep.
    pub(super) fn end(&self, sleeper: Sleeper, has_kick: bool) {
        self.sleeping[sleeper as usize].fetch_sub(1, Ordering::SeqCst);
        if has_kick {
            let _ = rustix::io::read(&self.kicks[sleeper as usize], &mut [0u8; 8]);
        }
        self.take_bells();
    }

    /// Looks for the end of the other side, if it is time; returns whether it did.
    pub(super) fn look_for_end(&self, now_ns: u64) -> bool {
        if now_ns < self.look_for_end_ns.load(Ordering::Relaxed) {
            return false;
        }
        self.look_for_end_ns.store(now_ns + LOOK_FOR_END_NS, Ordering::Relaxed);
        self.take_bells();
        true
    }

    fn take_bells(&self) {
        let mut bells = [0u8; 64];
        let mut any = false;
        for _ in 0..BELLS_PER_LOOK {
            match recv(&self.socket, &mut bells, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    any |= !self.is_peer_gone.swap(true, Ordering::AcqRel);
                    break;
                }
                Ok(_) => any = true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    any |= !self.is_peer_gone.swap(true, Ordering::AcqRel);
                    break;
                }
            }
        }
        if any {
            for sleeper in [Sleeper::Sender, Sleeper::Receiver, Sleeper::Pollers] {
                self.kick(sleeper);
            }
        }
    }

    /// Wakes the sleepers of a class on this side.
    pub(super) fn kick(&self, sleeper: Sleeper) {
        if self.sleeping[sleeper as usize].load(Ordering::SeqCst) > 0 {
            // A write fails only when the counter is full; no thread sleeps then.
            let _ = rustix::io::write(&self.kicks[sleeper as usize], &1u64.to_ne_bytes());
        }
    }
}
