//! Page layout: the slab of a far slot, and its offset in the slab's replicas.

use super::super::PAGE;
use super::super::coding::Coding;
use super::{RunBlock, SLAB_SLOTS};

impl RunBlock {
    /// The coding of the slabs; `None`: they have copies.
    pub fn coding(&self) -> Option<Coding> {
        let [data, parity] = self.coding;
        Coding::new(data as usize, parity as usize).ok()
    }

    /// Data fragments of a page: any so many restore it. 1 if the run keeps copies.
    pub fn data_fragments(&self) -> usize {
        self.coding[0] as usize
    }

    /// Distinct fragments of a page, parity included. 1 if the run keeps copies.
    pub fn fragment_count(&self) -> usize {
        (self.coding[0] + self.coding[1]) as usize
    }

    /// Bytes of a page in one replica of its slab.
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

    /// Offset of a slot in every replica of its slab, bytes.
    pub fn offset_of(&self, slot: u32) -> usize {
        (slot & (self.slab_slots() - 1)) as usize * self.fragment_bytes()
    }
}
