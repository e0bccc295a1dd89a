//! The checksum of frames and hops.

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of the field that holds a checksum.
const FIELD_BYTES: usize = 4;

/// A CRC-32C (Castagnoli, RFC 3385) on its way, over bytes that may lie in several places.
pub struct Checksum(Digest);

impl Checksum {
    /// Over nothing yet. A digest is some hundred bytes, which are not to be moved.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// The bytes that come next.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The bytes that come next, but for the field at `field_at`, which holds the checksum.
    pub(crate) fn update_without(&mut self, field_at: usize, bytes: &[u8]) {
        self.0.update(&bytes[..field_at]);
        self.0.update(&bytes[field_at + FIELD_BYTES..]);
    }

    pub(crate) fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checksum").finish_non_exhaustive()
    }
}

/// The checksum over all of `bytes` but the field at `field_at` that holds it.
pub(crate) fn checksum_without(field_at: usize, bytes: &[u8]) -> u32 {
    let mut checksum = Checksum::new();
    checksum.update_without(field_at, bytes);
    checksum.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-32/ISCSI, whatever lies in the field.
    #[test]
    fn the_field_is_left_out() {
        for field in [[0; FIELD_BYTES], [0xff; FIELD_BYTES]] {
            let bytes = [b"12345".as_slice(), &field, b"6789"].concat();
            assert_eq!(checksum_without(5, &bytes), 0xe306_9283);
        }
    }
}
