//! Write-behind: a file on this machine's disk that has all that is far, and the pages that are yet
//! to get there.
//!
//! The file is a replica of every slab, at a donor of its own, so that whatever gives up replicas
//! sees it as one more that has everything. It is neither among those that are read first nor among
//! those that are written by a port: [`RunBlock::readable`] and [`RunBlock::targets`] leave it out.
//!
//! Who writes a page far copies it into a *frame* of the run block too, and says in the slot's word
//! which frame has its newest contents. The supervisor takes frames to the file
//! ([`Drain`](super::super::write_behind::Drain)); only then is the frame free, so what is in no
//! frame is on the disk. A frame is claimed before it is filled, by the number of the thread that
//! writes: what a process leaves behind that dies is freed with that.
//!
//! A slot's word changes from 0 or a frame to a newer frame by its one writer, and from a frame to 0
//! by the one drain, if it is that frame still.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::super::PAGE;
use super::super::transfer::Words;
use super::{
    MAX_SLABS, Replica, ReplicaAt, ReplicaState, RunBlock, RunBlockError, RunBlockMap, tail_words,
};

/// Frames of a run that writes behind: 16 MiB of this machine's memory, beside the budget.
pub const FRAMES: usize = 4096;

const FREE: u64 = 0;
/// With the number of the writer.
const CLAIMED: u64 = 1 << 62;
/// With the slot.
const READY: u64 = 1 << 63;

/// No node of a rack has this number.
const NOBODY: u32 = u32::MAX;

impl RunBlock {
    /// Enters the file as a replica of every slab there is. The supervisor's right, before any
    /// process attaches.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`].
    pub fn add_disk(&self, name: &str) -> Result<(), RunBlockError> {
        assert!(self.behind_frames > 0, "the block was made for it");
        let donor = self.add_donor(name, NOBODY, "")?;
        self.first_on_disk.store(self.replicas().len() as u32 + 1, Ordering::Release);
        for slab in 0..self.slab_count() {
            let at = ReplicaAt { donor, remote_addr: 0, grant: 0, key: 0 };
            self.add_replica(slab, at, ReplicaState::Live)?;
        }
        Ok(())
    }

    /// Index of the file's replica of the first slab; those of the others follow. `None`: nothing is
    /// written behind.
    pub fn first_on_disk(&self) -> Option<usize> {
        self.first_on_disk.load(Ordering::Acquire).checked_sub(1).map(|first| first as usize)
    }

    /// Is the replica the file's?
    pub fn is_disks(&self, replica: usize) -> bool {
        let first = self.first_on_disk();
        first.is_some_and(|first| (first..first + self.slab_count()).contains(&replica))
    }

    /// The file's replica of a slab, while it has all that was written there.
    pub fn on_disk(&self, slab: usize) -> Option<(usize, &Replica)> {
        let index = self.first_on_disk()? + slab;
        let replica = &self.replicas()[index];
        (self.state(replica) == ReplicaState::Live).then_some((index, replica))
    }
}

impl RunBlockMap {
    /// For each slot the frame with its newest contents, plus one; 0: these are in the file.
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

    /// Bytes that follow the words of the block.
    pub(super) fn frames_bytes(slot_count: u32, behind_frames: u32) -> usize {
        let head = size_of::<RunBlock>() + tail_words(slot_count, behind_frames) * 8;
        match behind_frames {
            0 => 0,
            frames => head.next_multiple_of(PAGE) - head + frames as usize * PAGE,
        }
    }

    /// Claims so many frames for a thread that writes, or none (`false`). `cursor` is where it found
    /// the last ones. `into` has room for them.
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

    /// A frame that was claimed, or is in the file, is free again.
    pub fn free_frame(&self, frame: u32) {
        self.frame_words()[frame as usize].store(FREE, Ordering::Release);
    }

    /// What a thread had claimed that writes no more is free again.
    pub(super) fn free_frames_of(&self, writer: usize) {
        let words = self.frame_words();
        let is_its = |frame: usize| words[frame].load(Ordering::Acquire) == CLAIMED | writer as u64;
        if !(0..words.len()).any(is_its) {
            return;
        }
        // It may have been killed before it said that a frame is ready. What was in the slot was its
        // own.
        for newest in self.newest() {
            let word = newest.load(Ordering::SeqCst);
            if word.checked_sub(1).is_some_and(|frame| is_its(frame as usize)) {
                let order = (Ordering::SeqCst, Ordering::Relaxed);
                let _ = newest.compare_exchange(word, 0, order.0, order.1);
            }
        }
        (0..words.len()).filter(|&frame| is_its(frame)).for_each(|at| self.free_frame(at as u32));
    }

    /// Has the page at `source` be the newest contents of a slot: those of a frame that was claimed.
    ///
    /// # Safety
    /// A page must be there, and not change meanwhile. The slot is the caller's to write.
    pub unsafe fn put_behind(&self, frame: u32, slot: u32, source: usize) {
        // SAFETY: the frame is the caller's alone until it is ready; the source is his word.
        unsafe {
            std::ptr::copy_nonoverlapping(source as *const u8, self.frame_address(frame), PAGE);
        }
        self.newest()[slot as usize].store(frame + 1, Ordering::SeqCst);
        self.frame_words()[frame as usize].store(READY | u64::from(slot), Ordering::Release);
    }

