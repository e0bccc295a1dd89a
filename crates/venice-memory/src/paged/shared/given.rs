//! The users that each page of an object was given to, a bit each.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::page_table::PageNumber;

/// Pages of a block.
const BLOCK_PAGES: usize = 512;

type Block = [AtomicU64; BLOCK_PAGES];

/// The users' bits for each page of a range. Blocks without any take no memory: a file may be
/// mapped much longer than it is.
#[derive(Debug)]
pub struct GivenTo {
    first: PageNumber,
    blocks: Box<[OnceLock<Box<Block>>]>,
}

impl GivenTo {
    /// Makes it for `pages`, which were given to no user.
    pub fn new(pages: Range<PageNumber>) -> GivenTo {
        let count = pages.len().div_ceil(BLOCK_PAGES);
        GivenTo { first: pages.start, blocks: (0..count).map(|_| OnceLock::new()).collect() }
    }

    /// Adds bits to pages.
    pub fn add(&self, keys: Range<PageNumber>, bits: u64) {
        for key in keys {
            let at = key - self.first;
            let Some(block) = self.blocks.get(at / BLOCK_PAGES) else { return };
            let block = block.get_or_init(|| Box::new([const { AtomicU64::new(0) }; BLOCK_PAGES]));
            block[at % BLOCK_PAGES].fetch_or(bits, Ordering::AcqRel);
        }
    }

    /// Returns the bits of a page.
    pub fn of(&self, key: PageNumber) -> u64 {
        self.word(key).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Removes all bits of a page.
    pub fn clear(&self, key: PageNumber) {
        if let Some(word) = self.word(key) {
            word.store(0, Ordering::Release);
        }
    }

    /// Adds `bit` to those of `keys` that have `of_parent`.
    pub fn inherit(&self, keys: Range<PageNumber>, of_parent: u64, bit: u64) {
        let mut key = keys.start;
        while key < keys.end {
            let at = key - self.first;
            let end = keys.end.min(key + BLOCK_PAGES - at % BLOCK_PAGES);
            if self.blocks.get(at / BLOCK_PAGES).is_some_and(|block| block.get().is_some()) {
                let given = (key..end).filter(|key| self.of(*key) & of_parent != 0);
                given.for_each(|key| self.add(key..key + 1, bit));
            }
            key = end;
        }
    }

    /// Removes a bit from all pages.
    pub fn remove(&self, bit: u64) {
        let words = self.blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter());
        words.for_each(|word| {
            word.fetch_and(!bit, Ordering::AcqRel);
        });
    }

    fn word(&self, key: PageNumber) -> Option<&AtomicU64> {
        let at = key - self.first;
        Some(&self.blocks.get(at / BLOCK_PAGES)?.get()?[at % BLOCK_PAGES])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_inherits_given_pages() {
        let given = GivenTo::new(1000..3000);
        given.add(1500..1515, 1);
        given.add(1510..1520, 2);
        given.inherit(1000..3000, 1, 4);
        assert_eq!([1499, 1500, 1510, 1515].map(|key| given.of(key)), [0, 5, 7, 2]);
        given.remove(1);
        given.clear(1510);
        assert_eq!([1500, 1510, 1514, 2999].map(|key| given.of(key)), [4, 0, 6, 0]);
    }
}
