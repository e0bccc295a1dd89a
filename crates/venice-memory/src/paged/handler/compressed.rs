//! Far pages of which a compressed copy is here: unpacked and installed, and no donor is asked.

use std::sync::atomic::Ordering;

use super::super::page_table::{Entry, PageNumber, State};
use super::super::{PAGE, address_of};
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
            compressed.note_hit(self.took_ns);
        }
        let counters = &pager.block.counters;
        self.count_fault(fault.why, &counters.compressed_faults);
        counters.compressed_in.fetch_add(1, Ordering::Relaxed);
        self.arrived(1);
        self.count_in(fault.why, 1, 0);
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
        pager.block.counters.compressed_in.fetch_add(1, Ordering::Relaxed);
        self.count_in(why, 1, 1);
        self.release_brought(page, why);
        true
    }

    /// The next fault handed over is a donor's answer: where pages are compressed, how long each of
    /// them takes is what hits are measured by.
    pub(super) fn time_far(&mut self) {
        self.times_next = self.pager.compressed.is_some();
    }

    /// The fault just handed over was answered by a donor.
    pub(super) fn note_far(&self, why: Why) {
        if let (Some(compressed), Why::Touched) = (&self.pager.compressed, why) {
            compressed.note_far(self.took_ns);
        }
    }

    /// A fault found its page still staged, and took so long if that was timed.
    pub(super) fn note_staged(&self, why: Why, took_ns: Option<u64>) {
        if let (Some(compressed), Why::Touched) = (&self.pager.compressed, why) {
            compressed.note_staged(took_ns);
        }
    }
}
