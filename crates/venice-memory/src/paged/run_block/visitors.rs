//! Readers of mapped slabs: tells when the memory of a released slab may be freed under the
//! mappings that processes still have.
//!
//! A thread looks up a readable address, reads there, and ends the read; that is one visit. A slab
//! that is no longer readable is no longer found. Once the visits and the batches of writes are
//! over that were under way at its release, no thread touches the slab any more.

use std::sync::atomic::Ordering;

use super::under_way::{Noted, Owner};
use super::writers::Batches;
use super::{MAX_PROCESSES, MAX_WRITERS, RunBlock};

/// Most threads of a process that read mapped slabs: its handler, and threads with in-thread
/// faults.
const MOST_OF_A_PROCESS: usize = 33;
/// Most threads of one run with an entry among the readers of mapped slabs.
pub(super) const MAX_VISITORS: usize = MAX_PROCESSES * MOST_OF_A_PROCESS + 2 * MAX_WRITERS;

/// The accesses to mapped slabs under way at one moment.
#[derive(Clone, Debug)]
pub struct Accesses {
    visits: Noted,
    batches: Batches,
}

impl RunBlock {
    /// Claims an entry for a thread that reads mapped slabs. `None`: the table is full, and from
    /// now on the end of all visits is undecidable.
    pub fn claim_visitor(&self, owner: Owner) -> Option<usize> {
        let visitor = self.visitors.claim(owner);
        if visitor.is_none() {
            self.has_uncounted_visits.store(1, Ordering::SeqCst);
        }
        visitor
    }

    /// Begins a visit. The thread looks up readable replicas only after this.
    pub fn begin_visit(&self, visitor: usize) {
        self.visitors.begin(visitor);
    }

    /// Ends a visit. The thread keeps no address that it looked up.
    pub fn end_visit(&self, visitor: usize) {
        self.visitors.end(visitor);
    }

    /// Frees the entry of a thread that reads no more.
    pub fn free_visitor(&self, visitor: usize) {
        self.visitors.free(visitor);
    }

    /// The visits and batches under way.
    pub fn accesses(&self) -> Accesses {
        Accesses { visits: self.visitors.note(), batches: self.batches() }
    }

    /// True if every reader so far has had an entry. Otherwise some reads are not counted.
    pub fn knows_all_visitors(&self) -> bool {
        self.has_uncounted_visits.load(Ordering::SeqCst) == 0
    }

    /// True if all of them are over. Always false unless [`RunBlock::knows_all_visitors`].
    pub fn are_accesses_over(&self, accesses: &Accesses) -> bool {
        self.knows_all_visitors()
            && self.visitors.are_over(&accesses.visits)
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
        let reader = block.claim_visitor(Owner::Process(3)).unwrap();
        let writer = block.claim_writer(Owner::Lane).unwrap();
        assert!(block.are_accesses_over(&block.accesses()));
        block.begin_visit(reader);
        let noted = block.accesses();
        block.begin_batch(writer);
        let later = block.accesses();
        block.end_visit(reader);
        assert!(block.are_accesses_over(&noted) && !block.are_accesses_over(&later));
        block.begin_visit(reader);
        block.end_batch(writer);
        assert!(block.are_accesses_over(&later), "a visit that began later is not waited for");
    }

    #[test]
    fn dead_reader_is_not_awaited() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        let [dies, lives] = [3, 4].map(|at| block.claim_visitor(Owner::Process(at)).unwrap());
        block.begin_visit(dies);
        block.begin_visit(lives);
        let noted = block.accesses();
        block.free_threads_of(Owner::Process(3));
        assert!(!block.are_accesses_over(&noted));
        block.free_threads_of(Owner::Process(4));
        assert!(block.are_accesses_over(&noted));
        let again = block.claim_visitor(Owner::Process(5)).unwrap();
        assert!(again == dies && block.are_accesses_over(&block.accesses()));
    }

    #[test]
    fn reader_overflow_blocks_freeing() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        for _ in 0..MAX_VISITORS {
            assert!(block.claim_visitor(Owner::Lane).is_some());
        }
        assert!(block.are_accesses_over(&block.accesses()));
        assert!(block.claim_visitor(Owner::Lane).is_none());
        block.free_visitor(0);
        assert!(
            !block.knows_all_visitors() && !block.are_accesses_over(&block.accesses()),
            "one reader is not counted"
        );
    }
}
