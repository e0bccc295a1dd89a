//! The messages of an adaptive stream inside QPair messages. `docs/reference/wire.md` describes the same
//! format.

/// Bytes before the payload of an inline segment; the length of all other messages except Progress.
pub(super) const HEADER_BYTES: usize = 24;
pub(super) const PROGRESS_BYTES: usize = 32;

/// One message, without the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A segment whose bytes follow.
    Inline { sequence: u64, len_bytes: u32 },
    /// A segment whose bytes lie in the landing region.
    Landed { sequence: u64, len_bytes: u32, offset: u64 },
    /// The end of the stream.
    End { sequence: u64 },
    /// From the receiver: segments before `arrived` have arrived, and `arrived` + 1 + *i* where bit
    /// *i* is set; those before `consumed` were read.
    Progress { arrived: u64, bitmap: u64, consumed: u64 },
}

impl Message {
    /// Writes the message to the front of `into`; returns its length without payload.
    pub(super) fn emit(&self, into: &mut [u8]) -> usize {
        let (kind, len_bytes, first, second) = match *self {
            Self::Inline { sequence, len_bytes } => (1, len_bytes, sequence, 0),
            Self::Landed { sequence, len_bytes, offset } => (2, len_bytes, sequence, offset),
            Self::End { sequence } => (3, 0, sequence, 0),
            Self::Progress { arrived, bitmap, consumed } => {
                into[HEADER_BYTES..PROGRESS_BYTES].copy_from_slice(&consumed.to_le_bytes());
                (4, 0, arrived, bitmap)
            }
        };
        into[..4].copy_from_slice(&[kind, 0, 0, 0]);
        into[4..8].copy_from_slice(&u32::to_le_bytes(len_bytes));
        into[8..16].copy_from_slice(&u64::to_le_bytes(first));
        into[16..24].copy_from_slice(&u64::to_le_bytes(second));
        if kind == 4 { PROGRESS_BYTES } else { HEADER_BYTES }
    }

    /// Parses a message; `None` if it is not a message of this version, or does not have the length
    /// it gives.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (first, second) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?);
        let len_bytes = (u64_at(bytes, 0)? >> 32) as u32;
        let payload_bytes = bytes.len() - HEADER_BYTES;
        Some(match (bytes[0], payload_bytes) {
            (1, payload) if len_bytes > 0 && payload == len_bytes as usize => {
                Self::Inline { sequence: first, len_bytes }
            }
            (2, 0) if len_bytes > 0 => Self::Landed { sequence: first, len_bytes, offset: second },
            (3, 0) => Self::End { sequence: first },
            (4, 8) => Self::Progress {
                arrived: first,
                bitmap: second,
                consumed: u64_at(bytes, HEADER_BYTES)?,
            },
            _ => return None,
        })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let mut word = [0; 8];
    word.copy_from_slice(bytes.get(at..at + 8)?);
    Some(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_roundtrip() {
        let messages = [
            Message::Landed { sequence: 1 << 40, len_bytes: 70_000, offset: 1 << 33 },
            Message::End { sequence: 7 },
            Message::Progress { arrived: 5, bitmap: 1 << 63, consumed: 3 },
        ];
        for message in messages {
            let mut bytes = [0xff; 40];
            let len = message.emit(&mut bytes);
            assert_eq!(Message::parse(&bytes[..len]), Some(message));
            assert_eq!(Message::parse(&bytes[..len - 1]), None);
            assert_eq!(Message::parse(&bytes[..len + 1]), None);
        }
        let mut bytes = [0; 27];
        let inline = Message::Inline { sequence: 9, len_bytes: 3 };
        assert_eq!(inline.emit(&mut bytes), 24);
        assert_eq!(Message::parse(&bytes), Some(inline));
        assert_eq!(Message::parse(&bytes[..26]), None);
    }
}
