//! The clock hand: chooses the pages to evict in sweep chunks of the managed regions.
//!
//! A sweep chunk is as many consecutive pages as a staging chunk has frames. Most of its pages may
//! be far or untouched. Its resident pages move to the staging ring with one `UFFDIO_MOVE` that
//! skips the holes, so that a batch costs one TLB flush instead of one a page. A sweep chunk most
//! of whose pages came since the hand last passed is spared once. A huge page that is all resident
//! is a sweep chunk by itself, and leaves whole for a slot of its own.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::page_size::HUGE_PAGES;
use super::super::page_table::{BLOCK_PAGES, Entry, PageNumber, State};
use super::super::pager::Guarded;
use super::super::presence::PresentPages;
use super::super::slots::Slots;
use super::super::staging::{CHUNK_FRAMES, Frame};
use super::super::sys::{self, Errno};
use super::super::{PAGE, address_of};
use super::Evictor;

/// Sweep chunks examined in one turn with the lock held.
const SCAN_CHUNKS: usize = 512;

/// Random positions tried before the hand goes on where it is.
const TRIES: usize = 8;

/// Pages of the largest sweep chunk.
const MOST_PAGES: usize = HUGE_PAGES;

/// The resident pages of a sweep chunk that leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victims {
    /// All of them.
    All,
    /// The cold ones.
    Cold,
    /// The pages that no other process maps.
    Own,
    /// The pages that other processes map too, since a `fork`.
    Shared,
}

impl Victims {
    /// True if a resident page does not leave.
    pub(super) fn spare(self, entry: &Entry, is_shared: bool) -> bool {
        match self {
            Victims::All => false,
            Victims::Cold => !entry.is_cold(),
            Victims::Own => is_shared,
            Victims::Shared => !is_shared,
        }
    }
}

/// The state of each page of a sweep chunk when it was claimed; `None`: it was not claimed.
type Claimed = [Option<State>];

impl Evictor {
    /// Returns the next sweep chunk to evict. Goes round at most once; `Err` if that found none,
    /// `Ok(None)` if the turn is up.
    pub(super) fn next_sweep_chunk(
        &self,
        guarded: &mut Guarded,
    ) -> Result<Option<Range<PageNumber>>, Exhausted> {
        let mut wraps = 0;
        for _ in 0..SCAN_CHUNKS {
            let Some(range) = guarded.regions.next_from(guarded.hand) else {
                guarded.hand = 0;
                wraps += 1;
                if wraps == 2 {
                    return Err(Exhausted);
                }
                continue;
            };
            let first = range.start;
            let is_live = self.pager.table.block_is_live(first);
            let is_huge = is_live && self.is_resident_huge(&range);
            let length = if is_live && !is_huge { CHUNK_FRAMES } else { BLOCK_PAGES };
            let pages = first..range.end.min((first / length + 1) * length);
            guarded.hand = pages.end;
            if is_live && self.is_evictable(pages.clone()) {
                return Ok(Some(pages));
            }
        }
        Ok(None)
    }

    /// Returns the start of a random sweep chunk with live pages, if one is found; else the hand's
    /// position.
    pub(super) fn random_chunk(&mut self, guarded: &Guarded) -> PageNumber {
        let pages = guarded.regions.len_pages();
        for _ in 0..TRIES {
            // Marsaglia 2003, Xorshift RNGs.
            self.random_state ^= self.random_state << 13;
            self.random_state ^= self.random_state >> 7;
            self.random_state ^= self.random_state << 17;
            let page = guarded.regions.nth(self.random_state as usize % pages.max(1));
            if let Some(page) = page.filter(|&page| self.pager.table.block_is_live(page)) {
                return page / CHUNK_FRAMES * CHUNK_FRAMES;
            }
        }
        guarded.hand
    }

    /// True if at least half of the chunk's resident pages are not young. If not, they lose their
    /// youth for the next time.
    fn is_evictable(&self, pages: Range<PageNumber>) -> bool {
        let (mut resident, mut young) = (0, 0);
        let entries = || pages.clone().filter_map(|page| self.pager.table.entry(page));
        for entry in entries().filter(|entry| entry.state() == State::Resident) {
            resident += 1;
            young += entry.is_young() as usize;
        }
        if resident > 0 && 2 * young > resident {
            entries().for_each(|entry| {
                entry.clear_young();
            });
            return false;
        }
        resident > 0
    }

