//! Fault service times: a histogram shared by all processes of a run.

use std::sync::atomic::Ordering;

use super::RunBlock;

/// Buckets of the histogram: 16 for each power of two.
pub(super) const BUCKETS: usize = 16 * 40;

/// The histogram at one moment, or the difference of two.
#[derive(Clone, Debug)]
pub struct FaultTimes(Box<[u64]>);

impl RunBlock {
    /// Adds a fault's service time to the histogram.
    pub fn record_fault_ns(&self, duration_ns: u64) {
        self.histogram[bucket_of(duration_ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// The service times so far.
    pub fn fault_times(&self) -> FaultTimes {
        FaultTimes(self.histogram.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }

    /// The service time in nanoseconds below which the share `quantile` of all faults lies; `None`
    /// before the first fault.
    pub fn fault_ns_at(&self, quantile: f64) -> Option<u64> {
        self.fault_times().at(quantile)
    }
}

impl FaultTimes {
    /// The faults since `earlier`.
    pub fn since(&self, earlier: &FaultTimes) -> FaultTimes {
        let both = self.0.iter().zip(&earlier.0);
        FaultTimes(both.map(|(now, then)| now.saturating_sub(*then)).collect())
    }

    /// The sum of both histograms.
    pub fn and(&self, others: &FaultTimes) -> FaultTimes {
        FaultTimes(self.0.iter().zip(&others.0).map(|(one, other)| one + other).collect())
    }

    /// The time in nanoseconds below which the share `quantile` lies; `None` if it is empty.
    pub fn at(&self, quantile: f64) -> Option<u64> {
        let total: u64 = self.0.iter().sum();
        let wanted = (total as f64 * quantile).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Some(bucket_floor(bucket));
            }
        }
        None
    }
}

fn bucket_of(duration_ns: u64) -> usize {
    let value = duration_ns.max(16);
    let power = 63 - value.leading_zeros() as usize;
    let sixteenth = (value >> (power - 4)) as usize & 15;
    ((power - 4) * 16 + sixteenth).min(BUCKETS - 1)
}

fn bucket_floor(bucket: usize) -> u64 {
    let (power, sixteenth) = (bucket / 16 + 4, bucket % 16);
    (16 + sixteenth as u64) << (power - 4)
}

#[cfg(test)]
mod tests {
    use super::super::{PortKind, RunBlockMap};

    #[test]
    fn quantiles_within_a_sixteenth() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        assert_eq!(block.fault_ns_at(0.5), None);
        for ns in 1..=10_000 {
            block.record_fault_ns(ns);
        }
        let median = block.fault_ns_at(0.5).unwrap();
        assert!((4_680..=5_000).contains(&median), "{median}");
        let then = block.fault_times();
        assert_eq!(block.fault_times().since(&then).at(0.5), None);
        block.record_fault_ns(1 << 20);
        let late = block.fault_times().since(&then);
        assert_eq!(late.at(0.5), Some(1 << 20));
        assert_eq!(then.and(&late).at(1.0), Some(1 << 20));
        assert_eq!(then.and(&late).at(0.5), then.at(0.5));
    }
}
