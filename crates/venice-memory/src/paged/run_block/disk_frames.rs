//! Write-behind: a file on the local disk with a copy of all far pages, and the pages still waiting
//! for it.
//!
//! The file is a replica of every slab, at a donor of its own, so that any decision to drop
//! replicas counts it as one more complete replica. Neither [`RunBlock::readable`] nor
//! [`RunBlock::targets`] includes it: it is read last, and written by no port.
//!
//! A thread that writes a page to far memory also copies the page into a *frame* of the run block,
//! and stores in the slot's word which frame has the newest contents. The supervisor writes frames
//! to the file ([`Drain`](super::super::write_behind::Drain)) and only then frees them. A page in
//! no frame is therefore on disk. A frame is claimed, under the number of the writing thread,
//! before it is filled. If a process dies, its frames are freed by that number.
//!
//! Invariant: a slot's word changes from 0 or a frame to a newer frame by its one writer, and from
//! a frame to 0 by the one drain if it is still that frame.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::super::PAGE;
use super::super::transfer::Words;
use super::{
    MAX_SLABS, Replica, ReplicaAt, ReplicaState, RunBlock, RunBlockError, RunBlockMap, tail_words,
};

/// Frames of a run with write-behind: 16 MiB of local memory, beside the budget.
pub const FRAMES: usize = 4096;

const FREE: u64 = 0;
/// Flag of a claimed frame, combined with the number of the writer.
const CLAIMED: u64 = 1 << 62;
/// Flag of a filled frame, combined with the slot.
const READY: u64 = 1 << 63;

/// A node id that no node of a rack has.
const NO_NODE: u32 = u32::MAX;

impl RunBlock {
    /// Enters the file as a replica of every slab in use. Only the supervisor calls it, before any
    /// process attaches.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`] if a table is full.
    ///
    /// # Panics
    /// If the block was made without write-behind.
    pub fn add_disk(&self, name: &str) -> Result<(), RunBlockError> {
        assert!(self.behind_frames > 0, "made by create_write_behind");
        let donor = self.add_donor(name, NO_NODE, "")?;
        self.first_on_disk.store(self.replicas().len() as u32 + 1, Ordering::Release);
        for slab in 0..self.slab_count() {
            let at = ReplicaAt { donor, remote_addr: 0, grant: 0, key: 0 };
            self.add_replica(slab, at, ReplicaState::Live)?;
        }
        Ok(())
    }

    /// Index of the file's replica of the first slab; those of the other slabs follow it. `None`
    /// without write-behind.
    pub fn first_on_disk(&self) -> Option<usize> {
        self.first_on_disk.load(Ordering::Acquire).checked_sub(1).map(|first| first as usize)
    }

    /// True if the replica is the file's.
    pub fn is_disk_replica(&self, replica: usize) -> bool {
        let first = self.first_on_disk();
        first.is_some_and(|first| (first..first + self.slab_count()).contains(&replica))
    }

    /// The file's replica of a slab, while it is complete.
    pub fn disk_replica(&self, slab: usize) -> Option<(usize, &Replica)> {
        let index = self.first_on_disk()? + slab;
        let replica = &self.replicas()[index];
        (self.state(replica) == ReplicaState::Live).then_some((index, replica))
    }
}

impl RunBlockMap {
    /// The frame with the newest contents of each slot, plus one; 0: they are in the file.
    fn newest(&self) -> &[AtomicU32] {
        let first = self.slot_count as usize * 65 / 64;
        let count = if self.behind_frames > 0 { self.slot_count as usize } else { 0 };
        let words = &self.tail()[first..first + count / 2];
        // SAFETY: a word of eight bytes is two of four, all of which are atomic.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), count) }
    }

    fn frame_words(&self) -> &[AtomicU64] {
        let words = self.tail();
        &words[words.len() - self.behind_frames as usize..]
    }

    fn frame_address(&self, frame: u32) -> *mut u8 {
        let head = size_of::<RunBlock>() + size_of_val(self.tail());
        let offset = head.next_multiple_of(PAGE) + frame as usize * PAGE;
        assert!(offset + PAGE <= self.len_bytes, "frame {frame} of {}", self.behind_frames);
        // SAFETY: within the mapping.
        unsafe { self.block.cast::<u8>().cast_mut().add(offset) }
    }

    /// Bytes that follow the words of the block: padding and frames.
    pub(super) fn frames_bytes(slot_count: u32, behind_frames: u32) -> usize {
        let head = size_of::<RunBlock>() + tail_words(slot_count, behind_frames) * 8;
        match behind_frames {
            0 => 0,
            frames => head.next_multiple_of(PAGE) - head + frames as usize * PAGE,
        }
    }

