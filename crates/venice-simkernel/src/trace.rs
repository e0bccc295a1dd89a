//! A hash over all events of a run: two runs with the same hash were the same run.

use crate::random::mix;

/// A running hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    hash: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Self { hash: 0x7665_6e69_6365 }
    }
}

impl Trace {
    /// Adds numbers.
    pub fn note(&mut self, numbers: &[u64]) {
        for &number in numbers {
            self.hash = mix(self.hash.rotate_left(23) ^ number);
        }
    }

    /// Adds bytes.
    pub fn note_bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.step(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.step(u64::from_le_bytes(last));
        self.note(&[bytes.len() as u64]);
    }

    fn step(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Returns the hash.
    pub fn hash(self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(bytes: &[u8]) -> u64 {
        let mut trace = Trace::default();
        trace.note_bytes(bytes);
        trace.hash()
    }

    #[test]
    fn every_byte_and_length_count() {
        let bytes: Vec<u8> = (0..37).collect();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(hash_of(&bytes), hash_of(&other), "byte {at}");
        }
        assert_ne!(hash_of(&[0; 8]), hash_of(&[0; 9]));
    }
}
