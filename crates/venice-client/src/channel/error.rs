//! Errors of channels.

use venice_fabric::adaptive::StreamError;
use venice_fabric::{AccessError, CloseReason, FabricError, QPairError, RejectReason};
use venice_ports::PortError;
use venice_ports::channels::ChannelError;
use venice_ports::qpair::QPairSocketError;

use crate::error::with_causes;

/// `EAGAIN`, the error of a receive that has timed out.
const WOULD_BLOCK: i32 = 11;

/// An error of a channel. Each message is one line that says what failed and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no address, or its host is unknown.
    #[error(
        "invalid channel address {text:?}: {why}; use shm:PATH, udp:HOST:PORT or verbs:HOST:PORT"
    )]
    Address {
        /// The text.
        text: String,
        /// The reason.
        why: String,
    },
    /// The text is no key.
    #[error(
        "invalid channel key: expected 64 hexadecimal digits; `openssl rand -hex 32` draws a key"
    )]
    Key,
    /// The traffic would be readable on its route.
    #[error(
        "unprotected channel {address}: any host on the route could read and forge its traffic; {}",
        if *.seals { "give both ends the same key, or allow plain traffic" }
        else { "use udp with a key, or allow plain traffic" }
    )]
    Unprotected {
        /// The address.
        address: String,
        /// True if a key would protect it.
        seals: bool,
    },
    /// The port does not carry this kind of channel.
    #[error("{address} cannot carry {what}: the port has no such channel; use {instead}")]
    Unsupported {
        /// The address.
        address: String,
        /// The kind.
        what: &'static str,
        /// Addresses that can.
        instead: &'static str,
    },
    /// The option has no effect there.
    #[error("invalid option {option}: {what} has no use for it; leave it at its default")]
    UnusedOption {
        /// The option.
        option: &'static str,
        /// The end or the channel.
        what: &'static str,
    },
    /// A length is out of its bounds.
    #[error("invalid {what} of {len_bytes} bytes: {bounds}")]
    Size {
        /// The object of this length.
        what: &'static str,
        /// The length.
        len_bytes: u64,
        /// The lengths that are valid.
        bounds: &'static str,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// The address.
        address: String,
        /// The reason.
        why: String,
    },
    /// The other side cannot be reached, or has refused.
    #[error("cannot connect to {address}: {why}")]
    Connect {
        /// The address.
        address: String,
        /// The reason, and the remedy.
        why: String,
    },
    /// The call did not complete within its time-out.
    #[error("timed out: the other side did not act within the time-out; repeat the call, or close")]
    TimedOut,
    /// The call would block.
    #[error("operation would block: arm, poll the descriptor for input, and repeat the call")]
    WouldBlock,
    /// The other side has closed in an orderly way.
    #[error("closed by the other side: it reads no more; close this end")]
    Closed,
    /// This end has ended its sending.
    #[error("this end has ended its sending: connect again to send more")]
    Ended,
    /// The other side is gone without closing: its process has died, or its host is silent.
    #[error("connection lost: {0}; connect again")]
    Lost(String),
    /// The other side has broken the protocol.
    #[error(
        "protocol error of the other side: {0}; close, and check that both ends run the same version"
    )]
    Protocol(String),
    /// The message is empty.
    #[error("an empty message cannot be sent: send at least one byte")]
    Empty,
    /// The message is longer than this connection carries.
    #[error(
        "message too long: {len_bytes} bytes, this connection carries {max_bytes}; raise the buffer of both ends, or use a stream"
    )]
    TooLong {
        /// Bytes of the message.
        len_bytes: usize,
        /// The most it carries.
        max_bytes: usize,
    },
    /// The buffer is shorter than the next message, which stays queued.
    #[error(
        "buffer too small: the next message has {needed_bytes} bytes; receive it with a larger buffer"
    )]
    TooSmall {
        /// Bytes of the message, at most 1 GiB; over shm, as its sender names them before they have
        /// arrived.
        needed_bytes: usize,
    },
    /// The call is for another kind of connection.
    #[error("wrong call: {call} is not for {kind}")]
    WrongKind {
        /// The call.
        call: &'static str,
        /// The kind of the connection.
        kind: &'static str,
    },
    /// The range lies outside the region.
    #[error("out of range: bytes {offset}+{len_bytes} of {size_bytes}")]
    OutOfRange {
        /// First requested byte.
        offset: u64,
        /// Number of requested bytes.
        len_bytes: u64,
        /// Size of the region.
        size_bytes: u64,
    },
    /// The offset of an atomic access is not a multiple of eight.
    #[error("unaligned atomic access: offset {0} is not a multiple of eight")]
    Unaligned(u64),
    /// The access was refused.
    #[error("access refused: {0}")]
    Refused(String),
    /// The handle belongs to the parent process.
    #[error("it belongs to the parent process: make a new one in the child")]
    Forked,
    /// The system has failed.
    #[error("{0}")]
    System(String),
}

