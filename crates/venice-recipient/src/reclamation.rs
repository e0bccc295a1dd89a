//! Page reclamation: frees the memory of slabs no longer in use, where it is mapped. Processes of
//! the program keep their mappings until they end, so the memory is freed under these. A donor thus
//! gets its reclaimed memory slab by slab, while the rest still moves.

use rustix::fs::FallocateFlags;
use venice_memory::paged::run_block::{Accesses, RunBlock};
use venice_ports::shm::SlabFile;
use venice_wire::SLAB_BYTES;

use crate::holding::Holding;

/// Most slabs freed in one turn (tens of milliseconds), so that leases are renewed in time.
const AT_A_TIME: usize = 16;

/// A released or lost slab that a process may still have mapped.
#[derive(Debug)]
pub(crate) struct UnusedSlab {
    /// The donor's index in the run block.
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
        // Only files of this machine may be on a file system without holes: they end with the
        // program.
        let _ = rustix::fs::fallocate(&self.memory, flags, 0, SLAB_BYTES);
    }
}

/// The slabs to be freed.
#[derive(Debug, Default)]
pub(crate) struct Reclamation {
    waiting: Vec<UnusedSlab>,
    /// The slabs to be freed when these accesses are over, which may still use them.
    next: Option<(Vec<UnusedSlab>, Accesses)>,
}

impl Reclamation {
    /// Frees slabs that are no longer accessed.
    pub(crate) fn turn(&mut self, holding: &Holding) {
        let block = holding.block();
        self.waiting.extend(holding.take_unused());
        // A released slab of a window is no longer mapped; a lost one is still used by the program.
        // And where not all readers are known, the memory is freed when they end.
        if block.is_window() || !block.counts_all_readers() {
            *self = Reclamation::default();
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

    /// True if the donor, by its index in the run block, has memory that is yet to be freed.
    pub(crate) fn has_some_of(&self, donor: usize) -> bool {
        let next = self.next.iter().flat_map(|(slabs, _)| slabs);
        self.waiting.iter().chain(next).any(|slab| slab.donor == donor)
    }
}
