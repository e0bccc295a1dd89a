//! Where a page lies: in which slab, and where in the replicas of that.

use super::super::PAGE;
use super::super::coding::Coding;
use super::{RunBlock, SLAB_SLOTS};

impl RunBlock {
    /// How the slabs are coded; `None`: they have copies.
    pub fn coding(&self) -> Option<Coding> {
        let [data, parity] = self.coding;
        Coding::new(data as usize, parity as usize).ok()
    }

    /// Fragments of which any give a page back: 1 where it has copies.
    pub fn data_fragments(&self) -> usize {
        self.coding[0] as usize
    }

    /// Different fragments of a page: 1 where it has copies.
    pub fn fragment_count(&self) -> usize {
        (self.coding[0] + self.coding[1]) as usize
    }

    /// Bytes of a page that a replica of its slab has.
    pub fn fragment_bytes(&self) -> usize {
        PAGE >> self.coding[0].trailing_zeros()
    }

    /// Far slots (pages) of a slab.
    pub fn slab_slots(&self) -> u32 {
        SLAB_SLOTS << self.coding[0].trailing_zeros()
    }

    /// The slab that a slot is in.
    pub fn slab_of(&self, slot: u32) -> usize {
        ((slot / SLAB_SLOTS) >> self.coding[0].trailing_zeros()) as usize
    }

    /// Where in every replica of its slab what it has of a slot begins, bytes.
    pub fn offset_of(&self, slot: u32) -> usize {
        (slot & (self.slab_slots() - 1)) as usize * self.fragment_bytes()
    }
}
