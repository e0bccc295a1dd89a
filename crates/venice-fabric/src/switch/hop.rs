//! One hop link: packets to and from one neighbour, each once and in order, within the buffers.

mod transmit;

use venice_wire::{
    Credits, Greeting, HOP_REPLAY_FLAG, HOP_UNCHECKED_FLAG, Hop, HopKind, HopRepr, NodeId,
    Sequence, VIRTUAL_CHANNELS,
};

use super::greeting::{Greeted, Handshake};
use super::slots::{Slot, Slots};
use super::stats::{HopState, HopStats};
use super::window::{Arrival, ReceiveWindow, SendWindow};
use crate::LinkConfig;
use crate::datalink::RoundTrip;
use crate::routing::VirtualChannel;

/// Unanswered pings before silence counts as death.
const MIN_PINGS: u32 = 3;
/// Divisor of the latest ping's weight in the smoothed loss.
const LOSS_WEIGHT: u32 = 16;

/// One end of a hop link.
#[derive(Debug)]
pub(super) struct HopLink {
    config: LinkConfig,
    local: NodeId,
    remote: NodeId,
    handshake: Handshake,
    hello_at_ns: u64,
    welcome_due: bool,
    send: SendWindow,
    /// Packets that may be in flight: the smaller of both ends' windows.
    send_limit: u32,
    /// Packets sent on each channel, and the count up to which they may be sent.
    used: Credits,
    allowed: Credits,
    /// The time since which packets wait for credit, after which a lost credit is probed for.
    starved_since_ns: Option<u64>,
    receive: ReceiveWindow,
    /// Packets received on each channel, how many of them are still buffered, how many may be.
    arrived: Credits,
    buffered: Credits,
    capacity: Credits,
    /// The credits last sent to the neighbour.
    sent_credits: Credits,
    round_trip: RoundTrip,
    replay_at_ns: Option<u64>,
    replay_doublings: u32,
    ack_at_ns: Option<u64>,
    ack_owed: u32,
    nak_due: bool,
    /// The position the neighbour last announced for its next packet.
    announced: Sequence,
    requested_gap: Option<(Sequence, u64)>,
    ping_due: bool,
    pong_due: Option<u64>,
    ping_at_ns: u64,
    pinged: Option<(u64, u64)>,
    pings: u64,
    unanswered: u32,
    last_heard_ns: u64,
    stats: HopStats,
}

/// The action required by a datagram, beside those the link has taken itself.
pub(super) enum Received {
    Nothing,
    /// The link is up; if it is the same one, the packets in its window are sent again.
    Up,
    /// A packet, to be placed by [`HopLink::classify`].
    Packet,
    /// A link-state report for the switch.
    LinkState,
}

