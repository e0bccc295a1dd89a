//! The fault handler: one thread that brings in what the program touches.
//!
//! It takes no lock and waits for nobody but the evictor, and for that one only while no
//! thread of the program holds the structure lock (that thread may be waiting for us).

mod children;
mod far_pages;

use std::sync::atomic::Ordering;

use super::far::Far;
use super::fork_window::WATCHED_FDS;
use super::page_table::{Entry, PageNumber, State};
use super::pager::{MAX_WINDOW, Pager};
use super::read_ahead::ReadAhead;
use super::run_block::SLAB_SLOTS;
use super::slots::Slots;
use super::staging::Frame;
use super::sys::{self, Errno, PollFd, SysResult};
use super::thread::Follower;
use super::transfer::MAX_IN_FLIGHT;
use super::uffd::{Event, Uffd};
use super::{PAGE, address_of};

/// How long a fault waits at most for the evictor to make room before the budget is
/// overdrawn: a page too many is better than a deadlock.
const ROOM_PATIENCE_NS: u64 = 2_000_000_000;

/// How long the handler looks for frames before it sleeps.
const SPIN_NS: u64 = 60_000;
/// The first so many faults are timed, and then one in so many.
const TIME_FIRST: u64 = 256;
/// See [`TIME_FIRST`].
const TIME_ONE_IN: u64 = 16;

/// A fault being served.
#[derive(Clone, Copy, Debug)]
struct Fault {
    page: PageNumber,
    write: bool,
    started_ns: u64,
}

/// A page asked for by frames and not here yet.
#[derive(Clone, Copy, Debug, Default)]
struct Awaited {
    page: PageNumber,
    started_ns: u64,
    ahead: bool,
}

/// The handler's own state.
pub struct Handler {
    pager: &'static Pager,
    far: Far,
    read_ahead: ReadAhead,
    follower: Follower,
    awaited: [Awaited; MAX_IN_FLIGHT],
    /// Faults that met a change of the address space, to be served again.
    deferred: Vec<Fault>,
    reads_block: bool,
    handed_over: u64,
    awaited_count: usize,
}

/// The thread's body; `handler` is the address of a leaked [`Handler`].
pub extern "C" fn run(handler: usize) -> ! {
    // SAFETY: `start::threads` leaked it for this thread alone.
    let handler = unsafe { &mut *(handler as *mut Handler) };
    loop {
        handler.turn();
    }
}

impl Handler {
    /// A handler that has not started yet.
    pub fn new(pager: &'static Pager, far: Far) -> Handler {
        Handler {
            pager,
            far,
            read_ahead: ReadAhead::default(),
            follower: Follower::default(),
            awaited: [Awaited::default(); MAX_IN_FLIGHT],
            deferred: Vec::with_capacity(1024),
            reads_block: false,
            handed_over: 0,
            awaited_count: 0,
        }
    }

    /// Waits for something to do and does it.
    fn turn(&mut self) {
        let only_faults = matches!(self.far, Far::Shm(_))
            && self.deferred.is_empty()
            && !self.pager.fork.is_watching();
        self.block_on_reads(only_faults);
        if only_faults {
            return self.serve_events();
        }
        let mut fds = [PollFd { fd: -1, events: sys::POLLIN, revents: 0 }; 3 + WATCHED_FDS];
        fds[0].fd = self.pager.uffd().fd;
        self.pager.fork.watch(&mut fds[3..]);
        let mut timeout_ms = -1;
        [fds[1].fd, fds[2].fd] = self.far.wait_fds();
        if !self.deferred.is_empty() {
            timeout_ms = 1;
        }
        if self.awaited_count > 0 && self.spin_for_arrivals() {
            timeout_ms = 0;
        }
        sys::poll(&mut fds, timeout_ms);
        if fds[0].revents != 0 {
            self.serve_events();
        }
        if self.pager.fork.is_watching() {
            self.serve_forked_children();
        }
        self.take_arrivals();
        self.retry_deferred();
    }

    /// The faulting thread waits, so this processor has nothing better to do than to look for
    /// the page for about a round trip; whoever else wants it gets it at once. Sleeping and
    /// being woken would cost as much as the round trip. `true`: something came.
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

    /// With nothing to wait for but faults, a blocking read spares each of them a `poll`.
    fn block_on_reads(&mut self, block: bool) {
        if self.reads_block != block && sys::set_nonblocking(self.pager.uffd().fd, !block).is_ok() {
            self.reads_block = block;
        }
    }

    fn serve_events(&mut self) {
        match self.pager.uffd().read_event() {
            Some(Event::Fault { address, write, thread }) => {
                let started_ns = sys::monotonic_ns();
                if let Some(cpu) = self.follower.follow(thread, started_ns) {
                    self.pager.followed_cpu.store(cpu, Ordering::Relaxed);
                }
                self.serve(Fault { page: address / PAGE, write, started_ns });
            }
            Some(Event::Fork { child }) => self.hear_of_child(child),
            Some(Event::Other) | None => {}
        }
    }

