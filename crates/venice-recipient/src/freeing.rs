//! The memory of slabs that nobody reads or writes any more, where it is mapped: processes of the
//! program keep their mappings of it until they end, so it is freed under these. A donor that wants
//! its memory back has that slab by slab, while the rest of it still moves.

use rustix::fs::FallocateFlags;
use venice_memory::paged::run_block::{Accesses, RunBlock};
use venice_ports::shm::SlabFile;
use venice_wire::SLAB_BYTES;

use crate::holding::Holding;

/// Slabs freed in one turn at most (tens of milliseconds), lest leases wait for it.
const AT_A_TIME: usize = 16;

/// A slab that was let go of or is lost, as a process may still have it mapped.
#[derive(Debug)]
pub(crate) struct UnusedSlab {
    /// Index in the run block.
    pub(crate) donor: usize,
    pub(crate) memory: SlabFile,
}

impl UnusedSlab {
    fn free(&self) {
        if self.memory.is_in_device() {
            // Its donor may lend it again.
            let _ = self.memory.unlock();
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Only files of this machine may lie where there are no holes: they end with the program.
        let _ = rustix::fs::fallocate(&self.memory, flags, 0, SLAB_BYTES);
    }
}

/// What is to be freed.
#[derive(Debug, Default)]
pub(crate) struct Freeing {
    waiting: Vec<UnusedSlab>,
    /// What is freed when these accesses are over, which may have found it when it was used.
    next: Option<(Vec<UnusedSlab>, Accesses)>,
}

impl Freeing {
    /// Frees what nobody touches any more.
    pub(crate) fn turn(&mut self, holding: &Holding) {
        let block = holding.block();
        self.waiting.extend(holding.take_unused());
        // What a window let go of no process has mapped any more; what it lost, the program still
        // uses. And where not all readers are known, it is freed when these end.
        if block.is_window() || !block.counts_all_readers() {
            *self = Freeing::default();
        }
        self.free(block);
        if self.next.is_none() && !self.waiting.is_empty() {
            let slabs = self.waiting.split_off(self.waiting.len().saturating_sub(AT_A_TIME));
            self.next = Some((slabs, block.accesses()));
        }
    }

    fn free(&mut self, block: &RunBlock) {
        let next = self.next.take_if(|(_, accesses)| block.are_accesses_over(accesses));
        for slab in next.into_iter().flat_map(|(slabs, _)| slabs) {
            slab.free();
        }
    }

    /// Has the donor, by its index in the run block, memory that is yet to be freed?
    pub(crate) fn has_some_of(&self, donor: usize) -> bool {
        let next = self.next.iter().flat_map(|(slabs, _)| slabs);
        self.waiting.iter().chain(next).any(|slab| slab.donor == donor)
    }
}
