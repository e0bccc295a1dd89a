//! Digests of memory: any wrong bit in any word changes them.

use venice_measure::pattern::scramble;

/// Digests a series of words, in their order.
pub(super) fn of_words(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0, |digest: u64, word| scramble(digest ^ word))
}

/// Digests numbers of 32 bits.
pub(super) fn of_u32(numbers: &[u32]) -> u64 {
    of_words(numbers.iter().map(|&number| u64::from(number)))
}

/// Digests floating-point numbers, by their bits.
pub(super) fn of_f64(numbers: &[f64]) -> u64 {
    of_words(numbers.iter().map(|number| number.to_bits()))
}

/// Digests bytes.
pub(super) fn of_bytes(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    of_words(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_order_count() {
        let mut bytes = *b"some text that is no multiple of eight";
        let right = of_bytes(&bytes);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of_bytes(&bytes), right, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_ne!(of_u32(&[1, 2]), of_u32(&[2, 1]));
        assert_ne!(of_f64(&[0.0]), of_f64(&[-0.0]));
    }
}
