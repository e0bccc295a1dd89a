//! One link: frames between two nodes arrive once, whole and in order, whatever the way does.
//!
//! [`Link`] is what both ends have in common once the handshake is over: sequence, acknowledgement,
//! credits, replay. [`Caller`] adds what the opening end does: handshake, keep-alive, and the
//! judgement that the other side is down. The accepting end is in [`crate::target`].

mod caller;
mod numbers;
mod receive;
mod round_trip;
mod send;

use venice_wire::{Channel, Frame, HeaderRepr, LinkId, NodeId, Opcode, Sequence};

pub(crate) use self::{
    caller::{Caller, Verdict},
    numbers::LinkNumbers,
    receive::Parked,
};
use self::{
    receive::{Arrival, ReceiveWindow},
    round_trip::RoundTrip,
    send::SendWindow,
};
use crate::LinkConfig;

/// What a link has seen since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Sequenced frames sent for the first time.
    pub sent: u64,
    /// Sequenced frames sent again.
    pub replayed: u64,
    /// Sequenced frames delivered.
    pub received: u64,
    /// Sequenced frames that came a second time.
    pub duplicates: u64,
    /// Smoothed round trip in nanoseconds; `None` before the first sample.
    pub round_trip_ns: Option<u64>,
}

/// The established link, as either end has it.
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
    /// When the oldest frame on its way counts as lost, and how many times that was so already.
    replay_at_ns: Option<u64>,
    replay_doublings: u32,
    /// The acknowledgement owed: when it must go by itself, and for how many frames.
    ack_at_ns: Option<u64>,
    ack_owed: u32,
    pong_due: Option<u32>,
    ping_due: Option<u32>,
    nak_due: bool,
    /// The gap asked for last, and when, so as not to ask at every frame that follows it.
    asked: Option<(Sequence, u64)>,
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
            send: SendWindow::new(capacity),
            receive: ReceiveWindow::new(capacity),
            round_trip: RoundTrip::default(),
            replay_at_ns: None,
            replay_doublings: 0,
            ack_at_ns: None,
            ack_owed: 0,
            pong_due: None,
            ping_due: None,
            nak_due: false,
            asked: None,
            last_heard_ns: now_ns,
            stats: LinkStats::default(),
        }
    }

    /// The handshake is over: the link is `id`, and the other side can buffer `credits` frames.
    pub(crate) fn open(&mut self, id: LinkId, credits: u16, now_ns: u64) {
        self.id = Some(id);
        self.send.open(u32::from(credits.max(1)));
        self.last_heard_ns = now_ns;
    }

    /// Forgets all frames and the link's number; the next [`Link::open`] starts afresh.
    pub(crate) fn close(&mut self) {
        self.id = None;
        self.send.clear();
        self.receive.clear();
        (self.replay_at_ns, self.replay_doublings) = (None, 0);
        (self.ack_at_ns, self.ack_owed) = (None, 0);
        (self.pong_due, self.ping_due, self.nak_due, self.asked) = (None, None, false, None);
    }

    pub(crate) fn id(&self) -> Option<LinkId> {
        self.id
    }

    pub(crate) fn last_heard_ns(&self) -> u64 {
        self.last_heard_ns
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats { round_trip_ns: self.round_trip.smoothed_ns(), ..self.stats }
    }

    /// Frames this side can buffer, told to the other in the handshake.
    pub(crate) fn window(&self) -> u16 {
        self.send.capacity() as u16
    }

    /// Requests that may wait for an answer: as many as the other side can buffer answers for.
    pub(crate) fn outstanding_limit(&self) -> usize {
        self.send.credits() as usize
    }

    /// Frames that can be queued now.
    pub(crate) fn room(&self) -> u32 {
        self.send.room()
    }

    /// A header from this side to the other.
    pub(crate) fn header(&self, channel: Channel, opcode: Opcode) -> HeaderRepr {
        HeaderRepr::new(channel, opcode, self.local, self.remote)
    }

    /// Where the payload of the next frame goes; there must be room.
    pub(crate) fn stage(&mut self) -> &mut [u8] {
        self.send.stage()
    }

    /// Queues a sequenced frame with the first `payload_len` staged bytes; there must be room.
    pub(crate) fn push(&mut self, header: HeaderRepr, payload_len: usize) {
        self.send.push(header, payload_len);
    }

    /// Takes note of what every frame of the link tells, and of link frames all they tell.
    /// Sequenced frames go to [`Link::accept`] next.
    pub(crate) fn note(&mut self, now_ns: u64, frame: &Frame<'_>) {
        self.last_heard_ns = now_ns;
        self.note_ack(now_ns, frame.ack());
        match frame.opcode() {
            Opcode::Nak => {
                let patience_ns = self.patience_ns();
                self.send.replay_missing(frame.ack(), frame.address(), now_ns, patience_ns);
            }
            Opcode::Ping => self.pong_due = Some(frame.transaction()),
            _ => {}
        }
        if self.send.is_waiting() && self.replay_at_ns.is_none() {
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

    /// Measured by the keep-alive.
    pub(crate) fn sample_round_trip(&mut self, round_trip_ns: u64) {
        self.round_trip.sample(round_trip_ns);
    }

    pub(crate) fn ask_ping(&mut self, number: u32) {
        self.ping_due = Some(number);
    }

    /// Takes a sequenced frame. `true`: it is the next one, deliver it, and then those from
    /// [`Link::take_parked`].
    #[must_use]
    pub(crate) fn accept(&mut self, now_ns: u64, frame: &Frame<'_>) -> bool {
        match self.receive.offer(frame.sequence(), frame.as_bytes()) {
            Arrival::InOrder => {
                self.owe_ack(now_ns);
                self.ask_for_gap(now_ns);
                return true;
            }
            Arrival::Early => self.ask_for_gap(now_ns),
            Arrival::Duplicate => {
                // Our acknowledgement did not get there; nor, perhaps, did the frame it rode on.
                self.stats.duplicates += 1;
                self.ack_at_ns = Some(now_ns);
                let patience_ns = self.patience_ns();
                self.send.replay_oldest(now_ns, patience_ns);
            }
            Arrival::Outside => {}
        }
        false
    }

    /// The frame that waited for its turn, if it has come. Give its buffer back.
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
        let at_ns = if self.ack_owed >= self.send.capacity() / 4 {
            now_ns
        } else {
            now_ns + self.config.ack_delay_ns
        };
        self.ack_at_ns = Some(self.ack_at_ns.map_or(at_ns, |earlier| earlier.min(at_ns)));
    }

    /// Asks for a replay when frames wait for one that is missing: once for each gap, and again
    /// when that seems to have been lost.
    fn ask_for_gap(&mut self, now_ns: u64) {
        let next = self.receive.next();
        let asked_lately = self.asked.is_some_and(|(gap, at_ns)| {
            gap == next && now_ns.saturating_sub(at_ns) < self.patience_ns()
        });
        if self.receive.has_gap() && !asked_lately {
            self.asked = Some((next, now_ns));
            self.nak_due = true;
        }
    }

    /// How long something just sent may take before it makes sense to send it again.
    fn patience_ns(&self) -> u64 {
        self.round_trip.smoothed_ns().unwrap_or(self.config.replay_min_ns)
    }

    fn restart_replay_timer(&mut self, now_ns: u64) {
        self.replay_at_ns = self.send.is_waiting().then(|| {
            now_ns + self.round_trip.replay_timeout_ns(&self.config, self.replay_doublings)
        });
    }

    /// When [`Link::handle_timeout`] or [`Link::poll_transmit`] has something to do by itself.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.id?;
        [self.replay_at_ns, self.ack_at_ns].into_iter().flatten().min()
    }

    /// Marks frames for replay whose time is up. A side that has heard nothing for a long time
    /// stops replaying until it hears something: the other is gone, or stopped in a debugger.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        if self.replay_at_ns.is_none_or(|at_ns| now_ns < at_ns) {
            return;
        }
        if now_ns.saturating_sub(self.last_heard_ns) > self.config.silence_ns {
            self.replay_at_ns = None;
            return;
        }
        self.send.replay_ends();
        self.replay_doublings += 1;
        self.restart_replay_timer(now_ns);
    }

    /// Writes the next frame to send into `buf`; returns its length.
    pub(crate) fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<usize> {
        let id = self.id?;
        if let Some(number) = self.pong_due.take() {
            return Some(self.emit_bare(Opcode::Pong, number, buf));
        }
        if std::mem::take(&mut self.nak_due) && self.receive.has_gap() {
            return Some(self.emit_bare(Opcode::Nak, 0, buf));
        }
        if let Some((sequence, is_replay)) = self.send.next() {
            return Some(self.emit_sequenced(id, sequence, is_replay, now_ns, buf));
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
        buf: &mut [u8],
    ) -> usize {
        let ack = self.receive.next();
        let freshen = |header: &mut HeaderRepr| (header.link, header.ack) = (id, ack);
        let len = self.send.emit(sequence, now_ns, freshen, buf).expect(LARGE_ENOUGH);
        self.ack_is_sent();
        if is_replay {
            self.stats.replayed += 1;
        } else {
            self.stats.sent += 1;
        }
        if self.replay_at_ns.is_none() {
            self.restart_replay_timer(now_ns);
        }
        len
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

    fn ack_is_sent(&mut self) {
        (self.ack_at_ns, self.ack_owed) = (None, 0);
    }
}

/// Why writing a frame cannot fail: the public `poll_transmit` check it.
const LARGE_ENOUGH: &str = "the transmit buffer holds the longest frame";
