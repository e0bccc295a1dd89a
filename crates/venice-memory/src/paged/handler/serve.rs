//! Service of one fault: the handler claims the page, brings its contents in and wakes its thread.

use std::sync::atomic::Ordering;

use super::super::budget;
use super::super::page_size::LARGE_PAGES;
use super::super::page_table::{Entry, PageNumber, State};
use super::super::staging::Frame;
use super::super::sys::{self, Errno, SysResult};
use super::super::uffd::Uffd;
use super::super::{PAGE, address_of};
use super::{Fault, Handler};

/// Longest wait of a fault for the evictor to make room before the budget is overdrawn, in
/// nanoseconds: a page too many is better than a deadlock.
const ROOM_PATIENCE_NS: u64 = 2_000_000_000;
/// Turns of the evictor, at most a millisecond each, that may make no room before a page of 64 KiB
/// is brought in without it; a larger page waits in proportion to its size.
const TURNS_IN_VAIN: u64 = 4;

/// Checks of a busy page, in a thread that serves itself, before it begins to yield the processor.
const BUSY_LOOKS: u32 = 400;
/// Yields before the thread tries again.
const BUSY_TURNS: u32 = 64;

/// Waits a while for a busy page, on which its owner works.
fn wait_while_busy(entry: &Entry) {
    for look in 0..BUSY_LOOKS + BUSY_TURNS {
        if entry.state() != State::Busy {
            return;
        }
        if look < BUSY_LOOKS { std::hint::spin_loop() } else { sys::yield_now() }
    }
}

impl Handler {
    /// Brings in the page of `fault`, and its prefetch.
    pub(super) fn serve(&mut self, fault: Fault) {
        match (&self.pager.shared, fault.waiter) {
            (Some(home), Some(waiter)) => self.serve_shared(fault, home, waiter),
            _ => self.serve_page(fault),
        }
    }

