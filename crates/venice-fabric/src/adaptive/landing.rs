//! Slots of the receiver's landing region, allocated and freed in order.

/// A ring of bytes in which no slot wraps around the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct LandingRing {
    capacity: u64,
    /// Byte counts since the start: `start..end` is allocated.
    start: u64,
    end: u64,
}

/// A slot, and the bytes of the ring it takes, including those skipped before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LandingSlot {
    pub offset: u64,
    pub taken_bytes: u64,
}

/// Slots begin at multiples of a cache line.
const ALIGN_BYTES: u64 = 64;

impl LandingRing {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity: capacity / ALIGN_BYTES * ALIGN_BYTES, start: 0, end: 0 }
    }

    /// Returns a slot for `len_bytes`, if there is one. [`LandingRing::take`] allocates it.
    pub(super) fn find(&self, len_bytes: u64) -> Option<LandingSlot> {
        let needed = len_bytes.next_multiple_of(ALIGN_BYTES);
        let at = self.end.checked_rem(self.capacity)?;
        let skipped = if at + needed > self.capacity { self.capacity - at } else { 0 };
        let taken_bytes = skipped + needed;
        let free = self.capacity - (self.end - self.start);
        let offset = if skipped > 0 { 0 } else { at };
        (taken_bytes <= free).then_some(LandingSlot { offset, taken_bytes })
    }

    pub(super) fn take(&mut self, place: &LandingSlot) {
        self.end += place.taken_bytes;
        assert!(self.end - self.start <= self.capacity, "the slot was found free");
    }

    /// Frees the oldest slot.
    pub(super) fn give_back(&mut self, place: &LandingSlot) {
        self.start += place.taken_bytes;
        assert!(self.start <= self.end, "each slot is freed once");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_never_overlap(
            capacity in 0..2000u64,
            ops in prop::collection::vec(prop::option::of(1..700u64), 1..200),
        ) {
            let mut ring = LandingRing::new(capacity);
            let mut taken: VecDeque<(LandingSlot, u64)> = VecDeque::new();
            for op in ops {
                if let Some(len_bytes) = op {
                    let Some(place) = ring.find(len_bytes) else { continue };
                    ring.take(&place);
                    prop_assert!(place.offset + len_bytes <= capacity);
                    for (other, other_len) in &taken {
                        let is_apart = place.offset + len_bytes <= other.offset
                            || other.offset + other_len <= place.offset;
                        prop_assert!(is_apart, "{place:?} {other:?}");
                    }
                    taken.push_back((place, len_bytes));
                } else if let Some((place, _)) = taken.pop_front() {
                    ring.give_back(&place);
                }
            }
            while let Some((place, _)) = taken.pop_front() {
                ring.give_back(&place);
            }
            // An empty ring that is not at its beginning may have to skip the rest up to its end.
            prop_assert!(ring.find(capacity / 2 / ALIGN_BYTES * ALIGN_BYTES).is_some() || capacity < 64);
        }
    }
}
