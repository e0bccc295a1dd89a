//! Who uses addresses of mapped slabs, and when: what must be known before the memory of a slab that
//! was let go of is freed under the mappings that processes have of it.
//!
//! A thread looks up where it can read, reads there, and says that it is done; that is a visit. A
//! slab that can no longer be read is no longer found. So once the visits, and the batches of writes,
//! are over that were under way when it was let go of, nobody touches it any more.

use std::sync::atomic::Ordering;

use super::under_way::{Noted, Owner};
use super::writers::Batches;
use super::{MAX_PROCESSES, MAX_WRITERS, RunBlock};

/// Most threads of a process that read mapped slabs: its handler, and those that serve themselves.
const MOST_OF_A_PROCESS: usize = 33;
/// Most threads of one run that have a place among those that read mapped slabs.
pub(super) const MAX_VISITORS: usize = MAX_PROCESSES * MOST_OF_A_PROCESS + 2 * MAX_WRITERS;

/// The accesses to mapped slabs that were under way at one moment.
#[derive(Clone, Debug)]
pub struct Accesses {
    visits: Noted,
    batches: Batches,
}

impl RunBlock {
    /// A place for a thread that reads mapped slabs; `None`: there are too many, and from now on
    /// nobody can tell when all visits are over.
    pub fn claim_visitor(&self, owner: Owner) -> Option<usize> {
        let visitor = self.visitors.claim(owner);
        if visitor.is_none() {
            self.has_uncounted_visits.store(1, Ordering::SeqCst);
        }
        visitor
    }

    /// A visit begins: what can be read is looked up only after this.
    pub fn begin_visit(&self, visitor: usize) {
        self.visitors.begin(visitor);
    }

    /// It is over: the thread has no address any more that it looked up.
    pub fn end_visit(&self, visitor: usize) {
        self.visitors.end(visitor);
    }

    /// The thread reads no more.
    pub fn free_visitor(&self, visitor: usize) {
        self.visitors.free(visitor);
    }

    /// The visits and batches under way.
    pub fn accesses(&self) -> Accesses {
        Accesses { visits: self.visitors.note(), batches: self.batches() }
    }

    /// Have all threads that read had places so far? Otherwise some read that nobody knows of.
    pub fn knows_all_visitors(&self) -> bool {
        self.has_uncounted_visits.load(Ordering::SeqCst) == 0
    }

    /// Are all of these over? Never, unless [`RunBlock::knows_all_visitors`].
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
    fn what_is_let_go_of_is_free_when_nobody_is_there_any_more() {
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
    fn who_dies_visits_no_more() {
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
    fn with_more_readers_than_places_nothing_is_known_to_be_over() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        for _ in 0..MAX_VISITORS {
            assert!(block.claim_visitor(Owner::Lane).is_some());
        }
        assert!(block.are_accesses_over(&block.accesses()));
        assert!(block.claim_visitor(Owner::Lane).is_none());
        block.free_visitor(0);
        assert!(
            !block.knows_all_visitors() && !block.are_accesses_over(&block.accesses()),
            "one reads that nobody knows of"
        );
    }
}
