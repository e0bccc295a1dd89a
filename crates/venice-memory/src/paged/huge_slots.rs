//! The part of the staging area for huge pages on their way out: slots of 2 MiB, one huge page
//! each.
//!
//! A huge page that was written out leaves its 2 MiB in the slot. A few such slots are kept as
//! *spares*: the next huge page that comes in is assembled in one and moved from there, so that the
//! kernel need not find and clear 2 MiB in a row (about a millisecond in a virtual machine whose
//! host populates memory on touch, where copying 2 MiB takes a tenth of that).

use std::sync::atomic::{AtomicU32, Ordering};

use super::sys::{self, SysResult};

/// The number of a slot.
pub type HugeSlot = usize;

/// Most spares kept.
pub const MOST_SPARES: usize = 2;

/// The slot has no memory.
const EMPTY: u32 = 0;
/// The evictor uses it, for a page on its way out.
const HELD: u32 = 1;
/// The slot has memory whose contents are not needed.
const SPARE: u32 = 2;
/// The handler assembles a page in it.
const TAKEN: u32 = 3;

/// The slots and their uses.
#[derive(Debug)]
pub struct HugeSlots {
    uses: &'static [AtomicU32],
    spares: AtomicU32,
}

impl Drop for HugeSlots {
    fn drop(&mut self) {
        let uses = self.uses.as_ptr().cast_mut();
        // SAFETY: mapped by `new`, and used by nothing else.
        unsafe { sys::unmap(uses.cast(), size_of_val(self.uses)) };
    }
}

impl HugeSlots {
    /// Makes `count` slots, all empty.
    ///
    /// # Errors
    /// The kernel's, when there is no address space.
    pub fn new(count: usize) -> SysResult<HugeSlots> {
        let memory = sys::map_private(count * size_of::<AtomicU32>())?;
        // SAFETY: fresh zeroed memory of that size, unmapped with the slots.
        let uses = unsafe { std::slice::from_raw_parts(memory.cast::<AtomicU32>(), count) };
        Ok(HugeSlots { uses, spares: AtomicU32::new(0) })
    }

    /// Number of slots.
    pub fn count(&self) -> usize {
        self.uses.len()
    }

    /// Number of spares.
    pub fn spares(&self) -> usize {
        self.spares.load(Ordering::Relaxed) as usize
    }

    /// Takes an empty slot for the evictor.
    pub fn hold(&self) -> Option<HugeSlot> {
        self.first(EMPTY, HELD)
    }

    /// Takes a spare for the handler.
    pub fn take_spare(&self) -> Option<HugeSlot> {
        if self.spares() == 0 {
            return None;
        }
        let slot = self.first(SPARE, TAKEN)?;
        self.spares.fetch_sub(1, Ordering::Relaxed);
        Some(slot)
    }

    /// Gives back a slot whose memory is kept as a spare.
    pub fn give_spare(&self, slot: HugeSlot) {
        self.spares.fetch_add(1, Ordering::Relaxed);
        self.uses[slot].store(SPARE, Ordering::Release);
    }

    /// Gives back a slot whose memory was freed.
    pub fn give_empty(&self, slot: HugeSlot) {
        self.uses[slot].store(EMPTY, Ordering::Release);
    }

    /// Returns, in a forked child, the slots of the parent's handler, which does not exist here,
    /// and the spares. The caller owns them.
    pub fn parent_slots(&self) -> impl Iterator<Item = HugeSlot> {
        self.spares.store(0, Ordering::Relaxed);
        let uses = self.uses.iter().enumerate();
        uses.filter(|(_, word)| matches!(word.load(Ordering::Relaxed), SPARE | TAKEN))
            .map(|(slot, _)| slot)
    }

    fn first(&self, from: u32, to: u32) -> Option<HugeSlot> {
        let takes = |word: &AtomicU32| {
            word.load(Ordering::Relaxed) == from
                && word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.uses.iter().position(takes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_has_one_user() {
        let slots = HugeSlots::new(3).unwrap();
        assert_eq!((slots.hold(), slots.hold(), slots.take_spare()), (Some(0), Some(1), None));
        slots.give_spare(1);
        assert_eq!((slots.spares(), slots.hold(), slots.hold()), (1, Some(2), None));
        assert_eq!((slots.take_spare(), slots.take_spare(), slots.spares()), (Some(1), None, 0));
        slots.give_spare(2);
        assert_eq!(slots.parent_slots().collect::<Vec<_>>(), [1, 2]);
        slots.give_empty(1);
        slots.give_empty(2);
        assert_eq!((slots.hold(), slots.hold()), (Some(1), Some(2)));
    }
}
