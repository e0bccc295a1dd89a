//! Errors of the library.

use venice_recipient::{LaneError, RecipientError};
use venice_service::ClientError;

use crate::channel::Error as ChannelError;

/// An error of this crate. Each message is one line that says what failed and, if possible, what to
/// do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The Monitor Node, a donor or its relay does not answer, or no rack is known.
    #[error("{0}")]
    Unreachable(String),
    /// The rack or the kernel refused.
    #[error("{0}")]
    Refused(String),
    /// Too little is free: in the rack, in the user's quota, or in a cache at the moment; or no
    /// suitable device is free.
    #[error("{0}")]
    NoRoom(String),
    /// A donor is gone, and with it the last copy of the requested bytes.
    #[error("bytes {offset}+{len_bytes} lost: node {node} held their last copy")]
    DonorLost {
        /// The donor.
        node: String,
        /// First lost byte.
        offset: u64,
        /// Number of lost bytes.
        len_bytes: u64,
    },
    /// A device's grant has ended: the device may belong to another recipient now.
    #[error("device {address} of {node} lost: {why}")]
    DeviceLost {
        /// Its node.
        node: String,
        /// Its name there.
        address: String,
        /// The reason.
        why: String,
    },
    /// A task failed on an accelerator.
    #[error("task {task} failed on the accelerator of {node}: {why}")]
    Task {
        /// Number of its input, from 0.
        task: usize,
        /// The node.
        node: String,
        /// The reason.
        why: String,
    },
    /// The range lies outside the memory.
    #[error("out of range: bytes {offset}+{len_bytes} of {size_bytes}")]
    OutOfRange {
        /// First requested byte.
        offset: u64,
        /// Number of requested bytes.
        len_bytes: u64,
        /// Size of the memory.
        size_bytes: u64,
    },
    /// The offset of an atomic access is not a multiple of eight.
    #[error("unaligned atomic access: offset {0} is not a multiple of eight")]
    Unaligned(u64),
    /// An argument is invalid: the text says which.
    #[error("{0}")]
    Invalid(String),
    /// A channel between two programs, or to the service of a device, failed.
    #[error(transparent)]
    Channel(#[from] crate::channel::Error),
    /// The handle was closed.
    #[error("already closed")]
    Closed,
    /// The caller ended the call.
    #[error("interrupted by the caller")]
    Interrupted,
}

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Self {
        match error {
            error if error.is_timeout() => ChannelError::TimedOut.into(),
            error if error.is_lost() => ChannelError::Lost(error.to_string()).into(),
            ClientError::NoEndpoint { .. } => Error::Unreachable(error.to_string()),
            ClientError::NoTime | ClientError::TooLong { .. } => Error::Invalid(error.to_string()),
            error => Error::Refused(error.to_string()),
        }
    }
}

impl From<LaneError> for Error {
    fn from(error: LaneError) -> Self {
        match error {
            LaneError::OutOfRange { offset, len_bytes, size_bytes } => {
                Error::OutOfRange { offset, len_bytes, size_bytes }
            }
            LaneError::Unaligned(offset) => Error::Unaligned(offset),
            LaneError::Unanswered { .. } => Error::Unreachable(error.to_string()),
            LaneError::Lost { offset, len_bytes, node } => {
                Error::DonorLost { node, offset, len_bytes }
            }
        }
    }
}

impl From<RecipientError> for Error {
    fn from(error: RecipientError) -> Self {
        use venice_control::{ControlError, RackError};
        let (text, is_usage) = (with_causes(&error), error.is_usage());
        match error {
            _ if is_usage => Error::Invalid(text),
            RecipientError::Control(ControlError::BadAddress { .. }) => Error::Invalid(text),
            RecipientError::Control(
                ControlError::NoRoom { .. }
                | ControlError::Rack(
                    RackError::OverQuota { .. }
                    | RackError::NoBandwidth(_)
                    | RackError::NoDevice(_),
                ),
            )
            | RecipientError::NoRoomForCopies { .. } => Error::NoRoom(text),
            RecipientError::Control(
                ControlError::Unreachable { .. }
                | ControlError::TimedOut { .. }
                | ControlError::Peer { .. },
            ) => Error::Unreachable(error.to_string()),
            RecipientError::NoRack { .. }
            | RecipientError::DamagedRecord { .. }
            | RecipientError::AnotherUsersRack { .. }
            | RecipientError::HomeDown(_)
            | RecipientError::NobodyUp => Error::Unreachable(text),
            _ => Error::Refused(text),
        }
    }
}

/// Returns the error and its causes in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use venice_control::{ControlError, OverQuota, RackError, ResourceKind};

    use super::*;

    #[test]
    fn errors_map_to_their_kinds() {
        let over = RackError::OverQuota(OverQuota {
            user: "ada".into(),
            kind: ResourceKind::Memory,
            asked: 32,
            used: 16,
            quota: 16,
        });
        let over = Error::from(RecipientError::Control(ControlError::Rack(over)));
        assert!(matches!(over, Error::NoRoom(said) if said.contains("ada")));
        let address = ControlError::BadAddress { addr: "nowhere".into() };
        let address = Error::from(RecipientError::Control(address));
        assert!(matches!(address, Error::Invalid(said) if said.contains("nowhere")));
        let wired = RecipientError::Wired { topology: "mesh:2x2x2".into() };
        assert!(matches!(Error::from(wired), Error::Invalid(_)));
        let down = Error::from(RecipientError::HomeDown("node7".into()));
        assert!(matches!(down, Error::Unreachable(said) if said.contains("node7")));
        let unknown = Error::from(RecipientError::UnknownNode("node77".into()));
        assert!(matches!(unknown, Error::Refused(said) if said.contains("node77")));
    }
}
