//! Segments that come (RFC 9293, section 3.10.7).

use super::{Connection, Events, State};
use crate::config::Config;
use crate::segment::{Flags, Segment};
use crate::sender::Expiry;
use crate::sequence::{after, before};

impl Connection {
    /// Handles a segment of this connection. `is_marked` is true if a switch has marked congestion on
    /// its way.
    pub fn handle_segment(
        &mut self,
        now: u64,
        config: &Config,
        segment: &Segment,
        is_marked: bool,
    ) {
        match self.state {
            State::Closed => {}
            State::SynSent => self.handle_in_syn_sent(now, config, segment),
            State::SynReceived => self.handle_in_syn_received(now, config, segment, is_marked),
            State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait => self.handle_synchronized(now, config, segment, is_marked),
        }
    }

    fn handle_in_syn_sent(&mut self, now: u64, config: &Config, segment: &Segment) {
        let is_ours = segment.flags.has(Flags::ACK) && segment.ack == self.sender.una();
        if segment.flags.has(Flags::RST) {
            if is_ours {
                self.end(Events::RESET);
            }
            return;
        }
        if !segment.flags.has(Flags::SYN) {
            return;
        }
        if !segment.flags.has(Flags::ACK) {
            // Both opened at once (section 3.5, figure 7).
            let ecn = segment.flags.has(Flags::ECE.with(Flags::CWR));
            self.negotiate(segment, ecn, config);
            self.state = State::SynReceived;
            self.due.syn = true;
        } else if is_ours {
            let ecn = segment.flags.has(Flags::ECE) && !segment.flags.has(Flags::CWR);
            self.sample_handshake(now, config, segment);
            self.negotiate(segment, ecn, config);
            self.establish();
            self.receiver.acknowledgment_mut().hurry();
        }
    }

    fn handle_in_syn_received(
        &mut self,
        now: u64,
        config: &Config,
        segment: &Segment,
        is_marked: bool,
    ) {
        if segment.flags.has(Flags::RST) {
            if segment.seq == self.receiver.next() {
                self.end(Events::RESET);
            }
            return;
        }
        let is_answer = segment.flags.has(Flags::ACK) && segment.ack == self.sender.una();
        if segment.flags.has(Flags::SYN) && !is_answer {
            // Our answer was lost, or is late.
            self.due.syn |= segment.seq.wrapping_add(1) == self.receiver.next();
            return;
        }
        if is_answer {
            self.sample_handshake(now, config, segment);
            self.sender.open(segment.seq, segment.window, self.due.syn_was_lost);
            self.establish();
            self.handle_synchronized(now, config, segment, is_marked);
        }
    }

    /// Measures the round trip of a SYN, by the timestamp if it was sent more than once.
    fn sample_handshake(&mut self, now: u64, config: &Config, segment: &Segment) {
        let echo = segment.timestamps.map(|timestamps| timestamps.echo);
        let options = self.sender.options;
        let by_stamp = echo
            .filter(|_| options.timestamps)
            .map(|echo| crate::stamp(now, config).wrapping_sub(echo))
            .filter(|ticks| *ticks < 1 << 31)
            .map(|ticks| u64::from(ticks) * config.rto.clock_ns);
        self.sender.sample_handshake(now, by_stamp, self.due.syn_was_lost, config);
    }

    fn handle_synchronized(
        &mut self,
        now: u64,
        config: &Config,
        segment: &Segment,
        is_marked: bool,
    ) {
        if segment.flags.has(Flags::RST) {
            if !before(segment.seq, self.receiver.next()) {
                self.end(Events::RESET);
            }
            return;
        }
        if segment.flags.has(Flags::SYN) || !segment.flags.has(Flags::ACK) {
            // Our acknowledgment of the peer's SYN was lost.
            self.receiver.acknowledgment_mut().hurry();
            return;
        }
        self.receiver.note_timestamp(segment);
        if after(segment.ack, self.sender.nxt()) {
            self.receiver.acknowledgment_mut().hurry();
            return;
        }
        if !before(segment.ack, self.sender.una()) {
            let outcome = self.sender.handle_ack(now, config, segment, &mut self.statistics);
            if outcome.writable {
                self.events.add(Events::WRITABLE);
            }
            if outcome.advanced && self.sender.is_finished() {
                self.handle_fin_acknowledged(now, config);
            }
        }
        if self.state != State::Closed {
            self.handle_payload(now, config, segment, is_marked);
        }
    }

    fn handle_payload(&mut self, now: u64, config: &Config, segment: &Segment, is_marked: bool) {
        let options = self.sender.options;
        let received = self.receiver.handle(now, config, segment, options, is_marked);
        if received.bytes {
            self.events.add(Events::READABLE);
        }
        if received.message {
            self.events.add(Events::MESSAGE);
        }
        if received.fin {
            self.events.add(Events::PEER_CLOSED);
            match self.state {
                State::SynReceived | State::Established => self.state = State::CloseWait,
                State::FinWait1 => self.state = State::Closing,
                State::FinWait2 => self.wait_out(now, config),
                State::SynSent
                | State::CloseWait
                | State::Closing
                | State::LastAck
                | State::TimeWait
                | State::Closed => {}
            }
        } else if self.state == State::TimeWait && segment.flags.has(Flags::FIN) {
            self.wait_out(now, config);
        }
    }

    fn handle_fin_acknowledged(&mut self, now: u64, config: &Config) {
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.wait_out(now, config),
            State::LastAck => self.end(Events::CLOSED),
            State::SynSent
            | State::SynReceived
            | State::Established
            | State::FinWait2
            | State::CloseWait
            | State::TimeWait
            | State::Closed => {}
        }
    }

    /// Enters TIME-WAIT, or starts it anew.
    fn wait_out(&mut self, now: u64, config: &Config) {
        self.state = State::TimeWait;
        self.sender.start_timer(now, config.time_wait_ns, Expiry::Retransmit, config);
    }
}
