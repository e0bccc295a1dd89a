//! Eviction of the pages that processes share since a `fork`.
//!
//! A shared page takes room until the last process has dropped it. So the processes of a run drop
//! the same ones: the run block has one *shared hand*, a position in the address space, and every
//! evictor drops its shared pages up to it. Relatives have their pages at the same addresses. Each
//! measurement of the run's shared memory ([`sharing`](super::super::sharing)) moves it on once, by
//! the pages that the whole run was over its budget.
//!
//! A process evicts its own pages first, for a shared page that is dropped may come back as a copy
//! in each process.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::page_table::{BLOCK_PAGES, PageNumber, State};
use super::super::pager::Guarded;
use super::super::staging::CHUNK_FRAMES;
use super::super::sys;
use super::chunks::Victims;
use super::{Evictor, Outcome, SHORT_TICK_NS};

/// Bits of a page number in a position; the rounds of the hand are above.
const PAGE_BITS: u32 = 40;
/// Least pages by which the hand moves at once.
const LEAST_STEP: u64 = 64;
/// Most pages by which the hand moves at once.
const MOST_STEP: u64 = 1 << 16;
/// Time after which pages are looked at again that were all shared, in nanoseconds.
const SWEEP_AGAIN_NS: u64 = 100_000_000;
/// Chunks examined at once with the lock held.
const LOOKS: usize = 512;

impl Evictor {
    /// True if the pages shared with other processes are to be evicted too, although this process
    /// still has pages of its own: these are the smaller part of what it is charged for, counted
    /// by the processes that would miss a page.
    pub(super) fn is_mostly_shared(&self) -> bool {
        let pager = self.pager;
        let shared = pager.own_process().shared_pages.load(Ordering::Relaxed);
        let others = self.other_processes();
        let part = shared / others;
        pager.charged().saturating_sub(part) < part / others
    }

    /// True if the run was over its budget by more than a tenth at the last measurement: the pages
    /// that processes share leave too then, whatever this one has of its own.
    pub(super) fn is_run_far_over(&self) -> bool {
        let block = &self.pager.block;
        let excess = block.shared_excess.load(Ordering::Relaxed);
        excess > block.limit_pages.load(Ordering::Relaxed) / 10
    }

    fn other_processes(&self) -> u64 {
        (self.pager.block.live_processes().count() as u64).saturating_sub(1).max(1)
    }

    /// Notes that the clock hand has found only shared pages.
    pub(super) fn note_all_shared(&mut self) {
        self.all_shared = self.resident_and_shared();
        self.all_shared_until_ns = sys::monotonic_ns() + SWEEP_AGAIN_NS;
    }

    /// True if a further sweep would find only shared pages too: nothing came or was copied since
    /// the last. Waits for a tick then, unless the shared hand has moved.
    pub(super) fn waits_for_shared_hand(&mut self) -> bool {
        let all_shared = |it: &Evictor| it.all_shared == it.resident_and_shared();
        if !all_shared(self) || sys::monotonic_ns() > self.all_shared_until_ns {
            return false;
        }
        self.advance_shared_hand();
        self.drop_shared_pages();
        if all_shared(self) {
            sys::futex_wait(&self.idle, 0, Some(SHORT_TICK_NS), false);
        }
        true
    }

    fn resident_and_shared(&self) -> [u64; 2] {
        let process = self.pager.own_process();
        [&process.resident_pages, &process.shared_pages].map(|pages| pages.load(Ordering::Relaxed))
    }

    /// Moves the shared hand on by the pages that the run was over its budget when its shared memory
    /// was last measured. Does nothing if another process has done it.
    pub(super) fn advance_shared_hand(&mut self) {
        let block = &self.pager.block;
        if self.pager.own_process().shared_pages.load(Ordering::Relaxed) == 0 {
            return;
        }
        let step = block.shared_excess.swap(0, Ordering::AcqRel).min(MOST_STEP);
        if step == 0 {
            return;
        }
        let from = block.shared_hand.load(Ordering::Acquire);
        let to = self.with_structure(|evictor, guarded| {
            evictor.position_after(from, step.max(LEAST_STEP), guarded)
        });
        if let Some(to) = to {
            block.shared_hand.fetch_max(to, Ordering::AcqRel);
        }
    }

