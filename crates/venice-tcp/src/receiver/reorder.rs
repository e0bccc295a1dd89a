//! Bytes and messages that came out of order.

use serde::{Deserialize, Serialize};

use crate::queue::Queue;
use crate::segment::SackBlocks;
use crate::sequence::{after, before, later};

/// The segments that came out of order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reorder {
    /// Ranges that neither overlap nor touch, each to the byte behind its last; that of the last
    /// segment first.
    ranges: Vec<(u32, u32)>,
    /// Ends of messages and their tags.
    messages: Vec<(u32, u64)>,
    /// The sequence number of FIN.
    pub(super) fin: Option<u32>,
}

impl Reorder {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.fin.is_none()
    }

    pub(super) fn insert(&mut self, first: u32, end: u32, message: Option<u64>, fin: bool) {
        if fin {
            self.fin = Some(end);
        }
        if first == end {
            return;
        }
        let last_byte = end.wrapping_sub(1);
        let is_known =
            self.ranges.iter().any(|&(from, to)| !before(last_byte, from) && before(last_byte, to));
        if let Some(message) = message.filter(|_| !is_known) {
            self.messages.push((end, message));
        }
        let (mut first, mut end) = (first, end);
        self.ranges.retain(|&(from, to)| {
            let is_apart = after(from, end) || before(to, first);
            if !is_apart {
                first = if before(from, first) { from } else { first };
                end = later(to, end);
            }
            is_apart
        });
        self.ranges.insert(0, (first, end));
    }

    /// Removes what is in sequence after `next`, and puts its messages into the queue. Returns the
    /// end.
    pub(super) fn advance(&mut self, next: u32, messages: &mut Queue<u64>) -> u32 {
        let mut end = next;
        while let Some(at) = self.ranges.iter().position(|&(from, _)| !after(from, end)) {
            let (_, to) = self.ranges.remove(at);
            end = later(end, to);
        }
        if self.messages.iter().any(|(at, _)| !after(*at, end)) {
            self.messages.sort_unstable_by_key(|(at, _)| at.wrapping_sub(next) as i32);
            let ready = self.messages.partition_point(|(at, _)| !after(*at, end));
            // Those that the last segment in sequence brought too were delivered with it.
            for (_, message) in self.messages.drain(..ready).filter(|(at, _)| after(*at, next)) {
                messages.push_back(message);
            }
        }
        end
    }

    pub(super) fn blocks(&self) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        for &(first, end) in self.ranges.iter().take(SackBlocks::MAX) {
            blocks.push(first, end);
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inserted(ranges: &[(u32, u32)]) -> Reorder {
        let mut reorder = Reorder::default();
        for &(first, end) in ranges {
            reorder.insert(first, end, Some(u64::from(end)), false);
        }
        reorder
    }

    #[test]
    fn last_range_comes_first() {
        let reorder = inserted(&[(10, 20), (40, 50), (30, 40)]);
        assert_eq!(reorder.blocks().as_slice(), [(30, 50), (10, 20)]);
        let reorder = inserted(&[(10, 20), (40, 50), (20, 40)]);
        assert_eq!(reorder.blocks().as_slice(), [(10, 50)]);
    }

    #[test]
    fn duplicate_adds_no_message() {
        let mut reorder = inserted(&[(10, 20), (15, 20), (30, 40), (10, 20)]);
        let mut messages = Queue::default();
        assert_eq!(reorder.advance(10, &mut messages), 20);
        assert_eq!((messages.pop_front(), messages.pop_front()), (Some(20), None));
        assert_eq!(reorder.advance(30, &mut messages), 40);
        assert!(reorder.is_empty() && messages.pop_front() == Some(40));
    }

    #[test]
    fn overlap_in_sequence_delivers_once() {
        // The segment in sequence ends where one out of order does: its message came with it.
        let mut reorder = inserted(&[(10, 20)]);
        let mut messages = Queue::default();
        assert_eq!(reorder.advance(20, &mut messages), 20);
        assert!(messages.is_empty());
    }
}
