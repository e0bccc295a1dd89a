//! One link: frames between two nodes arrive once, whole and in order, whatever the network does.
//!
//! On a port that is reliable itself ([`LinkConfig::replay`] off) only credits remain: no replay,
//! no timer, no Nak, and no buffer for early frames.
//!
//! [`Link`] is the common part of both ends once the handshake is over: sequence, acknowledgement,
//! credits, replay. [`Caller`] adds the tasks of the opening end: handshake, keep-alive, and the
//! decision that the other side is down. The accepting end is in [`crate::target`].

mod caller;
mod lent;
mod numbers;
mod receive;
mod round_trip;
mod send;
mod stats;

use std::collections::VecDeque;

use venice_wire::{
    Channel, Frame, GrantId, HeaderRepr, Integrity, LinkId, NodeId, Opcode, Sequence,
};

pub(crate) use self::{
    caller::{Caller, Verdict},
    numbers::LinkNumbers,
    receive::Parked,
    round_trip::RoundTrip,
    send::KeptParts,
};
pub use self::{
    lent::{LendingMemory, Lent},
    stats::{DropStats, LinkStats},
};
use self::{
    receive::{Arrival, ReceiveWindow},
    send::SendWindow,
};
use crate::LinkConfig;

/// The outcome of a sequenced frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It is the next one: deliver it, and then those from [`Link::take_parked`].
    Deliver,
    /// It was parked until its turn, is a duplicate, or had no credit.
    Nothing,
    /// The link cannot continue: its port has not kept the promised order.
    Broken,
}

/// The state of an established link, common to both ends.
#[derive(Debug)]
pub(crate) struct Link {
    config: LinkConfig,
    local: NodeId,
    remote: NodeId,
    /// `None` until the handshake is over: frames are queued but not sent.
    id: Option<LinkId>,
    send: SendWindow,
    receive: ReceiveWindow,
    round_trip: RoundTrip,
    /// The time at which the oldest frame in flight counts as lost, and how often that has happened
    /// already.
    replay_at_ns: Option<u64>,
    replay_doublings: u32,
    /// The acknowledgement owed: when it must be sent on its own, and for how many frames.
    ack_at_ns: Option<u64>,
    ack_owed: u32,
    /// Other notices to be sent once, or again on request.
    notices: VecDeque<(Opcode, GrantId)>,
    pong_due: Option<u32>,
    ping_due: Option<u32>,
    nak_due: bool,
    /// The gap last reported by a Nak, and when, so that not every later frame repeats the Nak.
    requested_gap: Option<(Sequence, u64)>,
    last_heard_ns: u64,
    stats: LinkStats,
}

impl Link {
    pub(crate) fn new(config: &LinkConfig, local: NodeId, remote: NodeId, now_ns: u64) -> Self {
        let capacity = u32::from(config.window_frames());
        Self {
            config: config.clone(),
            local,
            remote,
            id: None,
            send: SendWindow::new(capacity, config.replay),
            receive: ReceiveWindow::new(capacity, config.replay),
            round_trip: RoundTrip::default(),
            replay_at_ns: None,
            replay_doublings: 0,
            ack_at_ns: None,
            ack_owed: 0,
            notices: VecDeque::with_capacity(MAX_NOTICES),
            pong_due: None,
            ping_due: None,
            nak_due: false,
            requested_gap: None,
            last_heard_ns: now_ns,
            stats: LinkStats::default(),
        }
    }

    /// Opens the link after the handshake: its number is `id`, and the other side can buffer
    /// `credits` frames.
    pub(crate) fn open(&mut self, id: LinkId, credits: u16, now_ns: u64) {
        self.id = Some(id);
        self.send.open(u32::from(credits.max(1)));
        self.last_heard_ns = now_ns;
    }

    /// Drops all frames and the link's number; the next [`Link::open`] starts afresh.
    pub(crate) fn close(&mut self) {
        self.id = None;
        self.send.clear();
        self.receive.clear();
        (self.replay_at_ns, self.replay_doublings) = (None, 0);
        (self.ack_at_ns, self.ack_owed) = (None, 0);
        self.notices.clear();
        (self.pong_due, self.ping_due, self.nak_due, self.requested_gap) =
            (None, None, false, None);
    }

