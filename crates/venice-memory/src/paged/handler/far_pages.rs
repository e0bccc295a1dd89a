//! Pages that only a donor holds: asked for, with what lies ahead of them, and installed.

use std::sync::atomic::Ordering;

use super::super::far::Far;
use super::super::loss;
use super::super::page_table::{Entry, PageNumber, State};
use super::super::sys::{self, Errno};
use super::super::transfer::Fetch;
use super::super::{PAGE, address_of};
use super::{Awaited, Fault, Handler, Why};

impl Handler {
    pub(super) fn bring_far(&mut self, fault: Fault, entry: &Entry) {
        let slot = entry.slot().expect("a far page has a slot");
        self.count_fault(fault.why, &self.pager.block.counters.far_faults);
        let Some(token) = self.free_token() else {
            self.release_quietly(fault.page, entry, State::Far);
            return self.defer(fault);
        };
        match self.far.fetch(&self.pager.block, slot, token) {
            Fetch::Ready(source) => {
                let window = self.window_for(&fault);
                self.install_ready(fault, entry, source, slot, window);
            }
            Fetch::Pending => {
                self.awaited[token as usize] =
                    Awaited { page: fault.page, started_ns: fault.started_ns, why: fault.why };
                self.awaited_count += 1;
                let window = self.window_for(&fault);
                self.ask_ahead(&fault, window);
            }
            Fetch::Full => {
                self.release_quietly(fault.page, entry, State::Far);
                self.defer(fault);
            }
            Fetch::Lost => self.lose(fault.page, entry, slot),
        }
    }

    /// Installs the page at `source` and what lies ahead of it: pages whose slots lie in a row go
    /// in one call.
    fn install_ready(
        &mut self,
        fault: Fault,
        entry: &Entry,
        source: usize,
        slot: u32,
        window: usize,
    ) {
        let uffd = self.pager.uffd();
        let mut run = 1;
        while run < window && self.follows(fault.page, slot, run) {
            run += 1;
        }
        self.far.hold_for(run);
        let outcome = self.hand_over(&fault, |uffd, wake| {
            uffd.copy(address_of(fault.page), source, run * PAGE, wake)
        });
        let done = match outcome {
            Ok(bytes) => bytes / PAGE,
            Err(_) if run > 1 => {
                uffd.copy(address_of(fault.page), source, PAGE, true).is_ok() as usize
            }
            Err(_) => 0,
        };
        self.let_forks_pass();
        for ahead in 1..run {
            let state = if ahead < done { State::Resident } else { State::Far };
            self.release_entry(fault.page + ahead, state);
        }
        if done == 0 {
            return self.give_back(fault, entry, State::Far, outcome);
        }
        self.arrived(done);
        self.count_in(fault.why, done, done - 1);
        self.release(fault.page, entry, State::Resident);
        self.install_ahead(fault.why, fault.page + run, window.saturating_sub(run));
    }

    /// Claims the page `run` pages on if it is far and its slot lies as far on in the same slab.
    fn follows(&mut self, page: PageNumber, slot: u32, run: usize) -> bool {
        if run as u32 >= Far::contiguous_from(slot) {
            return false;
        }
        let expected = Some(slot + run as u32);
        let Some(entry) = self.pager.table.entry(page + run) else { return false };
        if entry.slot() != expected || !entry.claim(State::Far) {
            return false;
        }
        // Before it was ours it may have come, been written and left for another slot.
        let still_follows = entry.slot() == expected;
        if !still_follows {
            self.release(page + run, entry, State::Far);
        }
        still_follows
    }

