//! What threads of the program ask of the pager's own, beyond a fault: pages to bring in, pages to
//! take out.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::page_table::PageNumber;
use super::read_ahead::MAX_WINDOW;
use super::sys;

/// How long a request waits without the evictor getting on.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How often it looks meanwhile.
const LOOK_EVERY_NS: u64 = 1_000_000;

/// What WILLNEED wants brought in just now; there is one such call at a time, under the structure
/// lock.
#[derive(Debug, Default)]
pub struct Wanted {
    thread: AtomicU32,
    end: AtomicUsize,
}

impl Wanted {
    /// Is a fault of `thread` on `page` that of such a call?
    pub fn is_by(&self, thread: u32, page: PageNumber) -> bool {
        self.thread.load(Ordering::Acquire) == thread && self.pages_from(page) > 0
    }

    /// How many pages from `page` on are wanted.
    pub fn pages_from(&self, page: PageNumber) -> usize {
        // Further off it is a fault on the caller's own stack.
        let count = self.end.load(Ordering::Relaxed).saturating_sub(page);
        if count <= MAX_WINDOW { count } else { 0 }
    }

    /// Pages up to `end` are, by `thread`; by 0: nothing is.
    pub fn set(&self, thread: u32, end: PageNumber) {
        self.end.store(end, Ordering::Relaxed);
        self.thread.store(thread, Ordering::Release);
    }
}

/// Calls that wait for pages to have left, counted.
#[derive(Debug, Default)]
pub struct PageOuts {
    asked: AtomicU32,
    done: AtomicU32,
}

impl PageOuts {
    /// Is there any that is not done?
    pub fn is_any(&self) -> bool {
        self.asked.load(Ordering::Acquire) != self.done.load(Ordering::Relaxed)
    }

    /// All that were asked for under the structure lock are done, which the caller holds.
    pub fn all_done(&self) {
        self.done.store(self.asked.load(Ordering::Acquire), Ordering::Release);
        sys::futex_wake(&self.done, u32::MAX >> 1, false);
    }

    /// Asks for one more, under the structure lock; its number.
    pub fn ask(&self) -> u32 {
        self.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    /// Waits until the one with this number is done, as long as the evictor gets on.
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
    fn wanted_is_what_the_caller_asked_for_and_no_more() {
        let wanted = Wanted::default();
        assert!(!wanted.is_by(7, 100));
        wanted.set(7, 150);
        assert!(wanted.is_by(7, 149) && !wanted.is_by(7, 150) && !wanted.is_by(8, 149));
        assert_eq!(wanted.pages_from(140), 10);
        assert!(!wanted.is_by(7, 150 - MAX_WINDOW - 1), "its own stack, say");
        wanted.set(0, 0);
        assert!(!wanted.is_by(7, 149));
    }

    #[test]
    fn page_outs_are_waited_for_by_number() {
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
