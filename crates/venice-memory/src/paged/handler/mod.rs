//! The fault handler: the thread that brings in the pages that the program touches. The same code
//! serves faults in the program's own threads ([`in_thread`](super::in_thread)).
//!
//! The handler waits for those threads, each for the time of one system call, and for the evictor,
//! the latter only while no thread of the program holds the structure lock (that thread may be
//! waiting for the handler). It waits for no other thread. Several handlers on one queue wake each
//! other for nothing (docs/decisions/0026).

mod affinity;
mod children;
mod far_pages;
mod huge;
mod large;
mod prefetch;
mod serve;
mod shared;
mod wake;
mod wake_policy;

use std::sync::atomic::{AtomicU64, Ordering};

use super::PAGE;
use super::far::Far;
use super::fork_state::WATCHED_FDS;
use super::page_table::{Entry, PageNumber, State};
use super::pager::Pager;
use super::presence::Presence;
use super::read_ahead::MAX_PREFETCH;
use super::run_block::SLAB_SLOTS;
use super::shared::Waiter;
use super::slots::Slots;
use super::sys::{self, PollFd};
use super::thread::{self, processor_of};
use super::transfer::MAX_IN_FLIGHT;
use super::uffd::Event;
use affinity::Affinity;
use wake_policy::WakePolicy;

/// Time that the handler polls for frames before it sleeps, in nanoseconds.
const SPIN_NS: u64 = 60_000;

/// A fault being served.
#[derive(Clone, Copy, Debug)]
struct Fault {
    page: PageNumber,
    write: bool,
    /// The thread that touched the page.
    thread: u32,
    cause: Cause,
    started_ns: u64,
    /// The thread in its user, where the page is shared memory.
    waiter: Option<Waiter>,
}

/// The cause for which a page is brought in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Cause {
    /// The program touched it: a demand fault.
    #[default]
    Demand,
    /// It is prefetched around a touched page.
    Prefetch,
    /// It is part of the same large page as a touched one.
    LargePage,
    /// The program advised that it will need it.
    Advised,
}

/// A page that was requested by frames and has not arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Awaited {
    page: PageNumber,
    /// Time at which a thread began to wait for it; 0: no thread waits.
    started_ns: u64,
    /// The thread that waits.
    thread: u32,
    cause: Cause,
    waiter: Option<Waiter>,
}

/// The state of a handler.
pub struct Handler {
    pager: &'static Pager,
    far: Far,
    affinity: Affinity,
    wake_policy: WakePolicy,
    has_started_waker: bool,
    /// The thread whose wake-up was last left to the waker.
    delegated_thread: u32,
    awaited: [Awaited; MAX_IN_FLIGHT],
    /// Faults that met a change of the address space, to be served again.
    deferred: Vec<Fault>,
    /// Reports if a huge page came as one; `None` in a thread's own handler, which brings in no
    /// huge pages.
    presence: Option<Presence>,
    reads_block: bool,
    handed_over: u64,
    awaited_count: usize,
    /// True if it serves in the thread that touched the page ([`in_thread`](super::in_thread)).
    is_in_thread: bool,
    /// True if the last page is unrecoverable.
    is_refused: bool,
    /// True if the waiter of the fault being served goes on without being woken to try again.
    is_waiter_settled: bool,
    /// True once its thread is to end, until it starts again ([`pause`](super::pause)).
    pub(super) is_paused: bool,
}

/// The thread's body; `handler` is the address of a leaked [`Handler`].
pub extern "C" fn run(handler: usize) -> ! {
    // SAFETY: `start::threads` leaked it for this thread alone.
    let handler = unsafe { &mut *(handler as *mut Handler) };
    handler.pager.image.add_thread();
    loop {
        handler.turn();
        handler.end_if_paused();
    }
}

/// The thread's body where a pager ends before its process does.
pub fn run_until_ended(mut handler: Handler) {
    while !handler.pager.is_ending() {
        handler.turn();
    }
}

impl Handler {
    /// Makes a handler that has not started yet.
    pub fn new(pager: &'static Pager, far: Far) -> Handler {
        let presence = Some(Presence::open(&pager.descriptors));
        Handler {
            deferred: Vec::with_capacity(1024),
            presence,
            ..Handler::with_defaults(pager, far)
        }
    }

    /// Makes a handler that serves faults in the threads of the program. It allocates nothing.
    pub fn in_thread(pager: &'static Pager, far: Far) -> Handler {
        Handler { is_in_thread: true, ..Handler::with_defaults(pager, far) }
    }

    fn with_defaults(pager: &'static Pager, far: Far) -> Handler {
        Handler {
            pager,
            far,
            affinity: Affinity::default(),
            wake_policy: WakePolicy::default(),
            has_started_waker: false,
            delegated_thread: 0,
            awaited: [Awaited::default(); MAX_IN_FLIGHT],
            deferred: Vec::new(),
            presence: None,
            reads_block: false,
            handed_over: 0,
            awaited_count: 0,
            is_in_thread: false,
            is_refused: false,
            is_waiter_settled: false,
            is_paused: false,
        }
    }

