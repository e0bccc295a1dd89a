//! Far pages of which a compressed copy is here: unpacked and installed, and no donor is asked.

use std::sync::atomic::Ordering;

use super::super::page_table::{Entry, PageNumber, State};
use super::super::{PAGE, address_of, sys};
use super::{Fault, Handler, Why};

impl Handler {
    /// Brings in the busy far page of `fault` if a copy is here, and what lies ahead of it. `false`:
    /// there is none, and the page is the handler's still.
    pub(super) fn bring_compressed(&mut self, fault: &Fault, entry: &Entry) -> bool {
        let pager = self.pager;
        let Some(compressed) = &pager.compressed else { return false };
        let mut page = [0; PAGE];
        if !compressed.take_for_fault(entry.fingerprint(), &mut page) {
            return false;
        }
        let address = address_of(fault.page);
        let source = page.as_ptr() as usize;
        let outcome = self.hand_over(fault, |uffd, wake| uffd.copy(address, source, PAGE, wake));
        if outcome.is_err() {
            self.give_back(*fault, entry, State::Far, outcome);
            return true;
        }
        if fault.why == Why::Touched {
            compressed.note_hit(sys::monotonic_ns() - fault.started_ns);
        }
        let counters = &pager.block.counters;
        self.count_fault(fault.why, &counters.compressed_faults);
        counters.compressed_in.fetch_add(1, Ordering::Relaxed);
        self.arrived(1);
        self.release(fault.page, entry, State::Resident);
        let ahead = self.ahead_of(fault);
        if self.far.is_mapped() {
            self.install_ahead(fault.why, ahead, 0);
        } else {
            self.ask_ahead(fault, ahead);
        }
        true
    }

    /// The same for a page that nobody waits for.
    pub(super) fn bring_compressed_ahead(&self, page: PageNumber, entry: &Entry, why: Why) -> bool {
        let pager = self.pager;
        let Some(compressed) = &pager.compressed else { return false };
        let mut contents = [0; PAGE];
        if !compressed.take(entry.fingerprint(), &mut contents) {
            return false;
        }
        let source = contents.as_ptr() as usize;
        if pager.uffd().copy(address_of(page), source, PAGE, false).is_err() {
            self.release_entry(page, State::Far);
            return true;
        }
        self.arrived(1);
        let counters = &pager.block.counters;
        counters.compressed_in.fetch_add(1, Ordering::Relaxed);
        match why {
            Why::Wanted => counters.wanted_in.fetch_add(1, Ordering::Relaxed),
            _ => counters.read_ahead.fetch_add(1, Ordering::Relaxed),
        };
        self.release_brought(page, why);
        true
    }

    /// A donor answered a fault: how long that takes is what a hit is measured by.
    pub(super) fn note_far(&self, why: Why, started_ns: u64) {
        if let (Some(compressed), Why::Touched) = (&self.pager.compressed, why) {
            compressed.note_far(sys::monotonic_ns() - started_ns);
        }
    }
}
