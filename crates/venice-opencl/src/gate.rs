//! The gate that all calls of the program pass. While it is closed no call is on its way, so that a
//! device can change under the program's objects.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Set while the gate is closed, beside the number of calls inside.
const CLOSED: usize = 1 << (usize::BITS - 1);
/// Sleep before another look whether this process is a child that nobody opens the gate for.
const LOOK: Duration = Duration::from_millis(100);

static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// Process of the closer, while the gate is closed.
static CLOSER: Mutex<u32> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();
/// Held by who closes the gate.
static CLOSING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Passes of this thread: callbacks call from within calls.
    static PASSES: Cell<usize> = const { Cell::new(0) };
}

/// The right to be inside.
pub struct Pass(());

/// Enters, once the gate is open.
pub fn enter() -> Pass {
    let passes = PASSES.get();
    if passes == 0 {
        go_in();
    }
    PASSES.set(passes + 1);
    Pass(())
}

impl Drop for Pass {
    fn drop(&mut self) {
        let passes = PASSES.get() - 1;
        PASSES.set(passes);
        if passes == 0 {
            go_out();
        }
    }
}

/// Waits outside the gate: for what another call may bring.
pub fn outside<T>(wait: impl FnOnce() -> T) -> T {
    let passes = PASSES.replace(0);
    if passes > 0 {
        go_out();
    }
    let waited = wait();
    if passes > 0 {
        go_in();
    }
    PASSES.set(passes);
    waited
}

fn go_in() {
    while INSIDE.fetch_add(1, Ordering::Acquire) & CLOSED != 0 {
        go_out();
        let mut closer = closer();
        while INSIDE.load(Ordering::Relaxed) & CLOSED != 0 {
            if *closer != std::process::id() {
                // A child of the closer's process: the closer is not here.
                INSIDE.fetch_and(!CLOSED, Ordering::Relaxed);
                break;
            }
            let woken = CHANGED.wait_timeout(closer, LOOK);
            closer = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn go_out() {
    if INSIDE.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
        drop(closer());
        CHANGED.notify_all();
    }
}

fn closer() -> MutexGuard<'static, u32> {
    CLOSER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The closed gate; it opens on drop.
pub struct Closed {
    _closing: MutexGuard<'static, ()>,
}

/// Closes the gate once all calls have left; `None` if some do not within that time.
pub fn close(within: Duration) -> Option<Closed> {
    let closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
    let until = Instant::now() + within;
    let mut closer = closer();
    *closer = std::process::id();
    INSIDE.fetch_or(CLOSED, Ordering::Acquire);
    let closed = Closed { _closing: closing };
    while INSIDE.load(Ordering::Acquire) != CLOSED {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            drop(closer);
            return None;
        }
        closer = CHANGED.wait_timeout(closer, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    Some(closed)
}

impl Drop for Closed {
    fn drop(&mut self) {
        INSIDE.fetch_and(!CLOSED, Ordering::Release);
        drop(closer());
        CHANGED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn gate_closes_between_calls() {
        let outer = enter();
        let inner = enter();
        std::thread::scope(|scope| {
            let closes = |within| move || close(within).is_some();
            assert!(!scope.spawn(closes(SHORT)).join().unwrap());
            // Who waits outside holds nobody up.
            assert!(outside(|| scope.spawn(closes(LONG)).join().unwrap()));
            drop(inner);
            assert!(!scope.spawn(closes(SHORT)).join().unwrap());
            drop(outer);
            let closed = close(LONG).unwrap();
            let caller = scope.spawn(|| drop(enter()));
            std::thread::sleep(SHORT);
            assert!(!caller.is_finished());
            drop(closed);
            caller.join().unwrap();
        });
    }
}
