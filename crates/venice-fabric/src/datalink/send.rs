//! The sending half of a link: the window of unacknowledged frames, kept for replay.

use venice_wire::{
    HEADER_BYTES, HeaderRepr, MAX_FRAME_BYTES, MAX_PAYLOAD_BYTES, REPLAY_FLAG, Sequence, WireError,
};

use super::lent::Lent;
use crate::config::MIN_WINDOW;

/// A ring of frames. `oldest..unsent` are in flight, `unsent..end` wait for credit. All of them
/// stay until acknowledged, or until sent if nothing is ever replayed.
#[derive(Debug)]
pub(super) struct SendWindow {
    slots: Box<[Slot]>,
    /// For each slot room for a header followed by the payload: a frame can be sent from there.
    frames: Box<[u8]>,
    oldest: Sequence,
    unsent: Sequence,
    end: Sequence,
    /// Frames the other side can buffer; before the handshake, the minimum that any side can.
    credits: u32,
    /// Slots marked [`Slot::replay_due`].
    replays_due: u32,
    /// Slots with a lent payload.
    loans: u32,
    /// True if frames are kept until acknowledged; otherwise only until sent.
    keeps_sent: bool,
}

#[derive(Clone, Debug)]
struct Slot {
    header: Option<HeaderRepr>,
    payload_len: u16,
    payload: Payload,
    sent_at_ns: u64,
    sends: u32,
    replay_due: bool,
}

/// The place of a frame's payload.
#[derive(Clone, Debug)]
enum Payload {
    /// In the slot, behind the room for its header.
    Here,
    /// With the user that queued the frame; requested at every transmission.
    AskedFor,
    /// In lent memory until the frame is acknowledged or sent again: then it is copied.
    Lent(Lent),
}

/// A frame that is sent from the places of its parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptParts<'a> {
    /// The header, and the payload unless that is lent.
    pub head: &'a [u8],
    pub lent: Option<&'a Lent>,
}

/// The result of an acknowledgement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// Frames freed.
    pub frames: u32,
    /// Round trip of the newest of them, if it was sent only once (otherwise the sending meant is
    /// ambiguous).
    pub round_trip_ns: Option<u64>,
}

impl SendWindow {
    /// Returns a window of `capacity` frames, a power of two.
    pub(super) fn new(capacity: u32, keeps_sent: bool) -> Self {
        assert!(capacity.is_power_of_two(), "positions must map to slots across the wrap");
        let empty = Slot {
            header: None,
            payload_len: 0,
            payload: Payload::Here,
            sent_at_ns: 0,
            sends: 0,
            replay_due: false,
        };
        Self {
            slots: vec![empty; capacity as usize].into(),
            frames: vec![0; capacity as usize * MAX_FRAME_BYTES].into(),
            oldest: Sequence(0),
            unsent: Sequence(0),
            end: Sequence(0),
            credits: capacity.min(MIN_WINDOW.into()),
            replays_due: 0,
            loans: 0,
            keeps_sent,
        }
    }

    /// Restarts for a new link whose other side can buffer `credits` frames. Frames queued and
    /// never sent stay queued.
    pub(super) fn open(&mut self, credits: u32) {
        assert_eq!(self.unsent, self.oldest, "frames of an old link cannot move to a new one");
        self.credits = credits.min(self.capacity());
    }

