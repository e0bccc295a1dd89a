//! What a QPair tells its owner, and what can go wrong.

use venice_wire::NodeId;

use super::QPairKind;
use crate::DownReason;

/// One end of a QPair: a handle of the engine that gave it, never given again while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QPairId(pub(super) u32);

/// What happened to a QPair.
///
/// `Readable` and `Writable` come on the edge: once, and again only after a call has answered
/// [`QPairError::WouldBlock`]. So go on reading, or writing, until it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QPairEvent {
    /// The other side has accepted: the QPair can be written and read.
    Connected {
        /// The QPair of [`crate::Initiator::qpair_connect`] or [`crate::Target::qpair_connect`].
        qpair: QPairId,
    },
    /// Somebody asks for a QPair with a service listened for here. Answer by
    /// [`crate::QPairs::accept`] or [`crate::QPairs::refuse`].
    Incoming {
        /// The QPair to be.
        qpair: QPairId,
        /// The service asked for.
        service: u32,
        /// The node that asks.
        node: NodeId,
        /// What shall travel through it.
        kind: QPairKind,
    },
    /// There is something to read, be it the end.
    Readable {
        /// The QPair.
        qpair: QPairId,
    },
    /// What did not fit lately fits now, or will never.
    Writable {
        /// The QPair.
        qpair: QPairId,
    },
    /// Nothing will be sent or received any more; what has arrived can still be read. Give the
    /// handle back by [`crate::QPairs::close`].
    Closed {
        /// The QPair.
        qpair: QPairId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a QPair is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Both ends have sent all they wanted.
    #[error("both ends have finished")]
    Finished,
    /// The other end has closed and reads no more; what it sent before has arrived.
    #[error("the other end has closed it")]
    PeerClosed,
    /// The other end has dropped it at once.
    #[error("the other end has aborted it")]
    PeerAborted,
    /// It never came to be.
    #[error("refused: {0}")]
    Refused(RejectReason),
    /// The link under it is down.
    #[error("the link is down: {0}")]
    LinkDown(DownReason),
    /// The other end has sent what makes no sense, or this end did in its eyes.
    #[error("the protocol was broken")]
    Protocol,
}

/// Why a QPair was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// Nobody listens for the service.
    #[error("nobody listens for the service")]
    NoListener,
    /// As many as the listener lets wait already wait.
    #[error("the listener's backlog is full")]
    BacklogFull,
    /// The other side has as many QPairs as it can have.
    #[error("the other side has no room for another QPair")]
    NoRoom,
    /// The listener said no.
    #[error("the listener said no")]
    Declined,
}

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QPairError {
    /// Later: after [`QPairEvent::Writable`], [`QPairEvent::Readable`] or
    /// [`QPairEvent::Connected`].
    #[error("the QPair cannot go on just now")]
    WouldBlock,
    /// The handle was given back, or is not of this engine.
    #[error("no such QPair")]
    Unknown,
    /// The message is longer than the buffers on both sides allow.
    #[error("a message of {len_bytes} bytes is too long: this QPair carries {max_bytes}")]
    TooLong {
        /// Bytes of the message.
        len_bytes: usize,
        /// The most this QPair carries.
        max_bytes: usize,
    },
    /// A message has at least one byte.
    #[error("an empty message cannot be sent")]
    Empty,
    /// The buffer cannot take the next message, which stays where it is.
    #[error("the next message is {needed_bytes} bytes, more than the buffer takes")]
    BufferTooSmall {
        /// Bytes of the message.
        needed_bytes: usize,
    },
    /// A message call on a stream, or a stream call on messages.
    #[error("messages and streams have different calls")]
    WrongKind,
    /// This end has said that it sends no more.
    #[error("this end has ended its sending")]
    Ended,
    /// The QPair is closed.
    #[error("the QPair is closed: {0}")]
    Closed(CloseReason),
    /// There is nothing to accept or refuse, or not any more.
    #[error("the QPair does not wait to be accepted")]
    NotIncoming,
    /// The service has a listener.
    #[error("service {0} has a listener already")]
    ServiceTaken(u32),
    /// This engine has as many QPairs as it may.
    #[error("no room for another QPair")]
    TooMany,
    /// There is no link to that node, or it is down.
    #[error("no link to the node")]
    NoLink,
}

impl RejectReason {
    pub(super) fn code(self) -> u16 {
        match self {
            Self::NoListener => 1,
            Self::BacklogFull => 2,
            Self::NoRoom => 3,
            Self::Declined => 4,
        }
    }

    /// An unknown code is a plain no.
    pub(super) fn from_code(code: u16) -> Self {
        match code {
            1 => Self::NoListener,
            2 => Self::BacklogFull,
            3 => Self::NoRoom,
            _ => Self::Declined,
        }
    }
}
