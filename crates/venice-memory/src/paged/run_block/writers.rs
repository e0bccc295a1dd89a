//! Who writes to far memory, and when: what a copier must know to wait until writes that began
//! before are over.
//!
//! A thread that writes has a place here with a number that is odd while a batch of writes is under
//! way. Nobody waits for anybody but the copier for them; who dies leaves a place that is freed
//! with the rest of what the process had.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{RunBlock, RunBlockMap};

/// Most threads of one run that write at a time.
pub const MAX_WRITERS: usize = 256;

/// A thread that writes.
#[derive(Debug)]
#[repr(C)]
pub struct Writer {
    /// Whose it is, plus one; 0: free.
    owner: AtomicU32,
    batches: AtomicU64,
}

/// Who has a [`Writer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The process with this place in the run block.
    Process(usize),
    /// A lane of the process that made the block.
    Lane,
}

impl Owner {
    fn word(self) -> u32 {
        match self {
            Owner::Process(place) => place as u32 + 1,
            Owner::Lane => u32::MAX,
        }
    }
}

/// The batches that were under way at one moment.
#[derive(Clone, Debug)]
pub struct Batches([u64; MAX_WRITERS]);

impl RunBlock {
    /// A place for a thread that writes; `None`: there are too many.
    pub fn claim_writer(&self, owner: Owner) -> Option<usize> {
        self.writers.iter().position(|writer| {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            writer.owner.compare_exchange(0, owner.word(), order.0, order.1).is_ok()
        })
    }

    /// A batch of writes begins: where they go is looked up only after this.
    pub fn begin_batch(&self, writer: usize) {
        let before = self.writers[writer].batches.fetch_add(1, Ordering::SeqCst);
        assert!(before.is_multiple_of(2), "a thread writes one batch at a time");
    }

    /// It is over: every write is where it should be, or its replica is given up.
    pub fn end_batch(&self, writer: usize) {
        self.writers[writer].batches.fetch_add(1, Ordering::SeqCst);
    }

    /// The batches under way.
    pub fn batches(&self) -> Batches {
        Batches(std::array::from_fn(|at| self.writers[at].batches.load(Ordering::SeqCst)))
    }

    /// Are all of these over?
    pub fn are_over(&self, batches: &Batches) -> bool {
        let mut both = self.writers.iter().zip(&batches.0);
        both.all(|(writer, &seen)| {
            seen.is_multiple_of(2) || writer.batches.load(Ordering::SeqCst) != seen
        })
    }
}

impl RunBlockMap {
    /// The thread writes no more.
    pub fn free_writer(&self, index: usize) {
        self.free_frames_of(index);
        let writer = &self.writers[index];
        let batches = writer.batches.load(Ordering::SeqCst);
        writer.batches.store(batches.next_multiple_of(2), Ordering::SeqCst);
        writer.owner.store(0, Ordering::Release);
    }

    /// A process is no more, and its threads neither.
    pub fn free_writers_of(&self, owner: Owner) {
        for (index, writer) in self.writers.iter().enumerate() {
            if writer.owner.load(Ordering::Acquire) == owner.word() {
                self.free_writer(index);
            }
        }
    }
}
