//! The start of a connection (RFC 9293, section 3.5).

use super::{Connection, Due, Events, State};
use crate::config::Config;
use crate::receiver::Receiver;
use crate::segment::{Flags, Segment, TIMESTAMP_BYTES};
use crate::sender::{Negotiated, Sender};
use crate::statistics::Statistics;

impl Connection {
    /// Opens a connection: the next [`Connection::poll_transmit`] returns its SYN. `isn` is the initial
    /// sequence number, any number.
    pub fn connect(isn: u32, config: &Config) -> Self {
        let offered = Negotiated {
            payload: payload(config.mss, config.timestamps),
            sack: config.sack,
            timestamps: config.timestamps,
            ecn: config.ecn,
        };
        Self::new(State::SynSent, isn, offered, config)
    }

    /// Answers a SYN: the next [`Connection::poll_transmit`] returns the SYN with ACK. `isn` is the
    /// initial sequence number, any number. Returns `None` if the segment is no SYN.
    pub fn accept(isn: u32, config: &Config, syn: &Segment) -> Option<Self> {
        if !syn.flags.has(Flags::SYN) || syn.flags.has_any(Flags::ACK.with(Flags::RST)) {
            return None;
        }
        let mut connection = Self::connect(isn, config);
        connection.state = State::SynReceived;
        let ecn = syn.flags.has(Flags::ECE.with(Flags::CWR));
        connection.negotiate(syn, ecn, config);
        Some(connection)
    }

    fn new(state: State, isn: u32, offered: Negotiated, config: &Config) -> Self {
        let mut sender = Sender::new(isn.wrapping_add(1), config);
        sender.options = offered;
        Self {
            sender,
            receiver: Receiver::new(0, config),
            statistics: Statistics::default(),
            state,
            events: Events::default(),
            due: Due { syn: true, ..Due::default() },
        }
    }

    /// Takes what both ends offer: of options, and of the maximum segment size the less (RFC 6691;
    /// without the option 536).
    pub(super) fn negotiate(&mut self, syn: &Segment, ecn: bool, config: &Config) {
        let timestamps = config.timestamps && syn.timestamps.is_some();
        let peer_mss = if syn.mss == 0 { 536 } else { syn.mss };
        self.sender.options = Negotiated {
            payload: payload(peer_mss.min(config.mss), timestamps),
            sack: config.sack && syn.flags.has(Flags::SACK_PERMITTED),
            timestamps,
            ecn: config.ecn && ecn,
        };
        self.receiver = Receiver::new(syn.seq.wrapping_add(1), config);
        self.receiver.echo = syn.timestamps.map_or(0, |timestamps| timestamps.value);
        self.sender.open(syn.seq, syn.window, self.due.syn_was_lost);
    }

    /// Returns the SYN, with ACK if one was received.
    pub(super) fn syn(&mut self, now: u64, config: &Config) -> Segment {
        let is_answer = self.state == State::SynReceived;
        let options = self.sender.options;
        let mut flags = Flags::SYN;
        if options.sack {
            flags = flags.with(Flags::SACK_PERMITTED);
        }
        if options.ecn {
            flags = flags.with(Flags::ECE);
        }
        match is_answer {
            true => flags = flags.with(Flags::ACK),
            // RFC 3168, section 6.1.1.
            false if options.ecn => flags = flags.with(Flags::CWR),
            false => {}
        }
        let ack = if is_answer { self.receiver.next() } else { 0 };
        if is_answer {
            self.receiver.acknowledgment_mut().sent(ack);
        }
        Segment {
            seq: self.sender.una().wrapping_sub(1),
            ack,
            window: config.receive_buffer,
            flags,
            mss: config.mss,
            timestamps: self.timestamps(now, config),
            ..Segment::default()
        }
    }

    /// Enters ESTABLISHED.
    pub(super) fn establish(&mut self) {
        self.state = State::Established;
        self.events.add(Events::CONNECTED);
        self.sender.stop();
    }
}

/// Returns the payload bytes of a full segment.
fn payload(mss: u16, timestamps: bool) -> u16 {
    mss.saturating_sub(if timestamps { TIMESTAMP_BYTES } else { 0 }).max(1)
}