    /// Drops all frames.
    pub(super) fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.payload = Payload::Here);
        self.loans = 0;
        (self.oldest, self.unsent, self.end) = (Sequence(0), Sequence(0), Sequence(0));
        self.slots.iter_mut().for_each(|slot| slot.replay_due = false);
        self.replays_due = 0;
    }

    /// Drops all frames and frees the buffers: there is no room afterwards.
    pub(super) fn release(&mut self) {
        self.clear();
        (self.slots, self.frames) = (Box::default(), Box::default());
    }

    pub(super) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of frames that may be in flight at once.
    pub(super) fn credits(&self) -> u32 {
        self.credits
    }

    /// Returns the number of frames that can still be queued.
    pub(super) fn room(&self) -> u32 {
        let first_kept = if self.keeps_sent { self.oldest } else { self.unsent };
        self.capacity() - self.end.since(first_kept)
    }

    /// True if frames are in flight.
    pub(super) fn is_waiting(&self) -> bool {
        self.oldest != self.unsent
    }

    /// True if all queued frames have arrived; without copies for a replay: have been sent.
    pub(super) fn is_settled(&self) -> bool {
        let first_open = if self.keeps_sent { self.oldest } else { self.unsent };
        first_open == self.end
    }

    /// Returns the first position not acknowledged.
    pub(super) fn acked(&self) -> Sequence {
        self.oldest
    }

    /// True if a frame queued now would be sent at once.
    pub(super) fn is_eager(&self) -> bool {
        let is_drained = self.unsent == self.end && self.replays_due == 0;
        is_drained && self.unsent.since(self.oldest) < self.credits && self.room() > 0
    }

    /// Returns the position of the next queued frame.
    pub(super) fn end(&self) -> Sequence {
        self.end
    }

    /// Returns the buffer for the payload of the next frame; [`SendWindow::push`] follows.
    pub(super) fn stage(&mut self) -> &mut [u8] {
        assert!(self.room() > 0, "the caller checks for room");
        let at = self.index(self.end);
        &mut self.frames[at * MAX_FRAME_BYTES..][HEADER_BYTES..MAX_FRAME_BYTES]
    }

    /// Queues a frame with the first `payload_len` staged bytes.
    #[inline]
    pub(super) fn push(&mut self, header: HeaderRepr, payload_len: usize) {
        self.queue(header, payload_len, Payload::Here);
    }

    /// Queues a frame with `payload_len` bytes that are not copied here but requested at
    /// transmission.
    #[inline]
    pub(super) fn push_asked_for(&mut self, header: HeaderRepr, payload_len: usize) {
        self.queue(header, payload_len, Payload::AskedFor);
    }

    /// Queues a frame whose payload is lent.
    #[inline]
    pub(super) fn push_lent(&mut self, header: HeaderRepr, lent: Lent) {
        self.loans += 1;
        self.queue(header, lent.len_bytes(), Payload::Lent(lent));
    }

    #[inline]
    fn queue(&mut self, header: HeaderRepr, payload_len: usize, payload: Payload) {
        assert!(self.room() > 0 && payload_len <= MAX_PAYLOAD_BYTES, "the caller checks both");
        let at = self.index(self.end);
        self.slots[at] = Slot {
            header: Some(HeaderRepr { sequence: self.end, ..header }),
            payload_len: payload_len as u16,
            payload,
            sent_at_ns: 0,
            sends: 0,
            replay_due: false,
        };
        self.end = self.end.plus(1);
    }

    /// Returns the position of a frame that is sent at once and never queued; the window must be
    /// eager and keep nothing.
    pub(super) fn pass(&mut self) -> Sequence {
        assert!(!self.keeps_sent && self.is_eager(), "the caller checks both");
        let sequence = self.end;
        (self.unsent, self.end) = (sequence.plus(1), sequence.plus(1));
        sequence
    }

    /// Returns the frame to send now, if any: replays first, then new ones as credits allow. The
    /// flag is true for a replay.
    pub(super) fn next(&mut self) -> Option<(Sequence, bool)> {
        if self.replays_due > 0 {
            return self.next_replay().map(|sequence| (sequence, true));
        }
        if self.unsent == self.end || self.unsent.since(self.oldest) >= self.credits {
            return None;
        }
        let sequence = self.unsent;
        self.unsent = sequence.plus(1);
        Some((sequence, false))
    }

    fn next_replay(&mut self) -> Option<Sequence> {
        let waiting = self.unsent.since(self.oldest);
        let due = (0..waiting)
            .map(|n| self.oldest.plus(n))
            .find(|&sequence| self.slots[self.index(sequence)].replay_due)?;
        let at = self.index(due);
        self.slots[at].replay_due = false;
        self.replays_due -= 1;
        Some(due)
    }

    /// Writes the frame at `sequence` into `buf`. `freshen` fills in the fields that change at each
    /// transmission; `lender` fills in a requested payload, given the transaction.
    pub(super) fn emit(
        &mut self,
        sequence: Sequence,
        now_ns: u64,
        freshen: impl FnOnce(&mut HeaderRepr),
        lender: impl FnOnce(u32, &mut [u8]),
        buf: &mut [u8],
    ) -> Result<usize, WireError> {
        let at = self.index(sequence);
        if self.slots[at].sends > 0 {
            self.copy_lent(at);
        }
        let slot = &mut self.slots[at];
        let header = slot.note_sending(now_ns, freshen);
        let payload_len = usize::from(slot.payload_len);
        let staged = &self.frames[at * MAX_FRAME_BYTES..][HEADER_BYTES..][..payload_len];
        let written = match &slot.payload {
            Payload::Here => header.emit(staged, buf),
            Payload::AskedFor => {
                header.emit_with(payload_len, |room| lender(header.transaction, room), buf)
            }
            Payload::Lent(lent) => header.emit_with(payload_len, |room| lent.copy_to(room), buf),
        };
        if !self.keeps_sent {
            self.end_loan(at);
        }
        written
    }

    /// Copies all lent payloads, because they are about to change: earlier reads are answered with
    /// the old bytes.
    pub(super) fn copy_all_lent(&mut self) {
        if self.loans == 0 {
            return;
        }
        let first = if self.keeps_sent { self.oldest } else { self.unsent };
        for n in 0..self.end.since(first) {
            self.copy_lent(self.index(first.plus(n)));
        }
        assert_eq!(self.loans, 0, "no other slot holds any");
    }

    fn copy_lent(&mut self, at: usize) {
        if let Payload::Lent(lent) = &self.slots[at].payload {
            let staged = &mut self.frames[at * MAX_FRAME_BYTES..][HEADER_BYTES..];
            lent.copy_to(&mut staged[..lent.len_bytes()]);
            self.end_loan(at);
        }
    }

    #[inline]
    fn end_loan(&mut self, at: usize) {
        if let Payload::Lent(_) = self.slots[at].payload {
            self.slots[at].payload = Payload::Here;
            self.loans -= 1;
        }
    }

    /// Returns the frame to send now, if it is a new one whose payload of at least `least_len`
    /// bytes stays in place.
    pub(super) fn next_kept(&mut self, least_len: usize) -> Option<Sequence> {
        let slot = &self.slots[self.index(self.unsent)];
        let is_asked_for = matches!(slot.payload, Payload::AskedFor);
        let is_such = !is_asked_for && usize::from(slot.payload_len) >= least_len;
        let may_be_sent = self.keeps_sent && self.replays_due == 0 && self.unsent != self.end;
        if may_be_sent && is_such { self.next().map(|(sequence, _)| sequence) } else { None }
    }

    /// Writes the header of the frame at `sequence`, whose payload stays in place, into its slot;
    /// returns the frame's length. If a lent payload changes before it is sent, the other side
    /// finds a wrong checksum, and the replay sends the copy made then.
    pub(super) fn emit_in_place(
        &mut self,
        sequence: Sequence,
        now_ns: u64,
        freshen: impl FnOnce(&mut HeaderRepr),
    ) -> Result<usize, WireError> {
        let at = self.index(sequence);
        let header = self.slots[at].note_sending(now_ns, freshen);
        let payload_len = usize::from(self.slots[at].payload_len);
        let room = &mut self.frames[at * MAX_FRAME_BYTES..][..MAX_FRAME_BYTES];
        match &self.slots[at].payload {
            Payload::Lent(lent) => header.emit_apart(payload_len, |sum| lent.feed(sum), room),
            Payload::Here | Payload::AskedFor => header.emit_with(payload_len, |_| (), room),
        }
    }

    /// Returns the frame that [`SendWindow::emit_in_place`] has written, until it is acknowledged.
    pub(super) fn kept(&self, sequence: Sequence) -> Option<KeptParts<'_>> {
        if sequence.since(self.oldest) >= self.unsent.since(self.oldest) {
            return None;
        }
        let at = self.index(sequence);
        let (payload_len, lent) = match &self.slots[at].payload {
            Payload::Lent(lent) => (0, Some(lent)),
            Payload::Here | Payload::AskedFor => (usize::from(self.slots[at].payload_len), None),
        };
        let head = &self.frames[at * MAX_FRAME_BYTES..][..HEADER_BYTES + payload_len];
        Some(KeptParts { head, lent })
    }

    /// Frees everything before `ack`. An `ack` for unsent frames, or an old one, changes nothing.
    pub(super) fn acknowledge(&mut self, ack: Sequence, now_ns: u64) -> Option<Acknowledged> {
        let frames = ack.since(self.oldest);
        if frames == 0 || frames > self.unsent.since(self.oldest) {
            return None;
        }
        if !self.keeps_sent {
            self.oldest = ack;
            return Some(Acknowledged { frames, round_trip_ns: None });
        }
        let newest = &self.slots[self.index(ack.plus(u32::MAX))];
        let round_trip_ns = (newest.sends == 1).then(|| now_ns.saturating_sub(newest.sent_at_ns));
        for n in 0..frames {
            let at = self.index(self.oldest.plus(n));
            self.replays_due -= u32::from(std::mem::take(&mut self.slots[at].replay_due));
            self.end_loan(at);
        }
        self.oldest = ack;
        Some(Acknowledged { frames, round_trip_ns })
    }

    /// Marks the frames that a Nak reports missing. A frame replayed less than `patience_ns` ago is
    /// still in flight and left alone.
    pub(super) fn replay_missing(
        &mut self,
        ack: Sequence,
        arrived: u64,
        now_ns: u64,
        patience_ns: u64,
    ) {
        if !self.keeps_sent || ack.since(self.oldest) > self.unsent.since(self.oldest) {
            return;
        }
        // With an empty bitmap the frame that made the gap lies beyond it.
        let reach = if arrived == 0 { 65 } else { 64 - arrived.leading_zeros() };
        for n in 0..reach.min(self.unsent.since(ack)) {
            let has_arrived = n > 0 && arrived & (1 << (n - 1)) != 0;
            let slot = &self.slots[self.index(ack.plus(n))];
            let on_its_way = slot.sends > 1 && now_ns.saturating_sub(slot.sent_at_ns) < patience_ns;
            if !has_arrived && !on_its_way {
                self.mark_for_replay(ack.plus(n));
            }
        }
    }

    /// Marks the oldest frame, and the newest so that the receiver reports the other missing ones.
    pub(super) fn replay_ends(&mut self) {
        if self.is_waiting() {
            self.mark_for_replay(self.oldest);
            self.mark_for_replay(self.unsent.plus(u32::MAX));
        }
    }

    /// Marks the oldest frame if it was sent at least `patience_ns` ago.
    pub(super) fn replay_oldest(&mut self, now_ns: u64, patience_ns: u64) {
        let sent_at_ns = self.slots[self.index(self.oldest)].sent_at_ns;
        if self.is_waiting() && now_ns.saturating_sub(sent_at_ns) >= patience_ns {
            self.mark_for_replay(self.oldest);
        }
    }

    fn mark_for_replay(&mut self, sequence: Sequence) {
        let at = self.index(sequence);
        if !std::mem::replace(&mut self.slots[at].replay_due, true) {
            self.replays_due += 1;
        }
    }

    fn index(&self, sequence: Sequence) -> usize {
        sequence.0 as usize & (self.slots.len() - 1)
    }
}

impl Slot {
    /// Returns the header of the frame, sent at `now_ns`.
    #[inline]
    fn note_sending(&mut self, now_ns: u64, freshen: impl FnOnce(&mut HeaderRepr)) -> HeaderRepr {
        let mut header = self.header.expect("a queued position holds a frame");
        freshen(&mut header);
        if self.sends > 0 {
            header.flags |= REPLAY_FLAG;
        }
        self.sends = self.sends.saturating_add(1);
        self.sent_at_ns = now_ns;
        header
    }
}

#[cfg(test)]
mod tests;