    /// True if the range begins with a huge page that is all resident.
    pub(super) fn is_resident_huge(&self, range: &Range<PageNumber>) -> bool {
        let table = &self.pager.table;
        let is_resident =
            |page| table.entry(page).is_some_and(|entry| entry.state() == State::Resident);
        range.start.is_multiple_of(HUGE_PAGES)
            && range.len() >= HUGE_PAGES
            && is_resident(range.start)
            && table.huge_page_of(range.start).is_some_and(|mut huge| huge.all(is_resident))
    }

    /// Moves the `victims` of a sweep chunk to `frames`, which are at least as many as its pages.
    /// Returns the number of pages moved.
    ///
    /// Every other page of the chunk is claimed too, far and untouched ones: a page that came in
    /// meanwhile would be moved along unnoticed.
    pub(super) fn stage(
        &self,
        pages: Range<PageNumber>,
        frames: Range<u32>,
        victims: Victims,
    ) -> usize {
        if let Some(home) = &self.pager.shared {
            return self.stage_shared(home, pages, frames, victims);
        }
        let shared = match victims {
            Victims::All | Victims::Cold => [false; MOST_PAGES],
            Victims::Own | Victims::Shared => {
                self.presence.shared(address_of(pages.start), pages.len())
            }
        };
        let claimed = &mut [None; MOST_PAGES][..frames.len()];
        for (at, (page, claimed)) in pages.clone().zip(claimed.iter_mut()).enumerate() {
            let entry = self.managed(page);
            let state = entry.state();
            let stays = state == State::Resident && victims.spare(entry, shared[at]);
            *claimed = (!stays && entry.claim(state)).then_some(state);
        }
        let leave =
            pages.clone().zip(claimed.iter()).filter(|(_, was)| **was == Some(State::Resident));
        self.count_early(leave.map(|(page, _)| page));
        self.pager.image.begin_move(pages.start, frames.start, frames.len());
        let mut stays = [false; MOST_PAGES];
        let mut at = 0;
        while let Some(run) = next_run(claimed, at) {
            at = run.start;
            let done = self.move_run(&pages, run, frames.start);
            // A page that cannot leave is pinned, locked, or not readable and writable. It stays.
            stays[at] = done == 0;
            at += done.max(1);
        }
        let moved = self.settle(pages, claimed, &stays, frames);
        self.pager.image.end_move();
        moved
    }

    /// Counts the pages of those claimed that leave early: wasted prefetches, and cold ones.
    pub(super) fn count_early(&self, claimed: impl Iterator<Item = PageNumber>) {
        let (mut wasted, mut advised) = (0, 0);
        for entry in claimed.map(|page| self.managed(page)) {
            wasted += u64::from(entry.is_prefetched());
            advised += u64::from(entry.is_cold() && !entry.is_prefetched());
        }
        let counters = &self.pager.block.counters;
        counters.prefetch_wasted.fetch_add(wasted, Ordering::Relaxed);
        counters.advised_out.fetch_add(advised, Ordering::Relaxed);
    }

    /// Moves the pages `run` of the chunk to their frames; `first` is the frame of the chunk's
    /// first page. Returns how many pages are done, holes included.
    fn move_run(&self, pages: &Range<PageNumber>, run: Range<usize>, first: u32) -> usize {
        let uffd = self.pager.uffd();
        let source = address_of(pages.start + run.start);
        let target = self.pager.staging.address(first + run.start as u32);
        let mut outcome = uffd.move_pages(target, source, run.len() * PAGE);
        if outcome == Err(Errno::EBUSY) {
            // Shared with a forked process: make this side's own copy, then move that.
            // SAFETY: populating changes no contents.
            let own = unsafe { sys::madvise(source, PAGE, sys::MADV_POPULATE_WRITE) };
            if own.is_ok() {
                self.copied.fetch_add(1, Ordering::Relaxed);
                self.pager.own_process().unshare(1);
                outcome = uffd.move_pages(target, source, PAGE);
            }
        } else if outcome.is_err() && run.len() > 1 {
            // The chunk may span mappings that differ.
            outcome = uffd.move_pages(target, source, PAGE);
        }
        outcome.map_or(0, |bytes| bytes / PAGE)
    }

