//! Access patterns that the program advised for its pages (`madvise(2)`: NORMAL, SEQUENTIAL,
//! RANDOM).
//!
//! Two bits a page beside the page table, so that a handler reads them at a fault without a lock.
//! Written under the structure lock only.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The advised access pattern of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Pattern {
    /// No advice.
    #[default]
    Normal = 0,
    /// In order, and hardly again after that.
    Sequential = 1,
    /// At random.
    Random = 2,
}

const BITS: usize = 2;
const MASK: u64 = (1 << BITS) - 1;
const PAGES_A_WORD: usize = u64::BITS as usize / BITS;

/// The patterns of `32 * WORDS` pages. All zeros: no advice.
#[repr(C)]
pub struct Patterns<const WORDS: usize> {
    /// False while no advice was given: then the memory of the words is never touched.
    any: AtomicBool,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Patterns<WORDS> {
    /// Returns the pattern of the page at `index`.
    pub fn get(&self, index: usize) -> Pattern {
        if !self.any.load(Ordering::Relaxed) {
            return Pattern::Normal;
        }
        let word = self.words[index / PAGES_A_WORD].load(Ordering::Relaxed);
        match word >> (index % PAGES_A_WORD * BITS) & MASK {
            1 => Pattern::Sequential,
            2 => Pattern::Random,
            _ => Pattern::Normal,
        }
    }

    /// Sets the pattern of all pages of `indexes`.
    pub fn set(&self, indexes: Range<usize>, pattern: Pattern) {
        if pattern == Pattern::Normal && !self.any.load(Ordering::Relaxed) {
            return;
        }
        self.any.store(true, Ordering::Relaxed);
        let everywhere = pattern as u64 * (u64::MAX / MASK);
        let mut at = indexes.start;
        while at < indexes.end {
            let word = &self.words[at / PAGES_A_WORD];
            let first = at % PAGES_A_WORD;
            let count = (PAGES_A_WORD - first).min(indexes.end - at);
            let here = (u64::MAX >> (u64::BITS as usize - count * BITS)) << (first * BITS);
            let others = word.load(Ordering::Relaxed) & !here;
            word.store(others | everywhere & here, Ordering::Relaxed);
            at += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WORDS: usize = 5;
    const PAGES: usize = WORDS * PAGES_A_WORD;

    proptest! {
        #[test]
        fn last_advice_wins(
            advised in prop::collection::vec((0..PAGES, 0..=PAGES, 0usize..3), 0..20),
        ) {
            let patterns =
                Patterns::<WORDS> { any: AtomicBool::new(false), words: Default::default() };
            let mut model = [Pattern::Normal; PAGES];
            for (start, end, pattern) in advised {
                let pattern = [Pattern::Normal, Pattern::Sequential, Pattern::Random][pattern];
                patterns.set(start..end, pattern);
                model.iter_mut().take(end).skip(start).for_each(|page| *page = pattern);
            }
            for (page, advised) in model.into_iter().enumerate() {
                prop_assert_eq!(patterns.get(page), advised, "page {}", page);
            }
        }
    }
}
