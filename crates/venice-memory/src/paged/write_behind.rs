//! Write-behind: far pages are also written to a file on the local disk, in the background, so that
//! the death of a donor loses no page even if it had the only copy.
//!
//! Pages on their way to the file lie in frames of the run block
//! ([`BEHIND_FRAMES`](super::run_block::BEHIND_FRAMES)), from which any process can read them back.
//! The supervisor has the file and writes the frames to it ([`Drain`]). The pagers read the file
//! themselves if no donor is left ([`Disk`]). A pager writes only with frames, which it claims
//! before it takes pages from the program. A slow disk therefore delays evictions, and faults only
//! through them.

mod drain;
#[cfg(test)]
mod tests;

use super::run_block::RunBlockMap;
use super::transfer::{Words, bytes_of_mut};
use super::{PAGE, sys};

pub use self::drain::{Drain, DrainFailure};

/// One thread's access to the file.
#[derive(Debug)]
pub struct Disk {
    fd: i32,
    /// The page read last.
    page: Box<Words>,
    /// Frames claimed and not filled yet.
    frames: Vec<u32>,
    cursor: usize,
}

/// Most frames that a thread has claimed at a time.
const MOST_FRAMES: usize = 1024;

impl Disk {
    /// Creates the access over a descriptor, which must stay open.
    pub fn new(fd: i32) -> Disk {
        let (page, frames) = (Box::new([0; PAGE / 8]), Vec::with_capacity(MOST_FRAMES));
        Disk { fd, page, frames, cursor: 0 }
    }

    /// Reads the page in a slot, if the disk has it, and returns its address, which is valid until
    /// the next call.
    pub fn page(&mut self, block: &RunBlockMap, slot: u32) -> Option<usize> {
        let Disk { fd, page, .. } = self;
        read(*fd, block, slot, page).then_some(page.as_ptr() as usize)
    }

    /// Reads the pages in slots; `false`: the disk lacks one.
    pub fn pages(&mut self, block: &RunBlockMap, slots: &[u32], pages: &mut [Words]) -> bool {
        let mut both = slots.iter().zip(pages);
        both.all(|(&slot, page)| read(self.fd, block, slot, page))
    }

    /// Claims frames so that `count` pages can be written without waiting; `false`: too many others
    /// are queued for the disk. This thread has then claimed none: if all waiting threads kept
    /// some, there might be too few for any of them.
    pub fn reserve(&mut self, block: &RunBlockMap, writer: usize, count: usize) -> bool {
        let has_room = self.reserve_more(block, writer, count);
        if !has_room {
            self.release(block);
        }
        has_room
    }

    /// Claims frames like [`Disk::reserve`], for a thread that goes on in any case: it keeps the
    /// claimed ones.
    pub fn reserve_more(&mut self, block: &RunBlockMap, writer: usize, count: usize) -> bool {
        let lacking = count.min(MOST_FRAMES).saturating_sub(self.frames.len());
        block.claim_frames(writer, lacking, &mut self.cursor, &mut self.frames)
    }

    /// Frees the claimed frames that this thread does not need now.
    pub fn release(&mut self, block: &RunBlockMap) {
        self.frames.drain(..).for_each(|frame| block.free_frame(frame));
    }

    /// Queues the page at `source` for the file; `false`: no frame is free.
    ///
    /// # Safety
    /// `source` must be the address of a readable page that does not change meanwhile. The caller
    /// must be the slot's only writer.
    pub unsafe fn put(
        &mut self,
        block: &RunBlockMap,
        writer: usize,
        slot: u32,
        source: usize,
    ) -> bool {
        if self.frames.is_empty() && !self.reserve(block, writer, 1) {
            return false;
        }
        let frame = self.frames.pop().expect("reserved");
        // SAFETY: the frame is this thread's; the caller vouches for the rest.
        unsafe { block.store_frame(frame, slot, source) };
        true
    }
}

/// Reads the page in a slot: from the frame with its newest contents, or from the file.
fn read(fd: i32, block: &RunBlockMap, slot: u32, page: &mut Words) -> bool {
    let offset = u64::from(slot) * PAGE as u64;
    read_by(block, slot, page, |page| read_file(fd, offset, bytes_of_mut(page)))
}

fn read_by(
    block: &RunBlockMap,
    slot: u32,
    page: &mut Words,
    mut from_file: impl FnMut(&mut Words) -> bool,
) -> bool {
    let is_on_disk = || block.disk_replica(block.slab_of(slot)).is_some();
    while is_on_disk() {
        if block.load_frame(slot, page) {
            return true;
        }
        if !from_file(page) {
            return false;
        }
        if block.is_drained(slot) {
            // Frames of a slab whose file replica was dropped meanwhile are freed without being
            // written.
            return is_on_disk();
        }
    }
    false
}

fn read_file(fd: i32, offset: u64, page: &mut [u8]) -> bool {
    let mut done = 0;
    while done < page.len() {
        match sys::pread(fd, offset + done as u64, &mut page[done..]) {
            Ok(len @ 1..) => done += len,
            Err(sys::Errno::EINTR) => {}
            _ => return false,
        }
    }
    true
}
