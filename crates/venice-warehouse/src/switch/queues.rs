//! Queues of packets in one slab, a queue for each pair of an input and an output.

use serde::{Deserialize, Serialize};

use crate::packet::PacketId;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// A packet that waits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) packet: PacketId,
    pub(super) bytes: u32,
    /// The earliest time at which it may be sent.
    pub(super) ready_at: u64,
    /// Arrivals at the switch before it.
    pub(super) number: u64,
    pub(super) marked: bool,
    next: u32,
}

impl Waiting {
    pub(super) fn new(packet: PacketId, bytes: u32, ready_at: u64) -> Self {
        Self { packet, bytes, ready_at, number: 0, marked: false, next: NONE }
    }
}

/// Packets of all queues of a switch. It grows to the most that ever waited, and is reused.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Slab {
    places: Vec<Waiting>,
    /// The first free place plus one: 0 if there is none.
    free: u32,
}

impl Slab {
    fn insert(&mut self, waiting: Waiting) -> u32 {
        match self.free.checked_sub(1) {
            Some(place) => {
                let slot = &mut self.places[place as usize];
                self.free = slot.next.wrapping_add(1);
                *slot = waiting;
                place
            }
            None => {
                self.places.push(waiting);
                self.places.len() as u32 - 1
            }
        }
    }

    fn remove(&mut self, place: u32) -> Waiting {
        let waiting = self.places[place as usize];
        self.places[place as usize].next = self.free.wrapping_sub(1);
        self.free = place + 1;
        waiting
    }
}

/// One queue: a list in the slab.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Queue {
    head: u32,
    tail: u32,
    bytes: u64,
}

const EMPTY: Queue = Queue { head: NONE, tail: NONE, bytes: 0 };

/// The queues of one output, one for each input. They take no room before the first packet waits.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Queues {
    inputs: u16,
    queues: Vec<Queue>,
    /// A bit for each input whose queue is not empty.
    waiting: Vec<u64>,
    packets: u32,
    bytes: u64,
}

impl Queues {
    pub(super) fn new(inputs: u16) -> Self {
        Self { inputs, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if a packet of the input waits.
    pub(super) fn has(&self, input: u16) -> bool {
        self.queues.get(usize::from(input)).is_some_and(|queue| queue.head != NONE)
    }

    /// Returns the bytes of one input's queue.
    pub(super) fn bytes_of(&self, input: u16) -> u64 {
        self.queues.get(usize::from(input)).map_or(0, |queue| queue.bytes)
    }

    /// Returns the first packet of one input's queue.
    pub(super) fn head<'a>(&self, slab: &'a Slab, input: u16) -> Option<&'a Waiting> {
        let queue = self.queues.get(usize::from(input))?;
        slab.places.get(queue.head as usize)
    }

    pub(super) fn push(&mut self, slab: &mut Slab, input: u16, waiting: Waiting) {
        if self.queues.is_empty() {
            self.queues = vec![EMPTY; self.inputs.into()];
            self.waiting = vec![0; usize::from(self.inputs).div_ceil(64)];
        }
        let place = slab.insert(waiting);
        let queue = &mut self.queues[usize::from(input)];
        match queue.tail {
            NONE => {
                queue.head = place;
                self.waiting[usize::from(input / 64)] |= 1 << (input % 64);
            }
            tail => slab.places[tail as usize].next = place,
        }
        queue.tail = place;
        queue.bytes += u64::from(waiting.bytes);
        self.bytes += u64::from(waiting.bytes);
        self.packets += 1;
    }

    /// Removes the first packet of one input's queue.
    ///
    /// # Panics
    /// If the queue is empty.
    pub(super) fn pop(&mut self, slab: &mut Slab, input: u16) -> Waiting {
        let queue = &mut self.queues[usize::from(input)];
        let waiting = slab.remove(queue.head);
        queue.head = waiting.next;
        if queue.head == NONE {
            queue.tail = NONE;
            self.waiting[usize::from(input / 64)] &= !(1 << (input % 64));
        }
        queue.bytes -= u64::from(waiting.bytes);
        self.bytes -= u64::from(waiting.bytes);
        self.packets -= 1;
        waiting
    }

    /// Visits the packets of all queues.
    pub(super) fn each_packet(&self, slab: &mut Slab, visit: &mut impl FnMut(&mut PacketId)) {
        for queue in &self.queues {
            let mut place = queue.head;
            while let Some(waiting) = slab.places.get_mut(place as usize) {
                visit(&mut waiting.packet);
                place = waiting.next;
            }
        }
    }

    /// Returns the inputs whose queues are not empty, from `first` upwards and then from 0.
    pub(super) fn inputs_from(&self, first: u16) -> impl Iterator<Item = u16> {
        bits_from(&self.waiting, first)
    }
}

/// Returns the numbers of the bits that are set, from `first` upwards and then from 0.
pub(super) fn bits_from(words: &[u64], first: u16) -> impl Iterator<Item = u16> {
    let (word, below) = (usize::from(first / 64), (1u64 << (first % 64)) - 1);
    let word = word.min(words.len());
    let at = |n: usize, mask: u64| (n as u16, words.get(n).copied().unwrap_or(0) & mask);
    let upper =
        std::iter::once(at(word, !below)).chain((word + 1..words.len()).map(move |n| at(n, !0)));
    let lower = (0..word).map(move |n| at(n, !0)).chain(std::iter::once(at(word, below)));
    upper.chain(lower).flat_map(|(number, bits)| Bits(bits).map(move |bit| number * 64 + bit))
}

/// The numbers of the bits of a word.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as u16;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn queues_equal_a_model(steps in prop::collection::vec((0..130u16, any::<bool>()), 0..300)) {
            let (mut slab, mut queues) = (Slab::default(), Queues::new(130));
            let mut model = vec![VecDeque::new(); 130];
            let mut most = 0;
            for (number, (input, push)) in (0u32..).zip(steps) {
                if push {
                    queues.push(&mut slab, input, Waiting::new(number, number + 1, 0));
                    model[usize::from(input)].push_back(number);
                } else if let Some(packet) = model[usize::from(input)].pop_front() {
                    prop_assert_eq!(queues.pop(&mut slab, input).packet, packet);
                }
                let count = model.iter().map(VecDeque::len).sum::<usize>();
                most = most.max(count);
                prop_assert_eq!(queues.packets() as usize, count);
                let bytes = |queue: &VecDeque<u32>| queue.iter().map(|n| u64::from(n + 1)).sum::<u64>();
                prop_assert_eq!(queues.bytes(), model.iter().map(bytes).sum::<u64>());
                prop_assert_eq!(queues.bytes_of(input), bytes(&model[usize::from(input)]));
                prop_assert_eq!(queues.has(input), !model[usize::from(input)].is_empty());
                let head = queues.head(&slab, input).map(|head| head.packet);
                prop_assert_eq!(head, model[usize::from(input)].front().copied());
                let order = (input..130).chain(0..input);
                let order = order.filter(|input| !model[usize::from(*input)].is_empty());
                prop_assert!(queues.inputs_from(input).eq(order));
                let mut packets = Vec::new();
                queues.each_packet(&mut slab, &mut |packet| packets.push(*packet));
                prop_assert!(packets.into_iter().eq(model.iter().flatten().copied()));
            }
            prop_assert_eq!(slab.places.len(), most);
        }
    }
}
