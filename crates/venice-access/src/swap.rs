//! Swap to remote memory, as a cost model: the pages that are local, and a block device.

use std::collections::BTreeMap;

use crate::config::{Memory, Swap};
use crate::trace::PAGE_BYTES;

/// The local pages, of which the one used least recently leaves for another.
#[derive(Debug)]
pub struct PageCache {
    /// Last use of each page; `None`: it is not local.
    used: Vec<Option<u64>>,
    is_dirty: Vec<bool>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

impl PageCache {
    /// Makes one with the share of pages that is local, all clean.
    pub fn new(memory: &Memory, pages: u64) -> Self {
        let none = vec![None; pages as usize];
        let (by_use, is_dirty) = (BTreeMap::new(), vec![false; pages as usize]);
        let mut cache = Self { used: none, is_dirty, by_use, uses: 0 };
        (0..pages).filter(|page| memory.is_local(*page)).for_each(|page| cache.touch(page));
        cache
    }

    fn touch(&mut self, page: u64) {
        self.uses += 1;
        let before = self.used[page as usize].replace(self.uses);
        before.map(|before| self.by_use.remove(&before));
        self.by_use.insert(self.uses, page);
    }

    /// Uses a page; false: it is not local.
    pub fn use_page(&mut self, page: u64, is_write: bool) -> bool {
        let is_local = self.used[page as usize].is_some();
        if is_local {
            self.touch(page);
            self.is_dirty[page as usize] |= is_write;
        }
        is_local
    }

    /// Makes a page local in place of the one used least recently; returns true if that is dirty.
    pub fn replace(&mut self, page: u64) -> bool {
        let victim = self.by_use.pop_first().map(|(_, victim)| victim as usize);
        self.touch(page);
        victim.is_some_and(|victim| {
            self.used[victim] = None;
            std::mem::take(&mut self.is_dirty[victim])
        })
    }
}

/// A block device: the bytes of one page after the other, and a fixed time around them.
#[derive(Debug)]
pub struct Device {
    swap: Swap,
    free_at: u64,
}

impl Device {
    /// Makes an idle device.
    pub fn new(swap: Swap) -> Self {
        Self { swap, free_at: 0 }
    }

    /// Reads a page, and before that writes one if the victim is dirty: its frame is needed. Returns
    /// the time at which the page is there.
    pub fn read(&mut self, now: u64, writes_too: bool) -> u64 {
        let pages = 1 + u64::from(writes_too);
        self.free_at = self.free_at.max(now) + pages * self.swap.rate.time_of(PAGE_BYTES);
        self.free_at + self.swap.request.0
    }
}

#[cfg(test)]
mod tests {
    use venice_simkernel::units::{BitRate, Picos, Share};

    use super::*;

    #[test]
    fn oldest_page_makes_room() {
        let half = Memory { local: Share(500_000), ..Memory::default() };
        let mut cache = PageCache::new(&half, 4);
        let local = |cache: &PageCache| -> Vec<usize> {
            (0..4).filter(|page| cache.used[*page].is_some()).collect()
        };
        assert_eq!(local(&cache), [1, 3]);
        assert!(cache.use_page(1, true) && !cache.use_page(0, false));
        assert!(!cache.replace(0), "3 is older than 1, and clean");
        assert_eq!(local(&cache), [0, 1]);
        assert!(cache.replace(2), "1 is dirty");
        assert!(!cache.replace(1), "0 is clean");
        assert_eq!(local(&cache), [1, 2]);
    }

    #[test]
    fn device_moves_pages_in_turn() {
        let rate = BitRate(32_768_000_000);
        let mut device = Device::new(Swap { fault: 0, request: Picos(10), rate });
        let page = Picos::MICRO;
        assert_eq!(device.read(0, false), page + 10);
        assert_eq!(device.read(0, true), 3 * page + 10);
        assert_eq!(device.read(5 * page, false), 6 * page + 10);
    }
}
