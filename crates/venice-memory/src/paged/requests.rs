//! Requests of the program's threads to the pager beyond faults: pages to bring in, pages to page
//! out.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::page_table::PageNumber;
use super::read_ahead::MAX_PREFETCH;
use super::sys;

/// Longest wait of a request without progress of the evictor, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Period at which it checks meanwhile, in nanoseconds.
const LOOK_EVERY_NS: u64 = 1_000_000;

/// The pages that a WILLNEED call wants brought in. There is one such call at a time, under the
/// structure lock.
#[derive(Debug, Default)]
pub struct WillNeed {
    thread: AtomicU32,
    end: AtomicUsize,
}

impl WillNeed {
    /// True if a fault of `thread` on `page` belongs to the call.
    pub fn covers(&self, thread: u32, page: PageNumber) -> bool {
        self.thread.load(Ordering::Acquire) == thread && self.pages_from(page) > 0
    }

    /// Returns how many pages from `page` on the call wants.
    pub fn pages_from(&self, page: PageNumber) -> usize {
        // Further off it is a fault on the caller's own stack.
        let count = self.end.load(Ordering::Relaxed).saturating_sub(page);
        if count <= MAX_PREFETCH { count } else { 0 }
    }

    /// Sets the call of `thread`, which wants the pages up to `end`; thread 0: no call.
    pub fn set(&self, thread: u32, end: PageNumber) {
        self.end.store(end, Ordering::Relaxed);
        self.thread.store(thread, Ordering::Release);
    }
}

/// Calls that wait for pages to be paged out, counted.
#[derive(Debug, Default)]
pub struct PageOuts {
    asked: AtomicU32,
    done: AtomicU32,
}

impl PageOuts {
    /// True if a request is not done.
    pub fn is_any(&self) -> bool {
        self.asked.load(Ordering::Acquire) != self.done.load(Ordering::Relaxed)
    }

    /// Completes all requests made so far. The caller holds the structure lock.
    pub fn all_done(&self) {
        self.done.store(self.asked.load(Ordering::Acquire), Ordering::Release);
        sys::futex_wake(&self.done, u32::MAX >> 1, false);
    }

    /// Adds a request, under the structure lock. Returns its number.
    pub fn ask(&self) -> u32 {
        self.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    /// Waits until the request with this number is done, as long as the evictor makes progress.
    pub fn wait(&self, number: u32, progress: &AtomicU32) {
        let mut seen = progress.load(Ordering::Relaxed);
        let mut since_ns = sys::monotonic_ns();
        loop {
            let done = self.done.load(Ordering::Acquire);
            if done.wrapping_sub(number) < u32::MAX / 2 {
                return;
            }
            sys::futex_wait(&self.done, done, Some(LOOK_EVERY_NS), false);
            let (now, now_ns) = (progress.load(Ordering::Relaxed), sys::monotonic_ns());
            if now != seen {
                (seen, since_ns) = (now, now_ns);
            } else if now_ns > since_ns + PATIENCE_NS {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn willneed_covers_only_its_range() {
        let will_need = WillNeed::default();
        assert!(!will_need.covers(7, 100));
        will_need.set(7, 150);
        assert!(will_need.covers(7, 149) && !will_need.covers(7, 150) && !will_need.covers(8, 149));
        assert_eq!(will_need.pages_from(140), 10);
        assert!(!will_need.covers(7, 150 - MAX_PREFETCH - 1), "a fault on its own stack");
        will_need.set(0, 0);
        assert!(!will_need.covers(7, 149));
    }

    #[test]
    fn page_out_wait_ends_by_number() {
        let page_outs = PageOuts::default();
        assert!(!page_outs.is_any());
        let number = page_outs.ask();
        assert!(page_outs.is_any());
        std::thread::scope(|scope| {
            scope.spawn(|| page_outs.wait(number, &AtomicU32::new(0)));
            page_outs.all_done();
        });
        assert!(!page_outs.is_any());
    }
}
