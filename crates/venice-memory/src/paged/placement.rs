//! Where the pager's threads run.
//!
//! The handler goes where faults come from ([`handler`](super::handler)), and the waker with it. The
//! evictor goes there too: a page that leaves must be flushed from the address cache of every
//! processor that runs the program; with all on one there is no other to interrupt, and that was
//! worth more than a second processor wherever it was measured (docs/benchmarks.md).

use std::sync::atomic::Ordering;

use super::pager::Pager;
use super::sys;

impl Pager {
    /// The handler has come to `cpu`. The others come too; one that would move itself would wake up
    /// where it was, and be in the way there.
    pub(super) fn lead_to(&self, cpu: usize) {
        self.followed_cpu.store(cpu, Ordering::SeqCst);
        self.waker.move_to(cpu);
        let evictor = self.evictor_thread.load(Ordering::Acquire);
        if evictor != 0 {
            sys::pin_thread_to_cpu(evictor, cpu);
        }
    }
}
