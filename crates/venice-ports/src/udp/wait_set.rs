//! Sleeps on a few descriptors that stay the same, by an epoll. `poll` passes them to the kernel
//! each time, which costs a quarter of a short round trip.
//!
//! An epoll has its price too: each sender to a socket in one puts it on the ready list, under a
//! lock that all processors share, even if no thread sleeps. The socket is therefore in the epoll
//! only while its thread does sleep now and then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::PortError;

/// Number of batches without a sleep after which no sleep is expected soon.
const BATCHES_AWAKE: u32 = 32;

/// A socket, and other descriptors, to wait for together.
#[derive(Debug)]
pub(super) struct WaitSet {
    epoll: OwnedFd,
    /// True if the socket is in the epoll.
    has_socket: bool,
    /// Batches received since the last sleep.
    batches: u32,
}

impl WaitSet {
    /// Makes a set that waits until any of `others` can be read, or the socket of
    /// [`WaitSet::sleep`].
    pub(super) fn new(others: &[BorrowedFd<'_>]) -> Result<Self, PortError> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).map_err(PortError::at("making an epoll"))?;
        for fd in others {
            add(&epoll, *fd).map_err(PortError::at("adding to an epoll"))?;
        }
        Ok(Self { epoll, has_socket: false, batches: 0 })
    }

    /// Sleeps until `socket`, always the same, or one of the others can be read. An interrupted
    /// sleep is not an error.
    pub(super) fn sleep(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        self.batches = 0;
        if !self.has_socket {
            add(&self.epoll, socket)?;
            self.has_socket = true;
        }
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 1];
        match epoll::wait(&self.epoll, &mut events[..], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Records a batch from `socket`.
    #[inline]
    pub(super) fn note_batch(&mut self, socket: BorrowedFd<'_>) {
        self.batches = self.batches.saturating_add(1);
        if self.has_socket && self.batches >= BATCHES_AWAKE {
            self.has_socket = epoll::delete(&self.epoll, socket).is_err();
        }
    }

    /// Moves the descriptor to a number of at least `lowest`.
    pub(super) fn keep_fd_above(&mut self, lowest: i32) -> Result<(), PortError> {
        self.epoll = rustix::io::fcntl_dupfd_cloexec(&self.epoll, lowest)
            .map_err(PortError::at("moving a descriptor"))?;
        Ok(())
    }
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    epoll::add(epoll, fd, EventData::new_u64(0), EventFlags::IN)
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

    use super::*;

    /// The next datagram ends the sleep after any number of batches, and so do the other
    /// descriptors.
    #[test]
    fn wakes_after_many_busy_batches() {
        let [socket, sender] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let other = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut set = WaitSet::new(&[other.as_fd()]).unwrap();
        for _ in 0..3 {
            let to = socket.local_addr().unwrap();
            let sending = sender.try_clone().unwrap();
            let later = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                sending.send_to(&[1], to).unwrap();
            });
            set.sleep(socket.as_fd()).unwrap();
            assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 1);
            later.join().unwrap();
            for _ in 0..2 * BATCHES_AWAKE {
                set.note_batch(socket.as_fd());
            }
            sender.send_to(&[1], to).unwrap();
            let mut ready = [PollFd::new(&set, PollFlags::IN)];
            assert_eq!(
                poll(&mut ready, Some(&Default::default())),
                Ok(0),
                "the socket is not in the epoll"
            );
            set.sleep(socket.as_fd()).unwrap();
            socket.recv(&mut [0; 8]).unwrap();
        }
        rustix::io::write(&other, &1u64.to_ne_bytes()).unwrap();
        set.sleep(socket.as_fd()).unwrap();
    }
}