    /// Prepares the state for a new thread.
    pub(super) fn begin_anew(&mut self) {
        self.affinity = Affinity::default();
        self.has_started_waker = false;
    }

    /// Serves a fault of the calling thread. `false`: its page is unrecoverable; else the thread
    /// may try again.
    pub fn serve_in_thread(&mut self, page: PageNumber, write: bool, is_advised: bool) -> bool {
        self.is_refused = false;
        let cause = if is_advised { Cause::Advised } else { Cause::Demand };
        let thread = thread::this_one();
        let started_ns = sys::monotonic_ns();
        self.serve(Fault { page, write, thread, cause, started_ns, waiter: None });
        self.far.end_read_section(&self.pager.block);
        !self.is_refused
    }

    /// Waits for an event and serves it.
    fn turn(&mut self) {
        self.wait_and_serve();
        self.far.end_read_section(&self.pager.block);
    }

    fn wait_and_serve(&mut self) {
        let watches = self.pager.fork.is_watching();
        let only_faults = self.far.is_mapped() && self.deferred.is_empty() && !watches;
        let only_reads =
            only_faults && self.pager.is_served_by_one() && self.pager.shared.is_none();
        self.block_on_reads(only_reads);
        if only_reads {
            self.serve_event();
            return;
        }
        let mut fds = [PollFd { fd: -1, events: sys::POLLIN, revents: 0 }; 3 + WATCHED_FDS];
        fds[0].fd = self.pager.event_fd();
        if watches {
            self.pager.fork.watch(&mut fds[3..]);
        }
        let mut timeout_ms;
        ([fds[1].fd, fds[2].fd], timeout_ms) = self.far.wait_fds(&self.pager.block);
        if !self.deferred.is_empty() {
            timeout_ms = 1;
        }
        if self.awaited_count > 0 {
            // The waker does not run while this thread spins.
            self.wake_others(self.delegated_thread);
            if self.spin_for_arrivals() {
                timeout_ms = 0;
            }
        }
        sys::poll(&mut fds, timeout_ms);
        if fds[0].revents != 0 {
            self.serve_event();
        }
        if self.pager.fork.is_watching() {
            self.serve_forked_children();
        }
        self.take_arrivals();
        self.retry_deferred();
    }

    /// Polls for the page for about a round trip. The faulting thread waits, so the processor has
    /// no better use; other threads get it at once by the yield. To sleep and be woken would cost
    /// as much as the round trip. True if something arrived.
    fn spin_for_arrivals(&mut self) -> bool {
        let until_ns = sys::monotonic_ns() + SPIN_NS;
        while sys::monotonic_ns() < until_ns {
            if self.take_arrivals() {
                return true;
            }
            sys::yield_now();
        }
        false
    }

    /// Makes reads of the userfaultfd blocking or not. With nothing to wait for but faults, a
    /// blocking read spares each of them a `poll`.
    fn block_on_reads(&mut self, block: bool) {
        if self.reads_block != block && sys::set_nonblocking(self.pager.uffd().fd, !block).is_ok() {
            self.reads_block = block;
        }
    }

    /// Serves the next message of the userfaultfd, if there is one.
    fn serve_event(&mut self) {
        if let Some(home) = &self.pager.shared {
            return self.serve_users(home);
        }
        if let Some(Event::Fault { address, write, thread, .. }) = self.next_event() {
            let started_ns = sys::monotonic_ns();
            self.wake_others(thread);
            self.follow_faults(thread, started_ns);
            self.serve(self.fault(address, write, thread, started_ns));
        }
    }

