//! The messages between a run and its session: each a packet with a JSON text, a process's with its
//! descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use venice_sockets::Closings;

use super::super::Status;
use super::super::session::GroupState;
use super::super::wants::Wants;

/// Longest message, in bytes; the kernel's own bound on packets is higher.
const LONGEST: usize = 128 << 10;
/// Time for a message to be taken.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// Most descriptors that the kernel puts into a message (`SCM_MAX_FD`). With room for fewer it closes
/// the others in the thread that receives.
const MOST_FDS: usize = 253;
/// Most closings of received descriptors that have not ended.
const MOST_CLOSINGS: usize = 16;

/// A question of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Question {
    /// Asks whether programs can run on swap here.
    Check,
    /// Asks for a device. The first question of a run.
    Open(Box<Wants>),
    /// Asks to move the process whose descriptor comes with it into the run's cgroup. Once.
    Admit,
    /// Asks for the status of the device.
    Device,
    /// Asks for the state of the cgroup.
    Group,
    /// Asks for another limit of resident memory, in bytes.
    Limit(u64),
    /// Asks to end the run.
    Close,
}

/// An answer to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Programs can run on swap, with so many copies at least.
    Works {
        /// The copies.
        least_copies: u32,
    },
    /// The device, at its start or now.
    Device(Box<Status>),
    /// The state of the cgroup.
    Group(GroupState),
    /// It is done.
    Done,
    /// A refusal, with its reason.
    Refused(String),
}

/// An error of a channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The system's error.
    #[error("{0}")]
    System(#[from] Errno),
    /// Nothing came in time.
    #[error("no message came in time")]
    Silent,
    /// The message is too long.
    #[error("the message is longer than {LONGEST} bytes")]
    TooLong,
    /// Descriptors that came do not close.
    #[error("{MOST_CLOSINGS} messages came with descriptors whose closing does not end")]
    Unclosed,
    /// The message is invalid.
    #[error("invalid message: {0}: is it of another version of Venice?")]
    Invalid(#[from] serde_json::Error),
}

/// A connection between a run and its session.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    closings: Closings,
}

impl Channel {
    /// Connects to the helper at `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(path: &Path) -> io::Result<Channel> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Channel::of(socket))
    }

    /// Uses a connected socket.
    pub fn of(socket: OwnedFd) -> Channel {
        // Where it is refused, a peer that takes nothing is waited for.
        let _ = set_socket_timeout(&socket, Timeout::Send, Some(SEND_WITHIN));
        Channel { socket, closings: Closings::default() }
    }

    /// Sends a message, with a descriptor if it has one.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn send<M: Serialize>(
        &self,
        message: &M,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ChannelError> {
        let text = serde_json::to_vec(message)?;
        if text.len() > LONGEST {
            return Err(ChannelError::TooLong);
        }
        let fds: Vec<_> = fd.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let from = [IoSlice::new(&text)];
        retry_on_intr(|| sendmsg(&self.socket, &from, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Waits for a message, at most for `patience`; `None`: the peer has gone. A descriptor that comes
    /// with it is to be [closed](Channel::close) by this channel; all but the first are closed already.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn receive<M: DeserializeOwned>(
        &self,
        patience: Option<Duration>,
    ) -> Result<Option<(M, Option<OwnedFd>)>, ChannelError> {
        if self.closings.unfinished() >= MOST_CLOSINGS {
            return Err(ChannelError::Unclosed);
        }
        set_socket_timeout(&self.socket, Timeout::Recv, patience)?;
        let mut text = vec![0; LONGEST + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut to = [IoSliceMut::new(&mut text)];
            recvmsg(&self.socket, &mut to, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            Err(Errno::AGAIN) => return Err(ChannelError::Silent),
            Err(Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let mut fds: Vec<OwnedFd> = fds.flatten().collect();
        let message = match received.bytes {
            0 => Ok(None),
            bytes if bytes > LONGEST || received.flags.contains(ReturnFlags::TRUNC) => {
                Err(ChannelError::TooLong)
            }
            bytes => serde_json::from_slice(&text[..bytes]).map(Some).map_err(ChannelError::from),
        };
        let has_one = !fds.is_empty() && matches!(message, Ok(Some(_)));
        let fd = has_one.then(|| fds.remove(0));
        self.close(fds);
        Ok(message?.map(|message| (message, fd)))
    }

    /// Closes descriptors that came, in a thread of its own: their sender may make that take long.
    pub fn close(&self, fds: impl IntoIterator<Item = OwnedFd>) {
        let fds: Vec<OwnedFd> = fds.into_iter().collect();
        if !fds.is_empty() {
            self.closings.close(fds);
        }
    }

    /// True if the peer has gone.
    pub fn has_ended(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap::wants;

    fn pair() -> (Channel, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (one, other) =
            rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        (Channel::of(one), other)
    }

    fn heard(channel: &Channel) -> Result<Option<Question>, ChannelError> {
        let heard = channel.receive(Some(Duration::from_secs(20)));
        heard.map(|heard| heard.map(|(question, _)| question))
    }

    #[test]
    fn messages_arrive_whole() {
        let (one, other) = pair();
        let other = Channel::of(other);
        let open = Question::Open(Box::new(wants::some()));
        one.send(&open, None).unwrap();
        one.send(&Question::Admit, Some(one.as_fd())).unwrap();
        assert_eq!(heard(&other).unwrap(), Some(open));
        let (question, fd) = other.receive::<Question>(None).unwrap().unwrap();
        assert_eq!((question, fd.is_some()), (Question::Admit, true));
        assert!(!other.has_ended());
        drop((one, fd));
        assert!(heard(&other).unwrap().is_none() && other.has_ended());
    }

    #[test]
    fn wrong_messages_are_errors() {
        let (channel, peer) = pair();
        let send = |bytes: &[u8]| {
            rustix::net::send(&peer, bytes, SendFlags::empty()).unwrap();
        };
        let silent = channel.receive::<Question>(Some(Duration::from_millis(1)));
        assert!(matches!(silent, Err(ChannelError::Silent)));
        send(&vec![b' '; LONGEST + 1]);
        assert!(matches!(heard(&channel), Err(ChannelError::TooLong)));
        for nonsense in [&b"\xff\xfe"[..], b"{}", b"\"Fly\"", b"{\"Limit\":-1}", &[b'['; 60_000]] {
            send(nonsense);
            assert!(matches!(heard(&channel), Err(ChannelError::Invalid(_))), "{nonsense:?}");
        }
        // What follows is heard.
        send(b"\"Group\"");
        assert_eq!(heard(&channel).unwrap(), Some(Question::Group));
    }
}
