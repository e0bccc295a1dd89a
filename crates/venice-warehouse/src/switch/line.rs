//! Times on a line.

use serde::{Deserialize, Serialize};
use venice_simkernel::units::{BitRate, Picos};

/// A line with its rate, and the time of a byte where that is a whole number.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) rate: BitRate,
    /// Picoseconds a byte, or 0 if it is no whole number: the usual rates save a long division.
    picos_a_byte: u64,
}

impl Line {
    pub(super) fn new(rate: BitRate) -> Self {
        let second = 8 * Picos::SECOND;
        let whole = rate.0 > 0 && second.is_multiple_of(rate.0);
        Self { rate, picos_a_byte: if whole { second / rate.0 } else { 0 } }
    }

    /// Returns the time that so many bytes take, in picoseconds, rounded up.
    pub(super) fn time_of(&self, bytes: u32) -> u64 {
        match self.picos_a_byte {
            0 => self.rate.time_of(bytes.into()),
            picos => u64::from(bytes) * picos,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_equal_those_of_rate() {
        for rate in [1, 7, 1_000_000_000, 3_000_000_000, 10_000_000_000, 8_000_000_000_001] {
            let rate = BitRate(rate);
            for bytes in [0, 1, 64, 1538, 9038] {
                assert_eq!(Line::new(rate).time_of(bytes), rate.time_of(bytes.into()), "{rate}");
            }
        }
    }
}