    /// Reads the next message; a fork is handled at once. Threads that serve themselves and have
    /// placed a page meanwhile see that a fork may have been read ([`Handler::wait_for_forks`]).
    fn next_event(&mut self) -> Option<Event> {
        let pager = self.pager;
        let reading = pager.block_event_reads();
        let event = pager.uffd().read_event();
        if matches!(event, Some(Event::Fault { .. })) {
            pager.faults_read.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(Event::Fault { address, .. }) = event
            && pager.pause.ends_handler(address)
        {
            self.is_paused = true;
            let _ = pager.uffd().zero(address, PAGE, true);
            return Some(Event::Other);
        }
        if let Some(Event::Fork { child }) = event {
            let whole = pager.fork.adopt_child(&pager.descriptors, child);
            drop(reading);
            if whole {
                self.copy_all_to_child(child);
            } else if let Some(in_thread) = &pager.in_thread {
                pager.fork.send_in_thread_uffd(in_thread.read_forked_child());
            }
        }
        event
    }

    /// Follows the faults to their processor, and updates the wake policy.
    fn follow_faults(&mut self, thread: u32, now_ns: u64) {
        let counters = &self.pager.block.counters;
        let late = self.wake_policy.note_fault(thread, self.pager.waker.times_late(), now_ns);
        if late > 0 {
            counters.woken_late.fetch_add(u64::from(late), Ordering::Relaxed);
        }
        let mut is_asked = false;
        let processor_of = |thread| {
            is_asked = true;
            processor_of(thread)
        };
        if let Some(cpu) = self.affinity.on_fault(thread, now_ns, processor_of) {
            sys::pin_to_cpu(cpu);
            self.affinity.moved_to(cpu);
            self.pager.move_threads_to(cpu);
            counters.handler_moves.fetch_add(1, Ordering::Relaxed);
            self.wake_policy.note_move(now_ns);
        }
        if is_asked && self.wake_policy.is_on() && !sys::may_move(thread) {
            self.wake_policy.note_pinned();
        }
        self.affinity.set_eager(self.wake_policy.is_on());
        self.pager.waker.set_in_use(self.wake_policy.is_on());
    }

    /// Waits for a fork that may be under way. To be called between the placement of pages and
    /// their release, while they are still busy.
    ///
    /// If the handler has just read of a fork made by a bare system call, pages that a thread has
    /// placed by itself may have been placed after the fork, in the parent alone. The handler
    /// copies them into the child from where they came from; for that they must stay busy until it
    /// is done.
    fn wait_for_forks(&self) {
        let pager = self.pager;
        if !pager.is_served_by_one() {
            pager.reading.wait_until_free();
            pager.fork.wait_while_copying();
        }
    }

    fn retry_deferred(&mut self) {
        for _ in 0..self.deferred.len() {
            let fault = self.deferred.remove(0);
            self.serve(fault);
        }
    }

    /// Reads one message while the address space changes under a placement: a fork waits until its
    /// event is read.
    fn read_event_before_retry(&mut self) {
        match self.next_event() {
            Some(Event::Fork { .. }) => {}
            Some(Event::Fault { address, write, thread, .. }) => {
                self.defer(self.fault(address, write, thread, sys::monotonic_ns()));
            }
            Some(Event::Other) | None => sys::yield_now(),
        }
    }

    fn fault(&self, address: usize, write: bool, thread: u32, started_ns: u64) -> Fault {
        let page = address / PAGE;
        let is_advised = self.pager.will_need.covers(thread, page);
        let cause = if is_advised { Cause::Advised } else { Cause::Demand };
        Fault { page, write, thread, cause, started_ns, waiter: None }
    }

    /// Claims a page if it is in `state` and in the table.
    fn claim_in_state(&self, page: PageNumber, state: State) -> bool {
        self.pager.table.entry(page).is_some_and(|entry| self.claim(page, entry, state))
    }

    /// Claims a page. One that was zero counts as live before it is busy, so that a child forked
    /// meanwhile finds it.
    fn claim(&self, page: PageNumber, entry: &Entry, state: State) -> bool {
        if state != State::Zero {
            return entry.claim(state);
        }
        if entry.state() != State::Zero {
            return false;
        }
        self.pager.table.count_live(page);
        let claimed = entry.claim(State::Zero);
        if !claimed {
            self.pager.table.count_dead(page);
        }
        claimed
    }

    fn free_token(&self) -> Option<u32> {
        self.awaited.iter().position(|a| a.page == 0).map(|free| free as u32)
    }

    fn forget_slot(&self, entry: &Entry) {
        let process = self.pager.process.load(Ordering::Relaxed);
        Slots::new(process).forget(&self.pager.block, entry);
    }

    fn release_entry(&self, page: PageNumber, to: State) {
        if let Some(entry) = self.pager.table.entry(page) {
            self.release(page, entry, to);
        }
    }

    fn release(&self, page: PageNumber, entry: &Entry, to: State) {
        if self.release_quietly(page, entry, to) {
            self.pager.wake_page(page);
        }
    }

    /// Releases a page whose waiters the caller wakes. True if there are any.
    fn release_quietly(&self, page: PageNumber, entry: &Entry, to: State) -> bool {
        let waited = entry.release(to);
        // While a fork is under way the child may find the page busy: its block must count as live
        // then. One live page too many costs only a look-up.
        if to == State::Zero && !self.pager.fork.is_open() {
            self.pager.table.count_dead(page);
        }
        waited
    }

    fn arrived(&self, pages: usize) {
        self.pager.resident().fetch_add(pages as u64, Ordering::Relaxed);
        self.pager.ring_if_needed(self.pager.charged());
    }

    /// Counts pages that were brought in, `ahead` of them beside the requested one.
    fn count_in(&self, cause: Cause, pages: usize, ahead: usize) {
        let counters = &self.pager.block.counters;
        counters.pages_in.fetch_add(pages as u64, Ordering::Relaxed);
        match cause {
            Cause::Advised => counters.wanted_in.fetch_add(pages as u64, Ordering::Relaxed),
            Cause::LargePage => counters.large_in.fetch_add(ahead as u64, Ordering::Relaxed),
            _ => counters.read_ahead.fetch_add(ahead as u64, Ordering::Relaxed),
        };
    }

    /// Counts a demand fault.
    fn count_fault(&self, cause: Cause, counter: &AtomicU64) {
        if cause == Cause::Demand {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

const _: () = assert!(MAX_PREFETCH < SLAB_SLOTS as usize, "a prefetch spans two slabs at most");
