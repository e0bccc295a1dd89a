//! The packets a switch holds: one pool of buffers, and queues that are chains of them.
//!
//! A packet is copied in once. From then on only the number of its buffer moves: from an input
//! queue to an output's replay window, and back to the free ones.

use venice_wire::MAX_PACKET_BYTES;

use crate::routing::NextHop;

/// No slot.
const NONE: u32 = u32::MAX;

/// Where a packet goes on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the node this switch belongs to.
    Local,
    /// To a neighbour.
    Out(NextHop),
}

/// A buffer of the pool, by number. It is not `Copy`: who holds it has it alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// The pool.
#[derive(Debug)]
pub(super) struct Slots {
    bytes: Box<[u8]>,
    entries: Box<[Entry]>,
    first_free: u32,
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    len: u16,
    next: u32,
    way: Way,
}

/// Packets in the order they came.
#[derive(Debug)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        let entry =
            |n| Entry { len: 0, next: if n + 1 < count { n + 1 } else { NONE }, way: Way::Local };
        Self {
            bytes: vec![0; count as usize * MAX_PACKET_BYTES].into(),
            entries: (0..count).map(entry).collect(),
            first_free: if count == 0 { NONE } else { 0 },
            free: count,
        }
    }

    /// Buffers that hold nothing.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Copies a packet in.
    ///
    /// # Panics
    /// When no buffer is free: there are as many as credits, windows and queues allow for.
    pub(super) fn take(&mut self, packet: &[u8]) -> Slot {
        let slot = Slot(self.first_free);
        assert!(slot.0 != NONE, "credits and windows stand for buffers: one is free");
        self.first_free = self.entries[slot.0 as usize].next;
        self.free -= 1;
        self.entries[slot.0 as usize] =
            Entry { len: packet.len() as u16, next: NONE, way: Way::Local };
        self.bytes_mut(&slot).copy_from_slice(packet);
        slot
    }

    pub(super) fn give_back(&mut self, slot: Slot) {
        self.entries[slot.0 as usize].next = self.first_free;
        self.first_free = slot.0;
        self.free += 1;
    }

    pub(super) fn bytes(&self, slot: &Slot) -> &[u8] {
        let start = slot.0 as usize * MAX_PACKET_BYTES;
        &self.bytes[start..start + usize::from(self.entries[slot.0 as usize].len)]
    }

    pub(super) fn bytes_mut(&mut self, slot: &Slot) -> &mut [u8] {
        let len = usize::from(self.entries[slot.0 as usize].len);
        &mut self.whole_mut(slot)[..len]
    }

    /// The buffer with the room behind the packet, and then how long the packet is.
    pub(super) fn resize(&mut self, slot: &Slot, len: usize) {
        assert!(len <= MAX_PACKET_BYTES, "a packet fits its buffer");
        self.entries[slot.0 as usize].len = len as u16;
    }

    pub(super) fn whole_mut(&mut self, slot: &Slot) -> &mut [u8] {
        let start = slot.0 as usize * MAX_PACKET_BYTES;
        &mut self.bytes[start..start + MAX_PACKET_BYTES]
    }

    pub(super) fn way(&self, slot: &Slot) -> Way {
        self.entries[slot.0 as usize].way
    }

    pub(super) fn set_way(&mut self, slot: &Slot, way: Way) {
        self.entries[slot.0 as usize].way = way;
    }
}

impl Queue {
    pub(super) fn new() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn push(&mut self, slots: &mut Slots, slot: Slot) {
        slots.entries[slot.0 as usize].next = NONE;
        match self.tail {
            NONE => self.head = slot.0,
            tail => slots.entries[tail as usize].next = slot.0,
        }
        self.tail = slot.0;
        self.len += 1;
    }

    /// The first packet, for a look.
    pub(super) fn head(&self) -> Option<Slot> {
        (self.head != NONE).then_some(Slot(self.head))
    }

    pub(super) fn pop(&mut self, slots: &Slots) -> Option<Slot> {
        let slot = self.head()?;
        self.head = slots.entries[slot.0 as usize].next;
        if self.head == NONE {
            self.tail = NONE;
        }
        self.len -= 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in_and_buffers_come_back() {
        let mut slots = Slots::new(3);
        let mut queue = Queue::new();
        for round in 0..10u8 {
            for n in 0..3u8 {
                let slot = slots.take(&[round, n]);
                queue.push(&mut slots, slot);
            }
            assert_eq!((slots.free(), queue.len()), (0, 3));
            for n in 0..3u8 {
                let slot = queue.pop(&slots).unwrap();
                assert_eq!(slots.bytes(&slot), [round, n]);
                slots.give_back(slot);
            }
            assert!(queue.pop(&slots).is_none() && queue.head().is_none());
            assert_eq!(slots.free(), 3);
        }
    }

    #[test]
    #[should_panic(expected = "stand for buffers")]
    fn more_than_there_are_buffers_is_a_broken_invariant() {
        let mut slots = Slots::new(1);
        let _ = slots.take(b"one");
        let _ = slots.take(b"two");
    }
}
