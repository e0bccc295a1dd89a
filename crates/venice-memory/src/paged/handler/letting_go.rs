//! Wake-up of the faulting thread: at once, or by the [waker](super::super::waker) as soon as the
//! handler sleeps.

use std::sync::atomic::Ordering;

use super::super::sys::SysResult;
use super::super::thread;
use super::super::uffd::Uffd;
use super::super::waker::{self, Owed};
use super::{Fault, Handler, Why};

/// Number of first faults that are all timed; after those, one in [`TIME_ONE_IN`] is.
const TIME_FIRST: u64 = 256;
/// See [`TIME_FIRST`].
const TIME_ONE_IN: u64 = 16;

impl Handler {
    /// Installs the page of a fault and wakes its thread. The thread may take the processor as soon
    /// as it is woken, so the time is taken before, at the price of one more system call, and only
    /// for some of the faults.
    pub(super) fn hand_over(
        &mut self,
        fault: &Fault,
        install: impl FnOnce(Uffd, bool) -> SysResult<usize>,
    ) -> SysResult<usize> {
        self.handed_over += 1;
        let timed = self.handed_over < TIME_FIRST || self.handed_over.is_multiple_of(TIME_ONE_IN);
        let wakes = !timed && !self.deference.is_on();
        let outcome = install(self.pager.uffd(), wakes);
        if !wakes && outcome.is_ok() {
            self.let_go_on(fault, timed && fault.why == Why::Touched);
        }
        outcome
    }

    /// Wakes the thread of a fault, and records how long the fault took, if `recorded`.
    pub(super) fn let_go_on(&mut self, fault: &Fault, recorded: bool) {
        let recorded_from_ns = if recorded { fault.started_ns } else { 0 };
        let owed = Owed { page: fault.page, recorded_from_ns };
        // A thread that holds the structure lock may block the evictor, which then checks no waker.
        let can_wait = self.deference.is_on() && !self.pager.lock.is_held_by_program();
        if can_wait && self.starts_waker() {
            self.let_others_go_on(fault.thread);
            self.left_thread = fault.thread;
            self.pager.block.counters.left_to_waker.fetch_add(1, Ordering::Relaxed);
            self.pager.waker.owe(owed, self.pager.moment());
        } else {
            self.pager.let_go_on(owed);
        }
    }

    /// Completes a wake-up that the waker has not started, or may not have finished. To be called
    /// before this thread serves `thread`. (A thread that faults again has been woken.)
    pub(super) fn let_others_go_on(&self, thread: u32) {
        let waker = &self.pager.waker;
        let waiting = if waker.owes() {
            waker.take_back(self.pager.moment())
        } else if thread != self.left_thread {
            waker.unfinished()
        } else {
            None
        };
        if let Some(owed) = waiting {
            self.pager.let_go_on(owed);
        }
    }

    /// Starts the waker on first use. True if it runs. Programs whose threads never migrate have no
    /// waker. The next fault may find it running where this one does not.
    fn starts_waker(&mut self) -> bool {
        let pager = self.pager;
        if !pager.waker.is_there() && !self.has_called_waker && !pager.serves_regions() {
            self.has_called_waker = true;
            let _ = thread::spawn(waker::run, std::ptr::from_ref(pager) as usize);
        }
        pager.waker.is_there()
    }
}
