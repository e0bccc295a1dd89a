//! The staging area: frames of pages on their way out.
//!
//! A ring of frames in chunks. The evictor moves pages of the program here (one `UFFDIO_MOVE` takes
//! them out of the program whole) and much later writes them out; a page that is touched meanwhile
//! moves back without a request to a donor. So the ring is both the write-back buffer and the
//! second chance of the replacement: first in, first out, unless touched.
//!
//! After the ring come slots of 2 MiB, each of 512 frames, for huge pages ([`HugeSlots`]).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::huge_slots::{HugeSlot, HugeSlots};
use super::page_size::{HUGE_BYTES, HUGE_PAGES};
use super::page_table::PageNumber;
use super::sys::{self, SysResult};
use super::{PAGE, address_of};

/// Frames that are filled, written out and freed together.
pub const CHUNK_FRAMES: usize = 64;

const EMPTY: u64 = 0;
const ORPHAN: u64 = u64::MAX;
const ORPHAN_OF: u64 = 1 << 63;

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Empty.
    Empty,
    /// This page of the program.
    Page(PageNumber),
    /// Memory that is no longer needed; freed with its chunk.
    Orphan,
    /// A copy of a page that was taken back; a child being forked may still need it.
    OrphanOf(PageNumber),
}

/// The staging area.
#[derive(Debug)]
pub struct Staging {
    base_page: PageNumber,
    ring_frames: usize,
    /// Chunks that the ring uses; those behind them are empty.
    in_use: AtomicUsize,
    owners: &'static [AtomicU64],
    huge: HugeSlots,
}

impl Drop for Staging {
    fn drop(&mut self) {
        let (base, len_bytes) = self.memory();
        let owners = self.owners.as_ptr().cast_mut();
        // SAFETY: mapped by `new`, and used by nothing else.
        unsafe {
            sys::unmap(base as *mut _, len_bytes);
            sys::unmap(owners.cast(), size_of_val(self.owners));
        }
    }
}

impl Staging {
    /// Makes a ring of `chunks` chunks, and `huge_slots` slots. The caller registers its memory
    /// with the userfaultfd.
    ///
    /// # Errors
    /// The kernel's, when there is no address space.
    pub fn new(chunks: usize, huge_slots: usize) -> SysResult<Staging> {
        let ring_frames = chunks * CHUNK_FRAMES;
        let frames = ring_frames.next_multiple_of(HUGE_PAGES) + huge_slots * HUGE_PAGES;
        let huge = HugeSlots::new(huge_slots)?;
        let owners = sys::map_dumped(frames * size_of::<AtomicU64>())?;
        let base = sys::map_aligned(frames * PAGE, HUGE_BYTES)?;
        // SAFETY: fresh zeroed memory of that size, unmapped with the ring.
        let owners = unsafe { std::slice::from_raw_parts(owners.cast::<AtomicU64>(), frames) };
        let in_use = AtomicUsize::new(chunks);
        Ok(Staging { base_page: base / PAGE, ring_frames, in_use, owners, huge })
    }

    /// True if `page` belongs to the area.
    pub fn covers(&self, page: PageNumber) -> bool {
        (self.base_page..self.base_page + self.owners.len()).contains(&page)
    }

    /// Number of chunks that there is room for.
    pub fn chunks(&self) -> usize {
        self.ring_frames / CHUNK_FRAMES
    }

    /// Address of the table of the frames' contents.
    pub fn owners_address(&self) -> usize {
        self.owners.as_ptr() as usize
    }

    /// The slots for huge pages.
    pub fn huge(&self) -> &HugeSlots {
        &self.huge
    }

    /// The frames of a slot for huge pages.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn frames_of_huge(&self, slot: HugeSlot) -> Range<u32> {
        assert!(slot < self.huge.count(), "no such slot: {slot}");
        let first = (self.ring_frames.next_multiple_of(HUGE_PAGES) + slot * HUGE_PAGES) as u32;
        first..first + HUGE_PAGES as u32
    }

    /// Address of a slot for huge pages, a multiple of 2 MiB.
    pub fn address_of_huge(&self, slot: HugeSlot) -> usize {
        self.address(self.frames_of_huge(slot).start)
    }

    /// Number of chunks that the ring uses.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Sets the number of chunks that the ring uses. For the evictor only, once the chunks left out
    /// are empty.
    ///
    /// # Panics
    /// If `chunks` is 0 or there is no room for so many.
    pub fn use_chunks(&self, chunks: usize) {
        assert!((1..=self.chunks()).contains(&chunks), "{chunks} of {}", self.chunks());
        self.in_use.store(chunks, Ordering::Relaxed);
    }

    /// Returns the chunk `offset` steps on in the ring.
    pub fn chunk_after(&self, chunk: usize, offset: usize) -> usize {
        (chunk + offset) % self.in_use()
    }

    /// First address and length in bytes.
    pub fn memory(&self) -> (usize, usize) {
        (address_of(self.base_page), self.owners.len() * PAGE)
    }

    /// The frames of a chunk.
    pub fn frames_of(&self, chunk: usize) -> Range<u32> {
        let first = (chunk * CHUNK_FRAMES) as u32;
        first..first + CHUNK_FRAMES as u32
    }

    /// Address of a frame.
    pub fn address(&self, frame: u32) -> usize {
        address_of(self.base_page + frame as usize)
    }

    /// The contents of a frame.
    pub fn holds(&self, frame: u32) -> Frame {
        match self.owners[frame as usize].load(Ordering::Acquire) {
            EMPTY => Frame::Empty,
            ORPHAN => Frame::Orphan,
            word if word & ORPHAN_OF != 0 => Frame::OrphanOf((word & !ORPHAN_OF) as PageNumber),
            page => Frame::Page(page as PageNumber),
        }
    }

    /// Records the contents of a frame.
    pub fn set(&self, frame: u32, holds: Frame) {
        let word = match holds {
            Frame::Empty => EMPTY,
            Frame::Orphan => ORPHAN,
            Frame::OrphanOf(page) => page as u64 | ORPHAN_OF,
            Frame::Page(page) => page as u64,
        };
        self.owners[frame as usize].store(word, Ordering::Release);
    }
}
