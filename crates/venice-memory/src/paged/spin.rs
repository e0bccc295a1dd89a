//! A lock for a few instructions.
//!
//! Whoever takes it holds it for less than a system call of sleeping and waking would take. It may
//! be forgotten by force: the child of a `fork` inherits it from threads that it has not got.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use super::sys;

/// Looks at a held lock before the processor is given away: its holder may have lost its own.
const SPINS: u32 = 400;

/// A value that one thread at a time may use.
#[derive(Debug, Default)]
pub struct Spin<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by whoever holds the lock, one at a time.
unsafe impl<T: Send> Sync for Spin<T> {}

/// The lock, held.
#[derive(Debug)]
pub struct SpinGuard<'a, T> {
    spin: &'a Spin<T>,
}

impl<T> Spin<T> {
    /// Around `value`, free.
    pub const fn new(value: T) -> Spin<T> {
        Spin { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock.
    pub fn hold(&self) -> SpinGuard<'_, T> {
        while self.held.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            self.wait_until_free();
        }
        SpinGuard { spin: self }
    }

    /// Takes the lock if nobody holds it.
    pub fn try_hold(&self) -> Option<SpinGuard<'_, T>> {
        let taken =
            self.held.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        taken.then(|| SpinGuard { spin: self })
    }

    /// Returns when nobody holds the lock, or nobody did at some moment since the call.
    pub fn wait_until_free(&self) {
        let mut looks = 0;
        while self.held.load(Ordering::SeqCst) {
            looks += 1;
            if looks < SPINS { std::hint::spin_loop() } else { sys::yield_now() }
        }
    }

    /// Frees the lock, whoever holds it, and gives it another value.
    ///
    /// # Safety
    /// Whoever holds it must be a thread that this process has not got.
    pub unsafe fn forget_holder(&self, value: T) {
        // SAFETY: forwarded to the caller; the old value may be half changed, so it is not dropped.
        unsafe { std::ptr::write(self.value.get(), value) };
        self.held.store(false, Ordering::SeqCst);
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.spin.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and the borrow of the guard keeps it the only one.
        unsafe { &mut *self.spin.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.spin.held.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let spin = Spin::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let mut held = spin.hold();
                        let seen = *held;
                        std::hint::black_box(&held);
                        *held = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*spin.hold(), 4000);
    }

    #[test]
    fn a_holder_that_is_gone_is_forgotten() {
        let spin = Spin::new(1);
        std::mem::forget(spin.hold());
        // SAFETY: nobody uses the forgotten guard.
        unsafe { spin.forget_holder(2) };
        assert_eq!(*spin.hold(), 2);
    }
}
