//! Sets up a ring between two processes: one listens on a unix socket, the other connects.
//!
//! The listener sends first: it makes the memory and passes it over the new connection. No client
//! can make it wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with, send};

use super::memory;
use super::port::{RingConfig, RingPort};
use crate::PortError;
use crate::shm::client::{ANSWER_TIMEOUT, connect_to, parse_link, receive};
use crate::shm::listener::Listener;
use crate::shm::message::Reply;
use crate::shm::server::send_reply;

/// Listener that offers a ring to every process that connects to a unix socket. The mode of the
/// socket's file, 0660, is the access control; the file is removed on drop.
#[derive(Debug)]
pub struct RingListener {
    listener: Listener,
    config: RingConfig,
    is_pipe: bool,
}

impl RingListener {
    /// Listens on `path`. Replaces a socket that a dead process left behind.
    ///
    /// # Errors
    /// Fails if the path is too long, in use by another process, not a socket, or cannot be made.
    pub fn bind(path: &Path, config: RingConfig) -> Result<Self, PortError> {
        Ok(Self { listener: Listener::bind(path)?, config, is_pipe: false })
    }

    /// Offers rings for the records of a pipe from now on, of about `ring_bytes` each.
    pub(crate) fn offer_pipes(&mut self, ring_bytes: usize) {
        (self.config.ring_bytes, self.is_pipe) = (ring_bytes, true);
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Returns the descriptor to poll for input: a process has connected.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Returns the ring to the next process that has connected, if any. Does not wait.
    ///
    /// # Errors
    /// Fails if the system has no descriptor or memory left.
    pub fn try_accept(&self) -> Result<Option<RingPort>, PortError> {
        while let Some(socket) = self.accept_socket()? {
            if let Some(port) = self.offer(socket)? {
                return Ok(Some(port));
            }
        }
        Ok(None)
    }

    /// Returns the connection of the next process, if any, without a ring. Does not wait.
    pub(crate) fn accept_socket(&self) -> Result<Option<OwnedFd>, PortError> {
        loop {
            return match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => Ok(Some(socket)),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => Ok(None),
                Err(source) => Err(PortError::System { step: "accepting a connection", source }),
            };
        }
    }

    /// Makes a ring and offers it over a connection; `None` if that cannot take it.
    pub(crate) fn offer(&self, socket: OwnedFd) -> Result<Option<RingPort>, PortError> {
        let lines = memory::lines_for(self.config.ring_bytes);
        let memory = [memory::create(lines)?];
        let link = self.config.link.map(|link| link.to_string()).unwrap_or_default();
        let is_pipe = self.is_pipe;
        if !send_reply(socket.as_fd(), &Reply::Ring { lines, is_pipe, link }, &memory) {
            return Ok(None);
        }
        let [memory] = &memory;
        RingPort::new(socket, memory.as_fd(), lines, self.config.link, true).map(Some)
    }

    /// Returns the ring to the next process that connects within `timeout_ns`; `None` if none does.
    ///
    /// # Errors
    /// Same as [`RingListener::try_accept`].
    pub fn accept(&self, timeout_ns: u64) -> Result<Option<RingPort>, PortError> {
        let deadline_ns = crate::monotonic_ns().saturating_add(timeout_ns);
        loop {
            if let Some(port) = self.try_accept()? {
                return Ok(Some(port));
            }
            let left_ns = deadline_ns.saturating_sub(crate::monotonic_ns());
            if left_ns == 0 {
                return Ok(None);
            }
            let timeout = Timespec {
                tv_sec: (left_ns / 1_000_000_000) as i64,
                tv_nsec: (left_ns % 1_000_000_000) as i64,
            };
            match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(source) => {
                    return Err(PortError::System { step: "waiting for a connection", source });
                }
            }
        }
    }
}

/// Connects to the listener on `path` and takes the ring it offers, with the link that it emulates.
///
/// # Errors
/// Fails if no listener is there, it makes no offer within five seconds, or the offer is not a
/// valid ring.
pub fn connect_ring(path: &Path) -> Result<RingPort, PortError> {
    match take_offer(path, ANSWER_TIMEOUT, &[])? {
        (port, false) => Ok(port),
        (_, true) => Err(PortError::Protocol { what: "a pipe instead of a ring" }),
    }
}

/// Takes the ring that the listener on `path` offers within `timeout`; returns true with it if it
/// is for a pipe. Shows `admission` before, unless that is empty.
///
/// # Errors
/// Same as [`connect_ring`].
pub(crate) fn take_offer(
    path: &Path,
    timeout: Duration,
    admission: &[u8],
) -> Result<(RingPort, bool), PortError> {
    let socket = connect_to(path, timeout)?;
    if !admission.is_empty() {
        send(&socket, admission, SendFlags::NOSIGNAL).map_err(|errno| match errno {
            Errno::PIPE | Errno::CONNRESET => PortError::Closed,
            source => PortError::System { step: "asking for admission", source },
        })?;
    }
    let mut fds = Vec::with_capacity(1);
    let reply = receive(&socket, &mut fds)?;
    let (lines, is_pipe, link) = match reply {
        Reply::Ring { lines, is_pipe, link } => (lines, is_pipe, link),
        Reply::Refused { reason } => return Err(PortError::Refused { reason }),
        Reply::Slabs { .. } => {
            return Err(PortError::Protocol { what: "slabs instead of a ring offer" });
        }
    };
    let link = parse_link(&link)?;
    let [memory] = fds.as_slice() else {
        return Err(PortError::Protocol { what: "ring offer without memory" });
    };
    Ok((RingPort::new(socket, memory.as_fd(), lines, link, false)?, is_pipe))
}
