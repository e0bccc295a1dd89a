//! The sending half of a link: the window of frames not yet acknowledged, kept for replay.

use venice_wire::{
    HEADER_BYTES, HeaderRepr, MAX_FRAME_BYTES, MAX_PAYLOAD_BYTES, REPLAY_FLAG, Sequence, WireError,
};

use crate::config::MIN_WINDOW;

/// A ring of frames. `oldest..unsent` are on their way, `unsent..end` wait for credit. All of them
/// stay until acknowledged, or until sent if nothing is ever replayed.
#[derive(Debug)]
pub(super) struct SendWindow {
    slots: Box<[Slot]>,
    /// For each slot room for a header, and behind it the payload: a frame can be sent from there.
    frames: Box<[u8]>,
    oldest: Sequence,
    unsent: Sequence,
    end: Sequence,
    /// Frames the other side can buffer; before it has told, those that any side can.
    credits: u32,
    /// How many slots are marked [`Slot::replay_due`].
    replays_due: u32,
    /// Whether frames are kept until acknowledged; else only until sent.
    keeps_sent: bool,
}

#[derive(Clone, Debug)]
struct Slot {
    header: Option<HeaderRepr>,
    payload_len: u16,
    /// The payload stays with whoever queued the frame, and is asked for when it is sent.
    is_lent: bool,
    sent_at_ns: u64,
    sends: u32,
    replay_due: bool,
}

/// What an acknowledgement told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// Frames it freed.
    pub frames: u32,
    /// Round trip of the newest of them, if it was sent only once (else nobody knows which sending
    /// is meant).
    pub round_trip_ns: Option<u64>,
}

impl SendWindow {
    /// A window of `capacity` frames, a power of two.
    pub(super) fn new(capacity: u32, keeps_sent: bool) -> Self {
        assert!(capacity.is_power_of_two(), "positions must map to slots across the wrap");
        let empty = Slot {
            header: None,
            payload_len: 0,
            is_lent: false,
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
            keeps_sent,
        }
    }

    /// Starts over for a new link whose other side can buffer `credits` frames. What was queued and
    /// never sent stays queued.
    pub(super) fn open(&mut self, credits: u32) {
        assert_eq!(self.unsent, self.oldest, "frames of an old link cannot move to a new one");
        self.credits = credits.min(self.capacity());
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        (self.oldest, self.unsent, self.end) = (Sequence(0), Sequence(0), Sequence(0));
        self.slots.iter_mut().for_each(|slot| slot.replay_due = false);
        self.replays_due = 0;
    }

    /// Forgets everything and frees the buffers: there is no room for anything afterwards.
    pub(super) fn release(&mut self) {
        self.clear();
        (self.slots, self.frames) = (Box::default(), Box::default());
    }

    pub(super) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Frames that may be on their way at once.
    pub(super) fn credits(&self) -> u32 {
        self.credits
    }

    /// Frames that can still be queued.
    pub(super) fn room(&self) -> u32 {
        let first_kept = if self.keeps_sent { self.oldest } else { self.unsent };
        self.capacity() - self.end.since(first_kept)
    }

    /// Whether frames are on their way.
    pub(super) fn is_waiting(&self) -> bool {
        self.oldest != self.unsent
    }

    /// Whether all that was queued has arrived; without copies for a replay: has been sent.
    pub(super) fn is_settled(&self) -> bool {
        let first_open = if self.keeps_sent { self.oldest } else { self.unsent };
        first_open == self.end
    }

    /// The first position not acknowledged.
    pub(super) fn acked(&self) -> Sequence {
        self.oldest
    }

    /// Whether a frame queued now would be sent at once.
    pub(super) fn is_eager(&self) -> bool {
        let is_drained = self.unsent == self.end && self.replays_due == 0;
        is_drained && self.unsent.since(self.oldest) < self.credits && self.room() > 0
    }

    /// The position the next queued frame gets.
    pub(super) fn end(&self) -> Sequence {
        self.end
    }

    /// Where the payload of the next frame goes; then call [`SendWindow::push`].
    pub(super) fn stage(&mut self) -> &mut [u8] {
        assert!(self.room() > 0, "the caller checks for room");
        let at = self.index(self.end);
        &mut self.frames[at * MAX_FRAME_BYTES..][HEADER_BYTES..MAX_FRAME_BYTES]
    }

    /// Queues a frame with the first `payload_len` staged bytes, or with as many that are not
    /// copied here but asked for when the frame is sent.
    #[inline]
    pub(super) fn push(&mut self, header: HeaderRepr, payload_len: usize, is_lent: bool) {
        assert!(self.room() > 0 && payload_len <= MAX_PAYLOAD_BYTES, "the caller checks both");
        let at = self.index(self.end);
        self.slots[at] = Slot {
            header: Some(HeaderRepr { sequence: self.end, ..header }),
            payload_len: payload_len as u16,
            is_lent,
            sent_at_ns: 0,
            sends: 0,
            replay_due: false,
        };
        self.end = self.end.plus(1);
    }

