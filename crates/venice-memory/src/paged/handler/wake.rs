//! Wake-up of the faulting thread: at once, or by the [waker](super::super::waker) as soon as the
//! handler sleeps.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::PAGE;
use super::super::page_table::PageNumber;
use super::super::sys::{self, SysResult};
use super::super::thread;
use super::super::uffd::Uffd;
use super::super::waker::{self, PendingWake};
use super::{Cause, Fault, Handler};

/// Number of first faults that are all timed; after those, one in [`TIME_ONE_IN`] is.
const TIME_FIRST: u64 = 256;
/// See [`TIME_FIRST`].
const TIME_ONE_IN: u64 = 16;

impl Handler {
    /// Installs `pages`, that of a fault among them, and wakes its thread. The thread may take the
    /// processor as soon as it is woken, so the time is taken before, at the price of one more
    /// system call, and only for some of the faults.
    pub(super) fn install_and_wake(
        &mut self,
        fault: &Fault,
        pages: Range<PageNumber>,
        install: impl FnOnce(Uffd, bool) -> SysResult<usize>,
    ) -> SysResult<usize> {
        self.handed_over += 1;
        let timed = self.handed_over < TIME_FIRST || self.handed_over.is_multiple_of(TIME_ONE_IN);
        if let Some(waiter) = fault.waiter {
            let outcome = install(self.pager.uffd(), false);
            let done = outcome.map_or(0, |bytes| bytes / PAGE);
            if timed && fault.cause == Cause::Demand {
                self.pager.block.record_fault_ns(sys::monotonic_ns() - fault.started_ns);
            }
            self.give(*fault, waiter, pages.start..pages.start + done);
            return outcome;
        }
        let wakes = !timed && !self.wake_policy.is_on();
        let outcome = install(self.pager.uffd(), wakes);
        if !wakes && outcome.is_ok() {
            self.wake_thread(fault, timed && fault.cause == Cause::Demand);
        }
        outcome
    }

    /// Wakes the thread of a fault, and records how long the fault took, if `recorded`.
    pub(super) fn wake_thread(&mut self, fault: &Fault, recorded: bool) {
        let recorded_from_ns = if recorded { fault.started_ns } else { 0 };
        let pending = PendingWake { page: fault.page, recorded_from_ns };
        // A thread that holds the structure lock may block the evictor, which then checks no waker.
        let can_wait = self.wake_policy.is_on() && !self.pager.lock.is_held_by_program();
        if can_wait && self.ensure_waker() {
            self.wake_others(fault.thread);
            self.delegated_thread = fault.thread;
            self.pager.block.counters.left_to_waker.fetch_add(1, Ordering::Relaxed);
            self.pager.waker.post(pending, self.pager.moment());
        } else {
            self.pager.complete_wake(pending);
        }
    }

    /// Completes a wake-up that the waker has not started, or may not have finished. To be called
    /// before this thread serves `thread`. (A thread that faults again has been woken.)
    pub(super) fn wake_others(&self, thread: u32) {
        let waker = &self.pager.waker;
        let waiting = if waker.has_pending() {
            waker.take_back(self.pager.moment())
        } else if thread != self.delegated_thread {
            waker.take_unfinished()
        } else {
            None
        };
        if let Some(pending) = waiting {
            self.pager.complete_wake(pending);
        }
    }

    /// Starts the waker on first use. True if it runs. Programs whose threads never migrate have no
    /// waker. The next fault may find it running where this one does not.
    fn ensure_waker(&mut self) -> bool {
        let pager = self.pager;
        let may_start = !self.has_started_waker && !pager.pause.is_asked();
        if may_start && !pager.waker.has_started() && !pager.serves_regions() {
            self.has_started_waker = true;
            let start = |memory| {
                thread::spawn_in(memory, waker::run, std::ptr::from_ref(pager) as usize).ok()
            };
            let waker = pager.waker.take_memory().and_then(start);
            waker.into_iter().for_each(|waker| pager.pause.set_waker(waker));
        }
        pager.waker.has_started()
    }
}
