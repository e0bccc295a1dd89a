//! The inherited socket of a run: one end of a socket pair that every process of the run inherits,
//! through `fork` and `exec`.
//!
//! A path can be out of reach: a process that has changed its user may not search the directory of
//! the attach socket, and one that has changed its root or mount namespace does not see it. A
//! descriptor stays. To attach, a process makes a socket pair of its own and sends one end over it;
//! the supervisor learns from the kernel which process made it (`SO_PEERCRED`). The right
//! to attach is the possession of the socket: a stranger, also one of the same user, has none,
//! and a socket cannot be opened by its name in `/proc`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::attach::{receive, send};

/// The one message over it; the connection comes with it.
const CONNECTION: &[u8] = b"C";
/// Its number lies this far below the limit on descriptors: below the pager's own.
const BELOW_LIMIT: u64 = 64;
/// The highest limit that counts: beyond, the kernel's table of descriptors would grow.
const MOST_DESCRIPTORS: u64 = 1 << 16;
/// The lowest number that it gets.
const LOWEST_FD: u64 = 3;

/// Both ends, in the supervisor.
#[derive(Debug)]
pub struct InheritedSocket {
    supervisor: OwnedFd,
    program: OwnedFd,
}

impl InheritedSocket {
    /// Makes one for a program with this soft limit on descriptors.
    ///
    /// # Errors
    /// The kernel's: there are too many descriptors.
    pub fn new(descriptor_limit: u64) -> Result<InheritedSocket, Errno> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (supervisor, program) = socketpair(kind.0, kind.1, kind.2, None)?;
        let limit = descriptor_limit.min(MOST_DESCRIPTORS);
        let lowest = limit.saturating_sub(BELOW_LIMIT).max(LOWEST_FD);
        let program = rustix::io::fcntl_dupfd_cloexec(&program, lowest as RawFd)?;
        Ok(InheritedSocket { supervisor, program })
    }

    /// The end that the program inherits under the same number.
    pub fn program_end(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// The name of the program's end, for [`ProgramEnd::named`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn name(&self) -> Result<String, Errno> {
        let inode = rustix::fs::fstat(&self.program)?.st_ino;
        Ok(format!("{}:{inode}", self.program.as_raw_fd()))
    }

    /// Receives the connection of a process that attaches; to be called when it can be read.
    ///
    /// # Errors
    /// The kernel's; [`Errno::PROTO`] where the message is none of a process that attaches.
    pub fn accept(&self) -> Result<OwnedFd, Errno> {
        let mut text = [0u8; 2];
        match receive(self.supervisor.as_fd(), &mut text)? {
            (1, [Some(connection), None]) if text[0] == CONNECTION[0] => Ok(connection),
            _ => Err(Errno::PROTO),
        }
    }
}

impl AsFd for InheritedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.supervisor.as_fd()
    }
}

/// The end that a process has inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramEnd {
    fd: RawFd,
}

impl ProgramEnd {
    /// Returns the end with this [name](InheritedSocket::name). `None`: this process has closed it, and may
    /// have reused the number.
    pub fn named(name: &str) -> Option<ProgramEnd> {
        let (fd, inode) = name.split_once(':')?;
        let (fd, inode) = (fd.parse().ok().filter(|fd| *fd >= 0)?, inode.parse::<u64>().ok()?);
        // SAFETY: borrowed for this call only; the kernel refuses a number that is not open.
        let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
        let is_socket =
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket;
        (is_socket && stat.st_ino == inode).then_some(ProgramEnd { fd })
    }

    /// The descriptor, which is to stay open, across `exec` too.
    pub fn fd(self) -> RawFd {
        self.fd
    }

    /// Connects to the supervisor.
    ///
    /// # Errors
    /// The kernel's: `EPIPE` where the supervisor has ended.
    pub fn connect(self) -> Result<OwnedFd, Errno> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (here, there) = socketpair(kind.0, kind.1, kind.2, None)?;
        // SAFETY: open, as `named` found; the shim keeps the program from closing it.
        let socket = unsafe { BorrowedFd::borrow_raw(self.fd) };
        send(socket, CONNECTION, &[there.as_fd()])?;
        Ok(here)
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;
    use nix::sys::socket::sockopt::PeerCredentials;

    use super::*;

    #[test]
    fn reused_number_is_refused() {
        let socket = InheritedSocket::new(1024).unwrap();
        let name = socket.name().unwrap();
        assert_eq!(ProgramEnd::named(&name).unwrap().fd(), socket.program.as_raw_fd());
        for other in ["", "1", "-1:1", "x:1", "0:1", &format!("{name}0")] {
            assert_eq!(ProgramEnd::named(other), None, "{other}");
        }
        drop(socket);
        assert_eq!(ProgramEnd::named(&name), None);
    }

    #[test]
    fn number_is_below_limit() {
        for (limit, lowest) in [(1024, 960), (16, 3), (u64::MAX, (1 << 16) - 64)] {
            let Ok(socket) = InheritedSocket::new(limit) else {
                // The test's own limit is lower.
                assert_eq!(limit, u64::MAX);
                continue;
            };
            assert!(socket.program.as_raw_fd() >= lowest, "{limit}");
        }
    }

    #[test]
    fn connection_names_its_maker() {
        let socket = InheritedSocket::new(1024).unwrap();
        let end = ProgramEnd::named(&socket.name().unwrap()).unwrap();
        let _here = end.connect().unwrap();
        let connection = socket.accept().unwrap();
        let peer = getsockopt(&connection, PeerCredentials).unwrap();
        assert_eq!(peer.pid() as u32, std::process::id());
    }
}
