//! The structure lock of a thread that forks, lent to threads that it waits for.
//!
//! The C library takes the locks of `malloc` after it has called the handlers registered for a
//! `fork`. The forking thread holds the structure lock then, and may wait for a thread that holds a
//! lock of `malloc` and waits for the structure lock, to map memory. So until the fork begins the
//! forking thread lends the lock: a thread borrows it, changes the address space and gives it back.
//! In a child that was copied while the lock was lent the word shows it, and the child must not use
//! the guarded state.

use std::sync::atomic::{AtomicU32, Ordering};

use super::sys;

const NOT_OFFERED: u32 = 0;
const OFFERED: u32 = 1;
const BORROWED: u32 = 2;

/// The state of the loan.
#[derive(Debug, Default)]
pub struct ForkLock {
    word: AtomicU32,
}

impl ForkLock {
    /// Begins to lend.
    pub fn offer(&self) {
        self.word.store(OFFERED, Ordering::SeqCst);
    }

    /// Ends the lending, and waits for the lock if it is lent.
    pub fn withdraw(&self) {
        while self.word.load(Ordering::SeqCst) != NOT_OFFERED && !self.change(OFFERED, NOT_OFFERED)
        {
            sys::futex_wait(&self.word, BORROWED, None, false);
        }
    }

    /// Borrows the lock. False if it is unavailable.
    pub fn borrow(&self) -> bool {
        self.change(OFFERED, BORROWED)
    }

    /// Gives the borrowed lock back.
    ///
    /// # Panics
    /// If the lock is not borrowed.
    pub fn return_lock(&self) {
        assert!(self.change(BORROWED, OFFERED), "only a borrowed lock can be given back");
        sys::futex_wake(&self.word, u32::MAX >> 1, false);
    }

    /// True if the lock is lent.
    pub fn is_borrowed(&self) -> bool {
        self.word.load(Ordering::SeqCst) == BORROWED
    }

    /// Resets the loan in the child of a fork, where no thread has borrowed anything.
    pub fn reset(&self) {
        self.word.store(NOT_OFFERED, Ordering::SeqCst);
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lender_waits_for_return() {
        let fork_lock = ForkLock::default();
        assert!(!fork_lock.borrow(), "the lock is not offered");
        fork_lock.offer();
        assert!(fork_lock.borrow() && fork_lock.is_borrowed());
        assert!(!fork_lock.borrow(), "one at a time");
        std::thread::scope(|scope| {
            let lender = scope.spawn(|| fork_lock.withdraw());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!lender.is_finished());
            fork_lock.return_lock();
        });
        assert!(!fork_lock.borrow() && !fork_lock.is_borrowed());
        fork_lock.withdraw();
    }
}
