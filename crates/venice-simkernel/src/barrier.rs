//! A barrier for threads that meet every few microseconds.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Looks before a thread lets others run: the machine may have fewer processors than threads.
const SPINS: u32 = 2_000;

/// A point where threads wait for each other, again and again. Unlike [`std::sync::Barrier`] it spins.
#[derive(Debug)]
pub(crate) struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    is_broken: AtomicBool,
}

impl Barrier {
    pub(crate) fn new(threads: usize) -> Self {
        let (arrived, round) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { threads, arrived, round, is_broken: AtomicBool::new(false) }
    }

    /// Waits for the other threads.
    ///
    /// # Panics
    /// If one of them has panicked.
    pub(crate) fn wait(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Release);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut looks = 0;
        while self.round.load(Ordering::Acquire) == round {
            assert!(!self.is_broken.load(Ordering::Acquire), "another thread panicked");
            looks += 1;
            match looks < SPINS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    }

    /// Returns a guard that ends the waits of the others if this thread panics while it has it.
    pub(crate) fn leave_on_panic(&self) -> impl Drop + '_ {
        struct Guard<'a>(&'a AtomicBool);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.store(true, Ordering::Release);
                }
            }
        }
        Guard(&self.is_broken)
    }
}
