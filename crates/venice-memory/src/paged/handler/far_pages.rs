//! Far pages: requested from a donor, together with their prefetch, and installed.

use std::sync::atomic::Ordering;

use super::super::loss;
use super::super::page_table::{Entry, PageNumber, State};
use super::super::read_ahead::Steps;
use super::super::sys::{self, Errno};
use super::super::transfer::Fetch;
use super::super::{PAGE, address_of};
use super::{Awaited, Cause, Fault, Handler};

impl Handler {
    pub(super) fn bring_far(&mut self, fault: Fault, entry: &Entry) {
        let slot = entry.slot().expect("a far page has a slot");
        self.note_refault(&fault);
        self.count_fault(fault.cause, &self.pager.block.counters.far_faults);
        let Some(token) = self.free_token() else {
            self.release_quietly(fault.page, entry, State::Far);
            return self.defer(fault);
        };
        match self.far.fetch(&self.pager.block, slot, token) {
            Fetch::Ready(source) if self.far.is_from_disk() => {
                self.pager.block.counters.behind_in.fetch_add(1, Ordering::Relaxed);
                self.install_ready(fault, entry, source, slot, Steps::default());
            }
            Fetch::Ready(source) if self.is_large(&fault) => {
                self.bring_large(fault, entry, State::Far, source);
            }
            Fetch::Ready(source) => {
                let prefetch = self.plan_prefetch(&fault);
                self.install_ready(fault, entry, source, slot, prefetch);
            }
            Fetch::Pending => {
                let Fault { page, thread, cause, started_ns, waiter, .. } = fault;
                self.awaited[token as usize] = Awaited { page, started_ns, thread, cause, waiter };
                self.settle_waiter();
                self.awaited_count += 1;
                if self.is_large(&fault) {
                    return self.request_large(&fault);
                }
                let prefetch = self.plan_prefetch(&fault);
                self.request_prefetch(&fault, prefetch);
            }
            Fetch::Full => {
                self.release_quietly(fault.page, entry, State::Far);
                self.defer(fault);
            }
            Fetch::Lost => self.lose_page(fault.page, entry, slot),
        }
    }

    /// Records a refault. Only demand faults count.
    fn note_refault(&self, fault: &Fault) {
        let pager = self.pager;
        if fault.cause == Cause::Demand
            && let Some(left_at) = pager.table.left_at(fault.page)
        {
            let limit_pages = pager.limit_pages.load(Ordering::Relaxed);
            pager.block.record_refault(pager.refaults.note(left_at, limit_pages));
        }
    }

    /// Installs the page at `source` and its `prefetch`. Pages beside it whose slots lie
    /// beside its own go in one call.
    fn install_ready(
        &mut self,
        fault: Fault,
        entry: &Entry,
        source: usize,
        slot: u32,
        prefetch: Steps,
    ) {
        let uffd = self.pager.uffd();
        let beside = self.claim_adjacent(slot, prefetch);
        // Backwards they lie below it.
        let below = if prefetch.stride() < 0 { beside } else { 0 };
        let address = address_of(fault.page);
        self.far.hold_for(beside + 1);
        let pages = fault.page - below..fault.page - below + beside + 1;
        let outcome = self.install_and_wake(&fault, pages, |uffd, wake| {
            let (to, from) = (address - below * PAGE, source - below * PAGE);
            uffd.copy(to, from, (beside + 1) * PAGE, wake)
        });
        let done = outcome.map_or(0, |bytes| bytes / PAGE);
        // The faulting page itself counts: the others may fail.
        let is_there = done > below || beside > 0 && uffd.copy(address, source, PAGE, true).is_ok();
        self.wait_for_forks();
        let mut came = usize::from(is_there);
        for (at, page) in prefetch.pages().take(beside).enumerate() {
            let is_placed = if below > 0 { below - 1 - at < done } else { at + 1 < done };
            if is_placed {
                came += 1;
                self.release_prefetched(page, fault.cause);
            } else {
                self.release_entry(page, State::Far);
            }
        }
        if came > 0 {
            self.arrived(came);
            self.count_in(fault.cause, came, came - usize::from(is_there));
        }
        if !is_there {
            return self.undo_placement(fault, entry, State::Far, outcome);
        }
        self.release(fault.page, entry, State::Resident);
        self.install_prefetch(fault.cause, prefetch, beside);
    }

