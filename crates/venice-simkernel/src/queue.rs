//! Future events in the order of time, and within one instant of rank.
//!
//! A hierarchy of wheels (Varghese and Lauck, SOSP 1987): the time is read as four digits of twelve
//! bits above a tick of 2^16, and an event waits in the wheel of the highest digit in which its time
//! differs from the present. Each event falls through at most four wheels; the events of the present
//! tick are sorted when it begins. Slots keep events in blocks of one pool, and the block that was
//! freed last is used next: the memory in use is that of the events that wait, not that of all slots.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

/// Bits of a time below a tick: 2^16 ps are 65.5 ns.
const TICK_BITS: u32 = 16;
/// Bits of a digit: each wheel has 2^12 slots.
const DIGIT_BITS: u32 = 12;
const SLOTS: usize = 1 << DIGIT_BITS;
/// Wheels: with them every time of 64 bits has its slot.
const WHEELS: usize = 4;
/// Events of a block.
const BLOCK: usize = 8;
/// The end of a list of blocks.
const NONE: u32 = u32::MAX;

/// An event with its place in the order.
#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    at: u64,
    rank: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (u64, u64) {
        (self.at, self.rank)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Future events. Times and ranks are numbers of the caller's; the cost is best if some events share
/// a tick of 2^16. Events are moved, so they should be small.
///
/// ```
/// use venice_simkernel::queue::Queue;
///
/// let mut queue = Queue::default();
/// queue.push(7, 1, "later");
/// queue.push(5, 2, "second");
/// queue.push(5, 1, "first");
/// assert_eq!(queue.next_at(), Some(5));
/// assert_eq!(queue.pop(), Some((5, "first")));
/// assert_eq!(queue.pop(), Some((5, "second")));
/// ```
#[derive(Debug, Serialize, Deserialize)]
#[serde(
    from = "Vec<(u64, u64, E)>",
    into = "Vec<(u64, u64, E)>",
    bound(serialize = "E: Clone + Serialize")
)]
pub struct Queue<E> {
    wheels: [Wheel; WHEELS],
    pool: Pool<E>,
    /// The present tick. Events in it, and before it, are in `present` and `late`.
    tick: u64,
    /// Sorted, the next one last.
    present: Vec<Entry<E>>,
    /// Inserted since the present tick began.
    late: BinaryHeap<Reverse<Entry<E>>>,
    len: usize,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            wheels: std::array::from_fn(|_| Wheel::default()),
            pool: Pool::default(),
            tick: 0,
            present: Vec::new(),
            late: BinaryHeap::new(),
            len: 0,
        }
    }
}

/// Inserts events with their times and ranks.
impl<E> From<Vec<(u64, u64, E)>> for Queue<E> {
    fn from(events: Vec<(u64, u64, E)>) -> Self {
        let mut queue = Self::default();
        events.into_iter().for_each(|(at, rank, event)| queue.push(at, rank, event));
        queue
    }
}

/// Returns all events in their order, with times and ranks.
impl<E> From<Queue<E>> for Vec<(u64, u64, E)> {
    fn from(mut queue: Queue<E>) -> Self {
        std::iter::from_fn(|| queue.take())
            .map(|Entry { at, rank, event }| (at, rank, event))
            .collect()
    }
}

impl<E: Clone> Clone for Queue<E> {
    fn clone(&self) -> Self {
        let waiting = self.pool.entries.iter().flatten();
        let now = self.present.iter().chain(self.late.iter().map(|Reverse(entry)| entry));
        let mut queue = Self { tick: self.tick, ..Self::default() };
        now.chain(waiting).for_each(|entry| queue.push(entry.at, entry.rank, entry.event.clone()));
        queue
    }
}

impl<E> Queue<E> {
    /// Inserts an event. One whose time is past comes next.
    pub fn push(&mut self, at: u64, rank: u64, event: E) {
        self.len += 1;
        self.place(Entry { at, rank, event });
    }

