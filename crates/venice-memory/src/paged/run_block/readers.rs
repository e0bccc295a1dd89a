//! Readers of mapped slabs: tells when the memory of a released slab may be freed under the
//! mappings that processes still have.
//!
//! A thread looks up a readable address, reads there, and ends the read; that is one read section. A slab
//! that is no longer readable is no longer found. Once the reads and the batches of writes are
//! over that were under way at its release, no thread touches the slab any more.

use std::sync::atomic::Ordering;

use super::activity::{Owner, Snapshot};
use super::writers::Batches;
use super::{MAX_PROCESSES, MAX_WRITERS, RunBlock};

/// Most threads of a process that read mapped slabs: its handler, and threads with in-thread
/// faults.
const MOST_OF_A_PROCESS: usize = 33;
/// Most threads of one run with an entry among the readers of mapped slabs.
pub(super) const MAX_READERS: usize = MAX_PROCESSES * MOST_OF_A_PROCESS + 2 * MAX_WRITERS;

/// The accesses to mapped slabs under way at one moment.
#[derive(Clone, Debug)]
pub struct Accesses {
    reads: Snapshot,
    batches: Batches,
}

impl RunBlock {
    /// Claims an entry for a thread that reads mapped slabs. `None`: the table is full, and from
    /// now on the end of all reads is undecidable.
    pub fn claim_reader(&self, owner: Owner) -> Option<usize> {
        let reader = self.readers.claim(owner);
        if reader.is_none() {
            self.has_uncounted_readers.store(1, Ordering::SeqCst);
        }
        reader
    }

    /// Begins a read section. The thread looks up readable replicas only after this.
    pub fn begin_read_section(&self, reader: usize) {
        self.readers.begin(reader);
    }

    /// Ends a read section. The thread keeps no address that it looked up.
    pub fn end_read_section(&self, reader: usize) {
        self.readers.end(reader);
    }

    /// Frees the entry of a thread that reads no more.
    pub fn free_reader(&self, reader: usize) {
        self.readers.free(reader);
    }

    /// The reads and batches under way.
    pub fn accesses(&self) -> Accesses {
        Accesses { reads: self.readers.snapshot(), batches: self.batches() }
    }

    /// True if every reader so far has had an entry. Otherwise some reads are not counted.
    pub fn counts_all_readers(&self) -> bool {
        self.has_uncounted_readers.load(Ordering::SeqCst) == 0
    }

    /// True if all of them are over. Always false unless [`RunBlock::counts_all_readers`].
    pub fn are_accesses_over(&self, accesses: &Accesses) -> bool {
        self.counts_all_readers()
            && self.readers.are_over(&accesses.reads)
            && self.are_over(&accesses.batches)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PortKind, RunBlockMap};
    use super::*;

    #[test]
    fn accesses_end_with_noted_readers() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        let reader = block.claim_reader(Owner::Process(3)).unwrap();
        let writer = block.claim_writer(Owner::Lane).unwrap();
        assert!(block.are_accesses_over(&block.accesses()));
        block.begin_read_section(reader);
        let noted = block.accesses();
        block.begin_batch(writer);
        let later = block.accesses();
        block.end_read_section(reader);
        assert!(block.are_accesses_over(&noted) && !block.are_accesses_over(&later));
        block.begin_read_section(reader);
        block.end_batch(writer);
        assert!(block.are_accesses_over(&later), "a read that began later is not waited for");
    }

    #[test]
    fn dead_reader_is_not_awaited() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        let [dies, lives] = [3, 4].map(|at| block.claim_reader(Owner::Process(at)).unwrap());
        block.begin_read_section(dies);
        block.begin_read_section(lives);
        let noted = block.accesses();
        block.free_threads_of(Owner::Process(3));
        assert!(!block.are_accesses_over(&noted));
        block.free_threads_of(Owner::Process(4));
        assert!(block.are_accesses_over(&noted));
        let again = block.claim_reader(Owner::Process(5)).unwrap();
        assert!(again == dies && block.are_accesses_over(&block.accesses()));
    }

    #[test]
    fn reader_overflow_blocks_freeing() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        for _ in 0..MAX_READERS {
            assert!(block.claim_reader(Owner::Lane).is_some());
        }
        assert!(block.are_accesses_over(&block.accesses()));
        assert!(block.claim_reader(Owner::Lane).is_none());
        block.free_reader(0);
        assert!(
            !block.counts_all_readers() && !block.are_accesses_over(&block.accesses()),
            "one reader is not counted"
        );
    }
}
