//! The recipient's end of the TCP connection that introduces queue pairs.
//!
//! It makes bare system calls: a pager's thread makes such connections in the middle of a program,
//! and may not take memory from the C library.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

use super::VerbsError;
use super::keep_alive::enable_keep_alive;
use crate::monotonic_ns;

/// A connection whose calls share one deadline, set when it was made.
#[derive(Debug)]
pub(super) struct SideChannel {
    fd: OwnedFd,
    address: SocketAddr,
    until_ns: u64,
}

impl SideChannel {
    /// Connects. The descriptor is at or above `lowest_fd` if there is room, and the whole exchange
    /// must end within `limit_ns`.
    pub(super) fn connect(
        address: SocketAddr,
        limit_ns: u64,
        lowest_fd: RawFd,
    ) -> Result<Self, VerbsError> {
        let failed = |errno: Errno| side_channel(address, "connecting to the donor", errno);
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
        let fd = above(fd.map_err(failed)?, lowest_fd);
        let channel = Self { fd, address, until_ns: monotonic_ns().saturating_add(limit_ns) };
        match rustix::net::connect(&channel.fd, &address) {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                channel.wait(PollFlags::OUT).map_err(failed)?;
                sockopt::socket_error(&channel.fd).and_then(|outcome| outcome).map_err(failed)?;
            }
            Err(errno) => return Err(failed(errno)),
        }
        enable_keep_alive(&channel.fd);
        Ok(channel)
    }

    /// Returns the address of this machine on this connection.
    pub(super) fn local_ip(&self) -> Result<IpAddr, VerbsError> {
        let failed = |errno| side_channel(self.address, "reading its local address", errno);
        let local = rustix::net::getsockname(&self.fd).map_err(failed)?;
        let local = SocketAddr::try_from(local).map_err(failed)?;
        Ok(local.ip())
    }

    /// Sends all of `bytes`.
    pub(super) fn send(&self, mut bytes: &[u8]) -> Result<(), VerbsError> {
        let failed = |errno| side_channel(self.address, "requesting a grant", errno);
        while !bytes.is_empty() {
            match rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(len) => bytes = &bytes[len..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT).map_err(failed)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    /// Receives exactly `bytes`, waiting as necessary.
    pub(super) fn receive(&self, mut bytes: &mut [u8]) -> Result<(), VerbsError> {
        let failed = |errno| side_channel(self.address, "waiting for the donor's answer", errno);
        while !bytes.is_empty() {
            match rustix::io::read(&self.fd, &mut *bytes) {
                Ok(0) => return Err(failed(Errno::CONNRESET)),
                Ok(len) => bytes = &mut bytes[len..],
                Err(Errno::AGAIN) => self.wait(PollFlags::IN).map_err(failed)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    /// Returns the address of the other end.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the connection's descriptor, which does not block.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    fn wait(&self, for_what: PollFlags) -> Result<(), Errno> {
        loop {
            let left_ns = self.until_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                return Err(Errno::TIMEDOUT);
            }
            let left = Timespec {
                tv_sec: (left_ns / 1_000_000_000) as i64,
                tv_nsec: (left_ns % 1_000_000_000) as i64,
            };
            match poll(&mut [PollFd::new(&self.fd, for_what)], Some(&left)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }
}

fn side_channel(address: SocketAddr, step: &'static str, errno: Errno) -> VerbsError {
    VerbsError::SideChannel { address, step, source: errno.into() }
}

/// Moves the descriptor out of the range of other code's descriptors.
fn above(fd: OwnedFd, lowest_fd: RawFd) -> OwnedFd {
    if lowest_fd == 0 {
        return fd;
    }
    rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), lowest_fd).unwrap_or(fd)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::fd::IntoRawFd;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn exchanges_bytes_both_ways() {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 5];
            stream.read_exact(&mut asked).unwrap();
            asked.iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
        });
        let channel = SideChannel::connect(address, 20 * SECOND_NS, 700).unwrap();
        assert_eq!(channel.local_ip().unwrap(), address.ip());
        channel.send(b"hello").unwrap();
        let mut answer = [0; 5];
        channel.receive(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
        other.join().unwrap();
        assert!(channel.receive(&mut answer).unwrap_err().to_string().contains("answer"));
        assert!(channel.into_fd().into_raw_fd() >= 700);
    }

    #[test]
    fn receive_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let channel = SideChannel::connect(address, SECOND_NS / 20, 0).unwrap();
        let error = channel.receive(&mut [0]).unwrap_err();
        let VerbsError::SideChannel { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
        drop(listener);
        let refused = SideChannel::connect(address, SECOND_NS, 0).unwrap_err().to_string();
        assert!(refused.contains(&address.to_string()), "{refused}");
    }
}