    /// Removes the next event, with its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.take().map(|entry| (entry.at, entry.event))
    }

    /// Removes the next event if its time is before `end`, with time and rank.
    pub fn pop_ranked_before(&mut self, end: u64) -> Option<(u64, u64, E)> {
        if self.next_at()? >= end {
            return None;
        }
        self.take().map(|Entry { at, rank, event }| (at, rank, event))
    }

    fn take(&mut self) -> Option<Entry<E>> {
        if self.present.is_empty() && self.late.is_empty() && !self.advance() {
            return None;
        }
        let is_late = match (self.present.last(), self.late.peek()) {
            (Some(present), Some(Reverse(late))) => late < present,
            (present, _) => present.is_none(),
        };
        let entry = match is_late {
            true => self.late.pop().map(|Reverse(entry)| entry),
            false => self.present.pop(),
        };
        self.len -= 1;
        entry
    }

    /// Returns the time of the next event.
    pub fn next_at(&mut self) -> Option<u64> {
        if self.present.is_empty() && self.late.is_empty() && !self.advance() {
            return None;
        }
        let present = self.present.last().map(|entry| entry.at);
        let late = self.late.peek().map(|Reverse(entry)| entry.at);
        present.into_iter().chain(late).min()
    }

    /// Returns the event that comes after `before` others, if it is of the present tick and was known when
    /// that began: enough to prepare for it.
    #[inline]
    pub fn ahead(&self, before: usize) -> Option<&E> {
        let at = self.present.len().checked_sub(before + 1)?;
        Some(&self.present[at].event)
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no event is left.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn place(&mut self, entry: Entry<E>) {
        let tick = entry.at >> TICK_BITS;
        if tick <= self.tick {
            return self.late.push(Reverse(entry));
        }
        let highest = 63 - (tick ^ self.tick).leading_zeros();
        let wheel = (highest / DIGIT_BITS) as usize;
        self.wheels[wheel].insert(digit(tick, wheel), entry, &mut self.pool);
    }

    /// Goes to the next tick that has events; `false`: there is none.
    fn advance(&mut self) -> bool {
        while self.present.is_empty() && self.late.is_empty() {
            let next = (0..WHEELS).find_map(|wheel| {
                let after = digit(self.tick, wheel) + 1;
                self.wheels[wheel].next(after).map(|slot| (wheel, slot))
            });
            let Some((wheel, slot)) = next else { return false };
            let shift = wheel as u32 * DIGIT_BITS;
            let above = self.tick >> shift >> DIGIT_BITS << DIGIT_BITS;
            self.tick = (above | slot as u64) << shift;
            self.enter(wheel, slot);
        }
        true
    }

    /// Distributes the events of a slot, whose first tick is the present one.
    fn enter(&mut self, wheel: usize, slot: usize) {
        let mut list = self.wheels[wheel].take(slot);
        if wheel > 0 {
            while let Some(entry) = self.pool.pop(&mut list) {
                self.place(entry);
            }
            return;
        }
        self.present.extend(std::iter::from_fn(|| self.pool.pop(&mut list)));
        self.present.sort_unstable_by(|one, other| other.cmp(one));
    }
}

/// Returns a digit of a tick.
fn digit(tick: u64, wheel: usize) -> usize {
    (tick >> (wheel as u32 * DIGIT_BITS)) as usize & (SLOTS - 1)
}

/// Events in blocks.
#[derive(Debug)]
struct Pool<E> {
    /// The events of all blocks, one block after the other.
    entries: Vec<Option<Entry<E>>>,
    /// By block, the next one of its list.
    next: Vec<u32>,
    /// The first block that is free.
    free: u32,
}

impl<E> Default for Pool<E> {
    fn default() -> Self {
        Self { entries: Vec::new(), next: Vec::new(), free: NONE }
    }
}

/// A list of blocks: the first one, and the events in it. The others are full.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    len: u32,
}

const EMPTY: List = List { first: NONE, len: 0 };

impl<E> Pool<E> {
    fn push(&mut self, list: &mut List, entry: Entry<E>) {
        if list.first == NONE || list.len as usize == BLOCK {
            let block = self.take_block();
            self.next[block as usize] = list.first;
            *list = List { first: block, len: 0 };
        }
        self.entries[list.first as usize * BLOCK + list.len as usize] = Some(entry);
        list.len += 1;
    }

    fn pop(&mut self, list: &mut List) -> Option<Entry<E>> {
        let place = list.len.checked_sub(1)?;
        let block = list.first;
        let entry = self.entries[block as usize * BLOCK + place as usize].take();
        list.len = place;
        if place == 0 {
            let next = std::mem::replace(&mut self.next[block as usize], self.free);
            self.free = block;
            *list = if next == NONE { EMPTY } else { List { first: next, len: BLOCK as u32 } };
        }
        entry
    }

