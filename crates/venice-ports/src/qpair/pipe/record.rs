//! Records of a pipe. The second word of a record's head is its *tag*: a type in the low byte, and
//! a number above it.

use super::super::QPairSocketError;
use crate::ring::RING_FRAME_BYTES;

/// Bytes of a message in each of its records, if it needs several: whole pages of the ring.
pub(super) const PIECE_BYTES: usize = 32 * 128 - 16;
/// Longest message, in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// Type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The caller's request: the service, and 1 in bit 32 for a stream.
    Hello(u64),
    /// The listener has accepted.
    Accept,
    /// The listener refuses: it serves something else.
    Refuse,
    /// First record of a message of this length.
    First(usize),
    /// A further record of the message.
    More,
    /// Bytes of a stream.
    Bytes,
    /// The sender sends nothing more.
    End,
}

impl Record {
    pub(super) fn tag(self) -> u64 {
        match self {
            Self::Hello(asked) => 1 | asked << 8,
            Self::Accept => 2,
            Self::Refuse => 3,
            Self::First(len) => 4 | (len as u64) << 8,
            Self::More => 5,
            Self::Bytes => 6,
            Self::End => 7,
        }
    }

    /// Decodes a tag; `None` if no sender writes it.
    pub(super) fn of(tag: u64) -> Option<Self> {
        let number = tag >> 8;
        let plain = |record| (number == 0).then_some(record);
        match tag & 0xff {
            1 => Some(Self::Hello(number)),
            2 => plain(Self::Accept),
            3 => plain(Self::Refuse),
            4 => {
                let len = usize::try_from(number).ok()?;
                (1..=MAX_MESSAGE_BYTES).contains(&len).then_some(Self::First(len))
            }
            5 => plain(Self::More),
            6 => plain(Self::Bytes),
            7 => plain(Self::End),
            _ => None,
        }
    }
}

/// Returns the bytes of a message's next record, if `left` are still to be sent.
pub(super) fn piece_of(left: usize) -> usize {
    if left <= RING_FRAME_BYTES { left } else { PIECE_BYTES }
}

pub(super) fn broken() -> QPairSocketError {
    crate::PortError::RingBroken.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tags_round_trip(number in 1..=MAX_MESSAGE_BYTES, tag: u64) {
            for record in [
                Record::Hello(number as u64),
                Record::Accept,
                Record::Refuse,
                Record::First(number),
                Record::More,
                Record::Bytes,
                Record::End,
            ] {
                prop_assert_eq!(Record::of(record.tag()), Some(record));
            }
            if let Some(record) = Record::of(tag) {
                prop_assert_eq!(record.tag(), tag);
            }
        }
    }
}
