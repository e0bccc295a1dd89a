//! The pages of the device that donors hold. All others read as zeros, and take no memory.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use venice_wire::PAGE_BYTES;

/// One bit for each page. The kernel never has two requests for one page outstanding at a time, so
/// a bit needs no lock.
#[derive(Debug)]
pub(crate) struct PageMap {
    words: Box<[AtomicU64]>,
    held: AtomicU64,
}

impl PageMap {
    pub(crate) fn new(len_bytes: u64) -> Self {
        let words = len_bytes.div_ceil(PAGE_BYTES).div_ceil(64);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), held: AtomicU64::new(0) }
    }

    pub(crate) fn is_held(&self, page: u64) -> bool {
        self.words[(page / 64) as usize].load(Ordering::Acquire) & (1 << (page % 64)) != 0
    }

    /// Marks pages as held by donors.
    pub(crate) fn hold(&self, pages: Range<u64>) {
        for page in pages {
            let bit = 1 << (page % 64);
            let old = self.words[(page / 64) as usize].fetch_or(bit, Ordering::Release);
            self.held.fetch_add(u64::from(old & bit == 0), Ordering::Relaxed);
        }
    }

    /// Marks pages as zeros.
    pub(crate) fn clear(&self, pages: Range<u64>) {
        let mut page = pages.start;
        while page < pages.end {
            let end = pages.end.min((page / 64 + 1) * 64);
            let bits = ones(end - page) << (page % 64);
            let old = self.words[(page / 64) as usize].fetch_and(!bits, Ordering::AcqRel);
            self.held.fetch_sub(u64::from((old & bits).count_ones()), Ordering::Relaxed);
            page = end;
        }
    }

    /// Returns the number of pages that donors hold.
    pub(crate) fn held_pages(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

fn ones(count: u64) -> u64 {
    u64::MAX >> (64 - count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_set_and_cleared_across_words() {
        let map = PageMap::new(300 * PAGE_BYTES);
        map.hold(60..200);
        map.hold(100..101);
        assert_eq!(map.held_pages(), 140);
        assert!(!map.is_held(59) && map.is_held(60) && map.is_held(199) && !map.is_held(200));
        map.clear(64..128);
        map.clear(0..62);
        assert_eq!(map.held_pages(), 140 - 64 - 2);
        assert!(!map.is_held(64) && !map.is_held(61) && map.is_held(62) && map.is_held(128));
        map.clear(0..300);
        assert_eq!(map.held_pages(), 0);
    }
}
