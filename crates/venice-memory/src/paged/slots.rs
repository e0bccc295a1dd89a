//! Far slots: pages of borrowed slabs, held by one process or, after a `fork`, by several.
//!
//! A slot's word in the run block has one bit for each process that may still read it. Empty:
//! the slot is free. A process writes only to slots that it alone holds, so what a parent or a
//! child still needs is never overwritten. The word is allocator and reference count in one; a
//! process that dies leaves bits which the supervisor clears.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::page_table::Entry;
use super::run_block::{MAX_SLABS, Owner, Process, RunBlockMap};

/// Rows of slots looked at for a free one, a slab's worth of the shortest.
const ROWS_LOOKED_AT: u32 = 256;

/// The slots as one process sees them.
#[derive(Debug)]
pub struct Slots {
    process: usize,
    cursor: AtomicU32,
    /// A bit for each slab that this process cannot write to, though others may.
    shunned: [AtomicU64; MAX_SLABS / 64],
}

impl Slots {
    /// The view of the process with this index in the run block.
    pub fn new(process: usize) -> Slots {
        let shunned = [const { AtomicU64::new(0) }; MAX_SLABS / 64];
        Slots { process, cursor: AtomicU32::new(0), shunned }
    }

    fn bit(&self) -> u64 {
        1 << self.process
    }

    /// Nothing more is to be written to the slab of this slot: the last donor that has it cannot be
    /// reached from here.
    pub fn shun(&self, block: &RunBlockMap, slot: u32) {
        let slab = block.slab_of(slot);
        self.shunned[slab / 64].fetch_or(1 << (slab % 64), Ordering::Relaxed);
    }

    /// May the slot be written to?
    pub fn is_writable(&self, block: &RunBlockMap, slot: u32) -> bool {
        let slab = block.slab_of(slot);
        let shunned = self.shunned[slab / 64].load(Ordering::Relaxed);
        shunned & 1 << (slab % 64) == 0 && block.slot_is_alive(slot)
    }

    /// Takes a free slot that some donor still has, in address order from the last one taken, so that
    /// pages evicted in a row lie in a row. `None`: all far memory is in use.
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

    /// Takes this slot if it is free; `true`: it is held by this process.
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

    /// Takes the slot `at` places into `count` free ones, of which the first is a multiple of
    /// `count`: those that belong beside it will be free. `None`: there are none so near the last one
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

    /// Takes up to `wanted` free slots of one slab on a live donor that lie in a row, from the last
    /// ones taken on. `None`: all far memory is in use.
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

    /// Gives up this process's hold on `slot`.
    pub fn give_up(&self, block: &RunBlockMap, slot: u32) {
        release_bit(block, slot as usize, self.bit());
    }

    /// Gives up the slot of a page, if it has one; `true` if it had. The page's owner's right.
    pub fn forget(&self, block: &RunBlockMap, entry: &Entry) -> bool {
        let Some(slot) = entry.slot() else { return false };
        self.give_up(block, slot);
        entry.set_slot(None);
        true
    }

    /// Does this process alone hold `slot`? Then it may write there.
    pub fn is_mine_alone(&self, block: &RunBlockMap, slot: u32) -> bool {
        block.holders()[slot as usize].load(Ordering::Acquire) == self.bit()
    }

    /// Lets process `child` hold all that this one holds.
    pub fn share_with(&self, block: &RunBlockMap, child: usize) {
        for word in block.holders() {
            // A handler may give one up just now: what is free must not be held by the child alone.
            let shared = |holders: u64| (holders & self.bit() != 0).then_some(holders | 1 << child);
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, shared);
        }
    }
}

/// Far slots on donors that live, those that are held among them.
pub fn alive(block: &RunBlockMap) -> u64 {
    let slabs = (0..block.slab_count()).filter(|slab| block.slab_is_alive(*slab));
    slabs.count() as u64 * u64::from(block.slab_slots())
}

/// Far slots that nobody holds, on donors that live.
pub fn free(block: &RunBlockMap) -> u64 {
    let slab_slots = block.slab_slots() as usize;
    let slabs = (0u32..).step_by(slab_slots);
    let slabs = slabs.zip(block.holders().chunks_exact(slab_slots));
    let alive = slabs.filter(|(first, _)| block.slot_is_alive(*first));
    let is_free = |word: &&AtomicU64| word.load(Ordering::Relaxed) == 0;
    alive.map(|(_, holders)| holders.iter().filter(is_free).count() as u64).sum()
}

