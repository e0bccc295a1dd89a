//! Writers to far memory: lets a copier wait until the writes that began before are over.

use super::activity::{Owner, Snapshot};
use super::{RunBlock, RunBlockMap};

/// Most threads of one run that write at a time.
pub const MAX_WRITERS: usize = 256;

/// The batches of writes under way at one moment.
#[derive(Clone, Debug)]
pub struct Batches(Snapshot);

impl RunBlock {
    /// Claims an entry for a writing thread; `None`: the table is full.
    pub fn claim_writer(&self, owner: Owner) -> Option<usize> {
        self.writers.claim(owner)
    }

    /// Begins a batch of writes. The thread looks up their targets only after this.
    pub fn begin_batch(&self, writer: usize) {
        self.writers.begin(writer);
    }

    /// Ends a batch: every write has reached its targets, or the replica that missed it is dropped.
    pub fn end_batch(&self, writer: usize) {
        self.writers.end(writer);
    }

    /// The batches under way.
    pub fn batches(&self) -> Batches {
        Batches(self.writers.snapshot())
    }

    /// True if all of them are over.
    pub fn are_over(&self, batches: &Batches) -> bool {
        self.writers.are_over(&batches.0)
    }
}

impl RunBlockMap {
    /// Frees the entry and the frames of a thread that writes no more.
    pub fn free_writer(&self, writer: usize) {
        self.free_frames_of(writer);
        self.writers.free(writer);
    }

    /// Frees the entries of all threads of a process that no longer exists.
    pub fn free_threads_of(&self, owner: Owner) {
        self.writers.of(owner).for_each(|writer| self.free_writer(writer));
        self.readers.of(owner).for_each(|reader| self.free_reader(reader));
    }
}
