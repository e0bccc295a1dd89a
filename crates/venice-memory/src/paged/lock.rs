//! The structure lock: hooks that change the address space, the evictor and `fork` take turns.
//!
//! The fault handler never takes it, so whoever holds it may fault and is served. Signals are
//! blocked while it is held: a signal handler that calls `munmap` must not wait for its own
//! thread. The child of a `fork` inherits it held by the one thread it has.

use std::sync::atomic::{AtomicU32, Ordering};

use super::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_WITH_WAITERS: u32 = 2;

/// A futex lock that knows whether a thread of the program (rather than the evictor) holds it.
#[derive(Debug, Default)]
pub struct StructureLock {
    word: AtomicU32,
    held_by_program: AtomicU32,
}

/// The lock, held; dropping it lets go and restores the signal mask.
#[derive(Debug)]
pub struct StructureGuard<'a> {
    lock: &'a StructureLock,
    signal_mask: Option<u64>,
}

impl StructureLock {
    /// Takes the lock for a thread of the program.
    pub fn hold(&self) -> StructureGuard<'_> {
        let signal_mask = Some(sys::block_signals());
        self.acquire();
        self.held_by_program.store(1, Ordering::Relaxed);
        StructureGuard { lock: self, signal_mask }
    }

    /// Takes the lock for the evictor, whose signals are blocked for good.
    pub fn hold_as_evictor(&self) -> StructureGuard<'_> {
        self.acquire();
        StructureGuard { lock: self, signal_mask: None }
    }

    /// Does a thread of the program hold the lock? Then waiting for the evictor may be waiting
    /// for that thread, which may wait for its own fault.
    pub fn is_held_by_program(&self) -> bool {
        self.held_by_program.load(Ordering::Relaxed) != 0
    }

    fn acquire(&self) {
        let taken = self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_ok() {
            return;
        }
        while self.word.swap(HELD_WITH_WAITERS, Ordering::Acquire) != FREE {
            sys::futex_wait(&self.word, HELD_WITH_WAITERS, None, false);
        }
    }

    fn release(&self) {
        self.held_by_program.store(0, Ordering::Relaxed);
        if self.word.swap(FREE, Ordering::Release) == HELD_WITH_WAITERS {
            sys::futex_wake(&self.word, 1, false);
        }
    }
}

impl Drop for StructureGuard<'_> {
    fn drop(&mut self) {
        self.lock.release();
        if let Some(mask) = self.signal_mask {
            sys::set_signal_mask(mask);
        }
    }
}
