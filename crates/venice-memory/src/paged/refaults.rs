//! Refault statistics: decide if the clock hand goes in order or at random.
//!
//! A program that cycles through a little more memory than its budget loses every page just before
//! it comes back to it, as long as pages are evicted in the order in which they came. If they are
//! evicted at random, most of them are resident. The missing memory is the distance of a refault:
//! the number of pages evicted since the faulting one was (the refault distance of Linux' working
//! set detection, `mm/workingset.c`). For random accesses both orders do equally well (Gelenbe
//! 1973, *A unified approach to the evaluation of a class of replacement algorithms*).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Refaults that are judged together.
const JUDGED_TOGETHER: u32 = 256;

/// The refault statistics. Handlers record, the evictor judges.
#[derive(Debug, Default)]
pub struct Refaults {
    /// Pages evicted so far, modulo 2^32.
    left: AtomicU32,
    /// Refaults since the last judgement, and those among them with a distance of less than an
    /// eighth of the budget.
    all: AtomicU32,
    soon: AtomicU32,
    is_scattering: AtomicBool,
}

impl Refaults {
    /// Counts evicted pages. Returns the count, as [`Refaults::note`] expects it.
    pub fn leave(&self, pages: u32) -> u32 {
        self.left.fetch_add(pages, Ordering::Relaxed).wrapping_add(pages)
    }

    /// Records a refault on a page evicted at `left_at`, of a process that may have `limit_pages`
    /// resident. Returns its distance.
    pub fn note(&self, left_at: u32, limit_pages: u64) -> u32 {
        let distance = self.left.load(Ordering::Relaxed).wrapping_sub(left_at);
        self.all.fetch_add(1, Ordering::Relaxed);
        if u64::from(distance) < limit_pages / 8 {
            self.soon.fetch_add(1, Ordering::Relaxed);
        }
        distance
    }

    /// True if pages are to be evicted at random. More than half of the refaults must be near
    /// before they are, and less than a quarter before they no longer are.
    pub fn should_scatter(&self) -> bool {
        let before = self.is_scattering.load(Ordering::Relaxed);
        let all = self.all.load(Ordering::Relaxed);
        if all < JUDGED_TOGETHER {
            return before;
        }
        let soon = self.soon.swap(0, Ordering::Relaxed);
        self.all.store(0, Ordering::Relaxed);
        let scatters = if before { soon >= all / 4 } else { soon > all / 2 };
        self.is_scattering.store(scatters, Ordering::Relaxed);
        scatters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    fn faults_at(refaults: &Refaults, distance: u32) -> bool {
        for _ in 0..JUDGED_TOGETHER {
            let left_at = refaults.leave(1).wrapping_sub(distance);
            refaults.note(left_at, LIMIT);
        }
        refaults.should_scatter()
    }

    #[test]
    fn near_refaults_randomise_eviction() {
        let refaults = Refaults::default();
        assert!(!refaults.should_scatter(), "in order at first");
        assert!(!faults_at(&refaults, 200));
        assert!(faults_at(&refaults, 10));
        assert!(refaults.should_scatter(), "no new refaults");
        assert!(!faults_at(&refaults, 3000));
    }

    #[test]
    fn mixed_refaults_keep_order() {
        let refaults = Refaults::default();
        let mixed = |refaults: &Refaults| {
            for at in 0..JUDGED_TOGETHER {
                let distance = if at % 5 < 2 { 100 } else { 900 };
                refaults.note(refaults.leave(1).wrapping_sub(distance), LIMIT);
            }
            refaults.should_scatter()
        };
        assert!(!mixed(&refaults));
        assert!(faults_at(&refaults, 1));
        assert!(mixed(&refaults));
    }

    #[test]
    fn eviction_count_wraps() {
        let refaults = Refaults::default();
        refaults.leave(u32::MAX - 50);
        assert!(faults_at(&refaults, 100));
    }
}
