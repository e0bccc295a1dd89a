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

const KEPT: u32 = 0;
const TO_LEND: u32 = 1;
const LENT: u32 = 2;

/// The state of the loan.
#[derive(Debug, Default)]
pub struct Lending {
    word: AtomicU32,
}

impl Lending {
    /// Begins to lend.
    pub fn open(&self) {
        self.word.store(TO_LEND, Ordering::SeqCst);
    }

    /// Ends the lending, and waits for the lock if it is lent.
    pub fn close(&self) {
        while self.word.load(Ordering::SeqCst) != KEPT && !self.change(TO_LEND, KEPT) {
            sys::futex_wait(&self.word, LENT, None, false);
        }
    }

    /// Borrows the lock. False if it is unavailable.
    pub fn borrow(&self) -> bool {
        self.change(TO_LEND, LENT)
    }

    /// Gives the borrowed lock back.
    ///
    /// # Panics
    /// If the lock is not borrowed.
    pub fn give_back(&self) {
        assert!(self.change(LENT, TO_LEND), "only a borrowed lock can be given back");
        sys::futex_wake(&self.word, u32::MAX >> 1, false);
    }

    /// True if the lock is lent.
    pub fn is_lent(&self) -> bool {
        self.word.load(Ordering::SeqCst) == LENT
    }

    /// Resets the loan in the child of a fork, where no thread has borrowed anything.
    pub fn reset(&self) {
        self.word.store(KEPT, Ordering::SeqCst);
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
        let lending = Lending::default();
        assert!(!lending.borrow(), "the lock is not offered");
        lending.open();
        assert!(lending.borrow() && lending.is_lent());
        assert!(!lending.borrow(), "one at a time");
        std::thread::scope(|scope| {
            let lender = scope.spawn(|| lending.close());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!lender.is_finished());
            lending.give_back();
        });
        assert!(!lending.borrow() && !lending.is_lent());
        lending.close();
    }
}