    /// Installs far pages of `[page, page + count)` whose slots lie elsewhere, one by one.
    fn install_ahead(&mut self, why: Why, page: PageNumber, count: usize) {
        for page in page..page + count {
            if !self.claim_ahead(page, State::Far) {
                return;
            }
            let entry = self.pager.table.entry(page).expect("just claimed");
            let slot = entry.slot().expect("a far page has a slot");
            let placed = match self.far.fetch(&self.pager.block, slot, 0) {
                Fetch::Ready(source) => {
                    self.far.hold_for(1);
                    self.pager.uffd().copy(address_of(page), source, PAGE, false).is_ok()
                }
                _ => false,
            };
            self.let_forks_pass();
            if !placed {
                return self.release_entry(page, State::Far);
            }
            self.arrived(1);
            self.count_in(why, 1, 1);
            self.release_entry(page, State::Resident);
        }
    }

    /// Asks for far pages ahead of that of `fault` by frames.
    fn ask_ahead(&mut self, fault: &Fault, window: usize) {
        let why = if fault.why == Why::Wanted { Why::Wanted } else { Why::Ahead };
        for page in fault.page + 1..fault.page + window {
            let Some(token) = self.free_token() else { break };
            if !self.claim_ahead(page, State::Far) {
                break;
            }
            let entry = self.pager.table.entry(page).expect("just claimed");
            let slot = entry.slot().expect("a far page has a slot");
            match self.far.fetch(&self.pager.block, slot, token) {
                Fetch::Pending => {
                    self.awaited[token as usize] = Awaited { page, started_ns: 0, why };
                    self.awaited_count += 1;
                }
                _ => {
                    self.release_entry(page, State::Far);
                    break;
                }
            }
        }
        self.far.flush();
    }

    /// Installs the pages that came by frames; `true` if there were any.
    pub(super) fn take_arrivals(&mut self) -> bool {
        if matches!(self.far, Far::Shm(_)) {
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
            let entry = pager.table.entry(awaited.page).expect("asked for");
            if !arrived {
                let slot = entry.slot().expect("a far page has a slot");
                if awaited.started_ns == 0 {
                    self.release_entry(awaited.page, State::Far);
                } else {
                    self.lose(awaited.page, entry, slot);
                }
                continue;
            }
            self.install_arrival(awaited, entry, &buffer);
        }
    }

    fn install_arrival(&mut self, awaited: Awaited, entry: &Entry, page: &[u64; PAGE / 8]) {
        let pager = self.pager;
        let address = address_of(awaited.page);
        let source = page.as_ptr() as usize;
        let started_ns = awaited.started_ns;
        let mut outcome = if started_ns == 0 {
            pager.uffd().copy(address, source, PAGE, true)
        } else {
            let fault = Fault { page: awaited.page, write: false, why: awaited.why, started_ns };
            self.hand_over(&fault, |uffd, wake| uffd.copy(address, source, PAGE, wake))
        };
        while outcome == Err(Errno::EAGAIN) {
            self.read_event_before_retry();
            outcome = pager.uffd().copy(address, source, PAGE, true);
        }
        match outcome {
            Ok(_) => {
                self.arrived(1);
                self.count_in(awaited.why, 1, usize::from(awaited.why == Why::Ahead));
                self.release(awaited.page, entry, State::Resident);
            }
            Err(_) => {
                self.release(awaited.page, entry, State::Far);
                pager.uffd().wake(address, PAGE);
            }
        }
    }

    /// The only copy is gone: touching the page is an error from now on.
    fn lose(&mut self, page: PageNumber, entry: &Entry, slot: u32) {
        let pager = self.pager;
        let _apart = pager.keep_readers_out();
        let process = &pager.block.processes[pager.process.load(Ordering::Relaxed)];
        let donor = pager.block.donor_of_slot(slot);
        loss::note(process, donor, address_of(page));
        if pager.serves_regions() {
            // There is no supervisor to say it. (And this thread may allocate.)
            let (name, address) = (pager.block.donors()[donor].name(), address_of(page));
            let said = format!(
                "venice: the only copy of a page is lost with node {name}: address {address:#x}: \
                 SIGBUS\n"
            );
            let _ = sys::write(2, said.as_bytes());
        }
        pager.block.counters.lost_pages.fetch_add(1, Ordering::Relaxed);
        self.forget_slot(entry);
        self.poison(page);
        self.release(page, entry, State::Poisoned);
    }
}
