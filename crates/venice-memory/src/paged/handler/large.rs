//! Large pages: a fault brings in all non-resident pages of the large page around it.
//!
//! Pages that lie in a row where they are (zeros, frames of the staging area, slots of a mapped
//! slab) are a *stretch* and come in one call. Pages requested by frames come one by one, the
//! touched one first. Prefetch plans count in large pages; their numbers lie far below those of any
//! small page of a program, so the streams of the two do not mix.

use std::ops::Range;

use super::super::access_pattern::Pattern;
use super::super::page_size::{LARGE_PAGES, PageSize, large_page_around};
use super::super::page_table::{Entry, PageNumber, State};
use super::super::read_ahead::Steps;
use super::super::staging::Frame;
use super::super::sys::SysResult;
use super::super::transfer::Fetch;
use super::super::{PAGE, address_of};
use super::{Cause, Fault, Handler};

/// The states of a page that is not resident.
const AWAY: [State; 3] = [State::Zero, State::Staged, State::Far];

impl Handler {
    /// True if the page of `fault` is part of a larger one that is to come with it.
    pub(super) fn is_large(&self, fault: &Fault) -> bool {
        fault.cause == Cause::Demand && self.pager.table.page_size(fault.page) != PageSize::Small
    }

    /// Returns how many pages must have room before the page of `fault` is brought in.
    pub(super) fn room_wanted(&self, fault: &Fault) -> usize {
        if self.is_large(fault) { LARGE_PAGES } else { 1 }
    }

    /// Returns the pages that come with `page`: the whole large page, or `page` alone where the
    /// budget has no room.
    fn extent(&self, page: PageNumber) -> Range<PageNumber> {
        let whole = self.pager.table.large_page_of(page);
        if self.room() < whole.len() { page..page + 1 } else { whole }
    }

    /// Brings in the page of `fault`, which was claimed as one of zeros or is at `source`, with its
    /// large page, and the prefetch beyond that.
    pub(super) fn bring_large(&mut self, fault: Fault, entry: &Entry, state: State, source: usize) {
        let extent = self.extent(fault.page);
        let stretch = self.stretch_around(fault.page, state, extent.clone());
        let at = fault.page - stretch.start;
        let first = if state == State::Zero { source } else { source - at * PAGE };
        if state == State::Far {
            self.far.hold_for(stretch.len());
        }
        let (address, len_bytes) = (address_of(stretch.start), stretch.len() * PAGE);
        let outcome = self.install_and_wake(&fault, stretch.clone(), |uffd, wake| {
            uffd.copy(address, first, len_bytes, wake)
        });
        let done = outcome.map_or(0, |bytes| bytes / PAGE);
        // The faulting page itself counts: the large one may span mappings that differ.
        let retry = || self.pager.uffd().copy(address + at * PAGE, source, PAGE, true).is_ok();
        let is_late = done <= at && stretch.len() > 1 && retry();
        self.wait_for_forks();
        self.release_except(&stretch, fault.page, done, state);
        let came = done + usize::from(is_late);
        let is_there = done > at || is_late;
        self.count_arrived(came, came - usize::from(is_there), state, Cause::LargePage);
        if done <= at && !is_late {
            return self.undo_placement(fault, entry, state, outcome);
        }
        self.release(fault.page, entry, State::Resident);
        self.bring_beside(extent);
        self.prefetch_large(&fault, state);
    }

    /// Requests by frames the rest of the large page of `fault`, and the prefetch beyond it.
    pub(super) fn request_large(&mut self, fault: &Fault) {
        let extent = self.extent(fault.page);
        let around = (fault.page + 1..extent.end).chain(extent.start..fault.page);
        self.request(Cause::LargePage, around);
        self.prefetch_large(fault, State::Far);
        self.far.flush();
        self.bring_stretches(extent, &[State::Zero, State::Staged], Cause::LargePage);
    }

    /// Brings in the rest of the large page around `page`, which is resident already.
    pub(super) fn complete_large(&mut self, page: PageNumber) {
        let extent = self.extent(page);
        self.bring_beside(extent);
    }