    /// The position of a frame that is sent at once and never queued; the window must be eager and
    /// keep nothing.
    pub(super) fn pass(&mut self) -> Sequence {
        assert!(!self.keeps_sent && self.is_eager(), "the caller checks both");
        let sequence = self.end;
        (self.unsent, self.end) = (sequence.plus(1), sequence.plus(1));
        sequence
    }

    /// The frame to send now, if any: replays first, then new ones as credits allow. With it,
    /// whether it is a replay.
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

    /// Writes the frame at `sequence` into `buf`, with what only the moment knows filled in by
    /// `freshen`, and a payload that was lent by `lender`, which is told the transaction.
    pub(super) fn emit(
        &mut self,
        sequence: Sequence,
        now_ns: u64,
        freshen: impl FnOnce(&mut HeaderRepr),
        lender: impl FnOnce(u32, &mut [u8]),
        buf: &mut [u8],
    ) -> Result<usize, WireError> {
        let at = self.index(sequence);
        let header = self.slots[at].note_sending(now_ns, freshen);
        let payload_len = usize::from(self.slots[at].payload_len);
        if self.slots[at].is_lent {
            return header.emit_with(payload_len, |room| lender(header.transaction, room), buf);
        }
        header.emit(&self.frames[at * MAX_FRAME_BYTES..][HEADER_BYTES..][..payload_len], buf)
    }

    /// The frame to send now, if it is a new one whose payload of at least `least_len` bytes is kept
    /// here.
    pub(super) fn next_kept(&mut self, least_len: usize) -> Option<Sequence> {
        let slot = &self.slots[self.index(self.unsent)];
        let is_such = !slot.is_lent && usize::from(slot.payload_len) >= least_len;
        let may_be_sent = self.keeps_sent && self.replays_due == 0 && self.unsent != self.end;
        if may_be_sent && is_such { self.next().map(|(sequence, _)| sequence) } else { None }
    }

    /// Writes the header of the frame at `sequence`, whose payload is kept here, before it; returns
    /// the frame's length.
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
        header.emit_with(payload_len, |_| (), room)
    }

    /// The frame that [`SendWindow::emit_in_place`] has written, until it is acknowledged.
    pub(super) fn kept(&self, sequence: Sequence) -> Option<&[u8]> {
        if sequence.since(self.oldest) >= self.unsent.since(self.oldest) {
            return None;
        }
        let at = self.index(sequence);
        let len = HEADER_BYTES + usize::from(self.slots[at].payload_len);
        Some(&self.frames[at * MAX_FRAME_BYTES..][..len])
    }

    /// Frees everything before `ack`. An `ack` for what was never sent, or an old one, changes
    /// nothing.
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
        }
        self.oldest = ack;
        Some(Acknowledged { frames, round_trip_ns })
    }

    /// Marks what a Nak reports missing. A frame that was replayed less than `patience_ns` ago is
    /// still on its way and left alone.
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

    /// Marks the oldest frame, and the newest so that the receiver tells what else is missing.
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
    /// The header of the frame, which is sent at `now_ns`.
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
mod tests {
    use venice_wire::{Channel, Frame, NodeId, Opcode};

    use super::*;

    fn window_with(frames: u32) -> SendWindow {
        let mut window = SendWindow::new(8, true);
        window.open(8);
        for n in 0..frames {
            window.stage()[0] = n as u8;
            let header = HeaderRepr::new(Channel::Crma, Opcode::Write, NodeId(1), NodeId(2));
            window.push(header, 1, false);
        }
        window
    }

    /// Sends all that can be sent at `now_ns`; returns the positions.
    fn send_all(window: &mut SendWindow, now_ns: u64) -> Vec<u32> {
        let mut sent = Vec::new();
        let mut buf = [0; 128];
        while let Some((sequence, is_replay)) = window.next() {
            let len = window.emit(sequence, now_ns, |_| (), |_, _| (), &mut buf).unwrap();
            let frame = Frame::parse(&buf[..len]).unwrap();
            assert_eq!(frame.sequence(), sequence);
            assert_eq!(frame.payload(), [sequence.0 as u8]);
            assert_eq!(frame.flags() & REPLAY_FLAG != 0, is_replay);
            sent.push(sequence.0);
        }
        sent
    }