impl Error {
    /// Converts an error of a port on an established connection.
    pub(super) fn of_port(error: PortError) -> Self {
        match error {
            PortError::Forked => Self::Forked,
            PortError::Closed => Self::Lost("the other side is gone without closing".into()),
            PortError::RingBroken | PortError::Protocol { .. } => {
                Self::Protocol(with_causes(&error))
            }
            PortError::System { .. }
            | PortError::SocketPath { .. }
            | PortError::SocketInUse { .. }
            | PortError::NotASocket { .. }
            | PortError::Listen { .. }
            | PortError::NoAgent { .. }
            | PortError::Refused { .. }
            | PortError::LendsNothing
            | PortError::Protection { .. }
            | PortError::UdpAddress { .. }
            | PortError::Verbs(_)
            | PortError::Xdp(_) => Self::System(with_causes(&error)),
        }
    }

    /// Converts an error of a listener that is made.
    pub(super) fn listening(address: &impl ToString, error: QPairSocketError) -> Self {
        let address = address.to_string();
        let why = match &error {
            QPairSocketError::Port(PortError::Forked) => return Self::Forked,
            QPairSocketError::Port(PortError::SocketInUse { .. }) => {
                "another program listens there; end it, or choose another path".into()
            }
            QPairSocketError::Port(PortError::NotASocket { .. }) => {
                "the path exists and is not a socket; move it away, or choose another path".into()
            }
            _ => with_causes(&error),
        };
        Self::Listen { address, why }
    }

    /// Converts an error of an attempt to connect.
    pub(super) fn connecting(address: &impl ToString, error: QPairSocketError) -> Self {
        let address = address.to_string();
        let why = match &error {
            QPairSocketError::Port(PortError::Forked) => return Self::Forked,
            QPairSocketError::Port(PortError::NoAgent { source, .. }) => {
                let source = std::io::Error::from(*source);
                format!("no program listens there ({source}); start the listening one first")
            }
            QPairSocketError::QPair(QPairError::Closed(CloseReason::Refused(
                RejectReason::NoListener,
            )))
            | QPairSocketError::Stream(StreamError::Protocol) => {
                "the listener is of another kind; connect with the kind that it listens for".into()
            }
            QPairSocketError::Port(PortError::System { source, .. })
                if source.raw_os_error() == WOULD_BLOCK =>
            {
                "no answer; the listening program has to accept".into()
            }
            QPairSocketError::TimedOut
            | QPairSocketError::QPair(QPairError::Closed(CloseReason::LinkDown(_))) => {
                "no answer; the listening program has to be started first and to accept, with the \
                 same key"
                    .into()
            }
            _ => with_causes(&error),
        };
        Self::Connect { address, why }
    }
}

impl From<QPairSocketError> for Error {
    fn from(error: QPairSocketError) -> Self {
        match error {
            QPairSocketError::WouldBlock => Self::WouldBlock,
            QPairSocketError::TimedOut => Self::TimedOut,
            QPairSocketError::Closed => Self::of_port(PortError::Closed),
            QPairSocketError::Port(error) => Self::of_port(error),
            QPairSocketError::QPair(error) => error.into(),
            QPairSocketError::Stream(StreamError::Closed(reason)) => closed(reason),
            QPairSocketError::Stream(StreamError::Ended) => Self::Ended,
            QPairSocketError::Stream(StreamError::WouldBlock) => Self::WouldBlock,
            QPairSocketError::Stream(error) => Self::Protocol(error.to_string()),
            QPairSocketError::WrongSeal => Self::Key,
        }
    }
}

impl From<QPairError> for Error {
    fn from(error: QPairError) -> Self {
        match error {
            QPairError::WouldBlock => Self::WouldBlock,
            QPairError::Empty => Self::Empty,
            QPairError::Ended => Self::Ended,
            QPairError::TooLong { len_bytes, max_bytes } => Self::TooLong { len_bytes, max_bytes },
            QPairError::BufferTooSmall { needed_bytes } => Self::TooSmall { needed_bytes },
            QPairError::Closed(reason) => closed(reason),
            QPairError::WrongKind => {
                Self::WrongKind { call: "this call", kind: "what the other side has opened" }
            }
            QPairError::Unknown
            | QPairError::NotIncoming
            | QPairError::ServiceTaken(_)
            | QPairError::TooMany
            | QPairError::NoLink => Self::System(error.to_string()),
        }
    }
}

fn closed(reason: CloseReason) -> Error {
    match reason {
        CloseReason::Finished | CloseReason::PeerClosed => Error::Closed,
        CloseReason::PeerAborted | CloseReason::LinkDown(_) => Error::Lost(reason.to_string()),
        CloseReason::Refused(_) => Error::Refused(reason.to_string()),
        CloseReason::Protocol => Error::Protocol(reason.to_string()),
    }
}

impl From<ChannelError> for Error {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Port(error) => Self::of_port(error),
            ChannelError::NotTaken(FabricError::WouldBlock) => Self::WouldBlock,
            ChannelError::NotTaken(FabricError::PeerDown(reason))
            | ChannelError::Failed(AccessError::PeerDown(reason)) => Self::Lost(reason.to_string()),
            ChannelError::NotTaken(error) => Self::Refused(error.to_string()),
            ChannelError::Failed(error) => Self::Refused(error.to_string()),
        }
    }
}

/// For `Read` and `Write`.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind;
        let kind = match &error {
            Error::WouldBlock => ErrorKind::WouldBlock,
            Error::TimedOut => ErrorKind::TimedOut,
            Error::Closed | Error::Ended => ErrorKind::BrokenPipe,
            Error::Lost(_) => ErrorKind::ConnectionReset,
            Error::Connect { .. } => ErrorKind::ConnectionRefused,
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
