//! Write-behind: what goes far goes to a file on this machine's disk too, in the background, so that
//! a donor's death loses nothing even where it had the only copy.
//!
//! What is on its way there lies in frames of the run block
//! ([`BEHIND_FRAMES`](super::run_block::BEHIND_FRAMES)), where whoever wants it back finds it. The
//! supervisor has the file and takes the frames there ([`Drain`]); the pagers read it themselves
//! where no donor is left ([`Disk`]). They write only when they have frames, and claim them before they
//! take pages out of the program: a slow disk holds up what leaves, and no fault but by that.

mod drain;
#[cfg(test)]
mod tests;

use super::run_block::RunBlockMap;
use super::transfer::{Words, bytes_of_mut};
use super::{PAGE, sys};

pub use self::drain::{Drain, Trouble};

/// One thread's way to the file.
#[derive(Debug)]
pub struct Disk {
    fd: i32,
    /// What was read last.
    page: Box<Words>,
    /// Claimed, and not filled yet.
    frames: Vec<u32>,
    cursor: usize,
}

/// Most frames that a thread has claimed at a time.
const MOST_FRAMES: usize = 1024;

impl Disk {
    /// The way by a descriptor that stays open.
    pub fn new(fd: i32) -> Disk {
        let (page, frames) = (Box::new([0; PAGE / 8]), Vec::with_capacity(MOST_FRAMES));
        Disk { fd, page, frames, cursor: 0 }
    }

    /// Reads what a slot holds, if the disk has it: its address until the next call.
    pub fn page(&mut self, block: &RunBlockMap, slot: u32) -> Option<usize> {
        let Disk { fd, page, .. } = self;
        read(*fd, block, slot, page).then_some(page.as_ptr() as usize)
    }

    /// Reads what slots hold; `false`: the disk lacks one.
    pub fn pages(&mut self, block: &RunBlockMap, slots: &[u32], pages: &mut [Words]) -> bool {
        let mut both = slots.iter().zip(pages);
        both.all(|(&slot, page)| read(self.fd, block, slot, page))
    }

    /// Sees to it that so many pages can be written without waiting; `false`: too many others are on
    /// their way to the disk. Then this thread has claimed nothing: if all who wait kept some, there
    /// might be too little for any of them.
    pub fn reserve(&mut self, block: &RunBlockMap, writer: usize, count: usize) -> bool {
        let has_room = self.reserve_more(block, writer, count);
        if !has_room {
            self.release(block);
        }
        has_room
    }

    /// As [`Disk::reserve`], for a thread that goes on in any case: it keeps what it has.
    pub fn reserve_more(&mut self, block: &RunBlockMap, writer: usize, count: usize) -> bool {
        let lacking = count.min(MOST_FRAMES).saturating_sub(self.frames.len());
        block.claim_frames(writer, lacking, &mut self.cursor, &mut self.frames)
    }

    /// Others may have what this thread does not need now.
    pub fn release(&mut self, block: &RunBlockMap) {
        self.frames.drain(..).for_each(|frame| block.free_frame(frame));
    }

    /// Writes the page at `source` behind; `false`: there is no frame.
    ///
    /// # Safety
    /// A page must be there, and not change meanwhile. The slot is the caller's to write.
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
        // SAFETY: the frame is this thread's; the rest is the caller's word.
        unsafe { block.put_behind(frame, slot, source) };
        true
    }
}

/// Reads what a slot holds: from the frame that has its newest contents, or from the file.
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
    let is_on_disk = || block.on_disk(block.slab_of(slot)).is_some();
    while is_on_disk() {
        if block.get_behind(slot, page) {
            return true;
        }
        if !from_file(page) {
            return false;
        }
        if block.is_drained(slot) {
            // Frames of a slab that was given up meanwhile are freed without getting there.
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
