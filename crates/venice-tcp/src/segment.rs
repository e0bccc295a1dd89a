//! Segments: the header of a TCP segment, and the length of its payload.

use serde::{Deserialize, Serialize};

/// Flags of a segment: those of the TCP header, and what travels as an option or in the IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flags(pub u16);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(1);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(1 << 1);
    /// Reset the connection.
    pub const RST: Self = Self(1 << 2);
    /// Push: the end of a message.
    pub const PSH: Self = Self(1 << 3);
    /// The acknowledgment field is valid.
    pub const ACK: Self = Self(1 << 4);
    /// ECN echo (RFC 3168, section 6.1).
    pub const ECE: Self = Self(1 << 6);
    /// Congestion window reduced (RFC 3168, section 6.1).
    pub const CWR: Self = Self(1 << 7);
    /// The SACK-permitted option of a SYN (RFC 2018, section 2).
    pub const SACK_PERMITTED: Self = Self(1 << 8);
    /// The ECN-capable-transport codepoint of the IP header: a switch may mark the segment.
    pub const ECT: Self = Self(1 << 9);

    /// True if all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if some flag of `other` is set.
    pub const fn has_any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Up to three SACK blocks, each from its first byte to the one behind its last (RFC 2018).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SackBlocks {
    blocks: [(u32, u32); 3],
    count: u8,
}

impl SackBlocks {
    /// The most blocks of a segment: what fits beside timestamps.
    pub const MAX: usize = 3;

    /// Adds a block, if there is room.
    pub fn push(&mut self, first: u32, end: u32) {
        if let Some(block) = self.blocks.get_mut(usize::from(self.count)) {
            *block = (first, end);
            self.count += 1;
        }
    }

    /// Sorts the blocks by sequence number.
    pub(crate) fn sort(&mut self) {
        let first = self.blocks[0].0;
        let count = usize::from(self.count);
        self.blocks[..count].sort_unstable_by_key(|(start, _)| start.wrapping_sub(first) as i32);
    }

    /// Returns the blocks, the most recent first.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Bytes of the option, with two of padding; 0 without blocks.
    pub const fn option_bytes(&self) -> u16 {
        if self.count == 0 { 0 } else { 4 + 8 * self.count as u16 }
    }
}

/// The timestamp option (RFC 7323, section 3), in ticks of [`crate::Rto::clock_ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The value that the sender echoes.
    pub echo: u32,
}

/// The shift of a SYN's window scale: windows are not scaled here, but on the wire they would be.
pub const WINDOW_SCALE: u8 = 7;
/// Bytes of the timestamp option, with two of padding.
pub(crate) const TIMESTAMP_BYTES: u16 = 12;

/// A segment. Its payload is a count of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The sequence number of the first byte, of SYN, or of FIN where there is no byte.
    pub seq: u32,
    /// The next sequence number that the sender expects.
    pub ack: u32,
    /// Bytes of payload.
    pub len: u32,
    /// The receive window in bytes, not scaled.
    pub window: u32,
    /// Flags.
    pub flags: Flags,
    /// The MSS option in bytes; 0 but for a SYN.
    pub mss: u16,
    /// SACK blocks.
    pub sack: SackBlocks,
    /// Timestamps, where both ends use them.
    pub timestamps: Option<Timestamps>,
    /// The tag of the message that ends with this segment.
    pub message: Option<u64>,
}

impl Segment {
    /// Returns the sequence number behind payload, SYN and FIN.
    pub const fn end(&self) -> u32 {
        let control = self.flags.has(Flags::SYN) as u32 + self.flags.has(Flags::FIN) as u32;
        self.seq.wrapping_add(self.len).wrapping_add(control)
    }

    /// Bytes of the TCP header with its options, as Linux pads them. A SYN carries the MSS and the
    /// window scale besides. The IP header is not included.
    pub const fn header_bytes(&self) -> u32 {
        let mut bytes = 20 + self.sack.option_bytes();
        if self.timestamps.is_some() {
            bytes += TIMESTAMP_BYTES;
        } else if self.flags.has(Flags::SACK_PERMITTED) {
            // Beside timestamps it takes the place of their padding.
            bytes += 4;
        }
        if self.flags.has(Flags::SYN) {
            bytes += 8;
        }
        bytes as u32
    }

    /// Returns the options as they are on the wire, in the order of Linux, with their padding. A SYN
    /// offers [`WINDOW_SCALE`].
    pub fn options(&self) -> Vec<u8> {
        const NOP: u8 = 1;
        let mut options = Vec::new();
        let is_syn = self.flags.has(Flags::SYN);
        let has_sack = self.flags.has(Flags::SACK_PERMITTED);
        if is_syn {
            options.extend([2, 4]);
            options.extend(self.mss.to_be_bytes());
        }
        // SACK-permitted beside timestamps takes the place of their padding.
        if has_sack != self.timestamps.is_some() {
            options.extend([NOP, NOP]);
        }
        if has_sack {
            options.extend([4, 2]);
        }
        if let Some(timestamps) = self.timestamps {
            options.extend([8, 10]);
            options.extend(timestamps.value.to_be_bytes());
            options.extend(timestamps.echo.to_be_bytes());
        }
        if is_syn {
            options.extend([NOP, 3, 3, WINDOW_SCALE]);
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            options.extend([NOP, NOP, 5, 2 + 8 * blocks.len() as u8]);
            for (first, end) in blocks {
                options.extend(first.to_be_bytes());
                options.extend(end.to_be_bytes());
            }
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_counts_options() {
        let mut segment = Segment { len: 100, ..Segment::default() };
        assert_eq!(segment.header_bytes(), 20);
        segment.timestamps = Some(Timestamps { value: 1, echo: 2 });
        assert_eq!(segment.header_bytes(), 32);
        for block in 0..5 {
            segment.sack.push(block, block + 1);
        }
        assert_eq!((segment.sack.as_slice().len(), segment.header_bytes()), (3, 60));
        let syn = Segment {
            flags: Flags::SYN.with(Flags::SACK_PERMITTED),
            timestamps: segment.timestamps,
            ..Segment::default()
        };
        assert_eq!((syn.header_bytes(), syn.end()), (40, 1));
        let plain = Segment { timestamps: None, ..syn };
        for segment in [segment, syn, plain, Segment::default()] {
            assert_eq!(segment.options().len() as u32 + 20, segment.header_bytes(), "{segment:?}");
        }
    }
}
