//! What a thread of the port does until it is over: takes what came, answers, looks out for more,
//! sleeps.

use std::time::Duration;

use super::spin::Spin;
use crate::monotonic_ns;
use crate::ring::patience::Next;

/// What a thread serves.
pub(super) trait Serving {
    /// Whether the thread is to end.
    fn is_over(&self) -> bool;

    /// Takes one batch and sends what can go; true when something came in, or is still to be sent.
    fn pump(&mut self, now_ns: u64) -> rustix::io::Result<bool>;

    /// Whether the last batch was full, and so more is likely there; or more is to be sent.
    fn has_more(&self) -> bool;

    /// Sleeps until there is something to do.
    fn sleep(&mut self, now_ns: u64);
}

/// Serves until it is over.
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
                // What was to wake it for the end may have woken it for something else.
                Next::Sleep if serving.is_over() => return,
                Next::Sleep => serving.sleep(now_ns),
            },
            // Out of kernel memory, or the interface is going down: neither is a reason to give
            // up on the others, nor to spin.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
