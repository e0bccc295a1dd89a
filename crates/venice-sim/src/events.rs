//! What is to happen, in the order of time; what happens at one instant, in the order it was put in.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A queue of events in virtual time.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    serial: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at_ns: u64,
    serial: u64,
    event: E,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), serial: 0 }
    }
}

impl<E> Events<E> {
    /// Puts an event in.
    pub fn push(&mut self, at_ns: u64, event: E) {
        self.serial += 1;
        self.heap.push(Reverse(Entry { at_ns, serial: self.serial, event }));
    }

    /// When the next event is.
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.at_ns)
    }

    /// Takes the next event out, with its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at_ns, entry.event))
    }

    /// Events in the queue.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing will ever happen again.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_ns, self.serial).cmp(&(other.at_ns, other.serial))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_first_then_the_order_of_arrival() {
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
