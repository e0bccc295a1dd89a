//! Lock-free counters of the queues. They are written while the kernel waits to reclaim memory.

use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of the histogram for each power of two: values are accurate to an eighth.
const STEPS: u64 = 8;
const BUCKETS: usize = 64 * STEPS as usize;

/// Counters of one device, shared by its queues.
#[derive(Debug)]
pub struct Counters {
    /// Bytes the kernel read.
    pub read_bytes: AtomicU64,
    /// Bytes the kernel wrote.
    pub written_bytes: AtomicU64,
    /// Requests to read.
    pub reads: AtomicU64,
    /// Requests to write.
    pub writes: AtomicU64,
    /// Pages of zeros, read or written, that were not transferred.
    pub zero_pages: AtomicU64,
    /// Pages the kernel has discarded.
    pub discarded_pages: AtomicU64,
    /// Failed requests: pages lost with their donor, or that could not be stored.
    pub failed: AtomicU64,
    /// Time from a request's arrival at its queue to its answer.
    pub request_ns: Histogram,
}

impl Counters {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            read_bytes: zero(),
            written_bytes: zero(),
            reads: zero(),
            writes: zero(),
            zero_pages: zero(),
            discarded_pages: zero(),
            failed: zero(),
            request_ns: Histogram { buckets: (0..BUCKETS).map(|_| zero()).collect() },
        }
    }
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// A histogram of nanoseconds.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
}

impl Histogram {
    pub(crate) fn record(&self, value_ns: u64) {
        count(&self.buckets[bucket(value_ns)], 1);
    }

    /// Returns the value not exceeded by `quantile` (0 to 1) of all values, in nanoseconds; `None`
    /// before the first.
    #[must_use]
    pub fn at(&self, quantile: f64) -> Option<u64> {
        let counts: Vec<u64> =
            self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let wanted = ((total as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        let found = counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map(highest)
    }
}

fn bucket(value_ns: u64) -> usize {
    let value = value_ns.max(STEPS);
    let power = value.ilog2() as u64;
    let step = (value >> (power - STEPS.ilog2() as u64)) - STEPS;
    (power * STEPS + step) as usize
}

/// Returns the greatest value of a bucket.
fn highest(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    if power < STEPS.ilog2() as u64 {
        return STEPS;
    }
    let width = 1u64 << (power - STEPS.ilog2() as u64);
    ((STEPS + step) * width).saturating_add(width - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_accurate_to_eighth() {
        let histogram = Counters::new().request_ns;
        assert_eq!(histogram.at(0.5), None);
        (1..=1000).for_each(|value| histogram.record(value * 100));
        for (quantile, wanted) in [(0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
            let found = histogram.at(quantile).unwrap() as f64;
            assert!(found >= wanted && found < wanted * 1.126, "{quantile}: {found}");
        }
        histogram.record(0);
        histogram.record(u64::MAX);
        assert_eq!(histogram.at(0.0), Some(STEPS));
        assert_eq!(histogram.at(1.0), Some(u64::MAX));
    }
}
