//! A checked, zero-copy view of a received frame.

use crate::{
    Channel, GrantId, GrantKey, HEADER_BYTES, HeaderRepr, LinkId, MAGIC, MAX_PAYLOAD_BYTES, NodeId,
    Opcode, Sequence, UNCHECKED_FLAG, VERSION, WireError,
    header::{checksum, offset},
};

/// The mechanism that guarantees a frame's integrity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// The checksum, which every frame must carry.
    Checksum,
    /// The port. A frame may carry no checksum; one that is present is verified.
    Port,
    /// An earlier parse of the same bytes: the checksum is not verified again.
    ParsedBefore,
}

/// A received frame that has passed every check of the format: length, magic, version, checksum,
/// and an opcode that belongs to its channel. Reading a field cannot fail.
///
/// The meaning of the fields is not checked here: the fabric checks ranges, keys and sequence.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    bytes: &'a [u8],
    channel: Channel,
    opcode: Opcode,
}

impl<'a> Frame<'a> {
    /// Checks `bytes`, one whole datagram, checksum included, and wraps them.
    ///
    /// # Errors
    /// Returns the first way in which the bytes are not a frame of this version. No input panics.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        Self::parse_with(bytes, Integrity::Checksum)
    }

    /// Like [`Frame::parse`], with the checksum verified according to `integrity`.
    ///
    /// # Errors
    /// Like [`Frame::parse`]; [`WireError::Unchecked`] if the frame must carry a checksum and does
    /// not.
    #[inline]
    pub fn parse_with(bytes: &'a [u8], integrity: Integrity) -> Result<Self, WireError> {
        let len = bytes.len();
        if len < HEADER_BYTES {
            return Err(WireError::Truncated { len, needed: HEADER_BYTES });
        }
        let magic = u16::from_le_bytes(get(bytes, offset::MAGIC));
        if magic != MAGIC {
            return Err(WireError::BadMagic(magic));
        }
        if bytes[offset::VERSION] != VERSION {
            return Err(WireError::UnsupportedVersion(bytes[offset::VERSION]));
        }
        check_length(bytes)?;
        check_integrity(bytes, integrity)?;
        let (channel, opcode) = check_opcode(bytes[offset::CHANNEL], bytes[offset::OPCODE])?;
        Ok(Self { bytes, channel, opcode })
    }

    /// Returns the length in bytes that the header at the start of `bytes` gives for its frame.
    /// Serves buffers that hold several frames in a row. Checks nothing else; `None` if `bytes` are
    /// shorter than a header.
    #[inline]
    pub fn announced_len(bytes: &[u8]) -> Option<usize> {
        let header = bytes.get(..HEADER_BYTES)?;
        Some(HEADER_BYTES + usize::from(u16::from_le_bytes(get(header, offset::PAYLOAD_LEN))))
    }

    /// Returns the whole header as a plain struct.
    pub fn repr(&self) -> HeaderRepr {
        HeaderRepr {
            channel: self.channel,
            opcode: self.opcode,
            flags: self.flags(),
            source: self.source(),
            destination: self.destination(),
            link: self.link(),
            sequence: self.sequence(),
            ack: self.ack(),
            transaction: self.transaction(),
            access_len: self.access_len(),
            detail: self.detail(),
            address: self.address(),
            grant: self.grant(),
            key: self.key(),
        }
    }

    /// Returns the frame as it was received.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes after the header: at most [`MAX_PAYLOAD_BYTES`].
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// See [`HeaderRepr::channel`].
    #[inline]
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// See [`HeaderRepr::opcode`].
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// See [`HeaderRepr::flags`].
    #[inline]
    pub fn flags(&self) -> u8 {
        self.bytes[offset::FLAGS]
    }

    /// See [`HeaderRepr::source`].
    #[inline]
    pub fn source(&self) -> NodeId {
        NodeId(self.u32_at(offset::SOURCE))
    }

    /// See [`HeaderRepr::destination`].
    #[inline]
    pub fn destination(&self) -> NodeId {
        NodeId(self.u32_at(offset::DESTINATION))
    }

    /// See [`HeaderRepr::link`].
    #[inline]
    pub fn link(&self) -> LinkId {
        LinkId(self.u32_at(offset::LINK))
    }

    /// See [`HeaderRepr::sequence`].
    #[inline]
    pub fn sequence(&self) -> Sequence {
        Sequence(self.u32_at(offset::SEQUENCE))
    }

    /// See [`HeaderRepr::ack`].
    #[inline]
    pub fn ack(&self) -> Sequence {
        Sequence(self.u32_at(offset::ACK))
    }

    /// See [`HeaderRepr::transaction`].
    #[inline]
    pub fn transaction(&self) -> u32 {
        self.u32_at(offset::TRANSACTION)
    }

    /// See [`HeaderRepr::access_len`].
    #[inline]
    pub fn access_len(&self) -> u16 {
        u16::from_le_bytes(get(self.bytes, offset::ACCESS_LEN))
    }

    /// See [`HeaderRepr::detail`].
    #[inline]
    pub fn detail(&self) -> u16 {
        u16::from_le_bytes(get(self.bytes, offset::DETAIL))
    }

    /// See [`HeaderRepr::address`].
    #[inline]
    pub fn address(&self) -> u64 {
        u64::from_le_bytes(get(self.bytes, offset::ADDRESS))
    }

    /// See [`HeaderRepr::grant`].
    #[inline]
    pub fn grant(&self) -> GrantId {
        GrantId(u64::from_le_bytes(get(self.bytes, offset::GRANT)))
    }

    /// See [`HeaderRepr::key`].
    #[inline]
    pub fn key(&self) -> GrantKey {
        GrantKey(u64::from_le_bytes(get(self.bytes, offset::KEY)))
    }

    #[inline]
    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(get(self.bytes, at))
    }
}

fn check_length(bytes: &[u8]) -> Result<(), WireError> {
    let payload_len = usize::from(u16::from_le_bytes(get(bytes, offset::PAYLOAD_LEN)));
    if payload_len > MAX_PAYLOAD_BYTES {
        return Err(WireError::PayloadTooLong(payload_len));
    }
    let (len, needed) = (bytes.len(), HEADER_BYTES + payload_len);
    match len.cmp(&needed) {
        std::cmp::Ordering::Less => Err(WireError::Truncated { len, needed }),
        std::cmp::Ordering::Greater => Err(WireError::TrailingBytes { len, needed }),
        std::cmp::Ordering::Equal => Ok(()),
    }
}

fn check_integrity(bytes: &[u8], integrity: Integrity) -> Result<(), WireError> {
    let is_unchecked = bytes[offset::FLAGS] & UNCHECKED_FLAG != 0;
    match (integrity, is_unchecked) {
        (Integrity::Checksum, true) => Err(WireError::Unchecked),
        (Integrity::ParsedBefore, _) | (Integrity::Port, true) => Ok(()),
        (Integrity::Checksum | Integrity::Port, false) => {
            let carried = u32::from_le_bytes(get(bytes, offset::CHECKSUM));
            if carried == checksum(bytes) { Ok(()) } else { Err(WireError::BadChecksum) }
        }
    }
}

fn check_opcode(channel: u8, opcode: u8) -> Result<(Channel, Opcode), WireError> {
    Channel::from_byte(channel)
        .zip(Opcode::from_byte(opcode))
        .filter(|(channel, opcode)| opcode.is_on(*channel))
        .ok_or(WireError::UnknownOpcode { channel, opcode })
}

/// Reads the `N` bytes at `at`, which must lie in the header.
#[inline]
fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}