    fn bring_beside(&mut self, extent: Range<PageNumber>) {
        if self.far.is_mapped() {
            return self.bring_stretches(extent, &AWAY, Cause::LargePage);
        }
        self.request(Cause::LargePage, extent.clone());
        self.far.flush();
        self.bring_stretches(extent, &[State::Zero, State::Staged], Cause::LargePage);
    }

    /// Prefetches large pages beyond that of `fault`: those of their pages that are in `state`.
    fn prefetch_large(&mut self, fault: &Fault, state: State) {
        let prefetch = self.plan_large_prefetch(fault);
        if state == State::Zero && prefetch.stride() != 1 {
            return;
        }
        for number in prefetch.pages() {
            let first = number * LARGE_PAGES;
            if self.pager.table.page_size(first) == PageSize::Small {
                continue;
            }
            let pages = self.pager.table.large_page_of(first);
            if state == State::Far && !self.far.is_mapped() {
                self.request(Cause::Prefetch, pages);
            } else {
                self.bring_stretches(pages, &[state], Cause::Prefetch);
            }
        }
    }

    /// Plans a prefetch like [`Handler::plan_prefetch`], in numbers of large pages.
    fn plan_large_prefetch(&self, fault: &Fault) -> Steps {
        let pager = self.pager;
        let pattern = pager.table.pattern(fault.page);
        let Some(most) = self.prefetch_limit(pattern) else { return Steps::default() };
        let limit = ((most + 1) / LARGE_PAGES).min(1 + self.room() / LARGE_PAGES);
        let number = fault.page / LARGE_PAGES;
        let plan = pager.read_ahead.hold().on_fault(fault.thread, number, pattern, limit);
        let small =
            |steps: Steps| steps.pages().flat_map(|number| large_page_around(number * LARGE_PAGES));
        self.count_used(small(plan.used));
        self.mark_wasted(small(plan.wasted));
        if pattern == Pattern::Sequential {
            self.mark_behind_cold(large_page_around(fault.page).start);
        }
        plan.prefetch
    }

    /// Brings in the pages of `pages` that are in one of `states`, stretch by stretch.
    fn bring_stretches(&mut self, pages: Range<PageNumber>, states: &[State], cause: Cause) {
        let mut page = pages.start;
        while page < pages.end {
            page = self.bring_stretch(page..pages.end, states, cause).unwrap_or(page + 1);
        }
    }

    /// Brings in the stretch at the start of `pages`, if that is in one of `states`. Returns where
    /// the stretch ends.
    fn bring_stretch(
        &mut self,
        pages: Range<PageNumber>,
        states: &[State],
        cause: Cause,
    ) -> Option<PageNumber> {
        let pager = self.pager;
        let entry = pager.table.entry(pages.start)?;
        let state = entry.state();
        if !states.contains(&state) {
            return None;
        }
        // As for a touched staged page: no fork is read until the page is in place.
        let apart = (state == State::Staged).then(|| pager.block_event_reads());
        let must_stay = state == State::Staged && pager.fork.is_open();
        if must_stay || !self.claim(pages.start, entry, state) {
            return None;
        }
        let stretch = self.stretch_around(pages.start, state, pages);
        let source = self.source_of(&stretch, state);
        let done = source.map_or(0, |source| self.place(&stretch, state, source).unwrap_or(0));
        if apart.is_none() {
            self.wait_for_forks();
        }
        self.release_stretch(&stretch, done, state, cause);
        drop(apart);
        self.count_arrived(done, done, state, cause);
        Some(stretch.end)
    }

    /// Places a stretch from `source` on. Returns how many of its pages are placed.
    fn place(&self, stretch: &Range<PageNumber>, state: State, source: usize) -> SysResult<usize> {
        let (to, len_bytes) = (address_of(stretch.start), stretch.len() * PAGE);
        let outcome = match state {
            State::Staged => self.pager.uffd_of(stretch.start).move_pages(to, source, len_bytes),
            _ => self.pager.uffd().copy(to, source, len_bytes, false),
        };
        outcome.map(|bytes| bytes / PAGE)
    }

