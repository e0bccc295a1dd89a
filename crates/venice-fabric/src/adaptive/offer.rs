//! The settings that the reading end of an adaptive stream sends to the writing end before the
//! first segment. `docs/reference/wire.md` describes the same format.

use venice_wire::{GrantId, GrantKey};

use super::stream::StreamConfig;

/// The kind of this message; see `segment` for the others.
const KIND: u8 = 5;

/// The first message of an adaptive stream's QPair, sent by the reader: the stream's settings, and
/// the grant of the landing region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Settings common to both ends.
    pub config: StreamConfig,
    /// The grant whose memory, from its address 0 on, is the landing region.
    pub grant: GrantId,
    /// The key of the grant.
    pub key: GrantKey,
}

impl Offer {
    /// Length of the message, in bytes.
    pub const BYTES: usize = 40;

    /// Returns the message.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let StreamConfig { window_segments, inline_bytes, segment_bytes, landing_bytes } =
            self.config;
        let mut bytes = [0; Self::BYTES];
        bytes[0] = KIND;
        bytes[4..8].copy_from_slice(&inline_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.grant.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&landing_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&segment_bytes.to_le_bytes());
        bytes[36..38].copy_from_slice(&window_segments.to_le_bytes());
        bytes
    }

    /// Parses the message; `None` if it is not an offer, or not within the bounds of
    /// [`StreamConfig::in_bounds`].
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| bytes[at + n]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let config = StreamConfig {
            window_segments: word(36) as u16,
            inline_bytes: word(4),
            segment_bytes: word(32),
            landing_bytes: long(24),
        };
        let is_sound = word(0) == u32::from(KIND) && config == config.in_bounds();
        let (grant, key) = (GrantId(long(8)), GrantKey(long(16)));
        is_sound.then_some(Self { config, grant, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundtrip_rejects_garbage() {
        let config = StreamConfig { landing_bytes: 3 << 20, ..StreamConfig::default() };
        let offer = Offer { config, grant: GrantId(1 << 40), key: GrantKey(u64::MAX - 1) };
        let bytes = offer.emit();
        assert_eq!(Offer::parse(&bytes), Some(offer));
        assert_eq!(Offer::parse(&bytes[..39]), None);
        // Another kind; more segments, more inline bytes, and longer segments than allowed.
        for (at, byte) in [(0, 1), (36, 65), (6, 0xff), (35, 0xff), (31, 1)] {
            let mut other = bytes;
            other[at] = byte;
            assert_eq!(Offer::parse(&other), None, "byte {at}");
        }
    }
}
