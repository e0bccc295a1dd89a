//! Link numbers, drawn from a seed.

use venice_wire::LinkId;

/// A stream of link numbers that differ, with high probability, from those of any other seed.
#[derive(Debug)]
pub(crate) struct LinkNumbers {
    state: u64,
}

impl LinkNumbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number; never 0.
    pub(crate) fn draw(&mut self) -> LinkId {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        LinkId(((z ^ (z >> 31)) >> 32).max(1) as u32)
    }
}