    /// Frees the buffers of a link that is closed and will not be opened again.
    pub(crate) fn release(&mut self) {
        assert!(self.id.is_none(), "the link is closed");
        self.send.release();
        self.receive.release();
        self.notices = VecDeque::new();
    }

    pub(crate) fn id(&self) -> Option<LinkId> {
        self.id
    }

    pub(crate) fn last_heard_ns(&self) -> u64 {
        self.last_heard_ns
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            round_trip_ns: self.round_trip.smoothed_ns(),
            round_trip_deviation_ns: self.round_trip.deviation_ns(),
            ..self.stats
        }
    }

    /// Returns the frames this side can buffer, as sent in the handshake.
    pub(crate) fn window(&self) -> u16 {
        self.send.capacity() as u16
    }

    /// Returns the number of requests that may be outstanding: as many as the other side can buffer
    /// answers for.
    pub(crate) fn outstanding_limit(&self) -> usize {
        self.send.credits() as usize
    }

    /// True if nothing that was queued needs this end any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.send.is_settled()
    }

    /// Returns the number of frames that can be queued now.
    pub(crate) fn room(&self) -> u32 {
        self.send.room()
    }

    /// Returns the position of the next queued frame.
    pub(crate) fn end(&self) -> Sequence {
        self.send.end()
    }

    /// Returns the first position not acknowledged.
    pub(crate) fn acked(&self) -> Sequence {
        self.send.acked()
    }

    /// True if frames can be lost in transit.
    pub(crate) fn is_lossy(&self) -> bool {
        self.config.replay
    }

    /// Returns the node at the other end.
    pub(crate) fn remote(&self) -> NodeId {
        self.remote
    }

    /// True if the link is up and a frame queued now would be sent at once.
    pub(crate) fn is_eager(&self) -> bool {
        self.id.is_some() && self.send.is_eager()
    }

    /// Returns the mechanism that guarantees the integrity of this link's frames.
    pub(crate) fn integrity(&self) -> Integrity {
        self.config.integrity()
    }

    /// Returns a header from this side to the other.
    #[inline]
    pub(crate) fn header(&self, channel: Channel, opcode: Opcode) -> HeaderRepr {
        let flags = self.config.header_flags();
        HeaderRepr { flags, ..HeaderRepr::new(channel, opcode, self.local, self.remote) }
    }

    /// Returns the buffer for the payload of the next frame. Panics without room.
    pub(crate) fn stage(&mut self) -> &mut [u8] {
        self.send.stage()
    }

    /// Queues a sequenced frame with the first `payload_len` staged bytes. Panics without room.
    #[inline]
    pub(crate) fn push(&mut self, header: HeaderRepr, payload_len: usize) {
        self.send.push(header, payload_len);
    }

    /// Queues a sequenced frame whose `payload_len` bytes stay with the caller until the frame is
    /// acknowledged: [`Link::poll_transmit`] requests them. Panics without room.
    #[inline]
    pub(crate) fn push_asked_for(&mut self, header: HeaderRepr, payload_len: usize) {
        self.send.push_asked_for(header, payload_len);
    }

    /// Queues a sequenced frame whose payload is lent. Panics without room.
    #[inline]
    pub(crate) fn push_lent(&mut self, header: HeaderRepr, lent: Lent) {
        self.send.push_lent(header, lent);
    }

    /// Copies all lent payloads of unacknowledged frames, because the memory is about to change or
    /// go away.
    pub(crate) fn copy_all_lent(&mut self) {
        self.send.copy_all_lent();
    }

    /// True if a frame can be written at once without being queued: the link is eager, has no other
    /// notice to send, and keeps no copy for a replay.
    pub(crate) fn is_direct(&self) -> bool {
        let has_word = self.pong_due.is_some() || !self.notices.is_empty();
        !self.config.replay && !has_word && self.is_eager()
    }

    /// Writes a sequenced frame into `buf`, whose `payload_len` bytes `fill` writes in place;
    /// returns its length. The link must be direct.
    pub(crate) fn emit_direct(
        &mut self,
        header: HeaderRepr,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]),
        buf: &mut [u8],
    ) -> usize {
        assert!(!self.config.replay, "a frame without a copy cannot be sent again");
        let (link, ack) = (self.id.unwrap_or_default(), self.receive.next());
        let header = HeaderRepr { link, sequence: self.send.pass(), ack, ..header };
        self.ack_is_sent();
        self.stats.sent += 1;
        header.emit_with(payload_len, fill, buf).expect(LARGE_ENOUGH)
    }

    /// Processes the acknowledgement that every frame carries, and the whole of a link frame.
    /// Sequenced frames go to [`Link::accept`] next.
    pub(crate) fn note(&mut self, now_ns: u64, frame: &Frame<'_>) {
        self.last_heard_ns = now_ns;
        self.note_ack(now_ns, frame.ack());
        match frame.opcode() {
            Opcode::Nak => {
                self.stats.naks_received += 1;
                let patience_ns = self.patience_ns();
                self.send.replay_missing(frame.ack(), frame.address(), now_ns, patience_ns);
            }
            Opcode::Ping => self.pong_due = Some(frame.transaction()),
            _ => {}
        }
        if self.replay_at_ns.is_none() {
            self.restart_replay_timer(now_ns);
        }
    }

    fn note_ack(&mut self, now_ns: u64, ack: Sequence) {
        let Some(acknowledged) = self.send.acknowledge(ack, now_ns) else { return };
        debug_assert!(acknowledged.frames > 0);
        if let Some(round_trip_ns) = acknowledged.round_trip_ns {
            self.round_trip.sample(round_trip_ns);
        }
        self.replay_doublings = 0;
        self.restart_replay_timer(now_ns);
    }

    /// Records a round trip measured by the keep-alive.
    pub(crate) fn note_keepalive(&mut self, round_trip_ns: u64) {
        self.stats.note_keepalive(round_trip_ns);
        self.round_trip.sample(round_trip_ns);
    }

    /// Sends a keep-alive. `earlier_lost`: the one before it was not answered.
    pub(crate) fn ask_ping(&mut self, number: u32, earlier_lost: bool) {
        self.stats.pings += 1;
        self.stats.pings_lost += u64::from(earlier_lost);
        self.ping_due = Some(number);
    }

    /// Queues an unsequenced notice about a grant. It may get lost, so a sender that needs an
    /// answer repeats it. Dropped if too many are queued already.
    pub(crate) fn notify(&mut self, opcode: Opcode, grant: GrantId) {
        if self.notices.len() < MAX_NOTICES {
            self.notices.push_back((opcode, grant));
        }
    }

    /// Takes a sequenced frame.
    #[must_use]
    pub(crate) fn accept(&mut self, now_ns: u64, frame: &Frame<'_>) -> Accepted {
        match self.receive.offer(frame.sequence(), frame.as_bytes()) {
            Arrival::InOrder => {
                self.owe_ack(now_ns);
                self.ask_for_gap(now_ns);
                return Accepted::Deliver;
            }
            // The port promises order and breaks it.
            _ if !self.config.replay => {
                self.stats.overruns += 1;
                return Accepted::Broken;
            }
            Arrival::Early => {
                self.stats.early += 1;
                self.ask_for_gap(now_ns);
            }
            Arrival::Duplicate => {
                // Our acknowledgement was lost, and perhaps the frame that carried it.
                self.stats.duplicates += 1;
                self.ack_at_ns = Some(now_ns);
                let patience_ns = self.patience_ns();
                self.send.replay_oldest(now_ns, patience_ns);
            }
            Arrival::Outside => self.stats.overruns += 1,
        }
        Accepted::Nothing
    }

    /// True if this sequenced frame was not delivered before.
    pub(crate) fn is_new(&self, frame: &Frame<'_>) -> bool {
        !frame.sequence().is_before(self.receive.next())
    }

    /// Counts a request that came without room for its answer: the other side has more outstanding
    /// than its credits allow. The frame is dropped.
    pub(crate) fn note_overrun(&mut self) {
        self.stats.overruns += 1;
    }

    /// Returns the parked frame whose turn has come. Return its buffer by [`Link::give_back`].
    pub(crate) fn take_parked(&mut self, now_ns: u64) -> Option<Parked> {
        let parked = self.receive.take_next()?;
        self.owe_ack(now_ns);
        Some(parked)
    }

    /// Returns the buffer of a delivered frame.
    pub(crate) fn give_back(&mut self, now_ns: u64, parked: Parked) {
        self.receive.give_back(parked);
        self.ask_for_gap(now_ns);
    }

    fn owe_ack(&mut self, now_ns: u64) {
        self.stats.received += 1;
        self.ack_owed += 1;
        let at_ns = if self.ack_owed >= self.send.credits() / 4 {
            now_ns
        } else if self.config.replay {
            now_ns + self.config.ack_delay_ns
        } else {
            return; // It would only give credit, and there is enough.
        };
        self.ack_at_ns = earlier(self.ack_at_ns, Some(at_ns));
    }

    /// Requests a replay when parked frames wait for a missing one: once for each gap, and again
    /// when the request seems lost.
    fn ask_for_gap(&mut self, now_ns: u64) {
        let next = self.receive.next();
        let requested_lately = self.requested_gap.is_some_and(|(gap, at_ns)| {
            gap == next && now_ns.saturating_sub(at_ns) < self.patience_ns()
        });
        if self.receive.has_gap() && !requested_lately {
            self.requested_gap = Some((next, now_ns));
            self.stats.naks_sent += 1;
            self.nak_due = true;
        }
    }

    /// Returns the time after which something just sent may be sent again.
    fn patience_ns(&self) -> u64 {
        self.round_trip.smoothed_ns().unwrap_or(self.config.replay_min_ns)
    }

    fn restart_replay_timer(&mut self, now_ns: u64) {
        let may_be_lost = self.config.replay && self.send.is_waiting();
        self.replay_at_ns = may_be_lost.then(|| {
            now_ns + self.round_trip.replay_timeout_ns(&self.config, self.replay_doublings)
        });
    }

    /// Returns the time at which [`Link::handle_timeout`] or [`Link::poll_transmit`] has something
    /// to do.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.id?;
        earlier(self.replay_at_ns, self.ack_at_ns)
    }

    /// Marks frames for replay whose time-out has passed. A side that has heard nothing for long
    /// stops replaying until it hears again: the other is gone, or stopped in a debugger.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        if self.replay_at_ns.is_none_or(|at_ns| now_ns < at_ns) {
            return;
        }
        if now_ns.saturating_sub(self.last_heard_ns) > self.config.silence_ns {
            self.replay_at_ns = None;
            return;
        }
        self.send.replay_ends();
        self.stats.replay_timeouts += 1;
        self.replay_doublings += 1;
        self.restart_replay_timer(now_ns);
    }

    /// Writes the next frame to send into `buf`; returns its length. `lender` fills in a requested
    /// payload of the given transaction.
    pub(crate) fn poll_transmit(
        &mut self,
        now_ns: u64,
        lender: impl FnOnce(u32, &mut [u8]),
        buf: &mut [u8],
    ) -> Option<usize> {
        let id = self.id?;
        if let Some(number) = self.pong_due.take() {
            return Some(self.emit_bare(Opcode::Pong, number, buf));
        }
        if let Some((opcode, grant)) = self.notices.pop_front() {
            let header = HeaderRepr { grant, ..self.header(Channel::Link, opcode) };
            return Some(self.emit_unsequenced(header, &[], buf));
        }
        if std::mem::take(&mut self.nak_due) && self.receive.has_gap() {
            return Some(self.emit_bare(Opcode::Nak, 0, buf));
        }
        if let Some((sequence, is_replay)) = self.send.next() {
            return Some(self.emit_sequenced(id, sequence, is_replay, now_ns, lender, buf));
        }
        if let Some(number) = self.ping_due.take() {
            return Some(self.emit_bare(Opcode::Ping, number, buf));
        }
        self.ack_at_ns.filter(|&at_ns| at_ns <= now_ns)?;
        Some(self.emit_bare(Opcode::Ack, 0, buf))
    }

    fn emit_sequenced(
        &mut self,
        id: LinkId,
        sequence: Sequence,
        is_replay: bool,
        now_ns: u64,
        lender: impl FnOnce(u32, &mut [u8]),
        buf: &mut [u8],
    ) -> usize {
        let ack = self.receive.next();
        let freshen = |header: &mut HeaderRepr| (header.link, header.ack) = (id, ack);
        let len = self.send.emit(sequence, now_ns, freshen, lender, buf).expect(LARGE_ENOUGH);
        self.note_sent(now_ns, is_replay);
        len
    }

    /// Like [`Link::poll_transmit`], for a next frame whose long payload is kept here for a replay,
    /// or lent: writes its header (see [`Link::kept`]); returns its position and length.
    pub(crate) fn poll_transmit_kept(&mut self, now_ns: u64) -> Option<(Sequence, usize)> {
        let id = self.id?;
        if self.pong_due.is_some() || !self.notices.is_empty() || self.nak_due {
            return None;
        }
        let sequence = self.send.next_kept(KEPT_PAYLOAD_MIN_BYTES)?;
        let ack = self.receive.next();
        let freshen = |header: &mut HeaderRepr| (header.link, header.ack) = (id, ack);
        let len = self.send.emit_in_place(sequence, now_ns, freshen).expect(LARGE_ENOUGH);
        self.note_sent(now_ns, false);
        Some((sequence, len))
    }

    /// Returns the frame at a position returned by [`Link::poll_transmit_kept`], until it is
    /// acknowledged.
    pub(crate) fn kept(&self, sequence: Sequence) -> Option<KeptParts<'_>> {
        self.send.kept(sequence)
    }

    fn note_sent(&mut self, now_ns: u64, is_replay: bool) {
        self.ack_is_sent();
        if is_replay {
            self.stats.replayed += 1;
        } else {
            self.stats.sent += 1;
        }
        if self.replay_at_ns.is_none() {
            self.restart_replay_timer(now_ns);
        }
    }

    fn emit_bare(&mut self, opcode: Opcode, transaction: u32, buf: &mut [u8]) -> usize {
        let header = HeaderRepr {
            link: self.id.unwrap_or_default(),
            sequence: self.send.end(),
            ack: self.receive.next(),
            transaction,
            address: if opcode == Opcode::Nak { self.receive.bitmap() } else { 0 },
            ..self.header(Channel::Link, opcode)
        };
        self.ack_is_sent();
        header.emit(&[], buf).expect(LARGE_ENOUGH)
    }

    /// Writes a frame without a position into `buf`; returns its length.
    pub(crate) fn emit_unsequenced(
        &mut self,
        header: HeaderRepr,
        payload: &[u8],
        buf: &mut [u8],
    ) -> usize {
        let link = self.id.unwrap_or_default();
        let (sequence, ack) = (self.send.end(), self.receive.next());
        self.ack_is_sent();
        let header = HeaderRepr { link, sequence, ack, ..header };
        header.emit(payload, buf).expect(LARGE_ENOUGH)
    }

    fn ack_is_sent(&mut self) {
        (self.ack_at_ns, self.ack_owed) = (None, 0);
    }
}

/// Returns the earlier of two times, if there is any.
#[inline]
pub(crate) fn earlier(one_ns: Option<u64>, other_ns: Option<u64>) -> Option<u64> {
    // Taken by value: an array of both would be read back whole before its halves are written.
    match (one_ns, other_ns) {
        (Some(one_ns), Some(other_ns)) => Some(one_ns.min(other_ns)),
        (None, at_ns) | (at_ns, None) => at_ns,
    }
}

/// A shorter payload is copied faster than its place is described.
const KEPT_PAYLOAD_MIN_BYTES: usize = 1024;

/// Notices that may wait to be sent.
const MAX_NOTICES: usize = 32;

/// The reason writing a frame cannot fail: the public `poll_transmit` functions check the length.
const LARGE_ENOUGH: &str = "the transmit buffer holds the longest frame";
