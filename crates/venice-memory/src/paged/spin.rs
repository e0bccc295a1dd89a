//! A spin lock for a few instructions.
//!
//! It is held for less time than a system call of sleeping and waking would take. The holder can be
//! forgotten by force: the child of a `fork` inherits the lock from threads that it lacks.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use super::sys;

/// Checks of a held lock before the processor is yielded: the holder may have lost its own.
const SPINS: u32 = 400;

/// A value that one thread at a time may use.
#[derive(Debug, Default)]
pub struct Spin<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the thread that holds the lock.
unsafe impl<T: Send> Sync for Spin<T> {}

/// The lock, held.
#[derive(Debug)]
pub struct SpinGuard<'a, T> {
    spin: &'a Spin<T>,
}

impl<T> Spin<T> {
    /// Makes a free lock around `value`.
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

    /// Takes the lock if it is free.
    pub fn try_hold(&self) -> Option<SpinGuard<'_, T>> {
        let taken =
            self.held.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        taken.then(|| SpinGuard { spin: self })
    }

    /// Returns when the lock is free, or was at some moment since the call.
    pub fn wait_until_free(&self) {
        let mut looks = 0;
        while self.held.load(Ordering::SeqCst) {
            looks += 1;
            if looks < SPINS { std::hint::spin_loop() } else { sys::yield_now() }
        }
    }

    /// Frees the lock, whoever holds it, and replaces its value.
    ///
    /// # Safety
    /// The holder must be a thread that this process lacks.
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
    fn lock_is_exclusive() {
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
    fn forgotten_holder_frees_lock() {
        let spin = Spin::new(1);
        std::mem::forget(spin.hold());
        // SAFETY: the forgotten guard is not used.
        unsafe { spin.forget_holder(2) };
        assert_eq!(*spin.hold(), 2);
    }
}
