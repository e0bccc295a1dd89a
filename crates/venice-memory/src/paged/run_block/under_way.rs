//! Threads of all processes that do something again and again which others wait for the end of.
//!
//! Each has a place with a number that is odd while it is at it. Nobody waits for anybody but who
//! notes these numbers and looks until those that were odd have changed; who dies leaves a place that
//! is freed with the rest of what its process had.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The places, in memory that the processes share; all free where that is zero.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Threads<const MOST: usize>([Thread; MOST]);

/// A thread's place, in a cache line of its own: each writes to its own all the time.
#[derive(Debug)]
#[repr(C, align(64))]
struct Thread {
    /// Whose it is, plus one; 0: free.
    owner: AtomicU32,
    /// Times it has begun and ended.
    turns: AtomicU64,
}

/// Who has a place.
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

/// What was under way at one moment.
#[derive(Clone, Debug)]
pub(super) struct Noted(Box<[u64]>);

impl<const MOST: usize> Threads<MOST> {
    /// A place; `None`: there are too many.
    pub fn claim(&self, owner: Owner) -> Option<usize> {
        self.0.iter().position(|thread| {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            thread.owner.load(Ordering::Relaxed) == 0
                && thread.owner.compare_exchange(0, owner.word(), order.0, order.1).is_ok()
        })
    }

    /// The thread begins. What it looks up after this is not older than this.
    pub fn begin(&self, thread: usize) {
        let before = self.0[thread].turns.fetch_add(1, Ordering::SeqCst);
        assert!(before.is_multiple_of(2), "a thread does one thing at a time");
    }

    /// It is done.
    pub fn end(&self, thread: usize) {
        self.0[thread].turns.fetch_add(1, Ordering::SeqCst);
    }

    /// What is under way.
    pub fn note(&self) -> Noted {
        Noted(self.0.iter().map(|thread| thread.turns.load(Ordering::SeqCst)).collect())
    }

    /// Is all of that over?
    pub fn are_over(&self, noted: &Noted) -> bool {
        let mut both = self.0.iter().zip(&noted.0);
        both.all(|(thread, &seen)| {
            seen.is_multiple_of(2) || thread.turns.load(Ordering::SeqCst) != seen
        })
    }

    /// The places that `owner` has.
    pub fn of(&self, owner: Owner) -> impl Iterator<Item = usize> {
        let all = self.0.iter().enumerate();
        all.filter(move |(_, thread)| thread.owner.load(Ordering::Acquire) == owner.word())
            .map(|(index, _)| index)
    }

    /// The thread is no more.
    pub fn free(&self, thread: usize) {
        let thread = &self.0[thread];
        let turns = thread.turns.load(Ordering::SeqCst);
        thread.turns.store(turns.next_multiple_of(2), Ordering::SeqCst);
        thread.owner.store(0, Ordering::Release);
    }
}
