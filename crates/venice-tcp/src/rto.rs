//! The retransmission time-out: RFC 6298, with the estimator of Linux as an option.

use serde::{Deserialize, Serialize};

use crate::config::{Floor, Rto};
use crate::sequence::before;

/// The longest round trip that counts, a quarter of an hour: one by timestamp may be any number.
const MOST: u64 = 1_000_000_000_000;

/// The estimate of the round trip. All times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Estimator {
    /// Eight times the smoothed round trip; 0 before the first sample.
    srtt_8: u64,
    /// Four times the variation.
    rttvar_4: u64,
    /// Linux: the variation now, and the most of it in this round trip.
    mdev_4: u64,
    mdev_4_max: u64,
    /// Linux: a new round trip begins when this sequence number is acknowledged.
    round_end: u32,
    /// Doublings since the last progress.
    pub(crate) backoff: u8,
}

impl Estimator {
    pub(crate) fn new() -> Self {
        Self { srtt_8: 0, rttvar_4: 0, mdev_4: 0, mdev_4_max: 0, round_end: 0, backoff: 0 }
    }

    /// Returns the smoothed round trip, if one was measured.
    pub(crate) fn srtt(&self) -> Option<u64> {
        (self.srtt_8 > 0).then_some(self.srtt_8 / 8)
    }

    /// Takes a sample, rounded to the clock. `una` is the first unacknowledged sequence number, `nxt`
    /// the next to be sent.
    pub(crate) fn sample(&mut self, rtt: u64, rto: &Rto, una: u32, nxt: u32) {
        let rtt = (rtt / rto.clock_ns * rto.clock_ns).clamp(rto.clock_ns, MOST);
        match rto.floor {
            Floor::Timeout => self.sample_rfc(rtt),
            Floor::Variation => self.sample_linux(rtt, rto.minimum_ns, una, nxt),
        }
    }

    /// RFC 6298, rules 2.2 and 2.3, with α = 1/8 and β = 1/4.
    fn sample_rfc(&mut self, rtt: u64) {
        if self.srtt_8 == 0 {
            (self.srtt_8, self.rttvar_4) = (rtt * 8, rtt * 2);
        } else {
            let error = (self.srtt_8 / 8).abs_diff(rtt);
            self.rttvar_4 = self.rttvar_4 - self.rttvar_4 / 4 + error;
            self.srtt_8 = self.srtt_8 - self.srtt_8 / 8 + rtt;
        }
    }

    /// Linux: the variation is the greatest of a round trip and falls slowly; a shorter round trip
    /// counts an eighth (`tcp_rtt_estimator`).
    fn sample_linux(&mut self, rtt: u64, minimum: u64, una: u32, nxt: u32) {
        if self.srtt_8 == 0 {
            self.srtt_8 = rtt * 8;
            self.mdev_4 = rtt * 2;
            self.rttvar_4 = self.mdev_4.max(minimum);
            self.mdev_4_max = self.rttvar_4;
            self.round_end = nxt;
            return;
        }
        let smoothed = self.srtt_8 / 8;
        self.srtt_8 = self.srtt_8 - smoothed + rtt;
        let mut error = smoothed.abs_diff(rtt);
        let deviation = self.mdev_4 / 4;
        if rtt < smoothed && error > deviation {
            error = deviation + (error - deviation) / 8;
        }
        self.mdev_4 = self.mdev_4 - deviation + error;
        if self.mdev_4 > self.mdev_4_max {
            self.mdev_4_max = self.mdev_4;
            self.rttvar_4 = self.rttvar_4.max(self.mdev_4_max);
        }
        if before(self.round_end, una) {
            if self.mdev_4_max < self.rttvar_4 {
                self.rttvar_4 -= (self.rttvar_4 - self.mdev_4_max) / 4;
            }
            self.round_end = nxt;
            self.mdev_4_max = minimum;
        }
    }

    /// Returns the time-out with its doublings.
    pub(crate) fn timeout(&self, rto: &Rto) -> u64 {
        let base = match (self.srtt(), rto.floor) {
            (None, _) => rto.initial_ns,
            (Some(srtt), Floor::Timeout) => {
                (srtt + self.rttvar_4.max(rto.granularity_ns)).max(rto.minimum_ns)
            }
            (Some(srtt), Floor::Variation) => srtt + self.rttvar_4,
        };
        let base = base.min(rto.maximum_ns);
        base.saturating_mul(1 << self.backoff.min(40)).min(rto.maximum_ns)
    }
}

/// Returns the deadline of a timer that is started now, rounded up to a tick.
pub(crate) fn deadline(now: u64, after: u64, rto: &Rto) -> u64 {
    now.saturating_add(after).checked_next_multiple_of(rto.granularity_ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const MS: u64 = 1_000_000;

    fn rfc(minimum_ns: u64) -> Rto {
        Rto { minimum_ns, ..Config::rfc().rto }
    }

    #[test]
    fn samples_follow_rfc_6298() {
        let rto = rfc(MS);
        let mut rtt = Estimator::new();
        assert_eq!(rtt.timeout(&rto), 1_000 * MS);
        rtt.sample(8 * MS, &rto, 0, 0);
        // SRTT 8, RTTVAR 4: 8 + 4 · 4.
        assert_eq!(rtt.timeout(&rto), 24 * MS);
        rtt.sample(16 * MS, &rto, 0, 0);
        // RTTVAR 3/4 · 4 + 1/4 · 8 = 5; SRTT 7/8 · 8 + 16/8 = 9.
        assert_eq!((rtt.srtt(), rtt.timeout(&rto)), (Some(9 * MS), 29 * MS));
        rtt.backoff = 2;
        assert_eq!(rtt.timeout(&rto), 116 * MS);
    }

    #[test]
    fn floor_bounds_time_out() {
        let rto = rfc(200 * MS);
        let mut rtt = Estimator::new();
        rtt.sample(MS, &rto, 0, 0);
        assert_eq!(rtt.timeout(&rto), 200 * MS);
        rtt.backoff = 20;
        assert_eq!(rtt.timeout(&rto), rto.maximum_ns);
    }

    #[test]
    fn floor_bounds_variation_in_linux() {
        let rto = Rto { clock_ns: 1, ..Config::linux_today().rto };
        let mut rtt = Estimator::new();
        for round in 0..100 {
            rtt.sample(MS, &rto, round, round + 1);
        }
        assert_eq!(rtt.timeout(&rto), 201 * MS);
    }

    #[test]
    fn clock_rounds_samples_down() {
        let rto = Rto { clock_ns: 4 * MS, ..rfc(MS) };
        let mut rtt = Estimator::new();
        rtt.sample(7 * MS, &rto, 0, 0);
        assert_eq!(rtt.srtt(), Some(4 * MS));
    }

    #[test]
    fn deadline_waits_for_tick() {
        let rto = Rto { granularity_ns: 4 * MS, ..rfc(MS) };
        assert_eq!(deadline(MS, 5 * MS, &rto), 8 * MS);
        assert_eq!(deadline(MS, 7 * MS, &rto), 8 * MS);
        assert_eq!(deadline(u64::MAX - 1, 7, &rto), u64::MAX);
    }
}
