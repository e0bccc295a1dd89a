//! The start gate: the socket pair between a supervisor and the processes of one host. The order
//! goes in, reports come out, and its end tells a launcher that the supervisor died.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};

use crate::confinement::Confinement;
use crate::spec::LaunchOrder;

/// Longest message in bytes. A longer one is cut, and then refused as malformed.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// Report of a host's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Report {
    /// The init process exists, and waits. Comes with its pidfd.
    Init,
    /// The host has caches that are to be kept. Comes with their directory, from init.
    Cache,
    /// The host is confined as far as it will be; its service begins after this.
    Confined(Confinement),
    /// The host listens; with the port of each UDP endpoint, in the order of the spec.
    Started(Vec<u16>),
    /// The host cannot start.
    Failed(String),
    /// The host ended; from its init.
    Ended(HostExit),
}

/// Added to the number of a signal, it is an exit code.
const SIGNALLED: i32 = 128;

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostExit {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it.
    Signalled(i32),
}

impl HostExit {
    /// Returns the exit code of a process that ends because of this end, as shells have it.
    pub(crate) fn to_code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal) => SIGNALLED + signal,
        }
    }

    /// Returns the end that a launcher passed on as its exit code.
    pub(crate) fn from_code(code: i32) -> Self {
        let signal = code - SIGNALLED;
        if (1..=64).contains(&signal) { Self::Signalled(signal) } else { Self::Exited(code) }
    }

    pub(crate) fn from_status(status: rustix::process::WaitStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => Self::Signalled(signal),
            None => Self::Exited(status.exit_status().unwrap_or(-1)),
        }
    }
}

impl std::fmt::Display for HostExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Signalled(libc::SIGSYS) => f.write_str("SIGSYS: a system call no service makes"),
            Self::Signalled(libc::SIGXFSZ) => f.write_str("SIGXFSZ: a file beyond its limit"),
            Self::Signalled(signal) => f.write_str(&signal_name(*signal)),
        }
    }
}

/// Returns the name of a signal (signal(7)): `SIGBUS`; `signal 40` for one without a name.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        signal => return format!("signal {signal}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_name_their_signals() {
        let said = |signal| HostExit::Signalled(signal).to_string();
        assert_eq!(
            (said(7), said(4), said(8)),
            ("SIGBUS".into(), "SIGILL".into(), "SIGFPE".into())
        );
        assert_eq!(said(40), "signal 40");
        assert!(said(libc::SIGSYS).starts_with("SIGSYS: "));
    }
}

/// One end of a gate.
#[derive(Debug)]
pub(crate) struct Gate {
    socket: OwnedFd,
}

impl Gate {
    /// Makes both ends.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Self { socket: ours }, Self { socket: theirs }))
    }

    pub(crate) fn from_fd(socket: OwnedFd) -> Self {
        Self { socket }
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.socket
    }

    /// Sends the order, with the page for the usage.
    pub(crate) fn send_order(&self, order: &LaunchOrder, usage: BorrowedFd<'_>) -> io::Result<()> {
        self.send(order, &[usage])
    }

    /// Waits for the order, and the page for the usage.
    pub(crate) fn receive_order(&self) -> io::Result<(LaunchOrder, OwnedFd)> {
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        let (len, usage) = self.receive(&mut buffer, RecvFlags::empty())?;
        let order = serde_json::from_slice(&buffer[..len]).map_err(io::Error::other)?;
        Ok((order, usage.ok_or_else(|| io::Error::other("no page for the usage"))?))
    }

    /// Sends a report. Does not wait: a gate has room for all reports of a host.
    pub(crate) fn send_report(&self, report: &Report, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(report, fds)
    }

    fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(io::Error::other(format!("spec of {} bytes: too long", bytes.len())));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("more descriptors than one"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Returns the next report with its descriptor, without waiting: `WouldBlock` if none has come,
    /// `UnexpectedEof` at the end.
    pub(crate) fn try_receive_report(
        &self,
        buffer: &mut [u8],
    ) -> io::Result<(Report, Option<OwnedFd>)> {
        let (len, fd) = self.receive(buffer, RecvFlags::DONTWAIT)?;
        let report = serde_json::from_slice(&buffer[..len]).map_err(io::Error::other)?;
        Ok((report, fd))
    }

    fn receive(&self, buffer: &mut [u8], flags: RecvFlags) -> io::Result<(usize, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
                Err(Errno::INTR) => {}
                received => break received?,
            }
        };
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                fd = fds.next();
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((received.bytes, fd))
    }

    /// True if the other end is closed.
    pub(crate) fn is_abandoned(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&now)) {
            Ok(_) => fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
            Err(_) => true,
        }
    }
}

impl AsFd for Gate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
