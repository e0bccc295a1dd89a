//! Data center TCP (RFC 8257): the window falls by the share of segments that were marked.

use serde::{Deserialize, Serialize};

use crate::sequence::before;

/// One, as a fixed-point number.
const ONE: u32 = 1 << 20;
/// The weight of a new observation: 2⁻⁴ (section 4.2).
const GAIN_SHIFT: u32 = 4;

/// The estimate of marked segments, of equal size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dctcp {
    /// The share of marked segments, of [`ONE`].
    alpha: u32,
    acked: u32,
    marked: u32,
    /// The observation window ends when this is acknowledged.
    end: u32,
}

impl Dctcp {
    /// Starts with all marked, the safe side (section 3.3).
    pub(super) fn new(seq: u32) -> Self {
        Self { alpha: ONE, acked: 0, marked: 0, end: seq }
    }

    pub(super) fn count(&mut self, una: u32, nxt: u32, segments: u32, is_marked: bool) {
        self.acked = self.acked.saturating_add(segments);
        if is_marked {
            self.marked = self.marked.saturating_add(segments);
        }
        if !before(self.end, una) || self.acked == 0 {
            return;
        }
        let share = u64::from(self.marked) * u64::from(ONE) / u64::from(self.acked);
        // At least one less, so that it reaches 0.
        self.alpha -= (self.alpha >> GAIN_SHIFT).max(self.alpha.min(1));
        self.alpha = (self.alpha + (share as u32 >> GAIN_SHIFT)).min(ONE);
        (self.acked, self.marked, self.end) = (0, 0, nxt);
    }

    /// Returns `cwnd × (1 − α / 2)`, at least two segments.
    pub(super) fn threshold(&self, cwnd: u32) -> u32 {
        let cut = (u64::from(cwnd) * u64::from(self.alpha)) / u64::from(2 * ONE);
        (cwnd - cut as u32).max(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_follows_marks() {
        let mut state = Dctcp::new(0);
        assert_eq!(state.threshold(100), 50);
        // 1 · 15/16, then + 1/4 · 1/16.
        state.count(1_000, 2_000, 1_000, false);
        assert_eq!(state.alpha, ONE / 16 * 15);
        state.count(2_000, 3_000, 250, true);
        state.count(2_001, 3_000, 750, false);
        assert_eq!(state.alpha, ONE / 256 * 225 + ONE / 64);
        // 1 − 0.894 / 2
        assert_eq!(state.threshold(100), 100 - 44);
    }

    #[test]
    fn alpha_falls_to_zero() {
        let mut state = Dctcp::new(0);
        for round in 1..400 {
            state.count(round, round, 1_000, false);
        }
        assert_eq!((state.alpha, state.threshold(9)), (0, 9));
    }
}
