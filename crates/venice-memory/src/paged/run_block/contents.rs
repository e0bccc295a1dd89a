//! The content index: finds the far slot that already holds certain contents.
//!
//! After a `fork` parent and children evict the same pages, each its own copy. The first to write
//! one publishes its slot here, with a key made of page number and fingerprint; the others find it
//! and become holders of the slot instead of writing (docs/decisions/0073). Keys are compared whole,
//! as fingerprints are for clean pages (docs/decisions/0003).
//!
//! A published slot is not written. A process that wants to write to one withdraws it first and
//! then checks that it is the slot's only holder; one that joins becomes a holder first and then
//! checks that the slot is still published. One of the two sees the other, whatever the order. A
//! process killed in between leaves a slot unpublished, or an entry that leads to a slot with other
//! contents; both only cost a write.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{RunBlock, RunBlockMap};

/// Entries of a bucket: half a cache line.
const BUCKET: usize = 8;
/// Words of the index for each far slot: its fingerprint, and two entries.
pub(super) const WORDS_PER_SLOT: usize = 3;

impl RunBlock {
    /// True if processes of this run share far slots by their contents.
    pub fn shares_contents(&self) -> bool {
        self.shares_contents.load(Ordering::Relaxed) != 0
    }

    /// Lets processes share far slots by their contents from now on: one of them forks.
    pub fn share_contents(&self) {
        self.shares_contents.store(1, Ordering::SeqCst);
    }
}

impl RunBlockMap {
    fn contents(&self) -> &[AtomicU64] {
        let slots = self.slot_count as usize;
        let newest = if self.behind_frames > 0 { slots / 2 } else { 0 };
        let first = slots + slots / 64 + newest;
        &self.tail()[first..first + slots * WORDS_PER_SLOT]
    }

    /// The halves of a slot's fingerprint. The lower one is 0 while the slot is not published.
    fn digest(&self, slot: u32) -> [&AtomicU64; 2] {
        let at = 2 * slot as usize;
        [&self.contents()[at], &self.contents()[at + 1]]
    }

    fn bucket(&self, fingerprint: u128) -> &[AtomicU32] {
        let slots = self.slot_count as usize;
        let words = &self.contents()[2 * slots..];
        // SAFETY: a word of eight bytes is two of four, all of which are atomic.
        let entries: &[AtomicU32] =
            unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), 2 * words.len()) };
        let bucket = (fingerprint >> 64) as usize % (entries.len() / BUCKET);
        &entries[bucket * BUCKET..(bucket + 1) * BUCKET]
    }

    /// True if the slot is published with this fingerprint.
    pub fn has_contents(&self, slot: u32, fingerprint: u128) -> bool {
        let [low, high] = self.digest(slot);
        let has_low = low.load(Ordering::SeqCst) == fingerprint as u64;
        has_low && high.load(Ordering::SeqCst) == (fingerprint >> 64) as u64
    }

    /// Publishes the contents of a slot that the caller alone holds and has written. It does not
    /// write there again before [`RunBlockMap::withdraw_contents`].
    pub fn publish_contents(&self, slot: u32, fingerprint: u128) {
        let (low, high) = (fingerprint as u64, (fingerprint >> 64) as u64);
        if low == 0 {
            // It could not be told from an unpublished slot.
            return;
        }
        let digest = self.digest(slot);
        digest[1].store(high, Ordering::SeqCst);
        digest[0].store(low, Ordering::SeqCst);
        let bucket = self.bucket(fingerprint);
        let is_stale = |entry: &&AtomicU32| match entry.load(Ordering::Relaxed).checked_sub(1) {
            None => true,
            Some(other) => other == slot || !self.is_filed_with(other, fingerprint),
        };
        let entry = bucket.iter().find(is_stale).unwrap_or(&bucket[low as usize % BUCKET]);
        entry.store(slot + 1, Ordering::Release);
    }

    /// True if the slot is published, and belongs into the bucket of this fingerprint.
    fn is_filed_with(&self, slot: u32, fingerprint: u128) -> bool {
        let [low, high] = self.digest(slot).map(|half| half.load(Ordering::Relaxed));
        let buckets = self.slot_count as usize * 2 / BUCKET;
        let is_held = self.holders()[slot as usize].load(Ordering::Relaxed) != 0;
        let same_bucket = high as usize % buckets == (fingerprint >> 64) as usize % buckets;
        is_held && low != 0 && same_bucket
    }

    /// Withdraws a slot, so that no other process joins it from now on. True if it was published:
    /// another process may have joined it before.
    pub fn withdraw_contents(&self, slot: u32) -> bool {
        let [low, _] = self.digest(slot);
        low.load(Ordering::Relaxed) != 0 && low.swap(0, Ordering::SeqCst) != 0
    }

    /// The slots that were published with this fingerprint. They may be free by now, or have other
    /// contents.
    pub fn published(&self, fingerprint: u128) -> impl Iterator<Item = u32> {
        let bucket = self.bucket(fingerprint).iter();
        let slots = bucket.filter_map(|entry| entry.load(Ordering::Acquire).checked_sub(1));
        slots.filter(move |&slot| self.has_contents(slot, fingerprint))
    }
}

#[cfg(test)]
mod tests {
    use super::super::PortKind;
    use super::*;

    #[test]
    fn published_slots_are_found() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        let all = |fingerprint| block.published(fingerprint).collect::<Vec<_>>();
        let print = |n: u128| n << 64 | (n + 1);
        for slot in 0..200 {
            block.holders()[slot as usize].store(1, Ordering::Relaxed);
            block.publish_contents(slot, print(u128::from(slot)));
        }
        assert!((0..200).all(|slot| all(print(u128::from(slot))) == [slot]));
        assert!(block.withdraw_contents(7) && !block.withdraw_contents(7));
        assert!(all(print(7)).is_empty());
        block.publish_contents(7, print(300));
        assert_eq!((all(print(7)), all(print(300))), (vec![], vec![7]));
        block.publish_contents(8, 5 << 64);
        assert!(all(5 << 64).is_empty(), "half a fingerprint is none");
    }

    #[test]
    fn half_published_slot_is_none() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        let print = 5 << 64 | 6;
        block.holders()[3].store(1, Ordering::Relaxed);
        block.publish_contents(3, print);
        block.withdraw_contents(3);
        // A process was killed between the halves.
        block.digest(3)[1].store(5, Ordering::SeqCst);
        assert_eq!(block.published(print).next(), None);
        block.publish_contents(3, print);
        assert_eq!(block.published(print).next(), Some(3));
    }

    #[test]
    fn full_bucket_forgets_some() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        let same_bucket = |n: u64| 9u128 << 64 | u128::from(n);
        for slot in 0..20 {
            block.holders()[slot as usize].store(1, Ordering::Relaxed);
            block.publish_contents(slot, same_bucket(u64::from(slot) + 1));
        }
        let found = (0..20).filter(|&slot| {
            block.published(same_bucket(u64::from(slot) + 1)).any(|found| found == slot)
        });
        assert_eq!(found.count(), BUCKET);
    }
}
