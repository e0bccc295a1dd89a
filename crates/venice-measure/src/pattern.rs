//! Incompressible bytes computed from a number.
//!
//! A value of the demo and a page of the fault benchmark are both filled from their own number, so
//! that a byte that was lost, swapped with a neighbour's or left from an earlier owner is detected.

/// Bytes in one word of a pattern.
pub const WORD_BYTES: usize = 8;

/// Returns the word at `index` of the pattern that belongs to `number`.
pub fn word(number: u64, index: u64) -> u64 {
    scramble(number.wrapping_mul(0xD1B5_4A32_D192_ED03) ^ scramble(index))
}

/// Fills `out` with the pattern of `number`. A length that is not a multiple of [`WORD_BYTES`] ends
/// in the first bytes of the next word.
pub fn fill(number: u64, out: &mut [u8]) {
    for (index, chunk) in out.chunks_mut(WORD_BYTES).enumerate() {
        let bytes = word(number, index as u64).to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
}

/// True if `bytes` is exactly the pattern of `number`.
pub fn matches(number: u64, bytes: &[u8]) -> bool {
    bytes.chunks(WORD_BYTES).enumerate().all(|(index, chunk)| {
        let expected = word(number, index as u64).to_le_bytes();
        chunk == &expected[..chunk.len()]
    })
}

/// Maps a 64-bit word by a bijection in which every input bit reaches every output bit (the
/// finalizer of SplitMix64).
pub fn scramble(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A small, seeded generator (SplitMix64): the same seed gives the same requests in every mode.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates a generator that repeats its numbers from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: scramble(seed) }
    }

    /// Returns the next number, over the whole range.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        scramble(self.state)
    }

    /// Returns a number uniform in `0..bound`. The bias of at most `bound / 2^64` does not matter
    /// here.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number uniform in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_only_itself() {
        let mut bytes = [0u8; 1024];
        fill(7, &mut bytes);
        assert!(matches(7, &bytes));
        assert!(!matches(8, &bytes));
    }

    #[test]
    fn any_wrong_byte_is_detected() {
        let mut bytes = [0u8; 1027];
        fill(42, &mut bytes);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(!matches(42, &bytes), "a flipped bit at {at} was not detected");
            bytes[at] ^= 1;
        }
        assert!(matches(42, &bytes));
    }

    #[test]
    fn patterns_do_not_compress() {
        // Order-0 entropy over 1 MiB: bytes do not compress when all values are about equally
        // frequent and no 8-byte word repeats.
        let mut counts = [0u64; 256];
        let mut words = std::collections::BTreeSet::new();
        let mut value = [0u8; 1024];
        for number in 0..1024 {
            fill(number, &mut value);
            value.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
            for chunk in value.chunks(WORD_BYTES) {
                assert!(words.insert(chunk.to_vec()), "a word came twice");
            }
        }
        let total: u64 = counts.iter().sum();
        let entropy_bits: f64 = counts
            .iter()
            .map(|&count| count as f64 / total as f64)
            .map(|share| -share * share.log2())
            .sum();
        assert!(entropy_bits > 7.999, "{entropy_bits} bits a byte");
    }

    #[test]
    fn random_is_bounded_and_repeatable() {
        let (mut one, mut two) = (Random::new(3), Random::new(3));
        for _ in 0..10_000 {
            let drawn = one.below(17);
            assert!(drawn < 17);
            assert_eq!(drawn, two.below(17));
            let share = one.unit();
            assert!((0.0..1.0).contains(&share));
            two.unit();
        }
    }
}