    /// Claims `count` frames for a writing thread, or none of them (`false`). The search starts at
    /// `cursor`, which it moves behind the last frame found. `into` must have the capacity.
    pub fn claim_frames(
        &self,
        writer: usize,
        count: usize,
        cursor: &mut usize,
        into: &mut Vec<u32>,
    ) -> bool {
        let (words, before) = (self.frame_words(), into.len());
        let claimed = CLAIMED | writer as u64;
        for looked in 0..words.len() {
            if into.len() == before + count {
                break;
            }
            let at = (*cursor + looked) % words.len();
            let is_free = words[at].load(Ordering::Relaxed) == FREE;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            if is_free && words[at].compare_exchange(FREE, claimed, order.0, order.1).is_ok() {
                into.push(at as u32);
            }
        }
        if into.len() < before + count {
            into.drain(before..).for_each(|frame| self.free_frame(frame));
            return false;
        }
        *cursor = into.last().map_or(0, |&last| last as usize + 1);
        true
    }

    /// Frees a frame that was claimed, or whose contents are in the file.
    pub fn free_frame(&self, frame: u32) {
        self.frame_words()[frame as usize].store(FREE, Ordering::Release);
    }

    /// Frees the claimed frames of a thread that no longer writes.
    pub(super) fn free_frames_of(&self, writer: usize) {
        let words = self.frame_words();
        let is_its = |frame: usize| words[frame].load(Ordering::Acquire) == CLAIMED | writer as u64;
        if !(0..words.len()).any(is_its) {
            return;
        }
        // The thread may have been killed before it marked a frame as ready. The slot's earlier
        // contents were in its own frame.
        for newest in self.newest() {
            let word = newest.load(Ordering::SeqCst);
            if word.checked_sub(1).is_some_and(|frame| is_its(frame as usize)) {
                let order = (Ordering::SeqCst, Ordering::Relaxed);
                let _ = newest.compare_exchange(word, 0, order.0, order.1);
            }
        }
        (0..words.len()).filter(|&frame| is_its(frame)).for_each(|at| self.free_frame(at as u32));
    }

    /// Makes the page at `source` the newest contents of a slot, in a claimed frame.
    ///
    /// # Safety
    /// `source` must be the address of a readable page that does not change meanwhile. The caller
    /// must be the slot's only writer.
    pub unsafe fn store_frame(&self, frame: u32, slot: u32, source: usize) {
        // SAFETY: the frame is the caller's alone until it is ready; the caller vouches for the
        // source.
        unsafe {
            std::ptr::copy_nonoverlapping(source as *const u8, self.frame_address(frame), PAGE);
        }
        self.newest()[slot as usize].store(frame + 1, Ordering::SeqCst);
        self.frame_words()[frame as usize].store(READY | u64::from(slot), Ordering::Release);
    }

    /// Copies the newest contents of a slot if they are not in the file yet (`true`).
    pub fn load_frame(&self, slot: u32, into: &mut Words) -> bool {
        loop {
            let newest = self.newest()[slot as usize].load(Ordering::SeqCst);
            let Some(frame) = newest.checked_sub(1) else { return false };
            // SAFETY: a page of the mapping. It may change only once it is no longer the slot's,
            // and the next statement checks that.
            unsafe {
                let into = into.as_mut_ptr().cast::<u8>();
                std::ptr::copy_nonoverlapping(self.frame_address(frame).cast_const(), into, PAGE);
            }
            fence(Ordering::Acquire);
            if self.newest()[slot as usize].load(Ordering::SeqCst) == newest {
                return true;
            }
        }
    }

    /// True if the newest contents of a slot are in the file.
    pub fn is_drained(&self, slot: u32) -> bool {
        self.newest()[slot as usize].load(Ordering::SeqCst) == 0
    }

    /// The frames that wait for the file, each with its slot. Only the drain calls this and the
    /// following functions.
    pub(in crate::paged) fn ready_frames(&self) -> impl Iterator<Item = (u32, u32)> {
        let words = self.frame_words().iter().enumerate();
        words.filter_map(|(frame, word)| {
            let word = word.load(Ordering::Acquire);
            (word & READY != 0).then_some((word as u32, frame as u32))
        })
    }

    /// True if the frame has the newest contents of the slot and some process still needs them.
    pub(in crate::paged) fn is_needed(&self, slot: u32, frame: u32) -> bool {
        self.newest()[slot as usize].load(Ordering::SeqCst) == frame + 1
            && self.holders()[slot as usize].load(Ordering::SeqCst) != 0
            && self.disk_replica(self.slab_of(slot)).is_some()
    }

    /// The page in a ready frame.
    pub(in crate::paged) fn frame(&self, frame: u32) -> &[u8; PAGE] {
        // SAFETY: a page of the mapping that no thread writes until the drain has freed it.
        unsafe { &*self.frame_address(frame).cast_const().cast() }
    }