    /// Returns the position behind the next `pages` resident pages after `from`, at most once
    /// round.
    fn position_after(&self, from: u64, pages: u64, guarded: &Guarded) -> u64 {
        let (mut at, mut found) = (from, 0);
        let end = from + (1 << PAGE_BITS);
        while found < pages
            && let Some(chunk) = next_chunk(&mut at, end, guarded)
        {
            let is_resident = |page: &PageNumber| self.managed(*page).state() == State::Resident;
            if self.pager.table.block_is_live(chunk.start) {
                found += chunk.filter(is_resident).count() as u64;
            }
        }
        at
    }

    /// Evicts the next shared pages up to the hand. `None`: there are none; the shared pager has none
    /// of a `fork`.
    pub(super) fn follow_shared_hand(&mut self) -> Option<Outcome> {
        let hand = self.pager.block.shared_hand.load(Ordering::Acquire);
        if self.shared_seen >= hand || self.pager.shared.is_some() {
            return None;
        }
        // Once round is all.
        self.shared_seen = self.shared_seen.max(hand.saturating_sub(1 << PAGE_BITS));
        self.with_structure(|it, guarded| it.drop_shared(hand, guarded))
    }

    fn drop_shared(&mut self, hand: u64, guarded: &mut Guarded) -> Outcome {
        let first = guarded.head_chunk;
        if self.retire(first, guarded).is_none() {
            return Outcome::FarFull;
        }
        let mut moved = 0;
        for offset in 0..self.batch() {
            let Some(pages) = self.next_shared_chunk(hand, guarded) else { break };
            let staging = &self.pager.staging;
            let frames = staging.frames_of(staging.chunk_after(first, offset));
            moved += self.stage(pages, frames, Victims::Shared);
        }
        let Some(_) = self.retire(first, guarded) else { return Outcome::FarFull };
        // They counted as copied, whole. This process was charged for a part of each alone, and when
        // all have dropped them it is charged for nothing.
        let part = moved as u64 / (self.other_processes() + 1);
        let shared = &self.pager.own_process().shared_pages;
        shared.fetch_add(part, Ordering::Relaxed);
        Outcome::Progress
    }

    /// Returns the next chunk of live pages before the hand.
    fn next_shared_chunk(&mut self, hand: u64, guarded: &Guarded) -> Option<Range<PageNumber>> {
        for _ in 0..LOOKS {
            let chunk = next_chunk(&mut self.shared_seen, hand, guarded)?;
            if self.pager.table.block_is_live(chunk.start) {
                return Some(chunk);
            }
        }
        None
    }
}

/// Returns the next managed chunk between the positions `at` and `end`, and moves `at` behind it.
/// `None`: there is none, and `at` is at the end.
fn next_chunk(at: &mut u64, end: u64, guarded: &Guarded) -> Option<Range<PageNumber>> {
    while *at < end {
        let (round, page) = (*at >> PAGE_BITS, (*at & ((1 << PAGE_BITS) - 1)) as PageNumber);
        let Some(range) = guarded.regions.next_from(page) else {
            *at = end.min((round + 1) << PAGE_BITS);
            continue;
        };
        let start = round << PAGE_BITS | range.start as u64;
        if start >= end {
            *at = end;
            return None;
        }
        let length = CHUNK_FRAMES.min(BLOCK_PAGES);
        let pages = range.start..range.end.min((range.start / length + 1) * length);
        *at = round << PAGE_BITS | pages.end as u64;
        return Some(pages);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::super::cold_spans::ColdSpans;
    use super::super::super::regions::Regions;
    use super::super::super::slots::Slots;
    use super::*;

    #[test]
    fn chunks_go_round_once() {
        let mut regions = Regions::default();
        regions.insert(10..100);
        regions.insert(640..700);
        let guarded = Guarded {
            regions,
            slots: Slots::new(0),
            hand: 0,
            head_chunk: 0,
            huge_out: Default::default(),
            advised_cold: ColdSpans::default(),
            locked: Regions::default(),
            page_outs: Default::default(),
            shared: Regions::default(),
        };
        let mut at = 3 << PAGE_BITS | 70;
        let end = at + (1 << PAGE_BITS);
        let chunks: Vec<_> = std::iter::from_fn(|| next_chunk(&mut at, end, &guarded)).collect();
        assert_eq!(chunks, [70..100, 640..700, 10..64, 64..100]);
        assert_eq!(next_chunk(&mut at, end, &guarded), None);
    }
}
