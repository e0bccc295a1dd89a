//! Prefetch around a fault. The pages come from the prefetch plan
//! ([`ReadAhead`](super::super::read_ahead::ReadAhead)) or from the program's advice.

use std::sync::atomic::Ordering;

use super::super::access_pattern::Pattern;
use super::super::page_table::{PageNumber, State};
use super::super::read_ahead::{MAX_PREFETCH, Steps};
use super::super::staging::Frame;
use super::super::transfer::Fetch;
use super::super::{PAGE, address_of};
use super::{Awaited, Cause, Fault, Handler};

/// Pages behind a sequential stream that are checked for being cold.
const BEHIND: usize = 2 * MAX_PREFETCH;
/// Factor on the prefetch limit where the program announced sequential access.
const IN_ORDER_FACTOR: usize = 2;

impl Handler {
    /// Returns the pages to bring in together with that of `fault`. Accounts for the earlier
    /// prefetches that the plan found used or wasted.
    pub(super) fn plan_prefetch(&self, fault: &Fault) -> Steps {
        let pager = self.pager;
        let room = self.room();
        if fault.cause == Cause::Advised {
            let wanted = pager.will_need.pages_from(fault.page).min(room);
            return Steps::after(fault.page, 1, wanted.saturating_sub(1));
        }
        let pattern = pager.table.pattern(fault.page);
        let Some(most) = self.prefetch_limit(pattern) else { return Steps::default() };
        let limit = room.min(most + 1);
        let plan = pager.read_ahead.hold().on_fault(fault.thread, fault.page, pattern, limit);
        self.count_used(plan.used.pages());
        self.mark_wasted(plan.wasted.pages());
        if pattern == Pattern::Sequential {
            self.mark_behind_cold(fault.page);
        }
        plan.prefetch
    }

    /// Returns the number of pages that the budget has room for.
    pub(super) fn room(&self) -> usize {
        let limit = self.pager.limit_pages.load(Ordering::Relaxed);
        limit.saturating_sub(self.pager.charged()) as usize
    }

    /// Returns the most pages to prefetch under `pattern`; `None` if such a fault starts no
    /// prefetch.
    pub(super) fn prefetch_limit(&self, pattern: Pattern) -> Option<usize> {
        let most = self.pager.block.read_ahead_pages.load(Ordering::Relaxed) as usize;
        match pattern {
            Pattern::Random => None,
            Pattern::Sequential => Some((most * IN_ORDER_FACTOR).min(MAX_PREFETCH - 1)),
            Pattern::Normal => Some(most),
        }
    }

    /// Counts prefetched pages as used. They are ordinary pages from now on.
    pub(super) fn count_used(&self, used: impl Iterator<Item = PageNumber>) {
        let is_used = |page: &PageNumber| {
            self.pager.table.entry(*page).is_some_and(|entry| entry.mark_used())
        };
        let used = used.filter(is_used).count();
        if used > 0 {
            self.pager.block.counters.prefetch_used.fetch_add(used as u64, Ordering::Relaxed);
        }
    }

    /// Marks the wasted prefetches of a stream that ended as cold: they are evicted before others.
    pub(super) fn mark_wasted(&self, wasted: impl Iterator<Item = PageNumber>) {
        for page in wasted {
            let entry = self.pager.table.entry(page);
            if entry.is_some_and(|entry| entry.is_prefetched() && entry.make_cold()) {
                self.pager.stream_cold.hold().push(page..page + 1);
            }
        }
    }

    /// Marks the pages just behind a sequential read as cold: they will not be read again.
    pub(super) fn mark_behind_cold(&self, page: PageNumber) {
        let table = &self.pager.table;
        let is_behind = |page: &PageNumber| {
            table.pattern(*page) == Pattern::Sequential
                && table.entry(*page).is_some_and(|entry| entry.make_cold())
        };
        let behind = (page.saturating_sub(BEHIND)..page).rev().take_while(is_behind).last();
        if let Some(first) = behind {
            self.pager.stream_cold.hold().push(first..page);
        }
    }

