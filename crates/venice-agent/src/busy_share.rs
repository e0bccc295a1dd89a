//! Share of time in which a granted device was busy, from samples of its service's counters.

use std::collections::VecDeque;

use venice_service::UsageSample;

/// Time over which the share is taken, in nanoseconds.
const OVER_NS: u64 = 5_000_000_000;

/// The last samples of a service.
#[derive(Debug, Default)]
pub(crate) struct BusyShare {
    /// Times of samples with the busy time until then, in nanoseconds.
    samples: VecDeque<(u64, u64)>,
}

impl BusyShare {
    /// Takes a sample; returns the share of the last five seconds, 0 to 1, if it is known.
    pub(crate) fn take(&mut self, sample: &UsageSample) -> Option<f64> {
        let busy_ns = sample.usage.busy_ns?;
        if self.samples.back().is_none_or(|(at_ns, _)| *at_ns < sample.at_ns) {
            self.samples.push_back((sample.at_ns, busy_ns));
        }
        // The second one is old enough: the first is not needed.
        while self.samples.get(1).is_some_and(|(at_ns, _)| at_ns + OVER_NS <= sample.at_ns) {
            self.samples.pop_front();
        }
        let ((since_ns, then_ns), (at_ns, now_ns)) = (self.samples.front()?, self.samples.back()?);
        let elapsed_ns = at_ns.checked_sub(*since_ns).filter(|ns| *ns > 0)?;
        Some((now_ns.saturating_sub(*then_ns) as f64 / elapsed_ns as f64).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use venice_service::ServiceUsage;

    use super::*;

    #[test]
    fn share_is_of_last_seconds() {
        let second = 1_000_000_000;
        let mut share = BusyShare::default();
        let mut take = |at_s: u64, busy_s: u64| {
            let busy_ns = Some(busy_s * second);
            let usage = ServiceUsage { busy_ns, ..ServiceUsage::default() };
            share.take(&UsageSample { at_ns: at_s * second, usage })
        };
        assert_eq!(take(10, 3), None, "one sample is no time");
        assert_eq!(take(10, 3), None);
        assert_eq!(take(12, 4), Some(0.5));
        assert_eq!(take(15, 4), Some(0.2));
        assert_eq!(take(20, 4), Some(0.0), "the work is too long ago");
        assert_eq!(take(21, 9), Some(5.0 / 6.0));
        let unknown = UsageSample { at_ns: 22 * second, usage: ServiceUsage::default() };
        assert_eq!(share.take(&unknown), None);
    }
}
