//! The windows of a hop link: packets sent and not yet acknowledged, and packets received early.
//!
//! They correspond to the windows of the end-to-end link, for packets that lie in the switch's
//! buffers and so are copied neither for replay nor for reordering.

use venice_wire::Sequence;

use super::slots::Slot;

/// A ring of packets in flight to the neighbour.
#[derive(Debug)]
pub(super) struct SendWindow {
    entries: Box<[Entry]>,
    oldest: Sequence,
    next: Sequence,
    replays_due: u32,
}

#[derive(Debug)]
struct Entry {
    slot: Option<Slot>,
    channel: u8,
    sent_at_ns: u64,
    sends: u32,
    replay_due: bool,
}

impl SendWindow {
    /// Returns a window of `capacity` packets, a power of two.
    pub(super) fn new(capacity: u32) -> Self {
        assert!(capacity.is_power_of_two(), "positions must map to entries across the wrap");
        let empty = || Entry { slot: None, channel: 0, sent_at_ns: 0, sends: 0, replay_due: false };
        Self {
            entries: (0..capacity).map(|_| empty()).collect(),
            oldest: Sequence(0),
            next: Sequence(0),
            replays_due: 0,
        }
    }

    /// Returns the number of packets in flight.
    pub(super) fn len(&self) -> u32 {
        self.next.since(self.oldest)
    }

    /// Returns the position of the next new packet.
    pub(super) fn next(&self) -> Sequence {
        self.next
    }

    /// Takes the position of the next new packet without keeping the packet, for ports that lose
    /// nothing.
    pub(super) fn pass(&mut self) -> Sequence {
        assert!(self.len() == 0, "nothing is kept on a reliable port");
        let sequence = self.next;
        self.next = sequence.plus(1);
        self.oldest = self.next;
        sequence
    }

    /// Keeps a packet that is sent now.
    pub(super) fn push(&mut self, now_ns: u64, slot: Slot, channel: u8) -> Sequence {
        assert!(self.len() < self.entries.len() as u32, "the caller checks for room");
        let sequence = self.next;
        let at = self.index(sequence);
        self.entries[at] =
            Entry { slot: Some(slot), channel, sent_at_ns: now_ns, sends: 1, replay_due: false };
        self.next = sequence.plus(1);
        sequence
    }

    /// Returns the next packet to be sent again, marked as sent now: position, channel, and buffer.
    pub(super) fn next_replay(&mut self, now_ns: u64) -> Option<(Sequence, u8, &Slot)> {
        if self.replays_due == 0 {
            return None;
        }
        let waiting = (0..self.len()).map(|n| self.oldest.plus(n));
        let mut due = waiting.filter(|sequence| self.entries[self.index(*sequence)].replay_due);
        let sequence = due.next().expect("as many are marked as are counted");
        let at = self.index(sequence);
        self.replays_due -= 1;
        let entry = &mut self.entries[at];
        entry.replay_due = false;
        entry.sends = entry.sends.saturating_add(1);
        entry.sent_at_ns = now_ns;
        let slot = entry.slot.as_ref().expect("a position in the window holds a packet");
        Some((sequence, entry.channel, slot))
    }

    pub(super) fn has_replay(&self) -> bool {
        self.replays_due > 0
    }

    /// Frees everything before `ack`, each buffer by `free`; false if `ack` is old or invalid. The
    /// time it took is no measure of the link, because acknowledgements are delayed.
    pub(super) fn acknowledge(&mut self, ack: Sequence, mut free: impl FnMut(Slot)) -> bool {
        let count = ack.since(self.oldest);
        if count == 0 || count > self.len() {
            return false;
        }
        for n in 0..count {
            let at = self.index(self.oldest.plus(n));
            self.replays_due -= u32::from(std::mem::take(&mut self.entries[at].replay_due));
            free(self.entries[at].slot.take().expect("a position in the window holds a packet"));
        }
        self.oldest = ack;
        true
    }

    /// Marks the packets that a Nak reports missing, except those replayed less than `patience_ns`
    /// ago.
    pub(super) fn replay_missing(
        &mut self,
        ack: Sequence,
        arrived: u64,
        now_ns: u64,
        patience_ns: u64,
    ) {
        if ack.since(self.oldest) > self.len() {
            return;
        }
        let reach = if arrived == 0 { 65 } else { 64 - arrived.leading_zeros() };
        for n in 0..reach.min(self.next.since(ack)) {
            let has_arrived = n > 0 && arrived & (1 << (n - 1)) != 0;
            let entry = &self.entries[self.index(ack.plus(n))];
            let on_its_way =
                entry.sends > 1 && now_ns.saturating_sub(entry.sent_at_ns) < patience_ns;
            if !has_arrived && !on_its_way {
                self.mark(ack.plus(n));
            }
        }
    }