    fn retry_deferred(&mut self) {
        for _ in 0..self.deferred.len() {
            let fault = self.deferred.remove(0);
            self.serve(fault);
        }
    }

    /// Brings in the page of `fault`, and what lies ahead of it.
    fn serve(&mut self, fault: Fault) {
        let pager = self.pager;
        let managed = pager.table.entry(fault.page).filter(|_| !pager.staging.covers(fault.page));
        let Some(entry) = managed else {
            // A hole in the staging area, or a page of nobody's.
            let address = address_of(fault.page);
            match pager.uffd().settle(address, pager.uffd().zero(address, PAGE, true)) {
                Err(Errno::EAGAIN) => self.defer(fault),
                Err(_) => pager.uffd().wake(address, PAGE),
                Ok(()) => {}
            }
            return;
        };
        let counters = &pager.block.counters;
        loop {
            let state = entry.state();
            match state {
                State::Busy if entry.mark_waited() => return,
                State::Busy => continue,
                State::Resident => return self.serve_resident(fault, entry),
                State::Poisoned => {
                    self.poison(fault.page);
                    return;
                }
                State::Zero | State::Staged | State::Far => {}
            }
            self.wait_for_room();
            if !self.claim(fault.page, entry, state) {
                continue;
            }
            counters.faults.fetch_add(1, Ordering::Relaxed);
            return match state {
                State::Zero => self.bring_zeros(fault, entry),
                State::Staged => self.bring_staged(fault, entry),
                _ => self.bring_far(fault, entry),
            };
        }
    }

    /// A fault on a page that is there: somebody else's fault brought it, or the program
    /// dropped it behind our back (a bare system call); then it reads as zeros. The page is
    /// claimed first, lest the evictor takes it away just now and zeros get into its place.
    fn serve_resident(&mut self, fault: Fault, entry: &Entry) {
        let pager = self.pager;
        let address = address_of(fault.page);
        if !entry.claim(State::Resident) {
            return self.serve(fault);
        }
        let outcome = pager.uffd().zero(address, PAGE, false);
        if outcome.is_ok() {
            self.forget_slot(entry);
        }
        self.release_quietly(fault.page, entry, State::Resident);
        match outcome {
            Err(Errno::EAGAIN) => self.defer(fault),
            _ => pager.uffd().wake(address, PAGE),
        }
    }

    fn bring_zeros(&mut self, fault: Fault, entry: &Entry) {
        let pager = self.pager;
        let window = self.window_for(fault.page);
        let mut count = 1;
        while count < window && self.claim_ahead(fault.page + count, State::Zero) {
            count += 1;
        }
        let address = address_of(fault.page);
        let mut placed = self.hand_over(&fault, |uffd, wake| {
            if count == 1 && !fault.write {
                uffd.zero(address, PAGE, wake)
            } else {
                uffd.copy(address, pager.zeros, count * PAGE, wake)
            }
        });
        if placed.is_err() && count > 1 {
            // What lies ahead may end with the mapping, or be there behind our back.
            placed = pager.uffd().copy(address, pager.zeros, PAGE, true);
        }
        let done = placed.map_or(0, |bytes| bytes / PAGE);
        for ahead in 1..count {
            let state = if ahead < done { State::Resident } else { State::Zero };
            self.release_entry(fault.page + ahead, state);
        }
        pager.block.counters.zero_faults.fetch_add(1, Ordering::Relaxed);
        if done == 0 {
            return self.give_back(fault, entry, State::Zero, placed);
        }
        self.arrived(done);
        self.release(fault.page, entry, State::Resident);
    }

    /// Moves a page back from the staging area. While a `fork` is under way its frame must
    /// stay as it is for the child, so it is copied then; likewise where it is shared.
    fn bring_staged(&mut self, fault: Fault, entry: &Entry) {
        let pager = self.pager;
        let (address, frame) = (address_of(fault.page), entry.frame());
        let source = pager.staging.address(frame);
        let mut moved = Err(Errno::EBUSY);
        if !pager.fork.is_open() {
            moved = pager.uffd().move_pages(address, source, PAGE);
        }
        let outcome = match moved {
            Ok(_) => {
                pager.staging.set(frame, Frame::Empty);
                self.record(fault.started_ns);
                pager.uffd().wake(address, PAGE);
                moved
            }
            Err(_) => {
                let copied = pager.uffd().copy(address, source, PAGE, true);
                if copied.is_ok() {
                    pager.staging.set(frame, Frame::OrphanOf(fault.page));
                    self.arrived(1);
                }
                copied
            }
        };
        match outcome {
            Ok(_) => {
                pager.block.counters.staged_faults.fetch_add(1, Ordering::Relaxed);
                self.release(fault.page, entry, State::Resident);
            }
            Err(_) => self.give_back(fault, entry, State::Staged, outcome),
        }
    }

