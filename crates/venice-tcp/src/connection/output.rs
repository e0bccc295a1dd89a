//! Segments that leave.

use super::{Connection, Events, State};
use crate::config::Config;
use crate::segment::{Flags, SackBlocks, Segment, Timestamps};
use crate::sender::Payload;

impl Connection {
    /// Returns the next segment to be sent. Call it until it returns `None`.
    pub fn poll_transmit(&mut self, now: u64, config: &Config) -> Option<Segment> {
        match self.state {
            State::Closed => return self.poll_reset(),
            State::SynSent | State::SynReceived => return self.poll_syn(now, config),
            State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait => {}
        }
        if let Some((ack, echo)) = self.receiver.acknowledgment_mut().take_preceding() {
            let mut segment = self.segment(now, config, SackBlocks::default());
            segment.ack = ack;
            segment.flags = Flags::ACK;
            if echo {
                segment.flags = segment.flags.with(Flags::ECE);
            }
            // The next one follows.
            self.receiver.acknowledgment_mut().hurry();
            return Some(segment);
        }
        let blocks = match self.sender.options.sack {
            true => self.receiver.sack_blocks(),
            false => SackBlocks::default(),
        };
        let options = blocks.option_bytes();
        match self.sender.poll(now, config, options, &mut self.statistics) {
            Some(payload) => Some(self.data(now, config, payload, blocks)),
            None if self.receiver.acknowledgment().is_due() => {
                Some(self.segment(now, config, blocks))
            }
            None => None,
        }
    }

    fn poll_reset(&mut self) -> Option<Segment> {
        std::mem::take(&mut self.due.reset).then(|| Segment {
            seq: self.sender.nxt(),
            ack: self.receiver.next(),
            flags: Flags::RST.with(Flags::ACK),
            ..Segment::default()
        })
    }

    fn poll_syn(&mut self, now: u64, config: &Config) -> Option<Segment> {
        if !std::mem::take(&mut self.due.syn) {
            return None;
        }
        self.sender.start_handshake_timer(now, config);
        Some(self.syn(now, config))
    }

    /// Returns a segment with payload, FIN, or a probe of the window.
    fn data(&mut self, now: u64, config: &Config, payload: Payload, blocks: SackBlocks) -> Segment {
        // A retransmission is as long as it was: without the blocks, where both do not fit.
        let full = u32::from(self.sender.options.payload.saturating_sub(blocks.option_bytes()));
        let blocks = if payload.len > full { SackBlocks::default() } else { blocks };
        let mut segment = self.segment(now, config, blocks);
        segment.seq = payload.seq;
        segment.len = payload.len;
        segment.message = payload.message;
        if payload.message.is_some() {
            segment.flags = segment.flags.with(Flags::PSH);
        }
        if payload.is_fin {
            segment.flags = segment.flags.with(Flags::FIN);
            self.enter_fin_state();
        }
        if payload.cwr {
            segment.flags = segment.flags.with(Flags::CWR);
        }
        if payload.len > 0 {
            self.receiver.acknowledgment_mut().note_sent_data(now, config);
            // RFC 3168, section 6.1.5: retransmissions are not marked; RFC 8257 marks all.
            if self.sender.options.ecn && (!payload.is_retransmission || self.sender.is_dctcp()) {
                segment.flags = segment.flags.with(Flags::ECT);
            }
        }
        segment
    }

    /// Returns an acknowledgment without payload, and takes note that it was sent.
    fn segment(&mut self, now: u64, config: &Config, sack: SackBlocks) -> Segment {
        let options = self.sender.options;
        let window = self.receiver.offer_window(config, options);
        let ack = self.receiver.next();
        let echo = self.receiver.acknowledgment_mut().sent(ack);
        let flags = if echo && options.ecn { Flags::ACK.with(Flags::ECE) } else { Flags::ACK };
        Segment {
            seq: self.sender.nxt(),
            ack,
            window,
            flags,
            sack,
            timestamps: self.timestamps(now, config),
            ..Segment::default()
        }
    }

    pub(super) fn timestamps(&self, now: u64, config: &Config) -> Option<Timestamps> {
        let value = crate::stamp(now, config);
        let echo = self.receiver.echo;
        self.sender.options.timestamps.then_some(Timestamps { value, echo })
    }

    fn enter_fin_state(&mut self) {
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            other => other,
        };
    }

    /// Handles the time that [`Connection::poll_timeout`] returned; an earlier call does nothing.
    pub fn handle_timeout(&mut self, now: u64, config: &Config) {
        self.receiver.acknowledgment_mut().handle_timeout(now);
        if self.sender.deadline > now {
            return;
        }
        match self.state {
            State::SynSent | State::SynReceived => self.time_out_syn(config),
            State::TimeWait => self.end(Events::CLOSED),
            State::Closed => self.sender.stop(),
            State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck => {
                if !self.sender.handle_expiry(now, config, &mut self.statistics) {
                    self.end(Events::TIMED_OUT);
                }
            }
        }
    }

    fn time_out_syn(&mut self, config: &Config) {
        if !self.sender.retry_handshake(config) {
            return self.end(Events::TIMED_OUT);
        }
        self.statistics.timeouts += 1;
        self.statistics.retransmits += 1;
        self.due.syn = true;
        self.due.syn_was_lost = true;
    }
}

pub(super) fn refuse(segment: &Segment) -> Option<Segment> {
    if segment.flags.has(Flags::RST) {
        return None;
    }
    let reset = match segment.flags.has(Flags::ACK) {
        true => Segment { seq: segment.ack, flags: Flags::RST, ..Segment::default() },
        false => {
            Segment { ack: segment.end(), flags: Flags::RST.with(Flags::ACK), ..Segment::default() }
        }
    };
    Some(reset)
}