    /// Frees a frame whose contents are in the file, or no longer needed.
    pub(in crate::paged) fn complete_frame(&self, slot: u32, frame: u32) {
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        let _ = self.newest()[slot as usize].compare_exchange(frame + 1, 0, order.0, order.1);
        self.free_frame(frame);
    }

    /// Pages that are not on the disk yet.
    pub fn undrained_pages(&self) -> u64 {
        self.ready_frames().count() as u64
    }
}

const _: () = assert!(MAX_SLABS < 1 << 16, "a slot is a number of 32 bits");

#[cfg(test)]
mod tests {
    use super::super::{Fate, Owner, PortKind, SuspicionOutcome};
    use super::*;

    /// One slab at one donor, with write-behind.
    fn block() -> RunBlockMap {
        let (_fd, block) = RunBlockMap::create_write_behind(PortKind::Shm, 1, 1).unwrap();
        let donor = block.add_donor("node1", 1, "").unwrap();
        block.add_slab(ReplicaAt { donor, remote_addr: 0, grant: 1, key: 2 }).unwrap();
        block.add_disk("disk").unwrap();
        block
    }

    fn claim(block: &RunBlockMap, writer: usize, count: usize) -> Option<Vec<u32>> {
        let mut frames = Vec::with_capacity(count);
        block.claim_frames(writer, count, &mut 0, &mut frames).then_some(frames)
    }

    fn put(block: &RunBlockMap, frame: u32, slot: u32, word: u64) {
        let page: Words = [word; PAGE / 8];
        // SAFETY: a page of our own.
        unsafe { block.store_frame(frame, slot, page.as_ptr() as usize) };
    }

    fn get(block: &RunBlockMap, slot: u32) -> Option<u64> {
        let mut page = [0; PAGE / 8];
        block.load_frame(slot, &mut page).then_some(page[7])
    }

    #[test]
    fn file_counts_as_unported_replica() {
        let block = block();
        assert!(
            block.is_disk_replica(1)
                && !block.is_disk_replica(0)
                && block.disk_replica(0).is_some()
        );
        assert_eq!(block.readable(0).map(|(index, _)| index).collect::<Vec<_>>(), [0]);
        assert_eq!(block.targets(0).replicas().collect::<Vec<_>>(), [0]);
        assert_eq!(block.resolve_suspicion(0, |_| false), SuspicionOutcome::Dropped);
        assert!(block.slab_is_alive(0) && block.readable(0).next().is_none());
        let disk = block.disk_replica(0).unwrap().1;
        assert!(!block.drop_replica(disk), "it is the last replica");
        let donor = block.add_donor("node2", 2, "").unwrap();
        let at = ReplicaAt { donor, remote_addr: 0, grant: 2, key: 2 };
        block.add_replica(0, at, ReplicaState::Live).unwrap();
        assert!(block.drop_replica(disk) && block.disk_replica(0).is_none());
        block.donors()[donor].lose(Fate::Died);
        assert!(!block.slab_is_alive(0));
    }

    #[test]
    fn frame_holds_newest_until_drained() {
        let block = block();
        let frames = claim(&block, 3, 2).unwrap();
        assert_eq!((get(&block, 9), block.undrained_pages()), (None, 0));
        put(&block, frames[0], 9, 1);
        put(&block, frames[1], 9, 2);
        block.holders()[9].store(1, Ordering::Relaxed);
        assert_eq!((get(&block, 9), block.undrained_pages()), (Some(2), 2));
        assert!(!block.is_needed(9, frames[0]) && block.is_needed(9, frames[1]));
        block.complete_frame(9, frames[0]);
        assert_eq!((get(&block, 9), block.is_drained(9)), (Some(2), false));
        block.complete_frame(9, frames[1]);
        assert_eq!((get(&block, 9), block.undrained_pages()), (None, 0));
    }

    #[test]
    fn frames_claimed_atomically_freed_with_writer() {
        let block = block();
        let writer = block.claim_writer(Owner::Process(2)).unwrap();
        let frames = claim(&block, writer, FRAMES - 1).unwrap();
        assert!(claim(&block, writer + 1, 2).is_none());
        let other = claim(&block, writer + 1, 1).unwrap();
        put(&block, frames[5], 70, 1);
        // Killed before it could mark this frame as ready.
        put(&block, frames[6], 71, 2);
        block.frame_words()[frames[6] as usize].store(CLAIMED | writer as u64, Ordering::Relaxed);
        block.free_threads_of(Owner::Process(2));
        assert_eq!((get(&block, 70), get(&block, 71)), (Some(1), None));
        assert_eq!(claim(&block, 9, FRAMES - 2).map(|all| all.len()), Some(FRAMES - 2));
        block.free_frame(other[0]);
        assert!(claim(&block, 9, 1).is_some());
    }
}
