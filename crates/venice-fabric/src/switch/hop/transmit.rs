//! The datagrams a hop link sends, and their timing.

use super::*;

impl HopLink {
    /// Sends the link's own datagrams, replays included; the switch's packets come after.
    pub(in crate::switch) fn poll_control(
        &mut self,
        now_ns: u64,
        slots: &Slots,
        buf: &mut [u8],
    ) -> Option<usize> {
        if std::mem::take(&mut self.welcome_due) {
            return Some(self.emit_greeting(HopKind::Welcome, buf));
        }
        if !self.is_up() {
            if now_ns < self.hello_at_ns {
                return None;
            }
            self.hello_at_ns = now_ns.saturating_add(self.config.keepalive_ns / 4);
            return Some(self.emit_greeting(HopKind::Hello, buf));
        }
        if let Some(number) = self.pong_due.take() {
            return Some(self.emit_word(HopKind::Pong, number, buf));
        }
        if std::mem::take(&mut self.nak_due) && self.is_missing_some() {
            let bitmap = self.receive.bitmap();
            return Some(self.emit_word(HopKind::Nak, bitmap, buf));
        }
        if std::mem::take(&mut self.ping_due) {
            self.pings += 1;
            self.pinged = Some((self.pings, now_ns));
            return Some(self.emit_word(HopKind::Ping, self.pings, buf));
        }
        self.replay(now_ns, slots, buf)
    }

    fn replay(&mut self, now_ns: u64, slots: &Slots, buf: &mut [u8]) -> Option<usize> {
        if !self.send.has_replay() {
            return None;
        }
        let mut header = self.header(HopKind::Data);
        let (sequence, channel, slot) = self.send.next_replay(now_ns)?;
        (header.sequence, header.channel) = (sequence, channel);
        header.flags |= HOP_REPLAY_FLAG;
        let packet = slots.bytes(slot);
        let len = header.emit(packet, buf).expect("the caller's buffer holds any datagram");
        self.stats.replayed += 1;
        self.stats.sent_bytes += packet.len() as u64;
        self.await_ack(now_ns);
        self.note_counts_sent(&header);
        Some(len)
    }

    /// Sends a new packet, which [`HopLink::may_send`] allows, and keeps it until it has arrived.
    pub(in crate::switch) fn send(
        &mut self,
        now_ns: u64,
        channel: VirtualChannel,
        slot: Slot,
        slots: &mut Slots,
        buf: &mut [u8],
    ) -> usize {
        let at = usize::from(channel.0);
        assert!(self.may_send(at), "packets are sent only with credit");
        let mut header = self.header(HopKind::Data);
        header.channel = channel.0;
        let packet = slots.bytes(&slot);
        self.stats.sent += 1;
        self.stats.sent_bytes += packet.len() as u64;
        self.used[at] = self.used[at].wrapping_add(1);
        let len = header.emit(packet, buf).expect("the caller's buffer holds any datagram");
        if self.config.replay {
            self.send.push(now_ns, slot, channel.0);
            self.await_ack(now_ns);
        } else {
            self.send.pass();
            slots.give_back(slot);
        }
        self.note_counts_sent(&header);
        len
    }

    /// Sends the acknowledgement that nothing else has carried in time.
    pub(in crate::switch) fn poll_ack(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<usize> {
        let is_due = self.is_up() && self.ack_at_ns.is_some_and(|at_ns| at_ns <= now_ns);
        is_due.then(|| self.emit_word(HopKind::Ack, 0, buf))
    }

    /// Sends a link-state report.
    pub(in crate::switch) fn send_link_state(
        &mut self,
        position: u32,
        version: u64,
        ports: &[u8],
        buf: &mut [u8],
    ) -> usize {
        let mut header = self.header(HopKind::LinkState);
        (header.sequence, header.word) = (Sequence(position), version);
        let len = header.emit(ports, buf).expect("the caller's buffer holds any datagram");
        self.note_counts_sent(&header);
        len
    }

    /// Returns the time at which [`HopLink::handle_timeout`] or [`HopLink::poll_control`] has
    /// something to do.
    pub(in crate::switch) fn poll_timeout(&self) -> u64 {
        if !self.is_up() {
            return self.hello_at_ns;
        }
        let starved_ns = self.starved_since_ns.map(|since_ns| since_ns + self.replay_timeout_ns());
        [self.replay_at_ns, self.ack_at_ns, starved_ns]
            .into_iter()
            .flatten()
            .fold(self.ping_at_ns, u64::min)
    }

    /// Performs the actions due at `now_ns`; true when the link has just gone down.
    pub(in crate::switch) fn handle_timeout(&mut self, now_ns: u64) -> bool {
        if !self.is_up() {
            return false;
        }
        if self.replay_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.send.replay_ends();
            self.replay_doublings += 1;
            self.replay_at_ns = None;
            self.await_ack(now_ns);
        }
        if self.starved_since_ns.is_some_and(|at_ns| at_ns + self.replay_timeout_ns() <= now_ns) {
            self.starved_since_ns = Some(now_ns);
            self.ping_due = true;
        }
        if self.ping_at_ns <= now_ns {
            if self.pinged.is_some() {
                self.unanswered += 1;
                self.count_ping(false);
            }
            self.ping_at_ns = now_ns.saturating_add(self.config.keepalive_ns);
            self.ping_due = true;
        }
        let silent_ns = now_ns.saturating_sub(self.last_heard_ns);
        if silent_ns < self.config.silence_ns || self.unanswered < MIN_PINGS {
            return false;
        }
        self.handshake.go_down();
        self.hello_at_ns = now_ns;
        self.stats.downs += 1;
        true
    }

    /// Starts the wait for an acknowledgement, unless one is awaited already or nothing is in
    /// flight.
    pub(super) fn await_ack(&mut self, now_ns: u64) {
        if self.replay_at_ns.is_none() && self.send.len() > 0 {
            self.replay_at_ns = Some(now_ns.saturating_add(self.replay_timeout_ns()));
        }
    }

    fn replay_timeout_ns(&self) -> u64 {
        self.round_trip.replay_timeout_ns(&self.config, self.replay_doublings)
    }

    fn header(&self, kind: HopKind) -> HopRepr {
        HopRepr {
            flags: if self.config.checksum { 0 } else { HOP_UNCHECKED_FLAG },
            sequence: self.send.next(),
            ack: self.receive.next(),
            credits: self.limits(),
            ..HopRepr::new(kind, self.handshake.link())
        }
    }

    fn emit_word(&mut self, kind: HopKind, word: u64, buf: &mut [u8]) -> usize {
        let header = HopRepr { word, ..self.header(kind) };
        self.note_counts_sent(&header);
        header.emit(&[], buf).expect("the caller's buffer holds any datagram")
    }

    fn emit_greeting(&mut self, kind: HopKind, buf: &mut [u8]) -> usize {
        let greeting = self.handshake.greeting(self.local, self.config.window_frames());
        let header = self.header(kind);
        self.note_counts_sent(&header);
        header.emit(&greeting.to_bytes(), buf).expect("the caller's buffer holds any datagram")
    }

    /// Records that this header carried acknowledgement and credits.
    fn note_counts_sent(&mut self, header: &HopRepr) {
        self.sent_credits = header.credits;
        (self.ack_at_ns, self.ack_owed) = (None, 0);
    }
}
