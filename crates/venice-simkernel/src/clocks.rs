//! The progress of each part of a world, where threads run the parts side by side.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Looks at the others' clocks before a part that waits reads its mail again.
const LOOKS: u32 = 200;
/// Rounds of them before a thread sleeps: the thread that it waits for may need the processor.
const ROUNDS: u32 = 20;
/// Time that it sleeps then.
const NAP: Duration = Duration::from_micros(50);

/// The clocks of all parts. A clock is a time before which its part handles no event any more: what
/// that part sends from then on arrives later by the look-ahead at least (Chandy and Misra, 1979).
#[derive(Debug)]
pub(crate) struct Clocks {
    clocks: Vec<Apart<AtomicU64>>,
    waiting: Apart<Mutex<Vec<Waiting>>>,
    is_broken: Apart<AtomicBool>,
}

/// A value alone in its cache lines: threads that write to other values do not slow its readers.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// The state of a part that waits or runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// It runs.
    Nothing,
    /// The others, until it may handle its next event at this time.
    Others(u64),
    /// The end of the run.
    End,
}

impl Clocks {
    pub(crate) fn new(parts: usize) -> Self {
        Self {
            clocks: (0..parts).map(|_| Apart::default()).collect(),
            waiting: Apart(Mutex::new(vec![Waiting::Nothing; parts])),
            is_broken: Apart::default(),
        }
    }

    /// Sets the clock of a part that has sent all that it made before.
    pub(crate) fn set(&self, part: usize, time: u64) {
        self.clocks[part].0.store(time, Ordering::Release);
    }

    /// Returns the earliest clock of the other parts.
    ///
    /// # Panics
    /// If one of them has panicked.
    pub(crate) fn of_others(&self, part: usize) -> u64 {
        assert!(!self.is_broken.0.load(Ordering::Relaxed), "another thread panicked");
        let others = self.clocks.iter().enumerate().filter(|(number, _)| *number != part);
        others.map(|(_, clock)| clock.0.load(Ordering::Acquire)).min().unwrap_or(u64::MAX)
    }

    /// Waits a while for the others' clocks to pass `seen`; `round` counts such waits in a row.
    pub(crate) fn wait(&self, part: usize, seen: u64, round: u32) {
        for _ in 0..LOOKS {
            if self.of_others(part) > seen {
                return;
            }
            std::hint::spin_loop();
        }
        if round > ROUNDS {
            std::thread::sleep(NAP);
        }
    }

    /// Notes that a part waits until it may handle its next event, at `next`. If all of them wait and
    /// none has mail, the clocks of all go on to the earliest of these times, however far it is.
    pub(crate) fn enter_wait(&self, part: usize, next: u64, has_mail: impl Fn(usize) -> bool) {
        let mut waiting = self.waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting[part] = Waiting::Others(next);
        let earliest =
            waiting.iter().enumerate().try_fold(
                u64::MAX,
                |earliest, (other, state)| match *state {
                    Waiting::Nothing => None,
                    Waiting::Others(next) => (!has_mail(other)).then_some(earliest.min(next)),
                    Waiting::End => Some(earliest),
                },
            );
        if let Some(earliest) = earliest {
            for clock in &self.clocks {
                clock.0.fetch_max(earliest, Ordering::AcqRel);
            }
        }
    }

    /// Notes that a part that waited runs again.
    pub(crate) fn leave_wait(&self, part: usize) {
        self.waiting.0.lock().unwrap_or_else(PoisonError::into_inner)[part] = Waiting::Nothing;
    }

    /// Notes that a part has handled all its events of this run.
    pub(crate) fn end(&self, part: usize) {
        self.waiting.0.lock().unwrap_or_else(PoisonError::into_inner)[part] = Waiting::End;
    }

    /// Returns a guard that ends the waits of the others if this thread panics while it has it.
    pub(crate) fn leave_on_panic(&self) -> impl Drop + '_ {
        struct Guard<'a>(&'a Clocks);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.is_broken.0.store(true, Ordering::Relaxed);
                }
            }
        }
        Guard(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_jump_if_all_wait() {
        let clocks = Clocks::new(3);
        clocks.enter_wait(0, 900, |_| false);
        clocks.enter_wait(1, 700, |_| false);
        assert_eq!(clocks.of_others(2), 0, "one runs");
        clocks.end(2);
        clocks.enter_wait(1, 800, |part| part == 0);
        assert_eq!(clocks.of_others(2), 0, "one has mail");
        clocks.enter_wait(1, 800, |part| part == 2);
        assert_eq!([0, 1, 2].map(|part| clocks.of_others(part)), [800; 3]);
    }

    #[test]
    fn wait_ends_with_a_clock() {
        let clocks = Clocks::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                clocks.set(1, 8);
            });
            for round in 0.. {
                clocks.wait(0, 7, round);
                if clocks.of_others(0) == 8 {
                    break;
                }
            }
        });
    }

    #[test]
    fn panic_ends_waits() {
        let clocks = Clocks::new(2);
        let ended = std::thread::scope(|scope| {
            let waits = scope.spawn(|| (0..u32::MAX).for_each(|round| clocks.wait(0, 0, round)));
            let panics = scope.spawn(|| {
                let _guard = clocks.leave_on_panic();
                panic!("as the test wants");
            });
            [waits.join().is_err(), panics.join().is_err()]
        });
        assert_eq!(ended, [true, true]);
    }
}
