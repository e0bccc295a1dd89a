//! A barrier for threads that meet every few microseconds.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Looks before a thread sleeps: the thread that it waits for may need the processor.
const SPINS: u32 = 50_000;

/// A point where threads wait for each other, again and again. Unlike [`std::sync::Barrier`] it spins
/// first.
#[derive(Debug)]
pub(crate) struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    is_broken: AtomicBool,
    /// Threads that sleep, or are about to: they hold the lock until they do.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Barrier {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Waits for the other threads.
    ///
    /// # Panics
    /// If one of them has panicked.
    pub(crate) fn wait(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Release);
            self.round.store(round.wrapping_add(1), Ordering::SeqCst);
            return self.wake();
        }
        for _ in 0..SPINS {
            if self.is_over(round) {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleep(round);
    }

    /// True if the round is over.
    fn is_over(&self, round: usize) -> bool {
        assert!(!self.is_broken.load(Ordering::SeqCst), "another thread panicked");
        self.round.load(Ordering::SeqCst) != round
    }

    fn sleep(&self, round: usize) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.is_over(round) {
            guard = self.woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A thread that saw the round before its end sleeps once this lock is free.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.woken.notify_all();
        }
    }

    /// Returns a guard that ends the waits of the others if this thread panics while it has it.
    pub(crate) fn leave_on_panic(&self) -> impl Drop + '_ {
        struct Guard<'a>(&'a Barrier);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.is_broken.store(true, Ordering::SeqCst);
                    self.0.wake();
                }
            }
        }
        Guard(self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn late_threads_are_awaited_asleep() {
        let (barrier, count) = (Barrier::new(3), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for number in 0..3 {
                let (barrier, count) = (&barrier, &count);
                scope.spawn(move || {
                    for round in 1..=300 {
                        if round % 3 == number {
                            std::thread::sleep(Duration::from_micros(100));
                        }
                        count.fetch_add(1, Ordering::SeqCst);
                        barrier.wait();
                        assert_eq!(count.load(Ordering::SeqCst), 3 * round);
                        barrier.wait();
                    }
                });
            }
        });
    }

    #[test]
    fn panic_ends_waits() {
        let barrier = Barrier::new(2);
        let ended = std::thread::scope(|scope| {
            let waits = scope.spawn(|| barrier.wait());
            let panics = scope.spawn(|| {
                let _guard = barrier.leave_on_panic();
                std::thread::sleep(Duration::from_millis(50));
                panic!("as the test wants");
            });
            [waits.join().is_err(), panics.join().is_err()]
        });
        assert_eq!(ended, [true, true]);
    }
}
