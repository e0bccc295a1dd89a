//! Index from a sender's salt to its place in a table; never allocates after construction.

/// Hash table with open addressing; salts are random and serve as their own hash.
#[derive(Debug)]
pub(super) struct SaltIndex {
    /// Salt and place + 1; 0: empty. At most half of the slots are in use.
    slots: Box<[(u64, u32)]>,
    len: usize,
}

impl SaltIndex {
    /// Makes an index for up to `capacity` salts.
    pub(super) fn new(capacity: usize) -> Self {
        let slots = (capacity * 2).next_power_of_two();
        Self { slots: vec![(0, 0); slots].into(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, salt: u64) -> Option<usize> {
        match self.slots[self.slot_of(salt)] {
            (_, 0) => None,
            (_, place) => Some(place as usize - 1),
        }
    }

    /// Adds a new salt; there must be room.
    pub(super) fn insert(&mut self, salt: u64, place: usize) {
        assert!(self.len * 2 < self.slots.len(), "the index is full");
        let slot = self.slot_of(salt);
        debug_assert_eq!(self.slots[slot].1, 0);
        self.slots[slot] = (salt, place as u32 + 1);
        self.len += 1;
    }

    /// Removes a salt. The entries behind it move up, which keeps all of them reachable.
    pub(super) fn remove(&mut self, salt: u64) {
        let mut hole = self.slot_of(salt);
        if self.slots[hole].1 == 0 {
            return;
        }
        self.len -= 1;
        self.slots[hole] = (0, 0);
        let mask = self.slots.len() - 1;
        let mut next = (hole + 1) & mask;
        while self.slots[next].1 != 0 {
            let wanted = self.slots[next].0 as usize & mask;
            // True if `wanted` lies outside the stretch from behind the hole to here.
            if (next.wrapping_sub(wanted) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.slots[hole] = std::mem::take(&mut self.slots[next]);
                hole = next;
            }
            next = (next + 1) & mask;
        }
    }

    /// Returns the slot of the salt, or the one where it would go.
    fn slot_of(&self, salt: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = salt as usize & mask;
        while self.slots[slot].1 != 0 && self.slots[slot].0 != salt {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in proptest::collection::vec((any::<bool>(), 0u64..24), 0..200)) {
            let (mut index, mut model) = (SaltIndex::new(8), BTreeMap::new());
            for (n, (adds, salt)) in ops.into_iter().enumerate() {
                // Some salts collide, some wrap around the end.
                let salt = salt * 7;
                if adds && model.len() < 8 && !model.contains_key(&salt) {
                    index.insert(salt, n);
                    model.insert(salt, n);
                } else if !adds {
                    index.remove(salt);
                    model.remove(&salt);
                }
                prop_assert_eq!(index.len(), model.len());
                for salt in (0..24).map(|n| n * 7) {
                    prop_assert_eq!(index.get(salt), model.get(&salt).copied());
                }
            }
        }
    }
}
