//! Refault distances: a histogram shared by all processes of a run.

use std::sync::atomic::Ordering;

use super::RunBlock;
use super::log_histogram::{bucket_of, value_at};

impl RunBlock {
    /// Records a refault on a page that left `distance_pages` evictions ago: with that much more
    /// memory its process would have kept it.
    pub fn record_refault(&self, distance_pages: u32) {
        let bucket = bucket_of(u64::from(distance_pages));
        self.refault_distances[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// The distance in pages below which the share `quantile` of all refaults lies, exact to a
    /// sixteenth. Faults on staged pages count as near. `None` before the first refault on a far
    /// page.
    pub fn refault_distance_at(&self, quantile: f64) -> Option<u64> {
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let mut counts: Vec<u64> = self.refault_distances.iter().map(load).collect();
        if counts.iter().all(|count| *count == 0) {
            return None;
        }
        counts[0] += load(&self.counters.staged_faults);
        value_at(&counts, quantile)
    }

    /// The refaults on far pages.
    pub fn far_refaults(&self) -> u64 {
        self.refault_distances.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PortKind, RunBlockMap};
    use super::*;

    #[test]
    fn staged_faults_count_as_near() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        block.counters.staged_faults.store(100, Ordering::Relaxed);
        assert_eq!(block.refault_distance_at(0.9), None, "nothing came from far");
        for _ in 0..100 {
            block.record_refault(1 << 14);
        }
        assert_eq!(block.refault_distance_at(0.9), Some(1 << 14));
        assert!(block.refault_distance_at(0.4).unwrap() <= 16);
        assert_eq!(block.far_refaults(), 100);
    }
}