    #[test]
    fn a_payload_that_was_lent_is_asked_for_at_every_sending() {
        let mut window = SendWindow::new(8, true);
        let header = HeaderRepr::new(Channel::Rdma, Opcode::Write, NodeId(1), NodeId(2));
        window.push(HeaderRepr { transaction: 5, ..header }, 3, true);
        let mut buf = [0; 128];
        for n in 0..2 {
            let (sequence, _) = window.next().unwrap();
            let lender = |transaction, room: &mut [u8]| room.fill(transaction as u8 + n);
            let len = window.emit(sequence, 0, |_| (), lender, &mut buf).unwrap();
            assert_eq!(Frame::parse(&buf[..len]).unwrap().payload(), [5 + n; 3]);
            window.replay_ends();
        }
    }

    #[test]
    fn credits_bound_what_is_on_its_way() {
        let mut window = window_with(6);
        window.open(4);
        assert_eq!(send_all(&mut window, 0), [0, 1, 2, 3]);
        assert_eq!(window.acknowledge(Sequence(2), 9).unwrap().frames, 2);
        assert_eq!(send_all(&mut window, 0), [4, 5]);
    }

    /// On a reliable port a slot is free once its frame is sent, and credits still bound what is
    /// on its way.
    #[test]
    fn without_replay_a_frame_is_kept_until_it_is_sent() {
        let mut window = SendWindow::new(4, false);
        window.open(2);
        let header = HeaderRepr::new(Channel::Crma, Opcode::Write, NodeId(1), NodeId(2));
        for n in 0..4 {
            window.stage()[0] = n;
            window.push(header, 1, false);
        }
        assert_eq!(window.room(), 0);
        assert_eq!(send_all(&mut window, 0), [0, 1]);
        assert_eq!(window.room(), 2);
        window.replay_missing(Sequence(0), 0, 99, 5);
        assert_eq!(send_all(&mut window, 99), [] as [u32; 0]);
        for n in 4..6 {
            window.stage()[0] = n;
            window.push(header, 1, false);
        }
        assert_eq!(window.acknowledge(Sequence(2), 9).unwrap().frames, 2);
        assert_eq!(send_all(&mut window, 0), [2, 3]);
        window.acknowledge(Sequence(4), 9).unwrap();
        assert_eq!(send_all(&mut window, 0), [4, 5]);
    }

    #[test]
    fn a_frame_sent_from_where_it_is_kept_stays_until_it_is_acknowledged() {
        let mut window = window_with(2);
        assert_eq!(window.next_kept(2), None, "too short");
        let sequence = window.next_kept(1).unwrap();
        assert_eq!(window.kept(sequence.plus(1)), None, "not sent yet");
        let len = window.emit_in_place(sequence, 0, |header| header.ack = Sequence(7)).unwrap();
        let frame = Frame::parse(window.kept(sequence).unwrap()).unwrap();
        assert_eq!(
            (frame.as_bytes().len(), frame.ack(), frame.payload()),
            (len, Sequence(7), &[0][..])
        );
        window.replay_ends();
        assert_eq!(window.next_kept(1), None, "replays come first");
        assert_eq!(send_all(&mut window, 0), [0, 1], "and are the same bytes");
        window.acknowledge(Sequence(1), 0);
        assert_eq!(window.kept(sequence), None);
    }

    #[test]
    fn only_frames_sent_once_measure_the_round_trip() {
        let mut window = window_with(2);
        send_all(&mut window, 100);
        assert_eq!(window.acknowledge(Sequence(1), 130).unwrap().round_trip_ns, Some(30));
        window.replay_ends();
        assert_eq!(send_all(&mut window, 200), [1]);
        assert_eq!(window.acknowledge(Sequence(2), 230).unwrap().round_trip_ns, None);
    }

    #[test]
    fn acknowledgements_of_the_past_and_of_the_unsent_are_ignored() {
        let mut window = window_with(4);
        assert_eq!(window.acknowledge(Sequence(1), 0), None, "nothing was sent yet");
        send_all(&mut window, 0);
        assert!(window.acknowledge(Sequence(3), 0).is_some());
        assert_eq!(window.acknowledge(Sequence(2), 0), None);
        assert_eq!(window.acknowledge(Sequence(5), 0), None);
        assert_eq!(window.room(), 7);
    }

    #[test]
    fn a_nak_replays_exactly_what_is_missing() {
        let mut window = window_with(8);
        send_all(&mut window, 0);
        window.acknowledge(Sequence(1), 0);
        // 1 is missing, 2 and 4 arrived, 3 is missing, 5 and later not heard of.
        window.replay_missing(Sequence(1), 0b101, 10, 5);
        assert_eq!(send_all(&mut window, 10), [1, 3]);
        window.replay_missing(Sequence(1), 0b101, 12, 5);
        assert_eq!(send_all(&mut window, 12), [] as [u32; 0], "those are on their way");
        window.replay_missing(Sequence(1), 0, 99, 5);
        assert_eq!(send_all(&mut window, 99), [1, 2, 3, 4, 5, 6, 7]);
    }
}