    /// Releases the pages of a sweep chunk after the move. A page counts as staged if it is in its
    /// frame, whatever the table said. Returns the number of those.
    fn settle(
        &self,
        pages: Range<PageNumber>,
        claimed: &Claimed,
        stays: &[bool; MOST_PAGES],
        frames: Range<u32>,
    ) -> usize {
        let there = self.presence_of(&frames);
        let mut moved = 0;
        for (at, (page, frame)) in pages.zip(frames).enumerate() {
            let Some(was) = claimed[at] else {
                assert!(!there[at], "page {page:#x} was moved to frame {frame} and not claimed");
                continue;
            };
            let mut is_there = there[at];
            if was == State::Resident && !is_there && !stays[at] {
                is_there = self.may_be_swapped_out(frame);
                if !is_there {
                    self.forget_absent(page);
                    self.release(page, State::Zero);
                    continue;
                }
            }
            if is_there {
                self.record_in_frame(page, was, frame);
                moved += 1;
            }
            self.release(page, if is_there { State::Staged } else { was });
        }
        moved
    }

    fn presence_of(&self, frames: &Range<u32>) -> PresentPages {
        let there = self.presence.look(self.pager.staging.address(frames.start), frames.len());
        there.unwrap_or_else(|errno| panic!("frames {frames:?} of the staging area: {errno}"))
    }

    /// True if the contents of a frame that is not in memory may be swapped out by the host. Where
    /// the kernel cannot tell, the frame is populated, with zeros if it was empty.
    fn may_be_swapped_out(&self, frame: u32) -> bool {
        let address = self.pager.staging.address(frame);
        // SAFETY: populating changes no contents.
        !self.presence.reports_swap()
            && unsafe { sys::madvise(address, PAGE, sys::MADV_POPULATE_READ) }.is_ok()
    }

    /// Records that a page which was `was` is in a frame. A page that was not resident came to a
    /// forked child from its parent, before the child had a pager of its own to count it.
    pub(super) fn record_in_frame(&self, page: PageNumber, was: State, frame: u32) {
        let pager = self.pager;
        let entry = self.managed(page);
        if was != State::Resident {
            pager.resident().fetch_add(1, Ordering::Relaxed);
        }
        if was == State::Zero {
            pager.table.count_live(page);
        }
        if was == State::Staged {
            // The former frame holds an older copy.
            pager.staging.set(entry.frame(), Frame::Orphan);
        }
        entry.set_frame(frame);
        pager.staging.set(frame, Frame::Page(page));
    }

    /// Forgets a page that was not there: the program dropped it by a bare system call. It reads as
    /// zeros from now on.
    fn forget_absent(&self, page: PageNumber) {
        let pager = self.pager;
        let slots = Slots::new(pager.process.load(Ordering::Relaxed));
        slots.forget(&pager.block, self.managed(page));
        pager.count_gone(1);
        pager.table.count_dead(page);
    }

    pub(super) fn managed(&self, page: PageNumber) -> &'static Entry {
        let entry = self.pager.table.entry(page);
        entry.unwrap_or_else(|| panic!("page {page:#x} is managed and not in the table"))
    }

    pub(super) fn release(&self, page: PageNumber, state: State) {
        let entry = self.managed(page);
        if entry.release(state) {
            self.pager.wake_page(page);
        }
    }
}

/// The hand went round and found nothing.
pub(super) struct Exhausted;

/// Returns the next stretch of claimed pages at or after `at` that starts and ends with a resident
/// one.
fn next_run(claimed: &Claimed, at: usize) -> Option<Range<usize>> {
    let is_resident = |at: &usize| claimed[*at] == Some(State::Resident);
    let start = (at..claimed.len()).find(is_resident)?;
    let stretch =
        start..(start..claimed.len()).find(|&i| claimed[i].is_none()).unwrap_or(claimed.len());
    let last = stretch.rev().find(is_resident)?;
    Some(start..last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ends_at_unclaimed_page() {
        let mut claimed = [Some(State::Far); CHUNK_FRAMES];
        assert_eq!(next_run(&claimed, 0), None);
        for resident in [3, 9, 20] {
            claimed[resident] = Some(State::Resident);
        }
        claimed[12] = None;
        assert_eq!(next_run(&claimed, 0), Some(3..10));
        assert_eq!(next_run(&claimed, 10), Some(20..21));
        assert_eq!(next_run(&claimed, 21), None);
    }
}
