//! The supervisor's part of write-behind: frames are written to the file.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::Advice;
use rustix::io::Errno;

use super::super::PAGE;
use super::super::run_block::RunBlockMap;

/// Most pages written with one call.
const PAGES_AT_ONCE: usize = 64;

/// The writer of the file. A run has one.
#[derive(Debug)]
pub struct Drain {
    block: Arc<RunBlockMap>,
    file: Arc<OwnedFd>,
    buffer: Vec<u8>,
}

/// A failure to write to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainFailure {
    /// The kernel's error.
    pub errno: Errno,
    /// Slabs whose file replica was dropped: donors have their contents.
    pub given_up: usize,
    /// Pages that no donor has. They stay in their frames, and the write is tried again.
    pub kept: usize,
}

impl Drain {
    /// Creates the drain into `file`, and sets the length of the file to that of the far memory.
    ///
    /// # Errors
    /// The kernel's error if the file cannot be so long.
    pub fn new(block: Arc<RunBlockMap>, file: Arc<OwnedFd>) -> Result<Drain, Errno> {
        rustix::fs::ftruncate(&file, block.holders().len() as u64 * PAGE as u64)?;
        Ok(Drain { block, file, buffer: Vec::new() })
    }

    /// Writes the waiting frames to the disk. Returns the number of frames freed, and the failure
    /// if there was one.
    pub fn turn(&mut self) -> (usize, Option<DrainFailure>) {
        let mut ready: Vec<_> = self.block.ready_frames().collect();
        ready.sort_unstable();
        let all = ready.len();
        ready.retain(|&(slot, frame)| {
            let is_wanted = self.block.is_needed(slot, frame);
            if !is_wanted {
                self.block.complete_frame(slot, frame);
            }
            is_wanted
        });
        if self.write(&ready).is_ok() {
            self.settle(&ready);
            return (all, None);
        }
        // A full disk usually still takes pages that overwrite earlier ones.
        let mut trouble = None;
        let slab_of = |one: &(u32, u32)| self.block.slab_of(one.0);
        let slabs: Vec<_> = ready.chunk_by(|one, next| slab_of(one) == slab_of(next)).collect();
        for slab in slabs {
            match self.write(slab) {
                Ok(()) => self.settle(slab),
                Err(errno) => {
                    let (mut given_up, mut kept) = self.give_up(slab);
                    if let Some(DrainFailure { given_up: before, kept: kept_before, .. }) = trouble
                    {
                        (given_up, kept) = (given_up + before, kept + kept_before);
                    }
                    trouble = Some(DrainFailure { errno, given_up, kept });
                }
            }
        }
        (all - trouble.map_or(0, |trouble| trouble.kept), trouble)
    }

    /// Frees the frames of pages that are on the disk.
    fn settle(&self, written: &[(u32, u32)]) {
        written.iter().for_each(|&(slot, frame)| self.block.complete_frame(slot, frame));
        self.block.counters.behind_out.fetch_add(written.len() as u64, Ordering::Relaxed);
    }

    /// Writes pages, contiguous ones together, and waits until the disk has them. They are dropped
    /// from the kernel's cache, which would be local memory too.
    fn write(&mut self, ready: &[(u32, u32)]) -> Result<(), Errno> {
        let is_beside = |one: &(u32, u32), next: &(u32, u32)| one.0 + 1 == next.0;
        for row in ready.chunk_by(is_beside).flat_map(|row| row.chunks(PAGES_AT_ONCE)) {
            self.buffer.clear();
            for &(_, frame) in row {
                self.buffer.extend_from_slice(self.block.frame(frame));
            }
            let mut offset = u64::from(row[0].0) * PAGE as u64;
            let mut left = &self.buffer[..];
            while !left.is_empty() {
                match rustix::io::pwrite(&self.file, left, offset) {
                    Ok(0) => return Err(Errno::NOSPC),
                    Ok(len) => (left, offset) = (&left[len..], offset + len as u64),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        if !ready.is_empty() {
            rustix::fs::fdatasync(&self.file)?;
            // Ignoring the advice does no harm.
            let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        }
        Ok(())
    }

    /// Handles pages of one slab that cannot be written. If donors have the slab, its file replica
    /// is dropped and the frames are freed. Otherwise the pages stay in their frames. Returns the
    /// numbers of slabs dropped and pages kept.
    fn give_up(&self, pages: &[(u32, u32)]) -> (usize, usize) {
        let block = &self.block;
        let on_disk = block.disk_replica(block.slab_of(pages[0].0));
        if on_disk.is_some_and(|(_, replica)| !block.drop_replica(replica)) {
            return (0, pages.len());
        }
        pages.iter().for_each(|&(slot, frame)| block.complete_frame(slot, frame));
        (usize::from(on_disk.is_some()), 0)
    }
}
