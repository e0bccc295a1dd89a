//! Events and errors of QPairs.

use venice_wire::NodeId;

use super::QPairKind;
use crate::DownReason;

/// One end of a QPair: a handle of the engine that issued it, never reused while in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QPairId(pub(super) u32);

/// An event of a QPair.
///
/// `Readable` and `Writable` are edge-triggered: they come once, and again only after a call has
/// returned [`QPairError::WouldBlock`]. So read, or write, until it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QPairEvent {
    /// The other side has accepted: the QPair can be written and read.
    Connected {
        /// The QPair of [`crate::Initiator::qpair_connect`] or [`crate::Target::qpair_connect`].
        qpair: QPairId,
    },
    /// The other side requests a QPair with a service listened for here. Answer by
    /// [`crate::QPairs::accept`] or [`crate::QPairs::refuse`].
    Incoming {
        /// The requested QPair.
        qpair: QPairId,
        /// The requested service.
        service: u32,
        /// The requesting node.
        node: NodeId,
        /// The kind of traffic.
        kind: QPairKind,
    },
    /// There is something to read, or the end is reached.
    Readable {
        /// The QPair.
        qpair: QPairId,
    },
    /// Data that did not fit before fits now, or never will.
    Writable {
        /// The QPair.
        qpair: QPairId,
    },
    /// Nothing will be sent or received any more; data that has arrived can still be read. Release
    /// the handle by [`crate::QPairs::close`].
    Closed {
        /// The QPair.
        qpair: QPairId,
        /// The reason.
        reason: CloseReason,
    },
}

/// The reason a QPair is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Both ends have finished sending.
    #[error("both ends have finished")]
    Finished,
    /// The other end has closed and reads no more; all it sent before has arrived.
    #[error("the other end has closed it")]
    PeerClosed,
    /// The other end has aborted the QPair.
    #[error("the other end has aborted it")]
    PeerAborted,
    /// The request was refused.
    #[error("refused: {0}")]
    Refused(RejectReason),
    /// The link under it is down.
    #[error("the link is down: {0}")]
    LinkDown(DownReason),
    /// One of the two ends has sent an invalid frame.
    #[error("protocol error")]
    Protocol,
}

/// The reason a QPair was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// The service has no listener.
    #[error("the service has no listener")]
    NoListener,
    /// The listener's backlog is full.
    #[error("the listener's backlog is full")]
    BacklogFull,
    /// The other side has its maximum of QPairs.
    #[error("the other side has no room for another QPair")]
    NoRoom,
    /// The listener declined.
    #[error("the listener declined")]
    Declined,
}

/// The reason a call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QPairError {
    /// Try again after [`QPairEvent::Writable`], [`QPairEvent::Readable`] or
    /// [`QPairEvent::Connected`].
    #[error("the QPair would block: retry after its next event")]
    WouldBlock,
    /// The handle was released, or is not of this engine.
    #[error("no such QPair")]
    Unknown,
    /// The message is longer than the buffers of both sides allow.
    #[error("message too long: {len_bytes} bytes, this QPair carries {max_bytes}")]
    TooLong {
        /// Bytes of the message.
        len_bytes: usize,
        /// The most this QPair carries.
        max_bytes: usize,
    },
    /// The message is empty.
    #[error("an empty message cannot be sent")]
    Empty,
    /// The buffer is shorter than the next message, which stays queued.
    #[error("buffer too small: the next message is {needed_bytes} bytes")]
    BufferTooSmall {
        /// Bytes of the message.
        needed_bytes: usize,
    },
    /// A message call on a stream, or a stream call on messages.
    #[error("wrong call: messages and streams have different calls")]
    WrongKind,
    /// This end has ended its sending.
    #[error("this end has ended its sending")]
    Ended,
    /// The QPair is closed.
    #[error("the QPair is closed: {0}")]
    Closed(CloseReason),
    /// The QPair does not, or no longer, wait to be accepted.
    #[error("the QPair does not wait to be accepted")]
    NotIncoming,
    /// The service already has a listener.
    #[error("service {0} has a listener already")]
    ServiceTaken(u32),
    /// This engine has its maximum of QPairs.
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

    /// Decodes a reason; an unknown code counts as declined.
    pub(super) fn from_code(code: u16) -> Self {
        match code {
            1 => Self::NoListener,
            2 => Self::BacklogFull,
            3 => Self::NoRoom,
            _ => Self::Declined,
        }
    }
}
