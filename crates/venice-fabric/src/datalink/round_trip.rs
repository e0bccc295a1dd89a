//! Round-trip estimation, and the replay time-out derived from it (after RFC 6298).

use crate::LinkConfig;

#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed_ns: Option<u64>,
    deviation_ns: u64,
}

/// The most doublings of the time-out; its upper bound caps it anyway.
const MAX_DOUBLINGS: u32 = 16;

impl RoundTrip {
    pub(crate) fn sample(&mut self, measured_ns: u64) {
        let Some(smoothed_ns) = self.smoothed_ns else {
            self.smoothed_ns = Some(measured_ns);
            self.deviation_ns = measured_ns / 2;
            return;
        };
        let error_ns = smoothed_ns.abs_diff(measured_ns);
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + error_ns / 4;
        self.smoothed_ns = Some(smoothed_ns - smoothed_ns / 8 + measured_ns / 8);
    }

    pub(crate) fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns
    }

    pub(crate) fn deviation_ns(&self) -> u64 {
        self.deviation_ns
    }

    /// Returns the replay time-out after `doublings` unsuccessful ones, in nanoseconds.
    pub(crate) fn replay_timeout_ns(&self, config: &LinkConfig, doublings: u32) -> u64 {
        let expected_ns = match self.smoothed_ns {
            Some(smoothed_ns) => smoothed_ns.saturating_add(self.deviation_ns.saturating_mul(4)),
            None => config.replay_min_ns.saturating_mul(4),
        };
        expected_ns
            .max(config.replay_min_ns)
            .saturating_add(config.ack_delay_ns)
            .saturating_mul(1 << doublings.min(MAX_DOUBLINGS))
            .min(config.replay_max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_converges_on_steady_rtt() {
        let mut round_trip = RoundTrip::default();
        (0..100).for_each(|_| round_trip.sample(50_000));
        let smoothed_ns = round_trip.smoothed_ns().unwrap();
        assert!(smoothed_ns.abs_diff(50_000) < 100, "{smoothed_ns}");
    }

    #[test]
    fn timeout_stays_within_bounds() {
        let config = LinkConfig::default();
        let mut round_trip = RoundTrip::default();
        round_trip.sample(10_000);
        let at_least = config.replay_min_ns + config.ack_delay_ns;
        assert_eq!(round_trip.replay_timeout_ns(&config, 0), at_least);
        assert_eq!(round_trip.replay_timeout_ns(&config, 1), 2 * at_least);
        assert_eq!(round_trip.replay_timeout_ns(&config, 99), config.replay_max_ns);
        round_trip.sample(u64::MAX);
        assert_eq!(round_trip.replay_timeout_ns(&config, 99), config.replay_max_ns);
    }
}
