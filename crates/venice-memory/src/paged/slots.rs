//! Far slots: pages of borrowed slabs, held by one process or, after a `fork`, by several.
//!
//! A slot's word in the run block has one bit for each process that may still read it. A slot
//! without a bit is free. A process writes only to slots that it alone holds, so it never
//! overwrites a page that a parent or a child still needs. The word is both allocator and reference
//! count. The supervisor clears the bits of a process that dies.
//!
//! A process also becomes a holder of a slot that another one has written with the same contents
//! ([`Slots::join`]).

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
            if free && self.claim_free(block, slot) {
                self.cursor.store((slot + 1) % usable, Ordering::Relaxed);
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
        self.claim_free(block, slot)
    }

    /// Becomes the only holder of a free slot. False if it is not free, or if another process has
    /// joined its former contents meanwhile.
    fn claim_free(&self, block: &RunBlockMap, slot: u32) -> bool {
        let word = &block.holders()[slot as usize];
        if word.compare_exchange(0, self.bit(), Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return false;
        }
        block.slots_used.fetch_add(1, Ordering::Relaxed);
        let is_alone = self.claim_for_write(block, slot);
        if !is_alone {
            self.release(block, slot);
        }
        is_alone
    }

    /// Prepares a write to a slot that this process holds. False if another process holds it too:
    /// it must not be written then.
    pub fn claim_for_write(&self, block: &RunBlockMap, slot: u32) -> bool {
        if !self.is_mine_alone(block, slot) {
            return false;
        }
        let was_published = block.shares_contents() && block.withdraw_contents(slot);
        !was_published || block.holders()[slot as usize].load(Ordering::SeqCst) == self.bit()
    }

    /// Becomes a holder of a slot that another process has written with the contents of this
    /// fingerprint. `None`: there is none. This process must not hold the slot for another page.
    pub fn join(&self, block: &RunBlockMap, fingerprint: u128) -> Option<u32> {
        let can_join = |slot: &u32| {
            self.is_writable(block, *slot) && self.join_slot(block, *slot, fingerprint)
        };
        block.published(fingerprint).find(can_join)
    }

    fn join_slot(&self, block: &RunBlockMap, slot: u32, fingerprint: u128) -> bool {
        let joined = |holders: u64| {
            (holders != 0 && holders & self.bit() == 0).then(|| holders | self.bit())
        };
        let word = &block.holders()[slot as usize];
        if word.fetch_update(Ordering::SeqCst, Ordering::Relaxed, joined).is_err() {
            return false;
        }
        let has_contents = block.has_contents(slot, fingerprint);
        if !has_contents {
            self.release(block, slot);
        }
        has_contents
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
        let is_taken = |slot: &u32| self.claim_free(block, *slot);
        let more = (first + 1..end).take_while(is_taken).count() as u32;
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
    process.shared_pages.store(0, Ordering::Relaxed);
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
    fn same_contents_share_one_slot() {
        const PRINT: u128 = 3 << 64 | 4;
        let block = block_with(&["a"]);
        block.share_contents();
        let (first, second) = (Slots::new(0), Slots::new(1));
        let slot = first.take(&block).unwrap();
        assert_eq!(second.join(&block, PRINT), None);
        block.publish_contents(slot, PRINT);
        assert_eq!(first.join(&block, PRINT), None, "another page of the process has it");
        assert_eq!(second.join(&block, PRINT), Some(slot));
        assert_eq!(block.slots_used.load(Ordering::Relaxed), 1);
        first.release(&block, slot);
        assert!(second.claim_for_write(&block, slot), "it is its only holder");
        assert_eq!(first.join(&block, PRINT), None, "its contents are about to change");
        block.publish_contents(slot, PRINT);
        assert_eq!(first.join(&block, PRINT), Some(slot));
        assert!(!second.claim_for_write(&block, slot));
        for slots in [&first, &second] {
            slots.release(&block, slot);
        }
        assert_eq!(second.join(&block, PRINT), None, "a free slot has no contents");
    }

    /// Two processes take, write, publish, join and release one slot at once. A holder that joined
    /// must find the contents it joined, for as long as it holds the slot.
    #[test]
    fn joined_slot_keeps_contents() {
        let block = block_with(&["a"]);
        block.share_contents();
        let contents = AtomicU64::new(0);
        let (joins, rounds) = (AtomicU32::new(0), 200_000u64);
        let work = |process: usize| {
            let slots = Slots::new(process);
            for round in 0..rounds {
                let value = (round / 64) % 4 + 1;
                let print = u128::from(value) << 64 | u128::from(value);
                if let Some(slot) = slots.join(&block, print) {
                    joins.fetch_add(1, Ordering::Relaxed);
                    for _ in 0..3 {
                        assert_eq!(contents.load(Ordering::SeqCst), value, "a joined slot changed");
                    }
                    slots.release(&block, slot);
                } else if slots.take_this(&block, 0) {
                    contents.store(value, Ordering::SeqCst);
                    block.publish_contents(0, print);
                    std::thread::yield_now();
                    slots.release(&block, 0);
                }
            }
        };
        std::thread::scope(|scope| {
            for process in 0..2 {
                scope.spawn(move || work(process));
            }
        });
        assert!(joins.load(Ordering::Relaxed) > 0, "the processes never met");
        assert_eq!(block.slots_used.load(Ordering::Relaxed), 0);
    }

    /// A process that shares slots by contents, as a model: what it does next is random, and it may
    /// be killed between any two steps.
    struct Sharer<'a> {
        block: &'a RunBlockMap,
        /// The contents of the far slots.
        contents: &'a [AtomicU64],
        slots: Slots,
        process: usize,
        /// Slots it holds, each with the contents it relies on.
        held: Vec<(u32, u64)>,
        random: u64,
    }

    impl Sharer<'_> {
        const SLOTS: u64 = 6;

        fn random(&mut self, below: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % below
        }

        fn evict(&mut self) {
            let value = self.random(4) + 1;
            let print = u128::from(value) << 64 | u128::from(value);
            if let Some(slot) = self.slots.join(self.block, print) {
                return self.held.push((slot, value));
            }
            let at = self.random(Self::SLOTS) as u32;
            let is_held = self.held.iter().position(|(slot, _)| *slot == at);
            let is_mine = match is_held {
                Some(_) => self.slots.claim_for_write(self.block, at),
                None => self.slots.take_this(self.block, at),
            };
            if !is_mine {
                return;
            }
            if let Some(held) = is_held {
                self.held.swap_remove(held);
            }
            self.held.push((at, value));
            // The write: any reader would see it.
            for word in [u64::MAX, value] {
                self.contents[at as usize].store(word, Ordering::SeqCst);
                if self.random(50) == 0 {
                    return self.die();
                }
            }
            self.block.publish_contents(at, print);
        }

        /// The supervisor releases the slots of a dead process, and another one gets its entry.
        fn die(&mut self) {
            self.held.clear();
            for slot in 0..Self::SLOTS as usize {
                release_bit(self.block, slot, 1 << self.process);
            }
        }

        fn step(&mut self) {
            match (self.random(100), self.held.last()) {
                (0, _) => self.die(),
                (1..40, Some(_)) => {
                    let at = self.random(self.held.len() as u64) as usize;
                    let (slot, _) = self.held.swap_remove(at);
                    self.slots.release(self.block, slot);
                }
                _ => self.evict(),
            }
            for (slot, value) in &self.held {
                let found = self.contents[*slot as usize].load(Ordering::SeqCst);
                assert_eq!(found, *value, "slot {slot} changed under its holder");
            }
        }
    }

    #[test]
    fn kills_leave_contents_right() {
        let block = block_with(&["a"]);
        block.share_contents();
        let contents: Vec<AtomicU64> = (0..Sharer::SLOTS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for process in 0..4 {
                let (block, contents) = (&block, &contents);
                let (slots, held) = (Slots::new(process), Vec::new());
                let random = 0x9e37_79b9 + process as u64;
                let mut sharer = Sharer { block, contents, slots, process, held, random };
                scope.spawn(move || {
                    (0..100_000).for_each(|_| sharer.step());
                    sharer.die();
                });
            }
        });
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