    /// Installs the pages that arrived by frames. True if there were any.
    pub(super) fn take_arrivals(&mut self) -> bool {
        if self.far.is_mapped() {
            return false;
        }
        let mut any = false;
        let pager = self.pager;
        let mut buffer = [0u64; PAGE / 8];
        loop {
            let polled = self.far.poll(&pager.block, &mut buffer);
            let Some((token, arrived)) = polled else { return any };
            any = true;
            self.awaited_count -= 1;
            let awaited = std::mem::take(&mut self.awaited[token as usize]);
            let entry = pager.table.entry(awaited.page).expect("requested");
            if !arrived {
                let slot = entry.slot().expect("a far page has a slot");
                if awaited.started_ns == 0 {
                    self.release_entry(awaited.page, State::Far);
                    continue;
                }
                if !self.far.read_disk(&pager.block, slot, &mut buffer) {
                    self.lose_page(awaited.page, entry, slot);
                    continue;
                }
                pager.block.counters.behind_in.fetch_add(1, Ordering::Relaxed);
            }
            self.install_arrival(awaited, entry, &buffer);
        }
    }

    fn install_arrival(&mut self, awaited: Awaited, entry: &Entry, page: &[u64; PAGE / 8]) {
        let pager = self.pager;
        let address = address_of(awaited.page);
        let source = page.as_ptr() as usize;
        let started_ns = awaited.started_ns;
        self.is_waiter_settled = false;
        let mut outcome = if started_ns == 0 {
            pager.uffd().copy(address, source, PAGE, true)
        } else {
            let Awaited { page, thread, cause, waiter, .. } = awaited;
            let fault = Fault { page, write: false, thread, cause, started_ns, waiter };
            self.install_and_wake(&fault, page..page + 1, |uffd, wake| {
                uffd.copy(address, source, PAGE, wake)
            })
        };
        while outcome == Err(Errno::EAGAIN) {
            self.read_event_before_retry();
            outcome = pager.uffd().copy(address, source, PAGE, true);
        }
        match outcome {
            Ok(_) => {
                self.arrived(1);
                self.count_in(awaited.cause, 1, usize::from(awaited.cause != Cause::Demand));
                match awaited.cause {
                    Cause::Prefetch => self.release_prefetched(awaited.page, Cause::Prefetch),
                    _ => self.release(awaited.page, entry, State::Resident),
                }
            }
            Err(_) => {
                self.release(awaited.page, entry, State::Far);
                pager.wake_page(awaited.page);
            }
        }
        if let (Some(home), Some(waiter), false) =
            (&pager.shared, awaited.waiter, self.is_waiter_settled)
        {
            home.wake_waiter(&waiter);
        }
    }

    /// Poisons a page whose last copy is lost: touching it is an error from now on.
    fn lose_page(&mut self, page: PageNumber, entry: &Entry, slot: u32) {
        let pager = self.pager;
        let _apart = pager.block_event_reads();
        let process = &pager.block.processes[pager.process.load(Ordering::Relaxed)];
        loss::note(process, slot, address_of(page));
        let lost_before = pager.block.counters.lost_pages.fetch_add(1, Ordering::Relaxed);
        // Reads of a shared file go on after the first one, with an error each.
        let is_told = pager.shared.is_none() || lost_before == 0;
        if pager.serves_regions() && is_told {
            self.tell_of_loss(page, slot);
        }
        self.forget_slot(entry);
        if pager.shared.is_some() {
            // Its users fault again, and each is poisoned then.
            self.release_quietly(page, entry, State::Poisoned);
            return pager.wake_page(page);
        }
        self.poison(page);
        self.release(page, entry, State::Poisoned);
    }

    /// Says what no supervisor reports. (This thread may allocate.)
    fn tell_of_loss(&self, page: PageNumber, slot: u32) {
        let block = &self.pager.block;
        let had = block.replicas_of(block.slab_of(slot)).map(|(_, replica)| replica.donor());
        let names: Vec<_> = had.map(|donor| block.donors()[donor].name()).collect();
        let names = names.join(" and ");
        let what = match self.pager.shared {
            None => format!("address {:#x}: SIGBUS", address_of(page)),
            Some(_) => "shared memory: SIGBUS, or EIO of a read or write".to_owned(),
        };
        let said = format!("venice: the last copy of a page is lost with node {names}: {what}\n");
        let _ = sys::write(2, said.as_bytes());
    }
}
