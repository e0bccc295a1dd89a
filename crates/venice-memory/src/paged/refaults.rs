//! Whether pages come back soon after they left, and so whether the clock hand is to go in order.
//!
//! Whoever goes round and round through a little more memory than he may have loses every page just
//! before he comes back to it, as long as the pages leave in the order in which they came. If they
//! leave in no order, most of them are there. How much memory was missing is the distance of a fault:
//! the pages that left since the one that is wanted back did (the refault distance of Linux' working
//! set detection, `mm/workingset.c`). Where accesses follow no order either, both ways do equally
//! well (Gelenbe 1973, *A unified approach to the evaluation of a class of replacement algorithms*).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The faults that are judged together.
const JUDGED_AT_ONCE: u32 = 256;

/// What is known of it. Handlers note, the evictor judges.
#[derive(Debug, Default)]
pub struct Refaults {
    /// Pages that have left, from some point on.
    left: AtomicU32,
    /// Faults on pages that had left, and those among them for want of less than an eighth of what
    /// the process may have: since it was judged last.
    all: AtomicU32,
    soon: AtomicU32,
    is_scattering: AtomicBool,
}

impl Refaults {
    /// So many pages leave; when that was, as [`Refaults::note`] wants to know it.
    pub fn leave(&self, pages: u32) -> u32 {
        self.left.fetch_add(pages, Ordering::Relaxed).wrapping_add(pages)
    }

    /// A page that left then is wanted back by a process that may have `limit_pages`.
    pub fn note(&self, left_at: u32, limit_pages: u64) {
        let distance = self.left.load(Ordering::Relaxed).wrapping_sub(left_at);
        self.all.fetch_add(1, Ordering::Relaxed);
        if u64::from(distance) < limit_pages / 8 {
            self.soon.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Are pages to leave in no order? More than half of the faults must say so before they do, and
    /// less than a quarter before they do no longer.
    pub fn judge(&self) -> bool {
        let before = self.is_scattering.load(Ordering::Relaxed);
        let all = self.all.load(Ordering::Relaxed);
        if all < JUDGED_AT_ONCE {
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
        for _ in 0..JUDGED_AT_ONCE {
            let left_at = refaults.leave(1).wrapping_sub(distance);
            refaults.note(left_at, LIMIT);
        }
        refaults.judge()
    }

    #[test]
    fn pages_that_are_missed_by_little_leave_in_no_order() {
        let refaults = Refaults::default();
        assert!(!refaults.judge(), "in order at first");
        assert!(!faults_at(&refaults, 200));
        assert!(faults_at(&refaults, 10));
        assert!(refaults.judge(), "nothing new is known");
        assert!(!faults_at(&refaults, 3000));
    }

    #[test]
    fn what_is_in_between_changes_nothing() {
        let refaults = Refaults::default();
        let mixed = |refaults: &Refaults| {
            for at in 0..JUDGED_AT_ONCE {
                let distance = if at % 5 < 2 { 100 } else { 900 };
                refaults.note(refaults.leave(1).wrapping_sub(distance), LIMIT);
            }
            refaults.judge()
        };
        assert!(!mixed(&refaults));
        assert!(faults_at(&refaults, 1));
        assert!(mixed(&refaults));
    }

    #[test]
    fn the_count_may_wrap() {
        let refaults = Refaults::default();
        refaults.leave(u32::MAX - 50);
        assert!(faults_at(&refaults, 100));
    }
}
