//! The checksum of frames and hops.

use crc_fast::{CrcAlgorithm, Digest};

/// Length of a checksum field in bytes.
const FIELD_BYTES: usize = 4;

/// A running CRC-32C (Castagnoli, RFC 3385) over bytes that may lie in several places.
pub struct Checksum(Digest);

impl Checksum {
    /// Starts a checksum over no bytes. Always inlined: a digest is some hundred bytes, which must
    /// not be moved.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds the next bytes except the field at `field_at`, which holds the checksum.
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

/// Returns the checksum over all of `bytes` except the field at `field_at` that holds it.
pub(crate) fn checksum_without(field_at: usize, bytes: &[u8]) -> u32 {
    let mut checksum = Checksum::new();
    checksum.update_without(field_at, bytes);
    checksum.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expects the check value of CRC-32/ISCSI whatever the field contains.
    #[test]
    fn checksum_skips_its_field() {
        for field in [[0; FIELD_BYTES], [0xff; FIELD_BYTES]] {
            let bytes = [b"12345".as_slice(), &field, b"6789"].concat();
            assert_eq!(checksum_without(5, &bytes), 0xe306_9283);
        }
    }
}
