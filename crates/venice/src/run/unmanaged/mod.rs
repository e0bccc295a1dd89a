//! Memory of a run that Venice does not manage: found while the program runs, reported at its end.
//!
//! A thread looks at the processes of the run ([`watch`]): those attached, and their descendants.
//! What a process has resident beside its pager's memory is read from `/proc/PID/smaps`
//! ([`address_space`]), where the kernel marks registered memory and the pager its own. A look costs
//! little unless a figure of the process changed; after the first seconds looks take half a percent
//! of one processor at most. A process waits for a look before it calls `exit` or unmaps much;
//! one that lives for less than the interval and ends otherwise may go unseen.

mod address_space;
mod watch;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use venice_memory::paged::run_block::RunBlockMap;
use venice_recipient::runs::{Unmanaged, total_bytes};
use venice_wire::ByteSize;

use watch::ProcessWatch;
pub use watch::is_much;

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same in the first time of a run, for short programs.
const LOOK_EVERY_AT_FIRST: Duration = Duration::from_millis(20);
/// Length of that time.
const AT_FIRST: Duration = Duration::from_secs(2);
/// Pause after a look, in times of its duration: at most half a percent of a processor.
const PAUSE_FACTOR: u32 = 200;
/// The same in the first time of a run.
const PAUSE_FACTOR_AT_FIRST: u32 = 20;
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The watching thread; dropping it ends it.
pub struct UnmanagedWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The findings of a watch.
#[derive(Default)]
struct Shared {
    found: Mutex<Found>,
    wake: Condvar,
}

#[derive(Default)]
struct Found {
    now: Vec<Unmanaged>,
    /// The descriptors of processes that wait for a last look.
    ending: Vec<OwnedFd>,
    /// The parts at the moment of the most.
    most: Vec<Unmanaged>,
    has_ended: bool,
}

/// A view of the findings.
#[derive(Clone, Default)]
pub struct UnmanagedView(Arc<Shared>);

impl UnmanagedWatch {
    /// Starts to look at the run whose first process is `first`; `view` will show the findings.
    ///
    /// # Errors
    /// The kernel's, when there can be no further thread.
    pub fn start(
        block: Arc<RunBlockMap>,
        first: u32,
        UnmanagedView(shared): UnmanagedView,
    ) -> anyhow::Result<UnmanagedWatch> {
        let (watch, seen) = (ProcessWatch::new(block, first), shared.clone());
        let thread = std::thread::Builder::new().name("venice-watch".into());
        let thread = thread.spawn(move || seen.work(watch)).context("starting a thread")?;
        Ok(UnmanagedWatch { shared, thread: Some(thread) })
    }

    /// Ends the watch; returns the parts at the moment of the most.
    pub fn finish(mut self) -> Vec<Unmanaged> {
        self.end();
        std::mem::take(&mut self.shared.lock().most)
    }

    fn end(&mut self) {
        let mut found = self.shared.lock();
        found.has_ended = true;
        found.ending.clear();
        drop(found);
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for UnmanagedWatch {
    fn drop(&mut self) {
        self.end();
    }
}

impl UnmanagedView {
    /// Returns the unmanaged memory of the living processes.
    pub fn now(&self) -> Vec<Unmanaged> {
        self.0.lock().now.clone()
    }

    /// Has all processes looked at, then closes `end`.
    pub fn look_before(&self, end: OwnedFd) {
        let mut found = self.0.lock();
        if !found.has_ended {
            found.ending.push(end);
            self.0.wake.notify_all();
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, mut watch: ProcessWatch) {
        let began = Instant::now();
        loop {
            let look_began = Instant::now();
            let ending = std::mem::take(&mut self.lock().ending);
            let now = watch.look();
            let pause = pause(began.elapsed(), look_began.elapsed());
            let mut found = self.lock();
            found.note(now);
            drop(ending);
            let is_on = |found: &mut Found| !found.has_ended && found.ending.is_empty();
            let waited = self.wake.wait_timeout_while(found, pause, is_on);
            if waited.unwrap_or_else(PoisonError::into_inner).0.has_ended {
                return;
            }
        }
    }
}

impl Found {
    fn note(&mut self, now: Vec<Unmanaged>) {
        if total_bytes(&now) > total_bytes(&self.most) {
            self.most.clone_from(&now);
        }
        self.now = now;
    }
}

/// Returns the error of `--strict`.
pub fn strict_error(most: &[Unmanaged]) -> anyhow::Error {
    anyhow!(
        "--strict: the program ended well, and had {} of memory that Venice does not manage: see the \
         messages above for cause and remedy",
        ByteSize(total_bytes(most))
    )
}

/// Returns the pause after a look that took `took`, `age` after the start of the run.
fn pause(age: Duration, took: Duration) -> Duration {
    let (factor, least) = match age < AT_FIRST {
        true => (PAUSE_FACTOR_AT_FIRST, LOOK_EVERY_AT_FIRST),
        false => (PAUSE_FACTOR, LOOK_EVERY),
    };
    (took * factor).clamp(least, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use venice_recipient::runs::Cause;

    use super::*;

    #[test]
    fn most_is_kept() {
        let part = |bytes| Unmanaged { cause: Cause::Locked, bytes, pid: 1, name: "x".into() };
        let mut found = Found::default();
        for bytes in [3, 9, 2] {
            found.note(vec![part(bytes)]);
        }
        assert_eq!((found.most[0].bytes, found.now[0].bytes), (9, 2));
    }

    #[test]
    fn pause_follows_cost() {
        let (old, ms) = (Duration::from_secs(60), Duration::from_millis);
        assert_eq!(pause(ms(5), Duration::ZERO), LOOK_EVERY_AT_FIRST);
        assert_eq!(pause(ms(5), ms(9)), ms(180));
        assert_eq!(pause(old, Duration::from_micros(10)), LOOK_EVERY);
        assert_eq!(pause(old, ms(10)), Duration::from_secs(2));
        assert_eq!(pause(old, Duration::from_secs(1)), LONGEST_PAUSE);
    }
}