    /// Claims the pages around `page`, which is claimed in `state`, that lie beside it in that
    /// place too, within a range. Returns the claimed range, `page` included.
    fn stretch_around(
        &self,
        page: PageNumber,
        state: State,
        within: Range<PageNumber>,
    ) -> Range<PageNumber> {
        let entry = self.pager.table.entry(page).expect("claimed");
        let joins = |other: &PageNumber| {
            let place = |of: u32| of.checked_add_signed((*other as isize - page as isize) as i32);
            match state {
                State::Zero => self.claim_in_state(*other, State::Zero),
                State::Staged => {
                    place(entry.frame()).is_some_and(|frame| self.claim_frame(*other, frame))
                }
                _ => {
                    let slot = entry.slot().expect("a far page has a slot");
                    let (before, after) = self.far.in_a_row(&self.pager.block, slot);
                    let row = slot - before..=slot + after;
                    let beside = place(slot).filter(|beside| row.contains(beside));
                    beside.is_some_and(|beside| self.claim_slot(*other, beside))
                }
            }
        };
        let below = (within.start..page).rev().take_while(joins).count();
        let above = (page + 1..within.end).take_while(joins).count();
        page - below..page + 1 + above
    }

    /// Claims a staged page if it is in `frame`.
    pub(super) fn claim_frame(&self, page: PageNumber, frame: u32) -> bool {
        let Some(entry) = self.pager.table.entry(page) else { return false };
        if entry.frame() != frame || !entry.claim(State::Staged) {
            return false;
        }
        // Before the claim the page may have come back and left again.
        let is_there = entry.frame() == frame;
        if !is_there {
            self.release(page, entry, State::Staged);
        }
        is_there
    }

    /// Returns the address of a claimed stretch's contents; `None`: its donors are dead.
    fn source_of(&mut self, stretch: &Range<PageNumber>, state: State) -> Option<usize> {
        let pager = self.pager;
        let entry = pager.table.entry(stretch.start).expect("claimed");
        match state {
            State::Zero => Some(pager.zeros),
            State::Staged => Some(pager.staging.address(entry.frame())),
            _ => {
                let slot = entry.slot().expect("a far page has a slot");
                let Fetch::Ready(source) = self.far.fetch(&pager.block, slot, 0) else {
                    return None;
                };
                // The last donor died after the row of slots was looked up.
                if stretch.len() > 1 && self.far.is_from_disk() {
                    return None;
                }
                self.far.hold_for(stretch.len());
                Some(source)
            }
        }
    }

    /// Releases a stretch whose first `done` pages are resident.
    fn release_stretch(
        &self,
        stretch: &Range<PageNumber>,
        done: usize,
        state: State,
        cause: Cause,
    ) {
        for (at, page) in stretch.clone().enumerate() {
            if at >= done {
                self.release_entry(page, state);
                continue;
            }
            match state {
                State::Staged => {
                    let entry = self.pager.table.entry(page).expect("claimed");
                    self.pager.staging.set(entry.frame(), Frame::Empty);
                    self.release(page, entry, State::Resident);
                }
                State::Far if cause == Cause::Prefetch => self.release_prefetched(page, cause),
                _ => self.release_entry(page, State::Resident),
            }
        }
    }

    /// Does the same as [`Handler::release_stretch`] for all pages but `kept`.
    fn release_except(
        &self,
        stretch: &Range<PageNumber>,
        kept: PageNumber,
        done: usize,
        state: State,
    ) {
        for page in stretch.clone().filter(|&page| page != kept) {
            let is_there = page - stretch.start < done;
            self.release_entry(page, if is_there { State::Resident } else { state });
        }
    }

    /// Counts `pages` pages as resident, `unasked` of them not touched by the fault. Staged pages
    /// already count as resident.
    fn count_arrived(&self, pages: usize, unasked: usize, state: State, cause: Cause) {
        if pages == 0 || state == State::Staged {
            return;
        }
        self.arrived(pages);
        if state == State::Far {
            self.count_in(cause, pages, unasked);
        }
    }
}
