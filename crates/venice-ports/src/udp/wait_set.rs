//! Sleeping on a few descriptors that stay the same: an epoll, which the kernel need not be told
//! of them each time, as `poll` must be. That is a quarter of a short round trip.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::PortError;

/// Descriptors to wait for together.
#[derive(Debug)]
pub(super) struct WaitSet {
    epoll: OwnedFd,
}

impl WaitSet {
    /// Waits until any of `fds` can be read.
    pub(super) fn new(fds: &[BorrowedFd<'_>]) -> Result<Self, PortError> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).map_err(PortError::at("making an epoll"))?;
        for fd in fds {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)
                .map_err(PortError::at("adding to an epoll"))?;
        }
        Ok(Self { epoll })
    }

    /// Sleeps until one of them can be read. An interrupted sleep is no error.
    pub(super) fn sleep(&self) -> rustix::io::Result<()> {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 1];
        match epoll::wait(&self.epoll, &mut events[..], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Moves the descriptor to a number of at least `lowest`.
    pub(super) fn keep_fd_above(&mut self, lowest: i32) -> Result<(), PortError> {
        self.epoll = rustix::io::fcntl_dupfd_cloexec(&self.epoll, lowest)
            .map_err(PortError::at("moving a descriptor"))?;
        Ok(())
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
