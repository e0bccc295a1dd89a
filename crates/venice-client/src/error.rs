//! Why something did not work.

use venice_recipient::{LaneError, RecipientError};

/// Every error of this crate. Each says in one line what happened and, where there is something
/// to be done, what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The Monitor Node, a donor or its relay does not answer, or no rack is known.
    #[error("{0}")]
    Unreachable(String),
    /// The rack or the kernel said no.
    #[error("{0}")]
    Refused(String),
    /// Not so much is free: in the rack, in the user's quota, or in a cache just now; or no device
    /// that would do.
    #[error("{0}")]
    NoRoom(String),
    /// A donor is gone, and with it the last copy of what was asked for.
    #[error("bytes {offset}+{len_bytes} are lost with node {node}")]
    DonorLost {
        /// The donor.
        node: String,
        /// First byte that is lost.
        offset: u64,
        /// How many are, from there on.
        len_bytes: u64,
    },
    /// A device's grant is over: it may be another's.
    #[error("{address} of {node} is lost: {why}")]
    DeviceLost {
        /// The node it is on.
        node: String,
        /// Its name there.
        address: String,
        /// Why.
        why: &'static str,
    },
    /// There is no such memory.
    #[error("bytes {offset}+{len_bytes} are beyond the {size_bytes} there are")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// How many.
        len_bytes: u64,
        /// How many there are.
        size_bytes: u64,
    },
    /// An atomic access must be to a multiple of eight.
    #[error("offset {0} of an atomic access is not a multiple of eight")]
    Unaligned(u64),
    /// Something that was asked for cannot be: the text says what.
    #[error("{0}")]
    Invalid(String),
    /// The memory, the cache or the array was given back.
    #[error("it is closed: its memory was given back")]
    Closed,
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
                    | RackError::OverDeviceQuota(_)
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
            | RecipientError::HomeDown(_)
            | RecipientError::NobodyUp => Error::Unreachable(text),
            _ => Error::Refused(text),
        }
    }
}

/// The error and what caused it, in one line.
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
    use venice_control::{ControlError, RackError};

    use super::*;

    #[test]
    fn each_error_is_of_the_kind_that_callers_tell_it_by() {
        let over = RackError::OverQuota {
            user: "ada".into(),
            asked_bytes: 32,
            used_bytes: 16,
            quota_bytes: 16,
        };
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
