//! Eviction of huge pages: each leaves whole, by one `UFFDIO_MOVE`, for a slot of its own, and is
//! written out when it is the oldest there. Clean pages and zeros are not written; that is decided
//! for each page of 4 KiB, as always. The 2 MiB are kept for a huge page that comes in, or freed.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::huge_slots::{HugeSlot, MOST_SPARES};
use super::super::page_size::HUGE_PAGES;
use super::super::page_table::PageNumber;
use super::super::pager::{Guarded, huge_on_their_way};
use super::Evictor;
use super::chunks::Victims;

impl Evictor {
    /// Moves the `victims` of a huge page to a slot. Returns the number of pages moved. `None`:
    /// far memory is used up, and the pages in the slots had to stay.
    pub(super) fn stage_huge(
        &mut self,
        pages: Range<PageNumber>,
        victims: Victims,
        guarded: &mut Guarded,
    ) -> Option<usize> {
        let slot = self.free_slot(guarded)?;
        let frames = self.pager.staging.frames_of_huge(slot);
        let moved = self.stage(pages, frames, victims);
        guarded.huge_out.push_back(slot);
        if moved == HUGE_PAGES {
            self.pager.block.counters.huge_out.fetch_add(1, Ordering::Relaxed);
        }
        Some(moved)
    }

    /// Returns an empty slot. Retires others where there are too many.
    fn free_slot(&mut self, guarded: &mut Guarded) -> Option<HugeSlot> {
        loop {
            if guarded.huge_out.len() < self.most_slots()
                && let Some(slot) = self.pager.staging.huge().hold()
            {
                return Some(slot);
            }
            self.retire_oldest(guarded)?;
        }
    }

    fn most_slots(&self) -> usize {
        let limit = self.pager.limit_pages.load(Ordering::Relaxed);
        huge_on_their_way(limit, self.pager.staging.huge().count() - MOST_SPARES - 1)
    }

    /// Retires slots beyond the most allowed, and one where nothing else can leave. Returns the
    /// number of frames freed. `None`: far memory is used up.
    pub(super) fn retire_spent_huge(
        &mut self,
        nothing_else: bool,
        guarded: &mut Guarded,
    ) -> Option<usize> {
        let mut freed = 0;
        let mut one_more = nothing_else;
        while guarded.huge_out.len() > self.most_slots() || one_more && !guarded.huge_out.is_empty()
        {
            one_more = false;
            freed += self.retire_oldest(guarded)?;
        }
        Some(freed)
    }

    /// Writes out the contents of the oldest slot. Returns the number of frames freed.
    fn retire_oldest(&mut self, guarded: &mut Guarded) -> Option<usize> {
        let slot = guarded.huge_out.pop_front().expect("slots that are not empty are in it");
        let freed = self.retire_slot(slot, guarded);
        if freed.is_none() {
            guarded.huge_out.push_front(slot);
        }
        freed
    }

    /// Writes out the contents of `slot` and gives the slot up. Returns the number of frames freed.
    fn retire_slot(&mut self, slot: HugeSlot, guarded: &mut Guarded) -> Option<usize> {
        let frames = self.pager.staging.frames_of_huge(slot);
        // Decided once the evictor has claimed the contents: no thread takes any of them back then.
        let is_spare = Cell::new(false);
        let free = |evictor: &Evictor, frames| {
            is_spare.set(evictor.is_wanted_as_spare(slot));
            if !is_spare.get() {
                evictor.drop_frames(frames);
            }
        };
        let freed = self.retire_frames(&[frames], guarded, free)?;
        let slots = self.pager.staging.huge();
        if is_spare.get() {
            slots.give_spare(slot)
        } else {
            slots.give_empty(slot)
        }
        Some(freed)
    }

    /// True if the slot's memory is a huge page of the kernel's, and another spare is wanted.
    fn is_wanted_as_spare(&self, slot: HugeSlot) -> bool {
        let staging = &self.pager.staging;
        staging.huge().spares() < MOST_SPARES
            && self.presence.is_huge(staging.address_of_huge(slot)) == Some(true)
    }

    /// Writes out the huge page that was staged last.
    pub(super) fn retire_last_huge(&mut self, guarded: &mut Guarded) -> Option<usize> {
        let Some(slot) = guarded.huge_out.pop_back() else { return Some(0) };
        let freed = self.retire_slot(slot, guarded);
        if freed.is_none() {
            guarded.huge_out.push_back(slot);
        }
        freed
    }

    /// Writes out the slot that a frame is in, out of order.
    pub(super) fn retire_huge_of(&mut self, frame: u32, guarded: &mut Guarded) {
        let staging = &self.pager.staging;
        let holds = |slot: &HugeSlot| staging.frames_of_huge(*slot).contains(&frame);
        if let Some(at) = guarded.huge_out.iter().position(holds) {
            let slot = guarded.huge_out.remove(at).expect("just found");
            if self.retire_slot(slot, guarded).is_none() {
                guarded.huge_out.insert(at, slot);
            }
        }
    }
}