    /// The newest contents of a slot, if they are not in the file yet (`true`).
    pub fn get_behind(&self, slot: u32, into: &mut Words) -> bool {
        loop {
            let newest = self.newest()[slot as usize].load(Ordering::SeqCst);
            let Some(frame) = newest.checked_sub(1) else { return false };
            // SAFETY: a page of the mapping. It may change only when it is no longer the slot's,
            // which is looked at next.
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

    /// Are the newest contents of a slot in the file?
    pub fn is_drained(&self, slot: u32) -> bool {
        self.newest()[slot as usize].load(Ordering::SeqCst) == 0
    }

    /// The frames that wait for the file, each with its slot; the drain's right, as what follows.
    pub(in crate::paged) fn ready_frames(&self) -> impl Iterator<Item = (u32, u32)> {
        let words = self.frame_words().iter().enumerate();
        words.filter_map(|(frame, word)| {
            let word = word.load(Ordering::Acquire);
            (word & READY != 0).then_some((word as u32, frame as u32))
        })
    }

    /// Does the frame have the newest contents of the slot, and does anybody need these?
    pub(in crate::paged) fn is_wanted(&self, slot: u32, frame: u32) -> bool {
        self.newest()[slot as usize].load(Ordering::SeqCst) == frame + 1
            && self.holders()[slot as usize].load(Ordering::SeqCst) != 0
            && self.on_disk(self.slab_of(slot)).is_some()
    }

    /// The page in a frame that is ready.
    pub(in crate::paged) fn frame(&self, frame: u32) -> &[u8; PAGE] {
        // SAFETY: a page of the mapping, which nobody writes until the drain has freed it.
        unsafe { &*self.frame_address(frame).cast_const().cast() }
    }

    /// What was in the frame is in the file, or nobody needs it.
    pub(in crate::paged) fn settle(&self, slot: u32, frame: u32) {
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        let _ = self.newest()[slot as usize].compare_exchange(frame + 1, 0, order.0, order.1);
        self.free_frame(frame);
    }

    /// Pages that are not on the disk yet.
    pub fn behind_pages(&self) -> u64 {
        self.ready_frames().count() as u64
    }
}

const _: () = assert!(MAX_SLABS < 1 << 16, "a slot is a number of 32 bits");

#[cfg(test)]
mod tests {
    use super::super::{Fate, Owner, PortKind, Verdict};
    use super::*;

    /// One slab at one donor, and on disk.
    fn block() -> RunBlockMap {
        let (_fd, block) = RunBlockMap::create_behind(PortKind::Shm, 1, 1).unwrap();
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
        unsafe { block.put_behind(frame, slot, page.as_ptr() as usize) };
    }

    fn get(block: &RunBlockMap, slot: u32) -> Option<u64> {
        let mut page = [0; PAGE / 8];
        block.get_behind(slot, &mut page).then_some(page[7])
    }

    #[test]
    fn the_file_is_neither_read_nor_written_like_a_donor_and_counts_as_one() {
        let block = block();
        assert!(block.is_disks(1) && !block.is_disks(0) && block.on_disk(0).is_some());
        assert_eq!(block.readable(0).map(|(index, _)| index).collect::<Vec<_>>(), [0]);
        assert_eq!(block.targets(0).replicas().collect::<Vec<_>>(), [0]);
        assert_eq!(block.judge_silent(0, |_| false), Verdict::DoneWithout);
        assert!(block.slab_is_alive(0) && block.readable(0).next().is_none());
        let disk = block.on_disk(0).unwrap().1;
        assert!(!block.give_up(disk), "it is the last");
        let donor = block.add_donor("node2", 2, "").unwrap();
        let at = ReplicaAt { donor, remote_addr: 0, grant: 2, key: 2 };
        block.add_replica(0, at, ReplicaState::Live).unwrap();
        assert!(block.give_up(disk) && block.on_disk(0).is_none());
        block.donors()[donor].lose(Fate::Died);
        assert!(!block.slab_is_alive(0));
    }

    #[test]
    fn the_newest_contents_are_in_a_frame_until_they_are_in_the_file() {
        let block = block();
        let frames = claim(&block, 3, 2).unwrap();
        assert_eq!((get(&block, 9), block.behind_pages()), (None, 0));
        put(&block, frames[0], 9, 1);
        put(&block, frames[1], 9, 2);
        block.holders()[9].store(1, Ordering::Relaxed);
        assert_eq!((get(&block, 9), block.behind_pages()), (Some(2), 2));
        assert!(!block.is_wanted(9, frames[0]) && block.is_wanted(9, frames[1]));
        block.settle(9, frames[0]);
        assert_eq!((get(&block, 9), block.is_drained(9)), (Some(2), false));
        block.settle(9, frames[1]);
        assert_eq!((get(&block, 9), block.behind_pages()), (None, 0));
    }

    #[test]
    fn frames_are_claimed_all_or_none_and_freed_with_their_writer() {
        let block = block();
        let writer = block.claim_writer(Owner::Process(2)).unwrap();
        let frames = claim(&block, writer, FRAMES - 1).unwrap();
        assert!(claim(&block, writer + 1, 2).is_none());
        let other = claim(&block, writer + 1, 1).unwrap();
        put(&block, frames[5], 70, 1);
        // Killed before it could say that this one is ready.
        put(&block, frames[6], 71, 2);
        block.frame_words()[frames[6] as usize].store(CLAIMED | writer as u64, Ordering::Relaxed);
        block.free_threads_of(Owner::Process(2));
        assert_eq!((get(&block, 70), get(&block, 71)), (Some(1), None));
        assert_eq!(claim(&block, 9, FRAMES - 2).map(|all| all.len()), Some(FRAMES - 2));
        block.free_frame(other[0]);
        assert!(claim(&block, 9, 1).is_some());
    }
}