    fn take_block(&mut self) -> u32 {
        if self.free == NONE {
            let block = self.next.len() as u32;
            self.entries.extend(std::iter::repeat_with(|| None).take(BLOCK));
            self.next.push(NONE);
            return block;
        }
        let block = self.free;
        self.free = self.next[block as usize];
        block
    }
}

/// The slots of one digit.
#[derive(Debug)]
struct Wheel {
    /// Empty until the first event.
    slots: Vec<List>,
    /// A bit for each slot that has events, and for each of those words that is not 0.
    used: [u64; SLOTS / 64],
    used_words: u64,
}

impl Default for Wheel {
    fn default() -> Self {
        Self { slots: Vec::new(), used: [0; SLOTS / 64], used_words: 0 }
    }
}

impl Wheel {
    fn insert<E>(&mut self, slot: usize, entry: Entry<E>, pool: &mut Pool<E>) {
        if self.slots.is_empty() {
            self.slots = vec![EMPTY; SLOTS];
        }
        pool.push(&mut self.slots[slot], entry);
        self.used[slot / 64] |= 1 << (slot % 64);
        self.used_words |= 1 << (slot / 64);
    }

    /// Returns the first used slot from there on.
    fn next(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        if word >= self.used.len() {
            return None;
        }
        let rest = self.used[word] & (u64::MAX << (from % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let words = self.used_words & u64::MAX.checked_shl(word as u32 + 1).unwrap_or(0);
        let word = (words != 0).then(|| words.trailing_zeros() as usize)?;
        Some(word * 64 + self.used[word].trailing_zeros() as usize)
    }

    fn take(&mut self, slot: usize) -> List {
        self.used[slot / 64] &= !(1 << (slot % 64));
        if self.used[slot / 64] == 0 {
            self.used_words &= !(1 << (slot / 64));
        }
        std::mem::replace(&mut self.slots[slot], EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// What a test does with the queue.
    #[derive(Clone, Debug)]
    enum Step {
        /// Inserts an event so long after the present.
        Push {
            after: u64,
            rank: u64,
        },
        Pop,
        PopBefore {
            after: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let after = || (0..64u32, any::<u64>()).prop_map(|(shift, after)| after >> shift);
        prop_oneof![
            3 => (after(), 0..4u64).prop_map(|(after, rank)| Step::Push { after, rank }),
            2 => Just(Step::Pop),
            1 => after().prop_map(|after| Step::PopBefore { after }),
        ]
    }

    proptest! {
        #[test]
        fn order_is_that_of_a_map(steps in prop::collection::vec(step(), 1..400)) {
            let (mut queue, mut model, mut now) = (Queue::default(), BTreeMap::new(), 0u64);
            for (number, step) in (0u64..).zip(steps) {
                match step {
                    Step::Push { after, rank } => {
                        let (at, rank) = (now.saturating_add(after), rank << 32 | number);
                        queue.push(at, rank, number);
                        model.insert((at, rank), number);
                    }
                    Step::Pop => {
                        let expected = model.pop_first().map(|((at, _), event)| (at, event));
                        prop_assert_eq!(queue.pop(), expected);
                        now = expected.map_or(now, |(at, _)| at);
                    }
                    Step::PopBefore { after } => {
                        let end = now.saturating_add(after);
                        let is_due = model.first_key_value().is_some_and(|(key, _)| key.0 < end);
                        let popped = is_due.then(|| model.pop_first().unwrap());
                        let popped = popped.map(|((at, _), event)| (at, event));
                        let found = queue.pop_ranked_before(end);
                        let found = found.map(|(at, _, event)| (at, event));
                        prop_assert_eq!(found, popped);
                        now = popped.map_or(now, |(at, _)| at);
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.next_at(), model.keys().next().map(|key| key.0));
            }
        }
    }

    #[test]
    fn past_event_comes_next() {
        let mut queue = Queue::default();
        queue.push(1 << 40, 0, 'a');
        assert_eq!(queue.next_at(), Some(1 << 40));
        queue.push(3, 0, 'b');
        assert_eq!((queue.pop(), queue.pop()), (Some((3, 'b')), Some((1 << 40, 'a'))));
    }

    #[test]
    fn last_instant_has_events() {
        let mut queue = Queue::default();
        queue.push(u64::MAX, 0, ());
        assert_eq!(queue.pop_ranked_before(u64::MAX), None);
        assert_eq!(queue.pop(), Some((u64::MAX, ())));
    }
}
