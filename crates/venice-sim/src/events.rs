//! A queue of future events in the order of time, and within one instant in the order of insertion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A queue of events in virtual time. The heap holds small keys; events stay where they are.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Key>>,
    serial: u64,
    events: Vec<Option<E>>,
    free: Vec<u32>,
}

/// Order: by time, then by insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    at_ns: u64,
    serial: u64,
    place: u32,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), serial: 0, events: Vec::new(), free: Vec::new() }
    }
}

impl<E> Events<E> {
    /// Inserts an event.
    pub fn push(&mut self, at_ns: u64, event: E) {
        self.serial += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() as u32 - 1
        });
        self.events[place as usize] = Some(event);
        self.heap.push(Reverse(Key { at_ns, serial: self.serial, place }));
    }

    /// Returns the time of the next event.
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(key)| key.at_ns)
    }

    /// Removes the next event, with its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let Reverse(Key { at_ns, place, .. }) = self.heap.pop()?;
        self.free.push(place);
        let event = self.events[place as usize].take().expect("each key has its event");
        Some((at_ns, event))
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if no event is left.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_insertion() {
        let mut events = Events::default();
        for (at_ns, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            events.push(at_ns, event);
        }
        assert_eq!((events.len(), events.next_ns()), (4, Some(1)));
        let order: String = std::iter::from_fn(|| events.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
        assert!(events.is_empty());
    }
}
