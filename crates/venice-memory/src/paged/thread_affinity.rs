//! CPU affinity of the pager's threads.
//!
//! The handler follows the faults ([`handler`](super::handler)), and the waker follows it. The
//! evictor follows too: an evicted page must be flushed from the TLB of every processor that runs
//! the program. With all threads on one processor there is no other to interrupt, and that was
//! worth more than a second processor wherever it was measured (docs/results/faults.md).

use std::sync::atomic::Ordering;

use super::pager::Pager;
use super::sys;

impl Pager {
    /// Moves the waker and the evictor to `cpu`, where the handler runs now. A thread that moved
    /// itself would wake up where it was, and disturb the threads there.
    pub(super) fn move_threads_to(&self, cpu: usize) {
        self.followed_cpu.store(cpu, Ordering::SeqCst);
        self.waker.move_to(cpu);
        let evictor = self.evictor_thread.load(Ordering::Acquire);
        if evictor != 0 {
            sys::pin_thread_to_cpu(evictor, cpu);
        }
    }
}
