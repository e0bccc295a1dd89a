//! Main loop of a port's thread: takes a batch, answers, polls for more, sleeps.

use std::time::Duration;

use super::spin::Spin;
use crate::monotonic_ns;
use crate::spin_policy::Next;

/// Work of a thread.
pub(super) trait Serving {
    /// True if the thread must end.
    fn is_over(&self) -> bool;

    /// Takes one batch and sends what can go; returns true if something came in, or is still to be
    /// sent.
    fn pump(&mut self, now_ns: u64) -> rustix::io::Result<bool>;

    /// True if more is likely to have come, because the last batch was full, or if more is to be
    /// sent.
    fn has_more(&self) -> bool;

    /// Sleeps until there is something to do.
    fn sleep(&mut self, now_ns: u64);
}

/// Serves until the thread must end.
pub(super) fn serve(mut serving: impl Serving) {
    let mut spin = Spin::default();
    while !serving.is_over() {
        let now_ns = monotonic_ns();
        let pumped = serving.pump(now_ns);
        if let Ok(true) = pumped {
            spin.busy(now_ns);
            if serving.has_more() {
                continue;
            }
            spin.begin(monotonic_ns());
        }
        match pumped {
            Ok(_) => match spin.nothing(now_ns) {
                Next::Look => {}
                Next::Yield => rustix::thread::sched_yield(),
                // The wake-up for the end may have served another purpose.
                Next::Sleep if serving.is_over() => return,
                Next::Sleep => serving.sleep(now_ns),
            },
            // The kernel is out of memory, or the interface is going down: neither is a reason to
            // drop the other senders, nor to spin.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
