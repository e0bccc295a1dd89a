//! The supervisor's part: what waits in frames goes to the file.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::Advice;
use rustix::io::Errno;

use super::super::PAGE;
use super::super::run_block::RunBlockMap;

/// Pages written with one call at most.
const PAGES_AT_ONCE: usize = 64;

/// Takes pages to the file. There is one of a run.
#[derive(Debug)]
pub struct Drain {
    block: Arc<RunBlockMap>,
    file: Arc<OwnedFd>,
    buffer: Vec<u8>,
}

/// The file did not take something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What the kernel said.
    pub errno: Errno,
    /// Slabs that are not on the disk any more: donors have what they hold.
    pub given_up: usize,
    /// Pages that no donor has: they stay where they are, and it is tried again.
    pub kept: usize,
}

impl Drain {
    /// A drain into `file`, which is made as long as what is far.
    ///
    /// # Errors
    /// The kernel's: no file can be so long there.
    pub fn new(block: Arc<RunBlockMap>, file: Arc<OwnedFd>) -> Result<Drain, Errno> {
        rustix::fs::ftruncate(&file, block.holders().len() as u64 * PAGE as u64)?;
        Ok(Drain { block, file, buffer: Vec::new() })
    }

    /// Takes to the disk what waits; how many frames are free now that were not, and what went wrong.
    pub fn turn(&mut self) -> (usize, Option<Trouble>) {
        let mut ready: Vec<_> = self.block.ready_frames().collect();
        ready.sort_unstable();
        let all = ready.len();
        ready.retain(|&(slot, frame)| {
            let is_wanted = self.block.is_wanted(slot, frame);
            if !is_wanted {
                self.block.settle(slot, frame);
            }
            is_wanted
        });
        if self.write(&ready).is_ok() {
            self.settle(&ready);
            return (all, None);
        }
        // What was there before can mostly be overwritten on a disk that is full.
        let mut trouble = None;
        let slab_of = |one: &(u32, u32)| self.block.slab_of(one.0);
        let slabs: Vec<_> = ready.chunk_by(|one, next| slab_of(one) == slab_of(next)).collect();
        for slab in slabs {
            match self.write(slab) {
                Ok(()) => self.settle(slab),
                Err(errno) => {
                    let (mut given_up, mut kept) = self.give_up(slab);
                    if let Some(Trouble { given_up: before, kept: kept_before, .. }) = trouble {
                        (given_up, kept) = (given_up + before, kept + kept_before);
                    }
                    trouble = Some(Trouble { errno, given_up, kept });
                }
            }
        }
        (all - trouble.map_or(0, |trouble| trouble.kept), trouble)
    }

    /// These are on the disk.
    fn settle(&self, written: &[(u32, u32)]) {
        written.iter().for_each(|&(slot, frame)| self.block.settle(slot, frame));
        self.block.counters.behind_out.fetch_add(written.len() as u64, Ordering::Relaxed);
    }

    /// Writes pages, those in a row together, and waits until the disk has them. They do not stay in
    /// the kernel's cache: that would be this machine's memory too.
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
            // Where it is not heeded nothing is wrong.
            let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        }
        Ok(())
    }

    /// Pages of one slab cannot be written. If donors have it, it is not on the disk from now on, and
    /// nobody waits for these pages; else they stay in their frames. How many slabs and pages that is.
    fn give_up(&self, pages: &[(u32, u32)]) -> (usize, usize) {
        let block = &self.block;
        let on_disk = block.on_disk(block.slab_of(pages[0].0));
        if on_disk.is_some_and(|(_, replica)| !block.give_up(replica)) {
            return (0, pages.len());
        }
        pages.iter().for_each(|&(slot, frame)| block.settle(slot, frame));
        (usize::from(on_disk.is_some()), 0)
    }
}
