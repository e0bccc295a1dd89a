//! Future events in the order of time, and within one instant in the order of insertion.

use crate::queue::Queue;

/// Future events of a world in one thread. Events stay where they are; small keys are sorted.
#[derive(Debug)]
pub struct Events<E> {
    queue: Queue<u32>,
    serial: u64,
    events: Vec<Option<E>>,
    free: Vec<u32>,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { queue: Queue::default(), serial: 0, events: Vec::new(), free: Vec::new() }
    }
}

impl<E> Events<E> {
    /// Inserts an event. Times are in the world's own unit.
    pub fn push(&mut self, at: u64, event: E) {
        self.serial += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() as u32 - 1
        });
        self.events[place as usize] = Some(event);
        self.queue.push(at, self.serial, place);
    }

    /// Returns the time of the next event.
    pub fn next_at(&mut self) -> Option<u64> {
        self.queue.next_at()
    }

    /// Removes the next event, with its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let (at, place) = self.queue.pop()?;
        self.free.push(place);
        let event = self.events[place as usize].take().expect("each key has its event");
        Some((at, event))
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if no event is left.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_insertion() {
        let mut events = Events::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            events.push(at, event);
        }
        assert_eq!((events.len(), events.next_at()), (4, Some(1)));
        let order: String = std::iter::from_fn(|| events.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
        assert!(events.is_empty());
    }
}
