//! The keeper: a process that holds a descriptor of each user's userfaultfd.
//!
//! When the last descriptor of a userfaultfd closes, the kernel serves its mappings: far pages read
//! as zeros. A process with a pager holds its own descriptor, and ends when its supervisor dies. A
//! child made by a bare `clone` holds none. So the keeper, which outlives the supervisor, holds one
//! for every user: then threads wait for ever, instead of going on with wrong bytes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::super::sys::{self, PollFd, nr};
use super::super::thread;
use super::super::uffd::Uffd;
use crate::paged::attach;

/// Most users that it holds descriptors of.
const MOST: usize = 4096;
/// Interval between two looks for users that have ended, in milliseconds.
const LOOK_EVERY_MS: i32 = 500;

/// The keeper of a run; it ends after this is dropped, once no user is left.
#[derive(Debug)]
pub struct Keeper(OwnedFd);

impl Keeper {
    /// Starts the process.
    ///
    /// # Errors
    /// The kernel's: no descriptors, no processes.
    pub fn start() -> Result<Keeper, Errno> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (here, there) = rustix::net::socketpair(kind.0, kind.1, kind.2, None)?;
        let mask = sys::block_signals();
        // No signal at its end: this process waits for its program alone.
        // SAFETY: the child allocates nothing and takes no lock; it has a copy of this stack.
        let forked = unsafe { sys::syscall(nr::CLONE, [0; 6]) };
        if forked == Ok(0) {
            keep(there.as_raw_fd());
        }
        sys::set_signal_mask(mask);
        forked.map_err(|errno| Errno::from_raw_os_error(errno.0))?;
        Ok(Keeper(here))
    }

    /// Has it hold a descriptor.
    pub fn hold(&self, uffd: BorrowedFd<'_>) {
        // If somebody has killed it, the run goes on without.
        let _ = attach::send(self.0.as_fd(), b"K", &[uffd]);
    }
}

/// The body of the process. It has this one descriptor, and uses nothing of its parent's.
fn keep(socket: i32) -> ! {
    if thread::keep_only(socket).is_err() {
        sys::exit(1);
    }
    let mut users = [-1; MOST];
    let mut is_alone = false;
    loop {
        let listens = if is_alone { -1 } else { socket };
        let mut wait = [PollFd { fd: listens, events: sys::POLLIN, revents: 0 }];
        if sys::poll(&mut wait, LOOK_EVERY_MS) > 0 {
            match take(socket) {
                Some(fd) => put(&mut users, fd),
                None => is_alone = true,
            }
            if !is_alone {
                continue;
            }
        }
        for user in users.iter_mut().filter(|fd| **fd >= 0) {
            if !(Uffd { fd: *user }).serves_a_process() {
                sys::close(*user);
                *user = -1;
            }
        }
        if is_alone && users.iter().all(|fd| *fd < 0) {
            sys::exit(0);
        }
    }
}

/// Keeps a descriptor; one more than there is room for stays open too, until the process ends.
fn put(users: &mut [i32], fd: i32) {
    if let Some(free) = users.iter_mut().find(|it| **it < 0) {
        *free = fd;
    }
}

/// Takes the descriptor that has come; `None`: the supervisor is gone.
fn take(socket: i32) -> Option<i32> {
    // SAFETY: open as long as the process lives.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let (_, [fd, _]) = attach::receive(socket, &mut [0; 1]).ok()?;
    fd.map(IntoRawFd::into_raw_fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    #[test]
    fn keeper_stays_with_users() {
        let Ok(uffd) = Uffd::open_shared(-1) else {
            eprintln!("SKIPPED keeper_stays_with_users: no userfaultfd");
            return;
        };
        // SAFETY: opened above, and owned by nothing else.
        let uffd = unsafe { OwnedFd::from_raw_fd(uffd.fd) };
        let keeper = Keeper::start().unwrap();
        keeper.hold(uffd.as_fd());
        drop(uffd);
        // Its end of the socket closes when it ends, not before: this process is its user.
        let mut wait = [PollFd { fd: keeper.0.as_raw_fd(), events: sys::POLLIN, revents: 0 }];
        assert_eq!(sys::poll(&mut wait, 2 * LOOK_EVERY_MS), 0);
    }
}
