//! Far slots: pages of borrowed slabs, held by one process or, after a `fork`, by several.
//!
//! A slot's word in the run block has one bit for each process that may still read it. A slot
//! without a bit is free. A process writes only to slots that it alone holds, so it never
//! overwrites a page that a parent or a child still needs. The word is both allocator and reference
//! count. The supervisor clears the bits of a process that dies.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::page_table::Entry;
use super::run_block::{MAX_SLABS, Owner, Process, RunBlockMap};

/// Aligned rows of slots searched for a free one: a slab's worth of the shortest rows.
const ROWS_LOOKED_AT: u32 = 256;

/// One process's view of the slots.
#[derive(Debug)]
pub struct Slots {
    process: usize,
    cursor: AtomicU32,
    /// A bit for each slab that this process cannot write to, though others may.
    excluded: [AtomicU64; MAX_SLABS / 64],
}

impl Slots {
    /// Creates the view of the process with this index in the run block.
    pub fn new(process: usize) -> Slots {
        let excluded = [const { AtomicU64::new(0) }; MAX_SLABS / 64];
        Slots { process, cursor: AtomicU32::new(0), excluded }
    }

    fn bit(&self) -> u64 {
        1 << self.process
    }

    /// Excludes the slab of this slot from writes by this process: its last donor is unreachable
    /// from here.
    pub fn exclude(&self, block: &RunBlockMap, slot: u32) {
        let slab = block.slab_of(slot);
        self.excluded[slab / 64].fetch_or(1 << (slab % 64), Ordering::Relaxed);
    }

    /// True if this process may write to the slot's slab.
    pub fn is_writable(&self, block: &RunBlockMap, slot: u32) -> bool {
        let slab = block.slab_of(slot);
        let excluded = self.excluded[slab / 64].load(Ordering::Relaxed);
        excluded & 1 << (slab % 64) == 0 && block.slot_is_alive(slot)
    }

