//! The checksum of frames and hops.

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of the field that holds a checksum.
const FIELD_BYTES: usize = 4;

/// CRC-32C (Castagnoli, RFC 3385) over all of `bytes` but the field at `field_at` that holds it.
pub(crate) fn checksum_without(field_at: usize, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..field_at]);
    digest.update(&bytes[field_at + FIELD_BYTES..]);
    digest.finalize() as u32
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
