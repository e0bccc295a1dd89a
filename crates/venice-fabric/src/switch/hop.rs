//! One hop link: packets to and from one neighbour, each once and in order, while buffers last.

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
/// What the latest ping counts in the loss against all earlier ones: one part in so many.
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
    /// Packets that may be on their way: the smaller of both ends' windows.
    send_limit: u32,
    /// How many packets we sent on each channel, and may have sent.
    used: Credits,
    allowed: Credits,
    /// Since when packets wait for credit, so as to ask whether a credit got lost.
    starved_since_ns: Option<u64>,
    receive: ReceiveWindow,
    /// Packets that came on each channel, how many of them are still buffered, how many may be.
    arrived: Credits,
    buffered: Credits,
    capacity: Credits,
    /// What the neighbour was last told it may send.
    told: Credits,
    round_trip: RoundTrip,
    replay_at_ns: Option<u64>,
    replay_doublings: u32,
    ack_at_ns: Option<u64>,
    ack_owed: u32,
    nak_due: bool,
    /// What the neighbour said it will send next, when it last said so.
    announced: Sequence,
    asked: Option<(Sequence, u64)>,
    ping_due: bool,
    pong_due: Option<u64>,
    ping_at_ns: u64,
    pinged: Option<(u64, u64)>,
    pings: u64,
    unanswered: u32,
    last_heard_ns: u64,
    stats: HopStats,
}

/// What has to be done about a datagram, beside what the link has done itself.
pub(super) enum Heard {
    Nothing,
    /// The link is up; packets in its window are sent again if it is the same one.
    Up,
    /// A packet, to be put where [`HopLink::judge`] says.
    Packet,
    /// News for the switch.
    News,
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
            told: [0; VIRTUAL_CHANNELS],
            round_trip: RoundTrip::default(),
            replay_at_ns: None,
            replay_doublings: 0,
            ack_at_ns: None,
            ack_owed: 0,
            nak_due: false,
            announced: Sequence(0),
            asked: None,
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

    /// Whether a new packet may go out on this channel now.
    pub(super) fn may_send(&self, channel: usize) -> bool {
        self.is_up() && self.send.len() < self.send_limit && self.has_credit(channel)
    }

    fn has_credit(&self, channel: usize) -> bool {
        let left = self.allowed[channel].wrapping_sub(self.used[channel]);
        // Beyond half the circle it is a count from before: none left.
        left != 0 && left < 1 << 15
    }

    /// Packets wait for credit on this channel: if that lasts, the neighbour is asked.
    pub(super) fn starve(&mut self, now_ns: u64, channel: usize) {
        if self.is_up() && !self.has_credit(channel) {
            self.starved_since_ns.get_or_insert(now_ns);
        }
    }

