//! Fault service times: a histogram shared by all processes of a run.

use std::sync::atomic::Ordering;

use super::RunBlock;
use super::log_histogram::{bucket_floor, bucket_of, value_at};

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
        value_at(&self.0, quantile)
    }

    /// The mean time in nanoseconds, low by up to a sixteenth; `None` if it is empty.
    pub fn mean_ns(&self) -> Option<f64> {
        let total: u64 = self.0.iter().sum();
        let floors = self.0.iter().enumerate();
        let sum: f64 =
            floors.map(|(bucket, count)| bucket_floor(bucket) as f64 * *count as f64).sum();
        (total > 0).then(|| sum / total as f64)
    }
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
        let mean = block.fault_times().mean_ns().unwrap();
        assert!((4_680.0..=5_000.0).contains(&mean), "{mean}");
        let then = block.fault_times();
        assert_eq!(block.fault_times().since(&then).at(0.5), None);
        block.record_fault_ns(1 << 20);
        let late = block.fault_times().since(&then);
        assert_eq!(late.at(0.5), Some(1 << 20));
        assert_eq!(then.and(&late).at(1.0), Some(1 << 20));
        assert_eq!(then.and(&late).at(0.5), then.at(0.5));
    }
}
