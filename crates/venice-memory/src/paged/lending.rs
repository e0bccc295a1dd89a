//! The structure lock of a thread that forks, lent to threads that it waits for.
//!
//! The C library takes the locks of `malloc` after it has called whoever wants to be called before
//! a `fork`. The thread that forks has the structure lock then, and may wait for a thread that has
//! a lock of `malloc` and waits for the structure lock, to map memory. So until the fork begins it
//! lends the lock: whoever borrows it changes the address space and gives it back. A child that
//! was copied while the lock was lent finds the word so, and must not use what the lock guards.

use std::sync::atomic::{AtomicU32, Ordering};

use super::sys;

const KEPT: u32 = 0;
const TO_LEND: u32 = 1;
const LENT: u32 = 2;

/// Whether the lock may be borrowed, and is.
#[derive(Debug, Default)]
pub struct Lending {
    word: AtomicU32,
}

impl Lending {
    /// The holder lends from here on.
    pub fn open(&self) {
        self.word.store(TO_LEND, Ordering::SeqCst);
    }

    /// The holder lends no more; waits for the lock if it is lent.
    pub fn close(&self) {
        while self.word.load(Ordering::SeqCst) != KEPT && !self.change(TO_LEND, KEPT) {
            sys::futex_wait(&self.word, LENT, None, false);
        }
    }

    /// Borrows the lock; `false`: it is not to be had.
    pub fn borrow(&self) -> bool {
        self.change(TO_LEND, LENT)
    }

    /// Gives back what was borrowed.
    pub fn give_back(&self) {
        assert!(self.change(LENT, TO_LEND), "only a borrowed lock can be given back");
        sys::futex_wake(&self.word, u32::MAX >> 1, false);
    }

    /// Is the lock lent?
    pub fn is_lent(&self) -> bool {
        self.word.load(Ordering::SeqCst) == LENT
    }

    /// In the child of a fork: no thread here has borrowed anything.
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
    fn the_lender_waits_until_it_has_the_lock_again() {
        let lending = Lending::default();
        assert!(!lending.borrow(), "nobody lends");
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
