//! The header of a sealed datagram: all that the receiver needs before it can open it.

use crate::{KeyName, VERSION, WireError};

/// First two bytes of a sealed datagram, read as a little-endian `u16`: the letters `VS`.
pub const SEALED_MAGIC: u16 = u16::from_le_bytes(*b"VS");
/// Length of a sealed datagram's header.
pub const SEALED_HEADER_BYTES: usize = 32;
/// Length of the tag behind the ciphertext.
pub const SEAL_TAG_BYTES: usize = 16;
/// Bytes that sealing adds to a datagram.
pub const SEAL_OVERHEAD_BYTES: usize = SEALED_HEADER_BYTES + SEAL_TAG_BYTES;
/// The most pieces in which one message can travel.
pub const MAX_SEALED_PIECES: u8 = 15;

/// The algorithm with which a datagram is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SealAlgorithm {
    /// AES-256 in Galois/counter mode (NIST SP 800-38D).
    Aes256Gcm = 1,
    /// ChaCha20-Poly1305 (RFC 8439).
    ChaCha20Poly1305 = 2,
}

/// The direction of a datagram. Each direction has its own keys, so no datagram can be reflected as
/// an answer to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SealDirection {
    /// From the holder of the key to the node the key belongs to.
    ToOwner = 0,
    /// From that node back.
    FromOwner = 1,
}

/// The header of a sealed datagram. All of it is authenticated, none of it encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedHeader {
    /// The algorithm of the sealed part.
    pub algorithm: SealAlgorithm,
    /// The direction.
    pub direction: SealDirection,
    /// The key under which the datagram is sealed.
    pub key: KeyName,
    /// A random number drawn by the sender when it starts: its keys are derived from the named key
    /// and this salt.
    pub salt: u64,
    /// The number of the sender's datagram: the nonce.
    pub counter: u64,
    /// The number of datagrams in which the message travels; their counters follow each other.
    pub pieces: u8,
    /// The index of this piece, from 0.
    pub piece: u8,
}

impl SealAlgorithm {
    /// Returns the algorithm's common name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Aes256Gcm),
            2 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }
}

impl SealedHeader {
    /// True if `datagram` begins with the magic of a sealed one.
    pub fn is_sealed(datagram: &[u8]) -> bool {
        datagram.starts_with(&SEALED_MAGIC.to_le_bytes())
    }

    /// Reads the header at the front of a datagram.
    ///
    /// # Errors
    /// Returns the first way in which it is not a header of this version. No input panics.
    pub fn parse(datagram: &[u8]) -> Result<Self, WireError> {
        let (len, needed) = (datagram.len(), SEAL_OVERHEAD_BYTES);
        if len < needed {
            return Err(WireError::Truncated { len, needed });
        }
        let magic = u16::from_le_bytes([datagram[0], datagram[1]]);
        if magic != SEALED_MAGIC {
            return Err(WireError::BadMagic(magic));
        }
        if datagram[2] != VERSION {
            return Err(WireError::UnsupportedVersion(datagram[2]));
        }
        let bad = WireError::BadSealedHeader;
        let direction = match datagram[5] {
            0 => SealDirection::ToOwner,
            1 => SealDirection::FromOwner,
            _ => return Err(bad),
        };
        let (piece, pieces) = (datagram[6] >> 4, datagram[6] & 0x0f);
        if piece >= pieces || datagram[7] != 0 {
            return Err(bad);
        }
        Ok(Self {
            algorithm: SealAlgorithm::from_byte(datagram[3]).ok_or(bad)?,
            direction,
            key: KeyName::from_parts(datagram[4], word(datagram, 8)).ok_or(bad)?,
            salt: word(datagram, 16),
            counter: word(datagram, 24),
            pieces,
            piece,
        })
    }

    /// Returns the header's bytes.
    ///
    /// # Panics
    /// Panics if `piece` is not less than `pieces`, or `pieces` exceeds [`MAX_SEALED_PIECES`].
    pub fn to_bytes(&self) -> [u8; SEALED_HEADER_BYTES] {
        assert!(self.piece < self.pieces && self.pieces <= MAX_SEALED_PIECES, "a piece of many");
        let mut bytes = [0; SEALED_HEADER_BYTES];
        bytes[0..2].copy_from_slice(&SEALED_MAGIC.to_le_bytes());
        bytes[2] = VERSION;
        bytes[3] = self.algorithm as u8;
        bytes[4] = self.key.kind();
        bytes[5] = self.direction as u8;
        bytes[6] = self.piece << 4 | self.pieces;
        bytes[8..16].copy_from_slice(&self.key.id().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.counter.to_le_bytes());
        bytes
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GrantId;
    use proptest::prelude::*;

    fn header() -> SealedHeader {
        SealedHeader {
            algorithm: SealAlgorithm::Aes256Gcm,
            direction: SealDirection::FromOwner,
            key: KeyName::Grant(GrantId(0x0807_0605_0403_0201)),
            salt: 0x1817_1615_1413_1211,
            counter: 0x2827_2625_2423_2221,
            pieces: 3,
            piece: 2,
        }
    }

    /// The golden vector: a change of it needs a new version.
    #[test]
    fn header_matches_golden_bytes() {
        let golden = [
            b'V', b'S', 1, 1, 1, 1, 0x23, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15,
            0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
        ];
        assert_eq!(header().to_bytes(), golden);
        let datagram = [&golden[..], &[0; SEAL_TAG_BYTES]].concat();
        assert_eq!(SealedHeader::parse(&datagram), Ok(header()));
        assert!(SealedHeader::is_sealed(&datagram) && !SealedHeader::is_sealed(b"VN"));
    }

    #[test]
    fn parse_rejects_bad_headers() {
        let datagram = [&header().to_bytes()[..], &[0; SEAL_TAG_BYTES]].concat();
        for (at, value) in [(0, b'X'), (2, 9), (3, 0), (3, 3), (4, 0), (5, 2), (6, 0x33), (7, 1)] {
            let mut wrong = datagram.clone();
            wrong[at] = value;
            assert!(SealedHeader::parse(&wrong).is_err(), "byte {at}");
        }
        assert!(SealedHeader::parse(&datagram[..SEAL_OVERHEAD_BYTES - 1]).is_err());
    }

    proptest! {
        #[test]
        fn parsed_header_roundtrips(
            datagram in proptest::collection::vec(any::<u8>(), 0..80)
        ) {
            if let Ok(header) = SealedHeader::parse(&datagram) {
                prop_assert_eq!(&header.to_bytes()[..], &datagram[..SEALED_HEADER_BYTES]);
            }
        }
    }
}