    pub(super) fn serve_page(&mut self, fault: Fault) {
        let pager = self.pager;
        let managed = pager.table.entry(fault.page).filter(|_| !pager.staging.covers(fault.page));
        let Some(entry) = managed else {
            // A hole in the staging area, or a page that is not managed.
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
                State::Busy if self.is_in_thread => return wait_while_busy(entry),
                State::Busy if entry.mark_waited() => return self.settle_waiter(),
                State::Busy => continue,
                State::Resident => match fault.waiter {
                    None => return self.serve_resident(fault, entry),
                    Some(waiter) => return self.serve_shared_resident(fault, entry, waiter),
                },
                State::Poisoned => match fault.waiter {
                    None => return self.poison(fault.page),
                    Some(waiter) => return self.poison_shared(fault, waiter),
                },
                State::Zero | State::Staged | State::Far => {}
            }
            let slot = if state == State::Far { entry.slot() } else { None };
            if self.is_huge(&fault) && self.bring_huge(&fault, slot) {
                return;
            }
            self.wait_for_room(slot, self.room_wanted(&fault) as u64);
            // Its frame must be there for a child that is forked before this, and may be gone for
            // one forked later: no fork is read in between.
            let apart = (state == State::Staged).then(|| pager.block_event_reads());
            if !self.claim(fault.page, entry, state) {
                continue;
            }
            self.count_fault(fault.cause, &counters.faults);
            if self.is_in_thread {
                self.count_fault(fault.cause, &counters.in_thread_faults);
            }
            match state {
                State::Zero => self.bring_zeros(fault, entry),
                State::Staged => self.bring_staged(fault, entry),
                _ => self.bring_far(fault, entry),
            }
            drop(apart);
            if state == State::Staged && self.is_large(&fault) {
                self.complete_large(fault.page);
            }
            return;
        }
    }

    /// Serves a fault on a resident page: another fault brought it in, or the program dropped it by
    /// a bare system call; then it reads as zeros. The page is claimed first, lest the evictor
    /// takes it away and zeros get into its place.
    fn serve_resident(&mut self, fault: Fault, entry: &Entry) {
        let pager = self.pager;
        let address = address_of(fault.page);
        let apart = pager.block_event_reads();
        if !entry.claim(State::Resident) {
            drop(apart);
            return self.serve_page(fault);
        }
        let outcome = pager.uffd().zero(address, PAGE, false);
        if outcome.is_ok() {
            self.forget_slot(entry);
        }
        self.release_quietly(fault.page, entry, State::Resident);
        self.note_refused(&outcome);
        match outcome {
            Err(Errno::EAGAIN) => self.defer(fault),
            _ => pager.wake_page(fault.page),
        }
    }

    fn bring_zeros(&mut self, fault: Fault, entry: &Entry) {
        let pager = self.pager;
        if self.is_large(&fault) {
            pager.block.counters.zero_faults.fetch_add(1, Ordering::Relaxed);
            return self.bring_large(fault, entry, State::Zero, pager.zeros);
        }
        let ahead = self.plan_prefetch(&fault);
        let ahead = if ahead.stride() == 1 { ahead.count() } else { 0 };
        let mut count = 1;
        while count <= ahead && self.claim_in_state(fault.page + count, State::Zero) {
            count += 1;
        }
        let address = address_of(fault.page);
        let pages = fault.page..fault.page + count;
        let mut placed = self.install_and_wake(&fault, pages, |uffd, wake| {
            if count == 1 && !fault.write {
                uffd.zero(address, PAGE, wake)
            } else {
                uffd.copy(address, pager.zeros, count * PAGE, wake)
            }
        });
        if placed.is_err() && count > 1 {
            // The prefetch may reach past the end of the mapping, or pages may be there by a bare
            // system call.
            placed = pager.uffd().copy(address, pager.zeros, PAGE, true);
        }
        self.wait_for_forks();
        let done = placed.map_or(0, |bytes| bytes / PAGE);
        for ahead in 1..count {
            let state = if ahead < done { State::Resident } else { State::Zero };
            self.release_entry(fault.page + ahead, state);
        }
        pager.block.counters.zero_faults.fetch_add(1, Ordering::Relaxed);
        if done == 0 {
            return self.undo_placement(fault, entry, State::Zero, placed);
        }
        self.arrived(done);
        self.release(fault.page, entry, State::Resident);
    }

    /// Moves a page back from the staging area, with the prefetch that lies there. While a `fork`
    /// is under way the frame must stay as it is for the child, so the page is copied; likewise
    /// where it is shared.
    fn bring_staged(&mut self, fault: Fault, entry: &Entry) {
        let pager = self.pager;
        let (address, frame) = (address_of(fault.page), entry.frame());
        let source = pager.staging.address(frame);
        let mut moved = Err(Errno::EBUSY);
        let mut beside = 0;
        // A page of shared memory is copied: its home is the page cache, not this process.
        if !pager.fork.is_open() && fault.waiter.is_none() {
            beside = self.claim_staged_prefetch(&fault, frame);
            let uffd = pager.uffd_of(fault.page);
            moved = uffd.move_pages(address, source, (1 + beside) * PAGE);
            if moved.is_err() && beside > 0 {
                // They may span mappings that differ.
                moved = uffd.move_pages(address, source, PAGE);
            }
        }
        self.settle_staged_prefetch(
            fault.page,
            frame,
            beside,
            moved.map_or(0, |bytes| bytes / PAGE),
        );
        let outcome = match moved {
            Ok(_) => {
                pager.staging.set(frame, Frame::Empty);
                self.wake_thread(&fault, true);
                moved
            }
            Err(_) => {
                let copy = |uffd: Uffd, wake| uffd.copy(address, source, PAGE, wake);
                let copied = match fault.waiter {
                    None => copy(pager.uffd(), true),
                    Some(_) => self.install_and_wake(&fault, fault.page..fault.page + 1, copy),
                };
                if copied.is_ok() {
                    pager.staging.set(frame, Frame::OrphanOf(fault.page));
                    self.arrived(1);
                }
                copied
            }
        };
        match outcome {
            Ok(_) => {
                self.count_fault(fault.cause, &pager.block.counters.staged_faults);
                self.release(fault.page, entry, State::Resident);
            }
            Err(_) => self.undo_placement(fault, entry, State::Staged, outcome),
        }
    }

    /// Poisons a page: touching it is an error. A thread that serves its own fault has the signal
    /// already.
    pub(super) fn poison(&mut self, page: PageNumber) {
        self.is_refused = true;
        let uffd = self.pager.uffd();
        let outcome = uffd.poison(address_of(page), PAGE);
        if let Err(errno) = uffd.settle(address_of(page), outcome)
            && errno != Errno::ENOENT
        {
            uffd.wake(address_of(page), PAGE);
        }
    }

    /// Undoes a placement that failed: the page is as before, and the fault is served again later
    /// if the address space was changing, or else its thread is woken to fault again.
    pub(super) fn undo_placement(
        &mut self,
        fault: Fault,
        entry: &Entry,
        to: State,
        outcome: SysResult<usize>,
    ) {
        self.release_quietly(fault.page, entry, to);
        self.note_refused(&outcome);
        match outcome {
            Err(Errno::EAGAIN) => self.defer(fault),
            Err(Errno::EEXIST) if fault.waiter.is_some() => self.accept_cached(fault, entry, to),
            Err(Errno::ENOMEM) => {
                sys::die("this machine is out of memory for a page of the program")
            }
            _ => self.pager.wake_page(fault.page),
        }
    }

    /// Records that the page cannot be placed, though the table lists it: the program mapped
    /// something else there by a bare system call.
    fn note_refused(&mut self, outcome: &SysResult<usize>) {
        self.is_refused |= matches!(outcome, Err(Errno::ENOENT | Errno::EINVAL));
    }

    pub(super) fn defer(&mut self, fault: Fault) {
        if self.is_in_thread {
            // The thread tries again, and a handler reads of the fork meanwhile.
            sys::yield_now();
        } else if self.deferred.len() < self.deferred.capacity() {
            self.settle_waiter();
            self.deferred.push(fault);
        } else {
            self.pager.wake_page(fault.page);
        }
    }

    /// Waits while the budget has no room for `wanted` pages and the evictor can make some; for
    /// more than one page, only as long as it makes any room. A page lost with its donor takes no
    /// room, and the program must learn of it at once.
    pub(super) fn wait_for_room(&self, slot: Option<u32>, mut wanted: u64) {
        let pager = self.pager;
        let is_lost = || slot.is_some_and(|slot| !pager.block.slot_is_alive(slot));
        let full = |wanted: u64| {
            let limit = pager.limit_pages.load(Ordering::Relaxed);
            // The evictor makes no more room than that in a small budget.
            let slack = budget::slack(limit, pager.block.largest_page_size());
            let wanted = wanted.min(slack).max(1);
            pager.charged() + wanted > limit
        };
        if !full(wanted) {
            return;
        }
        let (mut least, mut in_vain) = (u64::MAX, 0);
        let most_in_vain = TURNS_IN_VAIN * wanted.div_ceil(LARGE_PAGES as u64);
        let patience_ends_ns = sys::monotonic_ns() + ROOM_PATIENCE_NS;
        let hopeless = || {
            pager.lock.is_held_by_program()
                || pager.fork.is_watching()
                || pager.evictor_stuck.load(Ordering::Relaxed) != 0
        };
        while full(wanted) && !hopeless() && !is_lost() {
            let seen = pager.evictor_progress.load(Ordering::Acquire);
            pager.ring_if_needed(u64::MAX);
            sys::futex_wait(&pager.evictor_progress, seen, Some(1_000_000), false);
            let charged = pager.charged();
            in_vain = if charged < least { 0 } else { in_vain + 1 };
            least = least.min(charged);
            if in_vain >= most_in_vain {
                wanted = 1;
            }
            if sys::monotonic_ns() > patience_ends_ns {
                return;
            }
        }
    }
}