    /// Takes one datagram that has passed the checks of the format.
    pub(super) fn hear(&mut self, now_ns: u64, hop: &Hop<'_>, slots: &mut Slots) -> Heard {
        if matches!(hop.kind(), HopKind::Hello | HopKind::Welcome) {
            return self.hear_greeting(now_ns, hop, slots);
        }
        if !self.is_up() || hop.link() != self.handshake.link() {
            self.stats.strangers += 1;
            return Heard::Nothing;
        }
        self.last_heard_ns = now_ns;
        self.unanswered = 0;
        self.take_counts(now_ns, hop, slots);
        match hop.kind() {
            HopKind::Data => return Heard::Packet,
            HopKind::News => return Heard::News,
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
        Heard::Nothing
    }

    fn hear_greeting(&mut self, now_ns: u64, hop: &Hop<'_>, slots: &mut Slots) -> Heard {
        let Ok(greeting) = Greeting::parse(hop.payload()) else { return Heard::Nothing };
        if greeting.node != self.remote {
            self.stats.strangers += 1;
            return Heard::Nothing;
        }
        let was_up = self.is_up();
        let greeted = self.handshake.hear(&greeting);
        // A Hello is answered; a Welcome once, since the other needs its own challenge answered.
        let is_hello = hop.kind() == HopKind::Hello;
        self.welcome_due |= is_hello || (!was_up && greeted != Greeted::Nothing);
        if greeted == Greeted::Nothing {
            return Heard::Nothing;
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
            return Heard::Nothing;
        }
        self.stats.ups += 1;
        self.send.replay_all();
        (self.ping_due, self.pinged) = (true, None);
        self.ping_at_ns = now_ns.saturating_add(self.config.keepalive_ns);
        self.owe_ack(now_ns);
        Heard::Up
    }

    /// The neighbour is a new one: what was on its way to the old one is lost, and so is what came
    /// out of order from it. The links above notice and send it again.
    fn start_over(&mut self, slots: &mut Slots) {
        let Self { send, receive, buffered, stats, .. } = self;
        send.clear(|slot| {
            stats.lost_in_restarts += 1;
            slots.give_back(slot);
        });
        // Packets that came in order stay where they are, and occupy their buffers.
        receive.clear(|slot, channel| {
            stats.lost_in_restarts += 1;
            buffered[usize::from(channel)] -= 1;
            slots.give_back(slot);
        });
        (self.used, self.allowed) = ([0; VIRTUAL_CHANNELS], [0; VIRTUAL_CHANNELS]);
        (self.arrived, self.told) = ([0; VIRTUAL_CHANNELS], [0; VIRTUAL_CHANNELS]);
        (self.replay_at_ns, self.replay_doublings, self.starved_since_ns) = (None, 0, None);
        (self.ack_at_ns, self.ack_owed, self.nak_due, self.asked) = (None, 0, false, None);
        (self.ping_due, self.pong_due, self.pinged) = (false, None, None);
        self.announced = Sequence(0);
    }

    /// Takes what every datagram tells: what has arrived there, and what there is room for.
    fn take_counts(&mut self, now_ns: u64, hop: &Hop<'_>, slots: &mut Slots) {
        if self.send.acknowledge(hop.ack(), |slot| slots.give_back(slot)) {
            self.replay_doublings = 0;
            self.replay_at_ns = None;
            self.await_ack(now_ns);
        }
        for (allowed, told) in self.allowed.iter_mut().zip(hop.credits()) {
            // A late datagram tells an old count.
            if told.wrapping_sub(*allowed).wrapping_sub(1) < 1 << 15 {
                *allowed = told;
                self.starved_since_ns = None;
            }
        }
    }

    /// What to do with a `Data` at this position on this channel.
    pub(super) fn judge(&mut self, now_ns: u64, sequence: Sequence, channel: usize) -> Arrival {
        let arrival = self.receive.judge(sequence);
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

    /// The next packet in order has come, and is buffered.
    pub(super) fn accept(&mut self, now_ns: u64, channel: usize, len_bytes: usize) {
        self.receive.advance();
        self.count_in(channel, len_bytes);
        self.owe_ack(now_ns);
    }

    /// Keeps a packet that came before its turn.
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

    /// The parked packet whose turn it is.
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

    /// A packet has left its input buffer.
    pub(super) fn release(&mut self, now_ns: u64, channel: usize) {
        self.buffered[channel] = self.buffered[channel].checked_sub(1).expect("it was buffered");
        let news = self.limits()[channel].wrapping_sub(self.told[channel]);
        let at_ns = if news >= (self.capacity[channel] / 4).max(1) {
            now_ns
        } else {
            now_ns.saturating_add(self.config.ack_delay_ns)
        };
        self.ack_at_ns = Some(self.ack_at_ns.map_or(at_ns, |earlier_ns| earlier_ns.min(at_ns)));
    }

    /// How many packets the neighbour may have sent on each channel.
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

    /// The neighbour says what it will send next: if that is ahead of what came, some got lost.
    fn look_for_loss(&mut self, now_ns: u64, next: Sequence) {
        self.announced = next;
        if self.is_missing_some() {
            self.ask_again(now_ns);
        }
    }

    fn is_missing_some(&self) -> bool {
        self.receive.has_gap() || self.receive.next().is_before(self.announced)
    }

    /// Asks for what is missing, but for the same gap not more often than a round trip.
    fn ask_again(&mut self, now_ns: u64) {
        let patience_ns = self.round_trip.smoothed_ns().unwrap_or(self.config.replay_min_ns);
        let asked_lately = self.asked.is_some_and(|(gap, asked_ns)| {
            gap == self.receive.next() && now_ns.saturating_sub(asked_ns) < patience_ns
        });
        if self.config.replay && !asked_lately {
            self.asked = Some((self.receive.next(), now_ns));
            self.nak_due = true;
        }
    }

    fn count_ping(&mut self, answered: bool) {
        let lost_ppm = if answered { 0 } else { 1_000_000 };
        let before = self.stats.loss_ppm;
        self.stats.loss_ppm = before - before / LOSS_WEIGHT + lost_ppm / LOSS_WEIGHT;
    }
}