impl HopLink {
    pub(super) fn new(
        config: &LinkConfig,
        (local, remote): (NodeId, NodeId),
        incarnation: u64,
        salt: u64,
        capacity: Credits,
    ) -> Self {
        let window = u32::from(config.window_frames());
        Self {
            config: config.clone(),
            local,
            remote,
            handshake: Handshake::new(incarnation, salt),
            hello_at_ns: 0,
            welcome_due: false,
            send: SendWindow::new(window),
            send_limit: 0,
            used: [0; VIRTUAL_CHANNELS],
            allowed: [0; VIRTUAL_CHANNELS],
            starved_since_ns: None,
            receive: ReceiveWindow::new(window),
            arrived: [0; VIRTUAL_CHANNELS],
            buffered: [0; VIRTUAL_CHANNELS],
            capacity,
            sent_credits: [0; VIRTUAL_CHANNELS],
            round_trip: RoundTrip::default(),
            replay_at_ns: None,
            replay_doublings: 0,
            ack_at_ns: None,
            ack_owed: 0,
            nak_due: false,
            announced: Sequence(0),
            requested_gap: None,
            ping_due: false,
            pong_due: None,
            ping_at_ns: 0,
            pinged: None,
            pings: 0,
            unanswered: 0,
            last_heard_ns: 0,
            stats: HopStats::default(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.handshake.is_up()
    }

    pub(super) fn stats(&self) -> HopStats {
        HopStats {
            neighbour: self.remote,
            state: if self.is_up() { HopState::Up } else { HopState::Down },
            round_trip_ns: self.round_trip.smoothed_ns(),
            in_flight: self.send.len(),
            buffered: self.buffered.iter().map(|n| u32::from(*n)).sum(),
            ..self.stats
        }
    }

    pub(super) fn stats_mut(&mut self) -> &mut HopStats {
        &mut self.stats
    }

    /// True if a new packet may be sent on this channel now.
    pub(super) fn may_send(&self, channel: usize) -> bool {
        self.is_up() && self.send.len() < self.send_limit && self.has_credit(channel)
    }

    fn has_credit(&self, channel: usize) -> bool {
        let left = self.allowed[channel].wrapping_sub(self.used[channel]);
        // Beyond half the circle it is an older count: none left.
        left != 0 && left < 1 << 15
    }

    /// Records that packets wait for credit on this channel: if that lasts, the neighbour is
    /// probed.
    pub(super) fn starve(&mut self, now_ns: u64, channel: usize) {
        if self.is_up() && !self.has_credit(channel) {
            self.starved_since_ns.get_or_insert(now_ns);
        }
    }

    /// Takes one datagram that has passed the checks of the format.
    pub(super) fn receive_datagram(
        &mut self,
        now_ns: u64,
        hop: &Hop<'_>,
        slots: &mut Slots,
    ) -> Received {
        if matches!(hop.kind(), HopKind::Hello | HopKind::Welcome) {
            return self.receive_greeting(now_ns, hop, slots);
        }
        if !self.is_up() || hop.link() != self.handshake.link() {
            self.stats.strangers += 1;
            return Received::Nothing;
        }
        self.last_heard_ns = now_ns;
        self.unanswered = 0;
        self.take_counts(now_ns, hop, slots);
        match hop.kind() {
            HopKind::Data => return Received::Packet,
            HopKind::LinkState => return Received::LinkState,
            HopKind::Nak => {
                let patience_ns =
                    self.round_trip.smoothed_ns().unwrap_or(self.config.replay_min_ns);
                self.send.replay_missing(hop.ack(), hop.word(), now_ns, patience_ns);
            }
            HopKind::Ping => {
                self.pong_due = Some(hop.word());
                self.look_for_loss(now_ns, hop.sequence());
            }
            HopKind::Pong => {
                if let Some((number, sent_ns)) = self.pinged
                    && number == hop.word()
                {
                    self.round_trip.sample(now_ns.saturating_sub(sent_ns));
                    self.pinged = None;
                    self.count_ping(true);
                }
                self.look_for_loss(now_ns, hop.sequence());
            }
            HopKind::Ack => self.look_for_loss(now_ns, hop.sequence()),
            HopKind::Hello | HopKind::Welcome => {}
        }
        Received::Nothing
    }

    fn receive_greeting(&mut self, now_ns: u64, hop: &Hop<'_>, slots: &mut Slots) -> Received {
        let Ok(greeting) = Greeting::parse(hop.payload()) else { return Received::Nothing };
        if greeting.node != self.remote {
            self.stats.strangers += 1;
            return Received::Nothing;
        }
        let was_up = self.is_up();
        let greeted = self.handshake.receive(&greeting);
        // A Hello is answered; a Welcome once, since the other needs its own challenge answered.
        let is_hello = hop.kind() == HopKind::Hello;
        self.welcome_due |= is_hello || (!was_up && greeted != Greeted::Nothing);
        if greeted == Greeted::Nothing {
            return Received::Nothing;
        }
        if greeted == Greeted::New {
            self.start_over(slots);
        }
        self.last_heard_ns = now_ns;
        self.unanswered = 0;
        self.send_limit = u32::from(greeting.window).min(u32::from(self.config.window_frames()));
        if hop.link() == self.handshake.link() {
            self.take_counts(now_ns, hop, slots);
        }
        if was_up && greeted == Greeted::Same {
            return Received::Nothing;
        }
        self.stats.ups += 1;
        self.send.replay_all();
        (self.ping_due, self.pinged) = (true, None);
        self.ping_at_ns = now_ns.saturating_add(self.config.keepalive_ns);
        self.owe_ack(now_ns);
        Received::Up
    }

    /// Restarts the link with a new session of the neighbour: packets in flight to the old one are
    /// lost, and so are its packets received out of order. The links above detect the loss and send
    /// again.
    fn start_over(&mut self, slots: &mut Slots) {
        let Self { send, receive, buffered, stats, .. } = self;
        send.clear(|slot| {
            stats.lost_in_restarts += 1;
            slots.give_back(slot);
        });
        // Packets received in order stay in their buffers, and occupy them.
        receive.clear(|slot, channel| {
            stats.lost_in_restarts += 1;
            buffered[usize::from(channel)] -= 1;
            slots.give_back(slot);
        });
        (self.used, self.allowed) = ([0; VIRTUAL_CHANNELS], [0; VIRTUAL_CHANNELS]);
        (self.arrived, self.sent_credits) = ([0; VIRTUAL_CHANNELS], [0; VIRTUAL_CHANNELS]);
        (self.replay_at_ns, self.replay_doublings, self.starved_since_ns) = (None, 0, None);
        (self.ack_at_ns, self.ack_owed, self.nak_due, self.requested_gap) = (None, 0, false, None);
        (self.ping_due, self.pong_due, self.pinged) = (false, None, None);
        self.announced = Sequence(0);
    }

    /// Takes the counts that every datagram carries: received packets, and credits.
    fn take_counts(&mut self, now_ns: u64, hop: &Hop<'_>, slots: &mut Slots) {
        if self.send.acknowledge(hop.ack(), |slot| slots.give_back(slot)) {
            self.replay_doublings = 0;
            self.replay_at_ns = None;
            self.await_ack(now_ns);
        }
        for (allowed, credit) in self.allowed.iter_mut().zip(hop.credits()) {
            // A late datagram carries an old count.
            if credit.wrapping_sub(*allowed).wrapping_sub(1) < 1 << 15 {
                *allowed = credit;
                self.starved_since_ns = None;
            }
        }
    }

    /// Classifies a `Data` at this position on this channel.
    pub(super) fn classify(&mut self, now_ns: u64, sequence: Sequence, channel: usize) -> Arrival {
        let arrival = self.receive.classify(sequence);
        match arrival {
            Arrival::InOrder | Arrival::Early
                if self.buffered[channel] >= self.capacity[channel] =>
            {
                // It was sent without credit: there is no buffer for it.
                self.stats.overruns += 1;
                return Arrival::Outside;
            }
            Arrival::Duplicate => {
                self.stats.duplicates += 1;
                self.ack_at_ns = Some(now_ns);
            }
            Arrival::InOrder | Arrival::Early | Arrival::Outside => {}
        }
        arrival
    }

    /// Counts the next packet in order, which is buffered.
    pub(super) fn accept(&mut self, now_ns: u64, channel: usize, len_bytes: usize) {
        self.receive.advance();
        self.count_in(channel, len_bytes);
        self.owe_ack(now_ns);
    }

    /// Parks a packet that came early.
    pub(super) fn park(
        &mut self,
        now_ns: u64,
        sequence: Sequence,
        channel: usize,
        slot: Slot,
        len_bytes: usize,
    ) {
        self.receive.park(sequence, slot, channel as u8);
        self.count_in(channel, len_bytes);
        self.ask_again(now_ns);
    }

    /// Returns the parked packet whose turn it is.
    pub(super) fn take_parked(&mut self, now_ns: u64) -> Option<(Slot, u8)> {
        let parked = self.receive.take_next()?;
        self.owe_ack(now_ns);
        Some(parked)
    }

    fn count_in(&mut self, channel: usize, len_bytes: usize) {
        self.arrived[channel] = self.arrived[channel].wrapping_add(1);
        self.buffered[channel] += 1;
        assert!(self.buffered[channel] <= self.capacity[channel], "a credit is a buffer");
        self.stats.received += 1;
        self.stats.received_bytes += len_bytes as u64;
    }

    /// Frees the input buffer of a packet that has left it.
    pub(super) fn release(&mut self, now_ns: u64, channel: usize) {
        self.buffered[channel] = self.buffered[channel].checked_sub(1).expect("it was buffered");
        let unreported = self.limits()[channel].wrapping_sub(self.sent_credits[channel]);
        let at_ns = if unreported >= (self.capacity[channel] / 4).max(1) {
            now_ns
        } else {
            now_ns.saturating_add(self.config.ack_delay_ns)
        };
        self.ack_at_ns = Some(self.ack_at_ns.map_or(at_ns, |earlier_ns| earlier_ns.min(at_ns)));
    }

    /// Returns the count up to which the neighbour may have sent on each channel.
    fn limits(&self) -> Credits {
        std::array::from_fn(|channel| {
            let free = self.capacity[channel] - self.buffered[channel];
            self.arrived[channel].wrapping_add(free)
        })
    }

    fn owe_ack(&mut self, now_ns: u64) {
        if !self.config.replay {
            return;
        }
        self.ack_owed += 1;
        let is_urgent = self.ack_owed >= u32::from(self.config.window_frames()) / 4;
        let at_ns =
            if is_urgent { now_ns } else { now_ns.saturating_add(self.config.ack_delay_ns) };
        self.ack_at_ns = Some(self.ack_at_ns.map_or(at_ns, |earlier_ns| earlier_ns.min(at_ns)));
    }

    /// Compares the neighbour's announced next position with the received one: if it is ahead, some
    /// packets got lost.
    fn look_for_loss(&mut self, now_ns: u64, next: Sequence) {
        self.announced = next;
        if self.is_missing_some() {
            self.ask_again(now_ns);
        }
    }

    fn is_missing_some(&self) -> bool {
        self.receive.has_gap() || self.receive.next().is_before(self.announced)
    }

    /// Requests the missing packets, for the same gap at most once per round trip.
    fn ask_again(&mut self, now_ns: u64) {
        let patience_ns = self.round_trip.smoothed_ns().unwrap_or(self.config.replay_min_ns);
        let requested_lately = self.requested_gap.is_some_and(|(gap, requested_ns)| {
            gap == self.receive.next() && now_ns.saturating_sub(requested_ns) < patience_ns
        });
        if self.config.replay && !requested_lately {
            self.requested_gap = Some((self.receive.next(), now_ns));
            self.nak_due = true;
        }
    }

    fn count_ping(&mut self, answered: bool) {
        let lost_ppm = if answered { 0 } else { 1_000_000 };
        let before = self.stats.loss_ppm;
        self.stats.loss_ppm = before - before / LOSS_WEIGHT + lost_ppm / LOSS_WEIGHT;
    }
}
