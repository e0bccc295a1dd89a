//! Clocks of machines: with an offset from each other, and a drift.

use super::scenario::Clocks;
use venice_simkernel::random::Stream;

/// A machine's clock, since its process started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Its reading at true time 0, in nanoseconds.
    offset_ns: u64,
    drift_ppm: i64,
}

/// Reading of a true clock at the beginning: larger than any negative offset.
const EPOCH_NS: u64 = 1_000_000_000_000;

impl Clock {
    pub(super) fn new(clocks: &Clocks, rng: &mut Stream) -> Self {
        let drift = i64::from(clocks.drift.0);
        let drift_ppm = rng.below(2 * drift as u64 + 1) as i64 - drift;
        Self { offset_ns: EPOCH_NS, drift_ppm }.set(clocks, rng)
    }

    /// Returns it with a new random offset.
    pub(super) fn set(self, clocks: &Clocks, rng: &mut Stream) -> Self {
        let ahead_ns = rng.below(clocks.apart.0 + 1);
        Self { offset_ns: EPOCH_NS + ahead_ns - clocks.apart.0 / 2, ..self }
    }

    /// Returns its reading.
    pub(super) fn at(self, true_ns: u64) -> u64 {
        let drift_ns = i128::from(true_ns) * i128::from(self.drift_ppm) / 1_000_000;
        let shown_ns = i128::from(self.offset_ns) + i128::from(true_ns) + drift_ns;
        u64::try_from(shown_ns).unwrap_or(u64::MAX)
    }

    /// Returns the true time until so much has passed on it.
    pub(super) fn takes_ns(self, local_ns: u64) -> u64 {
        // Two nanoseconds are added for rounding, so that the time has passed by then.
        let pace_ppm = 1_000_000 + i128::from(self.drift_ppm);
        u64::try_from(i128::from(local_ns) * 1_000_000 / pace_ppm + 2).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_simkernel::units::{Nanos, Share};

    #[test]
    fn timer_expires_promptly_and_not_early() {
        let clocks = Clocks { apart: Nanos(600_000_000_000), drift: Share(10_000) };
        for seed in 0..200 {
            let clock = Clock::new(&clocks, &mut Stream::new(seed));
            let (from_ns, waits_ns) = (seed * 1_000_003, 7_000_000_000);
            let passed_ns = clock.at(from_ns + clock.takes_ns(waits_ns)) - clock.at(from_ns);
            assert!((waits_ns..waits_ns + 1_000_000).contains(&passed_ns), "{passed_ns}");
        }
    }
}
