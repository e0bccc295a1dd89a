//! Repeatable random numbers: one seed, and a stream for each user.

use serde::{Deserialize, Serialize};

/// A stream of random numbers (SplitMix64: Steele, Lea, Flood 2014).
///
/// Streams are split by name, never by drawing: what one link or node draws does not depend on how
/// much others have drawn, nor on how many others there are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stream {
    seed: u64,
    state: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Stream {
    /// Creates the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// Returns the stream of that name below this one; the same however much this one has drawn.
    #[must_use]
    pub fn split(&self, name: &str, numbers: &[u64]) -> Self {
        let bytes = name.bytes().map(u64::from);
        let seed = bytes
            .chain(numbers.iter().copied())
            .fold(mix(self.seed ^ GOLDEN), |seed, label| mix(seed.wrapping_add(GOLDEN) ^ label));
        Self::new(seed)
    }

    /// Returns the next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Returns a number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    ///
    /// # Panics
    /// If `low` is above `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "{low} is above {high}");
        low + self.below((high - low).saturating_add(1))
    }

    /// Returns true this often in a million; draws nothing when the answer is certain.
    pub fn chance(&mut self, parts_per_million: u32) -> bool {
        parts_per_million > 0 && self.below(1_000_000) < u64::from(parts_per_million)
    }

    /// Returns one of several.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// Mixes sixty-four bits into sixty-four others.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_stream_ignores_draws() {
        let mut one = Stream::new(7);
        let before = one.split("link", &[1, 2]).draw();
        one.draw();
        assert_eq!(one.split("link", &[1, 2]).draw(), before);
        assert_ne!(one.split("link", &[2, 1]).draw(), before);
        assert_ne!(one.split("node", &[1, 2]).draw(), before);
        assert_ne!(Stream::new(8).split("link", &[1, 2]).draw(), before);
    }

    #[test]
    fn numbers_reach_their_bounds() {
        let mut stream = Stream::new(3);
        let drawn: Vec<u64> = (0..1000).map(|_| stream.between(5, 8)).collect();
        assert!((5..=8).all(|n| drawn.contains(&n)) && drawn.iter().all(|n| (5..=8).contains(n)));
        assert_eq!(stream.between(u64::MAX, u64::MAX), u64::MAX);
        let hits = (0..100_000).filter(|_| stream.chance(10_000)).count();
        assert!((800..1200).contains(&hits), "{hits} of 1000 expected");
        assert!(!stream.chance(0) && stream.chance(1_000_000));
    }
}