    /// Takes a free slot of a live slab, in address order from the last one taken, so that pages
    /// evicted in sequence get contiguous slots. `None`: all far memory is in use.
    pub fn take(&self, block: &RunBlockMap) -> Option<u32> {
        let holders = block.holders();
        let slab_slots = block.slab_slots();
        let usable = block.slab_count() as u32 * slab_slots;
        let start = self.cursor.load(Ordering::Relaxed);
        let mut slot = if start < usable { start } else { 0 };
        let mut looked = 0;
        while looked < usable {
            if slot.is_multiple_of(slab_slots) && !self.is_writable(block, slot) {
                looked += slab_slots;
                slot = (slot + slab_slots) % usable;
                continue;
            }
            let word = &holders[slot as usize];
            let free = word.load(Ordering::Relaxed) == 0 && self.is_writable(block, slot);
            if free
                && word.compare_exchange(0, self.bit(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                self.cursor.store((slot + 1) % usable, Ordering::Relaxed);
                block.slots_used.fetch_add(1, Ordering::Relaxed);
                return Some(slot);
            }
            slot = (slot + 1) % usable;
            looked += 1;
        }
        None
    }

    /// Takes this slot if it is free; `true`: this process now holds it.
    pub fn take_this(&self, block: &RunBlockMap, slot: u32) -> bool {
        let usable = block.slab_count() as u32 * block.slab_slots();
        if slot >= usable || !self.is_writable(block, slot) {
            return false;
        }
        let word = &block.holders()[slot as usize];
        let taken =
            word.compare_exchange(0, self.bit(), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if taken {
            block.slots_used.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Takes the slot number `at` of an aligned row of `count` free slots. The neighbours in the
    /// row are free for the pages that belong together. `None`: no such row is near the last slot
    /// taken.
    pub fn take_in_free_row(&self, block: &RunBlockMap, at: u32, count: u32) -> Option<u32> {
        let usable = block.slab_count() as u32 * block.slab_slots();
        let mut row = self.cursor.load(Ordering::Relaxed).next_multiple_of(count);
        for _ in 0..ROWS_LOOKED_AT.min(usable / count) {
            if row >= usable {
                row = 0;
            }
            let slots = &block.holders()[row as usize..(row + count) as usize];
            let is_free = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
            if slots.iter().all(is_free) && self.take_this(block, row + at) {
                self.cursor.store((row + count) % usable, Ordering::Relaxed);
                return Some(row + at);
            }
            row += count;
        }
        None
    }

    /// Takes up to `wanted` contiguous free slots of one live slab, from the last one taken on.
    /// `None`: all far memory is in use.
    pub fn take_run(&self, block: &RunBlockMap, wanted: u32) -> Option<Range<u32>> {
        let first = self.take(block)?;
        let slab_slots = block.slab_slots();
        let slab_end = (first / slab_slots + 1) * slab_slots;
        let end = first.saturating_add(wanted.max(1)).min(slab_end);
        let is_taken = |slot: &u32| {
            let word = &block.holders()[*slot as usize];
            word.compare_exchange(0, self.bit(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let more = (first + 1..end).take_while(is_taken).count() as u32;
        block.slots_used.fetch_add(u64::from(more), Ordering::Relaxed);
        let usable = block.slab_count() as u32 * slab_slots;
        self.cursor.store((first + 1 + more) % usable, Ordering::Relaxed);
        Some(first..first + 1 + more)
    }

    /// Releases this process's hold on `slot`.
    pub fn release(&self, block: &RunBlockMap, slot: u32) {
        release_bit(block, slot as usize, self.bit());
    }

    /// Releases the slot of a page; `true` if it had one. Only the owner of the page calls it.
    pub fn forget(&self, block: &RunBlockMap, entry: &Entry) -> bool {
        let Some(slot) = entry.slot() else { return false };
        self.release(block, slot);
        entry.set_slot(None);
        true
    }

    /// True if this process alone holds `slot` and may write there.
    pub fn is_mine_alone(&self, block: &RunBlockMap, slot: u32) -> bool {
        block.holders()[slot as usize].load(Ordering::Acquire) == self.bit()
    }

    /// Gives process `child` a hold on every slot that this process holds.
    pub fn share_with(&self, block: &RunBlockMap, child: usize) {
        for word in block.holders() {
            // A handler may release a slot just now: a free slot must not get the child as its only
            // holder.
            let shared = |holders: u64| (holders & self.bit() != 0).then_some(holders | 1 << child);
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, shared);
        }
    }
}

/// The number of far slots of live slabs, held ones included.
pub fn alive(block: &RunBlockMap) -> u64 {
    let slabs = (0..block.slab_count()).filter(|slab| block.slab_is_alive(*slab));
    slabs.count() as u64 * u64::from(block.slab_slots())
}

/// The number of free far slots of live slabs.
pub fn free(block: &RunBlockMap) -> u64 {
    let slab_slots = block.slab_slots() as usize;
    let slabs = (0u32..).step_by(slab_slots);
    let slabs = slabs.zip(block.holders().chunks_exact(slab_slots));
    let alive = slabs.filter(|(first, _)| block.slot_is_alive(*first));
    let is_free = |word: &&AtomicU64| word.load(Ordering::Relaxed) == 0;
    alive.map(|(_, holders)| holders.iter().filter(is_free).count() as u64).sum()
}

/// Releases all slots of process `pid`, which no longer exists, and frees its entry. Only the first
/// caller does it; `false`: another caller did, or another process has the entry.
pub fn leave(block: &RunBlockMap, index: usize, pid: u32) -> bool {
    let process = &block.processes[index];
    let first =
        process.pid.compare_exchange(pid, Process::LEAVING, Ordering::AcqRel, Ordering::Relaxed);
    if first.is_err() {
        return false;
    }
    block.free_threads_of(Owner::Process(index));
    for slot in 0..block.holders().len() {
        release_bit(block, slot, 1 << index);
    }
    process.resident_pages.store(0, Ordering::Relaxed);
    process.pid.store(0, Ordering::Release);
    true
}

fn release_bit(block: &RunBlockMap, slot: usize, bit: u64) {
    let word = &block.holders()[slot];
    if word.load(Ordering::Relaxed) & bit == 0 {
        return;
    }
    if word.fetch_and(!bit, Ordering::AcqRel) == bit {
        block.slots_used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::run_block::{PortKind, ReplicaAt, SLAB_SLOTS};
    use super::*;

    fn block_with(donors: &[&str]) -> RunBlockMap {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, donors.len(), 1).unwrap();
        for (index, name) in donors.iter().enumerate() {
            let donor = block.add_donor(name, index as u32, "").unwrap();
            let at = ReplicaAt { donor, remote_addr: 0, grant: index as u64, key: 0 };
            block.add_slab(at).unwrap();
        }
        block
    }

    #[test]
    fn slot_frees_after_last_holder() {
        let block = block_with(&["a"]);
        let parent = Slots::new(block.enter_process(100).unwrap());
        let index = block.enter_forking(100).unwrap();
        let child = Slots::new(index);
        let slot = parent.take(&block).unwrap();
        assert!(parent.is_mine_alone(&block, slot));
        parent.share_with(&block, index);
        assert!(!parent.is_mine_alone(&block, slot));
        parent.release(&block, slot);
        assert!(child.is_mine_alone(&block, slot));
        assert_eq!(block.slots_used.load(Ordering::Relaxed), 1);
        assert!(!leave(&block, index, 100), "the entry is not the parent's");
        assert!(leave(&block, index, Process::FORKING));
        assert_eq!(block.slots_used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn shunned_slab_left_to_others() {
        let block = block_with(&["a", "b"]);
        let slots = Slots::new(0);
        let first = slots.take(&block).unwrap();
        slots.exclude(&block, first);
        assert!(!slots.is_writable(&block, first) && Slots::new(1).is_writable(&block, first));
        assert_eq!(slots.take_run(&block, 10), Some(SLAB_SLOTS..SLAB_SLOTS + 10));
        assert_eq!(Slots::new(1).take(&block), Some(first + 1));
    }

    #[test]
    fn runs_end_at_slabs_and_gaps() {
        let block = block_with(&["a", "b"]);
        let slots = Slots::new(0);
        assert_eq!(slots.take_run(&block, 10), Some(0..10));
        assert_eq!(Slots::new(1).take_run(&block, 1), Some(10..11));
        assert_eq!(slots.take_run(&block, SLAB_SLOTS), Some(11..SLAB_SLOTS));
        assert_eq!(slots.take_run(&block, u32::MAX), Some(SLAB_SLOTS..2 * SLAB_SLOTS));
        assert_eq!(slots.take_run(&block, 1), None);
        assert_eq!(block.slots_used.load(Ordering::Relaxed), u64::from(2 * SLAB_SLOTS));
        slots.release(&block, 3);
        slots.release(&block, 4);
        assert_eq!(slots.take_run(&block, 9), Some(3..5));
    }

    #[test]
    fn aligned_rows_are_found_free() {
        let block = block_with(&["a", "b"]);
        let slots = Slots::new(0);
        assert_eq!(slots.take(&block), Some(0));
        assert_eq!(slots.take_in_free_row(&block, 5, 16), Some(21));
        assert!(slots.take_this(&block, 22) && !slots.take_this(&block, 22));
        assert_eq!(slots.take_in_free_row(&block, 0, 16), Some(32));
        assert!(!slots.take_this(&block, 2 * SLAB_SLOTS), "the slot does not exist");
        assert_eq!(slots.take(&block), Some(48), "single slots continue after the row");
        assert_eq!(block.slots_used.load(Ordering::Relaxed), 5);
        for slot in (48..2 * SLAB_SLOTS).step_by(16) {
            slots.take_this(&block, slot);
        }
        assert_eq!(slots.take_in_free_row(&block, 0, 16), None);
        block.donors()[1].lose(super::super::run_block::Fate::Died);
        assert!(!slots.take_this(&block, 2 * SLAB_SLOTS - 1));
    }

    #[test]
    fn take_skips_dead_donors_until_full() {
        let block = block_with(&["a", "b"]);
        let slots = Slots::new(0);
        block.donors()[0].lose(super::super::run_block::Fate::Died);
        for taken in 0..SLAB_SLOTS {
            assert_eq!(slots.take(&block), Some(SLAB_SLOTS + taken));
        }
        assert_eq!(slots.take(&block), None);
    }
}
