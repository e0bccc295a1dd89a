//! A table of threads of all processes that repeatedly do something whose end others wait for.
//!
//! Each thread has an entry with a sequence number that is odd while it is active. Only a thread
//! that needs the end waits: it takes a snapshot of the numbers, and polls until all odd ones have
//! changed. The entry of a thread that dies is freed with the rest of its process.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The entries, in memory that the processes share. Zeroed memory is a table of free entries.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct ActivityTable<const MOST: usize>([Entry; MOST]);

/// The entry of a thread, on a cache line of its own because each thread writes its own all the
/// time.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    /// The owner, plus one; 0: free.
    owner: AtomicU32,
    /// The number of begins and ends so far.
    sequence: AtomicU64,
}

/// The owner of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The process with this index in the run block.
    Process(usize),
    /// A lane of the process that made the block.
    Lane,
}

impl Owner {
    fn word(self) -> u32 {
        match self {
            Owner::Process(index) => index as u32 + 1,
            Owner::Lane => u32::MAX,
        }
    }
}

/// A snapshot of the sequence numbers.
#[derive(Clone, Debug)]
pub(super) struct Snapshot(Box<[u64]>);

impl<const MOST: usize> ActivityTable<MOST> {
    /// Claims an entry; `None`: the table is full.
    pub fn claim(&self, owner: Owner) -> Option<usize> {
        self.0.iter().position(|thread| {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            thread.owner.load(Ordering::Relaxed) == 0
                && thread.owner.compare_exchange(0, owner.word(), order.0, order.1).is_ok()
        })
    }

    /// Begins a thread's activity. Anything it looks up afterwards is at least as new.
    pub fn begin(&self, thread: usize) {
        let before = self.0[thread].sequence.fetch_add(1, Ordering::SeqCst);
        assert!(before.is_multiple_of(2), "thread {thread} is already active");
    }

    /// Ends a thread's activity.
    pub fn end(&self, thread: usize) {
        self.0[thread].sequence.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes a snapshot.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.iter().map(|thread| thread.sequence.load(Ordering::SeqCst)).collect())
    }

    /// True if every activity of the snapshot is over.
    pub fn are_over(&self, snapshot: &Snapshot) -> bool {
        let mut both = self.0.iter().zip(&snapshot.0);
        both.all(|(thread, &seen)| {
            seen.is_multiple_of(2) || thread.sequence.load(Ordering::SeqCst) != seen
        })
    }

    /// The entries of `owner`.
    pub fn of(&self, owner: Owner) -> impl Iterator<Item = usize> {
        let all = self.0.iter().enumerate();
        all.filter(move |(_, thread)| thread.owner.load(Ordering::Acquire) == owner.word())
            .map(|(index, _)| index)
    }

    /// Frees an entry: its thread no longer exists.
    pub fn free(&self, thread: usize) {
        let thread = &self.0[thread];
        let sequence = thread.sequence.load(Ordering::SeqCst);
        thread.sequence.store(sequence.next_multiple_of(2), Ordering::SeqCst);
        thread.owner.store(0, Ordering::Release);
    }
}
