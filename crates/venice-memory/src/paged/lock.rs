//! The structure lock: taken by hooks that change the address space, the evictor and `fork`.
//!
//! The fault handler takes it for huge pages alone, and never waits long for a thread of the
//! program that holds it: the holder may fault and must be served. Signals are blocked while it is
//! held: a signal handler that calls `munmap` must not wait for its own thread. The child of a
//! `fork` inherits it held by its only thread.

use std::sync::atomic::{AtomicU32, Ordering};

use super::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_WITH_WAITERS: u32 = 2;
/// Time that a thread waits for the lock before it tries to borrow it, in nanoseconds. Most forks
/// are over by then.
const PATIENCE_NS: u64 = 2_000_000;
/// Checks by the handler of a lock that a thread of the program holds, with a yield of the
/// processor each: most changes of the address space are over by then.
const HANDLER_LOOKS: u32 = 64;

/// A futex lock that records if a thread of the program (rather than the evictor) holds it.
#[derive(Debug, Default)]
pub struct StructureLock {
    word: AtomicU32,
    held_by_program: AtomicU32,
}

/// The lock, held; dropping it releases the lock and restores the signal mask.
#[derive(Debug)]
pub struct StructureGuard<'a> {
    /// `None`: it is borrowed, and goes back to its lender.
    lock: Option<&'a StructureLock>,
    signal_mask: Option<u64>,
}

impl StructureLock {
    /// Takes the lock for a thread of the program.
    pub fn hold(&self) -> StructureGuard<'_> {
        let signal_mask = Some(sys::block_signals());
        self.acquire();
        self.held_by_program.store(1, Ordering::Relaxed);
        StructureGuard { lock: Some(self), signal_mask }
    }

    /// Takes the lock like [`StructureLock::hold`], or borrows it from a thread of the program that
    /// holds it: `borrow` is called whenever the wait has lasted another [`PATIENCE_NS`].
    pub fn hold_or_borrow(&self, borrow: impl Fn() -> bool) -> StructureGuard<'_> {
        let signal_mask = Some(sys::block_signals());
        if !self.try_take() {
            let mut patience_ends_ns = sys::monotonic_ns() + PATIENCE_NS;
            // A woken thread first marks the lock again as waited for: it was woken for all
            // waiters.
            while !self.take_as_waiter() {
                if sys::monotonic_ns() >= patience_ends_ns {
                    if borrow() {
                        return StructureGuard { lock: None, signal_mask };
                    }
                    patience_ends_ns = sys::monotonic_ns() + PATIENCE_NS;
                }
                sys::futex_wait(&self.word, HELD_WITH_WAITERS, Some(PATIENCE_NS), false);
            }
        }
        self.held_by_program.store(1, Ordering::Relaxed);
        StructureGuard { lock: Some(self), signal_mask }
    }

    /// Takes the lock for the evictor, whose signals are blocked for good.
    pub fn hold_as_evictor(&self) -> StructureGuard<'_> {
        self.acquire();
        StructureGuard { lock: Some(self), signal_mask: None }
    }

    /// Takes the lock for the fault handler, whose signals are blocked for good and which holds no
    /// page. It waits for the evictor. `None`: a thread of the program holds the lock, and may be
    /// waiting for the handler.
    pub fn hold_as_handler(&self) -> Option<StructureGuard<'_>> {
        let mut by_program = 0;
        while !self.try_take() {
            by_program += u32::from(self.is_held_by_program());
            if by_program >= HANDLER_LOOKS {
                return None;
            }
            sys::yield_now();
        }
        Some(StructureGuard { lock: Some(self), signal_mask: None })
    }

    /// True if a thread of the program holds the lock. Then a wait for the evictor may be a wait
    /// for that thread, which may wait for its own fault.
    pub fn is_held_by_program(&self) -> bool {
        self.held_by_program.load(Ordering::Relaxed) != 0
    }

    fn acquire(&self) {
        if self.try_take() {
            return;
        }
        while !self.take_as_waiter() {
            sys::futex_wait(&self.word, HELD_WITH_WAITERS, None, false);
        }
    }

    fn try_take(&self) -> bool {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock, marked as waited for: a thread that has waited cannot tell if others wait
    /// too.
    fn take_as_waiter(&self) -> bool {
        self.word.swap(HELD_WITH_WAITERS, Ordering::Acquire) == FREE
    }

    fn release(&self) {
        self.held_by_program.store(0, Ordering::Relaxed);
        if self.word.swap(FREE, Ordering::Release) == HELD_WITH_WAITERS {
            sys::futex_wake(&self.word, 1, false);
        }
    }
}

impl StructureGuard<'_> {
    /// True if it is borrowed.
    pub fn is_borrowed(&self) -> bool {
        self.lock.is_none()
    }
}

impl Drop for StructureGuard<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.lock {
            lock.release();
        }
        if let Some(mask) = self.signal_mask {
            sys::set_signal_mask(mask);
        }
    }
}
