//! The packets a switch holds: one pool of buffers, and queues that are chains of them.
//!
//! A packet is copied in once. From then on only the number of its buffer moves: from an input
//! queue to an output's replay window, and back to the free ones.

use venice_wire::MAX_PACKET_BYTES;

use crate::routing::NextHop;

/// No slot.
const NONE: u32 = u32::MAX;

/// The next output of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// To this switch's own node.
    Local,
    /// To a neighbour.
    Out(NextHop),
}

/// A buffer of the pool, by number. It is not `Copy`, so it has one owner.
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
    output: Output,
}

/// Packets in the order of arrival.
#[derive(Debug)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        let entry = |n| Entry {
            len: 0,
            next: if n + 1 < count { n + 1 } else { NONE },
            output: Output::Local,
        };
        Self {
            bytes: vec![0; count as usize * MAX_PACKET_BYTES].into(),
            entries: (0..count).map(entry).collect(),
            first_free: if count == 0 { NONE } else { 0 },
            free: count,
        }
    }

    /// Returns the number of free buffers.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Copies a packet in.
    ///
    /// # Panics
    /// Panics if no buffer is free: there are as many as credits, windows and queues allow for.
    pub(super) fn take(&mut self, packet: &[u8]) -> Slot {
        let slot = Slot(self.first_free);
        assert!(slot.0 != NONE, "credits and windows stand for buffers: one is free");
        self.first_free = self.entries[slot.0 as usize].next;
        self.free -= 1;
        self.entries[slot.0 as usize] =
            Entry { len: packet.len() as u16, next: NONE, output: Output::Local };
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

    /// Sets the length of the packet in its buffer.
    pub(super) fn resize(&mut self, slot: &Slot, len: usize) {
        assert!(len <= MAX_PACKET_BYTES, "a packet fits its buffer");
        self.entries[slot.0 as usize].len = len as u16;
    }

    pub(super) fn whole_mut(&mut self, slot: &Slot) -> &mut [u8] {
        let start = slot.0 as usize * MAX_PACKET_BYTES;
        &mut self.bytes[start..start + MAX_PACKET_BYTES]
    }

    pub(super) fn output(&self, slot: &Slot) -> Output {
        self.entries[slot.0 as usize].output
    }

    pub(super) fn set_output(&mut self, slot: &Slot, output: Output) {
        self.entries[slot.0 as usize].output = output;
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

    /// Returns the first packet without removing it.
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
    fn packets_are_intact_and_buffers_return() {
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
    fn take_panics_without_free_buffer() {
        let mut slots = Slots::new(1);
        let _ = slots.take(b"one");
        let _ = slots.take(b"two");
    }
}