/// Process `pid` is no more: what it held ends, and its place is free. Whoever is first to say
/// so does it; `false`: somebody else was, or another process has the place.
pub fn leave(block: &RunBlockMap, place: usize, pid: u32) -> bool {
    let process = &block.processes[place];
    let first =
        process.pid.compare_exchange(pid, Process::LEAVING, Ordering::AcqRel, Ordering::Relaxed);
    if first.is_err() {
        return false;
    }
    block.free_threads_of(Owner::Process(place));
    for slot in 0..block.holders().len() {
        release_bit(block, slot, 1 << place);
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
    fn a_slot_is_free_again_when_the_last_holder_lets_go() {
        let block = block_with(&["a"]);
        let parent = Slots::new(block.enter_process(100).unwrap());
        let place = block.enter_forking(100).unwrap();
        let child = Slots::new(place);
        let slot = parent.take(&block).unwrap();
        assert!(parent.is_mine_alone(&block, slot));
        parent.share_with(&block, place);
        assert!(!parent.is_mine_alone(&block, slot));
        parent.give_up(&block, slot);
        assert!(child.is_mine_alone(&block, slot));
        assert_eq!(block.slots_used.load(Ordering::Relaxed), 1);
        assert!(!leave(&block, place, 100), "that is the parent's number");
        assert!(leave(&block, place, Process::FORKING));
        assert_eq!(block.slots_used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_cannot_be_written_to_from_here_is_left_to_others() {
        let block = block_with(&["a", "b"]);
        let slots = Slots::new(0);
        let first = slots.take(&block).unwrap();
        slots.shun(&block, first);
        assert!(!slots.is_writable(&block, first) && Slots::new(1).is_writable(&block, first));
        assert_eq!(slots.take_run(&block, 10), Some(SLAB_SLOTS..SLAB_SLOTS + 10));
        assert_eq!(Slots::new(1).take(&block), Some(first + 1));
    }

    #[test]
    fn runs_of_slots_end_where_a_slab_or_a_gap_ends() {
        let block = block_with(&["a", "b"]);
        let slots = Slots::new(0);
        assert_eq!(slots.take_run(&block, 10), Some(0..10));
        assert_eq!(Slots::new(1).take_run(&block, 1), Some(10..11));
        assert_eq!(slots.take_run(&block, SLAB_SLOTS), Some(11..SLAB_SLOTS));
        assert_eq!(slots.take_run(&block, u32::MAX), Some(SLAB_SLOTS..2 * SLAB_SLOTS));
        assert_eq!(slots.take_run(&block, 1), None);
        assert_eq!(block.slots_used.load(Ordering::Relaxed), u64::from(2 * SLAB_SLOTS));
        slots.give_up(&block, 3);
        slots.give_up(&block, 4);
        assert_eq!(slots.take_run(&block, 9), Some(3..5));
    }

    #[test]
    fn what_belongs_together_finds_free_rows() {
        let block = block_with(&["a", "b"]);
        let slots = Slots::new(0);
        assert_eq!(slots.take(&block), Some(0));
        assert_eq!(slots.take_in_free_row(&block, 5, 16), Some(21));
        assert!(slots.take_this(&block, 22) && !slots.take_this(&block, 22));
        assert_eq!(slots.take_in_free_row(&block, 0, 16), Some(32));
        assert!(!slots.take_this(&block, 2 * SLAB_SLOTS), "there is no such slot");
        assert_eq!(slots.take(&block), Some(48), "what is taken one by one goes on behind");
        assert_eq!(block.slots_used.load(Ordering::Relaxed), 5);
        for slot in (48..2 * SLAB_SLOTS).step_by(16) {
            slots.take_this(&block, slot);
        }
        assert_eq!(slots.take_in_free_row(&block, 0, 16), None);
        block.donors()[1].lose(super::super::run_block::Fate::Died);
        assert!(!slots.take_this(&block, 2 * SLAB_SLOTS - 1));
    }

    #[test]
    fn slots_run_out_and_dead_donors_are_passed_over() {
        let block = block_with(&["a", "b"]);
        let slots = Slots::new(0);
        block.donors()[0].lose(super::super::run_block::Fate::Died);
        for taken in 0..SLAB_SLOTS {
            assert_eq!(slots.take(&block), Some(SLAB_SLOTS + taken));
        }
        assert_eq!(slots.take(&block), None);
    }
}
