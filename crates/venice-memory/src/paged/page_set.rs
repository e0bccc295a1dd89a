//! A set of pages beside the page table: a bit for each.
//!
//! Read at any time without a lock; changed under the structure lock only.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// A subset of `64 * WORDS` pages. All zeros: the empty set.
#[repr(C)]
pub struct PageSet<const WORDS: usize> {
    /// False while the set was never changed: then the memory of the words is never touched.
    any: AtomicBool,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> PageSet<WORDS> {
    /// True if the page at `index` is in the set.
    pub fn contains(&self, index: usize) -> bool {
        self.any.load(Ordering::Relaxed)
            && self.words[index / BITS].load(Ordering::Relaxed) >> (index % BITS) & 1 != 0
    }

    /// True if the set was never changed.
    pub fn is_unused(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// True if all pages of `indexes` are in the set.
    pub fn contains_all(&self, mut indexes: Range<usize>) -> bool {
        indexes.all(|index| self.contains(index))
    }

    /// Adds all pages of `indexes`, or removes them.
    pub fn set(&self, indexes: Range<usize>, is_in: bool) {
        if !is_in && !self.any.load(Ordering::Relaxed) {
            return;
        }
        self.any.store(true, Ordering::Relaxed);
        let mut at = indexes.start;
        while at < indexes.end {
            let (word, first) = (&self.words[at / BITS], at % BITS);
            let count = (BITS - first).min(indexes.end - at);
            let here = (u64::MAX >> (BITS - count)) << first;
            let others = word.load(Ordering::Relaxed) & !here;
            word.store(if is_in { others | here } else { others }, Ordering::Relaxed);
            at += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WORDS: usize = 4;

    proptest! {
        #[test]
        fn last_change_decides_membership(
            changes in prop::collection::vec(
                (0..WORDS * BITS, 0..=WORDS * BITS, any::<bool>()), 0..20),
        ) {
            let set = PageSet::<WORDS> { any: AtomicBool::new(false), words: Default::default() };
            let mut model = [false; WORDS * BITS];
            for (start, end, is_in) in changes {
                set.set(start..end, is_in);
                model.iter_mut().take(end).skip(start).for_each(|page| *page = is_in);
            }
            for end in 0..WORDS * BITS {
                let all = model[end / 2..end].iter().all(|&is_in| is_in);
                prop_assert_eq!(set.contains_all(end / 2..end), all, "up to {}", end);
            }
            for (page, is_in) in model.into_iter().enumerate() {
                prop_assert_eq!(set.contains(page), is_in, "page {}", page);
            }
        }
    }
}
