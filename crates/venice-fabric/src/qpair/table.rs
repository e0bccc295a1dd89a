//! The QPairs of an engine, indexed by number.

use super::{QPairId, pair::QPair};

/// A number consists of a slot and a count of the slot's uses, so that a late frame for an earlier
/// QPair finds nothing.
#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[Option<Box<QPair>>]>,
    generations: Box<[u16]>,
    free: Vec<u16>,
}

impl Table {
    pub(super) fn new(max_qpairs: u16) -> Self {
        Self {
            slots: (0..max_qpairs).map(|_| None).collect(),
            generations: vec![0; max_qpairs.into()].into(),
            free: (0..max_qpairs).rev().collect(),
        }
    }

    /// Puts a QPair in a free slot, if there is one.
    pub(super) fn insert(&mut self, make: impl FnOnce(QPairId) -> QPair) -> Option<QPairId> {
        let slot = self.free.pop()?;
        let generation = &mut self.generations[usize::from(slot)];
        *generation = generation.wrapping_add(1).max(1);
        let id = QPairId(u32::from(*generation) << 16 | u32::from(slot));
        self.slots[usize::from(slot)] = Some(Box::new(make(id)));
        Some(id)
    }

    pub(super) fn get(&self, id: QPairId) -> Option<&QPair> {
        self.slots.get(id.slot())?.as_deref().filter(|pair| pair.id == id)
    }

    pub(super) fn get_mut(&mut self, id: QPairId) -> Option<&mut QPair> {
        self.slots.get_mut(id.slot())?.as_deref_mut().filter(|pair| pair.id == id)
    }

    /// Returns the present QPair of a slot.
    pub(super) fn id_in(&self, slot: usize) -> Option<QPairId> {
        Some(self.slots.get(slot)?.as_ref()?.id)
    }

    pub(super) fn remove(&mut self, id: QPairId) -> Option<Box<QPair>> {
        self.get(id)?;
        self.free.push(id.slot() as u16);
        self.slots[id.slot()].take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QPair> {
        self.slots.iter().filter_map(|slot| slot.as_deref())
    }

    pub(super) fn places(&self) -> usize {
        self.slots.len()
    }
}

impl QPairId {
    /// Returns the slot in the tables of the engine.
    pub(super) fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}