    /// The address space is changing under a placement: a fork waits for us to read its event.
    fn read_event_before_retry(&mut self) {
        let pager = self.pager;
        match pager.uffd().read_event() {
            Some(Event::Fork { child }) => self.hear_of_child(child),
            Some(Event::Fault { address, write, .. }) => {
                let started_ns = sys::monotonic_ns();
                self.defer(Fault { page: address / PAGE, write, started_ns });
            }
            Some(Event::Other) | None => sys::yield_now(),
        }
    }

    fn poison(&self, page: PageNumber) {
        let uffd = self.pager.uffd();
        let outcome = uffd.poison(address_of(page), PAGE);
        if let Err(errno) = uffd.settle(address_of(page), outcome)
            && errno != Errno::ENOENT
        {
            uffd.wake(address_of(page), PAGE);
        }
    }

    /// A placement failed: the page is as before, and the fault is served again later if the
    /// address space was changing, or its thread looks again.
    fn give_back(&mut self, fault: Fault, entry: &Entry, to: State, why: SysResult<usize>) {
        self.release_quietly(fault.page, entry, to);
        match why {
            Err(Errno::EAGAIN) => self.defer(fault),
            Err(Errno::ENOMEM) => {
                sys::die("this machine is out of memory for a page of the program")
            }
            _ => self.pager.wake_page(fault.page),
        }
    }

    fn defer(&mut self, fault: Fault) {
        if self.deferred.len() < self.deferred.capacity() {
            self.deferred.push(fault);
        } else {
            self.pager.wake_page(fault.page);
        }
    }

    fn window_for(&mut self, page: PageNumber) -> usize {
        let limit = self.pager.limit_pages.load(Ordering::Relaxed);
        let room = limit.saturating_sub(self.pager.resident().load(Ordering::Relaxed)) as usize;
        let most = self.pager.block.read_ahead_pages.load(Ordering::Relaxed) as usize;
        self.read_ahead.on_fault(page, (most + 1).min(room.max(1)).min(MAX_WINDOW))
    }

    /// Claims a page ahead of a fault if it is in `state` and in the table.
    fn claim_ahead(&self, page: PageNumber, state: State) -> bool {
        self.pager.table.entry(page).is_some_and(|entry| self.claim(page, entry, state))
    }

    /// Claims a page; one that was zero counts as live from before it is busy, so that a child
    /// forked meanwhile finds it.
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

    /// Releases a page whose waiters are looked after by the caller; tells whether there are any.
    fn release_quietly(&self, page: PageNumber, entry: &Entry, to: State) -> bool {
        let waited = entry.release(to);
        // While a fork is under way the child may find the page busy: its block must count as
        // live then. One live page too many costs a look.
        if to == State::Zero && !self.pager.fork.is_open() {
            self.pager.table.count_dead(page);
        }
        waited
    }

    fn arrived(&self, pages: usize) {
        let before = self.pager.resident().fetch_add(pages as u64, Ordering::Relaxed);
        self.pager.ring_if_needed(before + pages as u64);
    }

    fn count_in(&self, pages: usize) {
        self.pager.block.counters.pages_in.fetch_add(pages as u64, Ordering::Relaxed);
        let ahead = pages.saturating_sub(1) as u64;
        self.pager.block.counters.read_ahead.fetch_add(ahead, Ordering::Relaxed);
    }

    /// Installs the page of a fault and wakes its thread. The thread may take the processor as
    /// soon as it is woken, so the time is taken before, at the price of a system call more, and
    /// only for some of the faults.
    fn hand_over(
        &mut self,
        fault: &Fault,
        install: impl FnOnce(Uffd, bool) -> SysResult<usize>,
    ) -> SysResult<usize> {
        self.handed_over += 1;
        let timed = self.handed_over < TIME_FIRST || self.handed_over.is_multiple_of(TIME_ONE_IN);
        let uffd = self.pager.uffd();
        let outcome = install(uffd, !timed);
        if timed {
            if outcome.is_ok() {
                self.record(fault.started_ns);
            }
            uffd.wake(address_of(fault.page), PAGE);
        }
        outcome
    }

    fn record(&self, started_ns: u64) {
        self.pager.block.record_fault_ns(sys::monotonic_ns() - started_ns);
    }

    /// Waits while the budget is used up and the evictor can do something about it.
    fn wait_for_room(&self) {
        let pager = self.pager;
        let full = || {
            pager.resident().load(Ordering::Relaxed) >= pager.limit_pages.load(Ordering::Relaxed)
        };
        if !full() {
            return;
        }
        let patience_ends_ns = sys::monotonic_ns() + ROOM_PATIENCE_NS;
        let hopeless = || {
            pager.lock.is_held_by_program()
                || pager.fork.is_watching()
                || pager.evictor_stuck.load(Ordering::Relaxed) != 0
        };
        while full() && !hopeless() {
            let seen = pager.evictor_progress.load(Ordering::Acquire);
            pager.ring_if_needed(u64::MAX);
            sys::futex_wait(&pager.evictor_progress, seen, Some(1_000_000), false);
            if sys::monotonic_ns() > patience_ends_ns {
                return;
            }
        }
    }
}

const _: () = assert!(MAX_WINDOW < SLAB_SLOTS as usize, "a window spans two slabs at most");
