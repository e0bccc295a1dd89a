//! Huge pages on their way out: each leaves whole, by one `UFFDIO_MOVE`, for a slot of its own, and is
//! written out when it is the oldest there. What of it is as its donor has it, or zeros, is not
//! written: that is known by pages of 4 KiB, as of others. The 2 MiB are kept for one that comes in, or
//! freed.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::huge_slots::{HugeSlot, MOST_SPARES};
use super::super::page_size::HUGE_PAGES;
use super::super::page_table::PageNumber;
use super::super::pager::{Guarded, huge_on_their_way};
use super::Evictor;

impl Evictor {
    /// Moves a huge page to a slot, or what of it is cold; the number of its pages that were moved.
    /// `None`: far memory is used up, and what is in the slots had to stay.
    pub(super) fn stage_huge(
        &mut self,
        window: Range<PageNumber>,
        only_cold: bool,
        guarded: &mut Guarded,
    ) -> Option<usize> {
        let slot = self.free_slot(guarded)?;
        let frames = self.pager.staging.frames_of_huge(slot);
        let moved = self.stage(window, frames, only_cold);
        guarded.huge_out.push_back(slot);
        if moved == HUGE_PAGES {
            self.pager.block.counters.huge_out.fetch_add(1, Ordering::Relaxed);
        }
        Some(moved)
    }

    /// An empty slot, for which others are retired where there are too many.
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

    /// Retires slots that are more than there may be, and one where nothing else can leave; how many
    /// frames were freed. `None`: far memory is used up.
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

    /// Writes out what the oldest slot still holds; the number of frames freed.
    fn retire_oldest(&mut self, guarded: &mut Guarded) -> Option<usize> {
        let slot = guarded.huge_out.pop_front().expect("slots that are not empty are in it");
        let freed = self.retire_slot(slot, guarded);
        if freed.is_none() {
            guarded.huge_out.push_front(slot);
        }
        freed
    }

    /// Writes out what `slot` still holds; the number of frames freed. The slot is nobody's then.
    fn retire_slot(&mut self, slot: HugeSlot, guarded: &mut Guarded) -> Option<usize> {
        let frames = self.pager.staging.frames_of_huge(slot);
        // Asked when what is in the slot is the evictor's: nobody takes any of it back then.
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

    /// A huge page of the kernel's that is translated as one is worth keeping.
    fn is_wanted_as_spare(&self, slot: HugeSlot) -> bool {
        let staging = &self.pager.staging;
        staging.huge().spares() < MOST_SPARES
            && self.presence.is_huge(staging.address_of_huge(slot)) == Some(true)
    }

    /// Writes out at once a huge page that was just staged last.
    pub(super) fn retire_last_huge(&mut self, guarded: &mut Guarded) -> Option<usize> {
        let Some(slot) = guarded.huge_out.pop_back() else { return Some(0) };
        let freed = self.retire_slot(slot, guarded);
        if freed.is_none() {
            guarded.huge_out.push_back(slot);
        }
        freed
    }

    /// Writes out the slot that a frame is in, whatever its turn is.
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