    /// Claims the far pages next to the one in `slot` that can come in one call with it: their
    /// slots lie beside it in the same order. Returns their number.
    pub(super) fn claim_adjacent(&self, slot: u32, prefetch: Steps) -> usize {
        let forward = match prefetch.stride() {
            1 => true,
            -1 => false,
            _ => return 0,
        };
        let (before, after) = self.far.in_a_row(&self.pager.block, slot);
        let in_a_row = if forward { after } else { before };
        let beside = |(page, distance): (PageNumber, u32)| {
            let expected = if forward { slot + distance } else { slot - distance };
            self.claim_slot(page, expected)
        };
        let pages = prefetch.pages().zip(1..=in_a_row);
        pages.map(beside).take_while(|claimed| *claimed).count()
    }

    /// Claims the pages of the prefetch plan that lie behind a staged page in the staging area in
    /// the same order. Returns their number.
    pub(super) fn claim_staged_prefetch(&self, fault: &Fault, frame: u32) -> usize {
        if fault.cause != Cause::Demand || self.is_large(fault) {
            return 0;
        }
        let prefetch = self.plan_prefetch(fault);
        if prefetch.stride() != 1 {
            return 0;
        }
        let beside = prefetch.pages().zip(frame + 1..);
        beside.take_while(|&(page, frame)| self.claim_frame(page, frame)).count()
    }

    /// Releases the `claimed` pages behind `page`, which is in `frame`. The first `done` pages,
    /// `page` included, were moved; the others stay staged.
    pub(super) fn settle_staged_prefetch(
        &self,
        page: PageNumber,
        frame: u32,
        claimed: usize,
        done: usize,
    ) {
        for at in 1..=claimed {
            if at >= done {
                self.release_entry(page + at, State::Staged);
                continue;
            }
            self.pager.staging.set(frame + at as u32, Frame::Empty);
            self.pager.block.counters.staged_ahead.fetch_add(1, Ordering::Relaxed);
            self.release_prefetched(page + at, Cause::Prefetch);
        }
    }

    /// Claims a far page if it is in `slot`.
    pub(super) fn claim_slot(&self, page: PageNumber, slot: u32) -> bool {
        let Some(entry) = self.pager.table.entry(page) else { return false };
        if entry.slot() != Some(slot) || !entry.claim(State::Far) {
            return false;
        }
        // Before the claim the page may have come in, been written and left for another slot.
        let is_there = entry.slot() == Some(slot);
        if !is_there {
            self.release(page, entry, State::Far);
        }
        is_there
    }

    /// Installs the far pages of `prefetch`, beyond the first `skip`, one by one.
    pub(super) fn install_prefetch(&mut self, cause: Cause, prefetch: Steps, skip: usize) {
        for page in prefetch.pages().skip(skip) {
            if !self.claim_in_state(page, State::Far) {
                continue;
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
            self.wait_for_forks();
            if !placed {
                return self.release_entry(page, State::Far);
            }
            self.arrived(1);
            self.count_in(cause, 1, 1);
            self.release_prefetched(page, cause);
        }
    }

    /// Requests the far pages of `prefetch` from the donors by frames, and flushes.
    pub(super) fn request_prefetch(&mut self, fault: &Fault, prefetch: Steps) {
        let cause = if fault.cause == Cause::Advised { Cause::Advised } else { Cause::Prefetch };
        self.request(cause, prefetch.pages());
        self.far.flush();
    }

    /// Requests the far pages of `pages` by frames; the caller flushes.
    pub(super) fn request(&mut self, cause: Cause, pages: impl Iterator<Item = PageNumber>) {
        for page in pages {
            let Some(token) = self.free_token() else { break };
            if !self.claim_in_state(page, State::Far) {
                continue;
            }
            let entry = self.pager.table.entry(page).expect("just claimed");
            let slot = entry.slot().expect("a far page has a slot");
            match self.far.fetch(&self.pager.block, slot, token) {
                Fetch::Pending => {
                    self.awaited[token as usize] = Awaited { page, cause, ..Awaited::default() };
                    self.awaited_count += 1;
                }
                _ => {
                    self.release_entry(page, State::Far);
                    break;
                }
            }
        }
    }

    /// Releases a page that was brought in before any known touch.
    pub(super) fn release_prefetched(&self, page: PageNumber, cause: Cause) {
        if cause == Cause::Advised {
            return self.release_entry(page, State::Resident);
        }
        let entry = self.pager.table.entry(page).expect("just brought in");
        if entry.release_prefetched() {
            // A thread waits for it already.
            self.pager.block.counters.prefetch_used.fetch_add(1, Ordering::Relaxed);
            self.pager.wake_page(page);
        }
    }
}