    /// Marks the oldest packet, and the newest so that the neighbour reports the other missing
    /// ones.
    pub(super) fn replay_ends(&mut self) {
        if self.len() > 0 {
            self.mark(self.oldest);
            self.mark(self.next.plus(u32::MAX));
        }
    }

    /// Marks all packets: the link is up again, and it is unknown which arrived.
    pub(super) fn replay_all(&mut self) {
        (0..self.len()).for_each(|n| self.mark(self.oldest.plus(n)));
    }

    /// Resets the window; every kept packet goes to `free`.
    pub(super) fn clear(&mut self, free: impl FnMut(Slot)) {
        self.entries.iter_mut().for_each(|entry| entry.replay_due = false);
        self.entries.iter_mut().filter_map(|entry| entry.slot.take()).for_each(free);
        (self.oldest, self.next, self.replays_due) = (Sequence(0), Sequence(0), 0);
    }

    fn mark(&mut self, sequence: Sequence) {
        let at = self.index(sequence);
        if !std::mem::replace(&mut self.entries[at].replay_due, true) {
            self.replays_due += 1;
        }
    }

    fn index(&self, sequence: Sequence) -> usize {
        sequence.0 as usize & (self.entries.len() - 1)
    }
}

/// The classification of an arriving packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The next one.
    InOrder,
    /// Early.
    Early,
    /// A duplicate.
    Duplicate,
    /// Outside the window.
    Outside,
}

/// The packets received from the neighbour: everything before `next`, and some after it.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    parked: Box<[Option<(Slot, u8)>]>,
    next: Sequence,
    early: u32,
}

impl ReceiveWindow {
    /// Returns a window of `capacity` packets, a power of two.
    pub(super) fn new(capacity: u32) -> Self {
        assert!(capacity.is_power_of_two(), "positions must map to entries across the wrap");
        Self { parked: (0..capacity).map(|_| None).collect(), next: Sequence(0), early: 0 }
    }

    /// Returns the first position that has not arrived.
    pub(super) fn next(&self) -> Sequence {
        self.next
    }

    pub(super) fn has_gap(&self) -> bool {
        self.early > 0
    }

    /// Classifies a packet at this position.
    pub(super) fn classify(&self, sequence: Sequence) -> Arrival {
        let ahead = sequence.since(self.next);
        if sequence.is_before(self.next) {
            Arrival::Duplicate
        } else if ahead == 0 {
            Arrival::InOrder
        } else if ahead >= self.parked.len() as u32 {
            Arrival::Outside
        } else if self.parked[self.index(sequence)].is_some() {
            Arrival::Duplicate
        } else {
            Arrival::Early
        }
    }

    /// Advances past the packet at [`ReceiveWindow::next`].
    pub(super) fn advance(&mut self) {
        self.next = self.next.plus(1);
    }

    /// Parks a packet that came early.
    pub(super) fn park(&mut self, sequence: Sequence, slot: Slot, channel: u8) {
        let at = self.index(sequence);
        let before = self.parked[at].replace((slot, channel));
        assert!(before.is_none(), "an early packet is parked once");
        self.early += 1;
    }

    /// Returns a parked packet whose turn has come.
    pub(super) fn take_next(&mut self) -> Option<(Slot, u8)> {
        let at = self.index(self.next);
        let parked = self.parked[at].take()?;
        self.early -= 1;
        self.advance();
        Some(parked)
    }

    /// Returns a bitmap: bit `i` is set if position `next + 1 + i` is here.
    pub(super) fn bitmap(&self) -> u64 {
        let reach = (self.parked.len() as u32 - 1).min(64);
        (0..reach).fold(0, |bits, n| {
            let here = self.parked[self.index(self.next.plus(1 + n))].is_some();
            bits | u64::from(here) << n
        })
    }

    /// Resets the window; every parked packet goes to `free`.
    pub(super) fn clear(&mut self, mut free: impl FnMut(Slot, u8)) {
        let parked = self.parked.iter_mut().filter_map(Option::take);
        parked.for_each(|(slot, channel)| free(slot, channel));
        (self.next, self.early) = (Sequence(0), 0);
    }

    fn index(&self, sequence: Sequence) -> usize {
        sequence.0 as usize & (self.parked.len() - 1)
    }
}
