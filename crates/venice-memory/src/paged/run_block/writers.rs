//! Who writes to far memory, and when: what a copier must know to wait until writes that began
//! before are over.

use super::under_way::{Noted, Owner};
use super::{RunBlock, RunBlockMap};

/// Most threads of one run that write at a time.
pub const MAX_WRITERS: usize = 256;

/// The batches of writes that were under way at one moment.
#[derive(Clone, Debug)]
pub struct Batches(Noted);

impl RunBlock {
    /// A place for a thread that writes; `None`: there are too many.
    pub fn claim_writer(&self, owner: Owner) -> Option<usize> {
        self.writers.claim(owner)
    }

    /// A batch of writes begins: where they go is looked up only after this.
    pub fn begin_batch(&self, writer: usize) {
        self.writers.begin(writer);
    }

    /// It is over: every write is where it should be, or its replica is given up.
    pub fn end_batch(&self, writer: usize) {
        self.writers.end(writer);
    }

    /// The batches under way.
    pub fn batches(&self) -> Batches {
        Batches(self.writers.note())
    }

    /// Are all of these over?
    pub fn are_over(&self, batches: &Batches) -> bool {
        self.writers.are_over(&batches.0)
    }
}

impl RunBlockMap {
    /// The thread writes no more.
    pub fn free_writer(&self, writer: usize) {
        self.free_frames_of(writer);
        self.writers.free(writer);
    }

    /// A process is no more, and its threads neither.
    pub fn free_threads_of(&self, owner: Owner) {
        self.writers.of(owner).for_each(|writer| self.free_writer(writer));
        self.visitors.of(owner).for_each(|visitor| self.free_visitor(visitor));
    }
}
