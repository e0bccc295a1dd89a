//! One end of a connection: its state, and what a program and the network do with it.

mod handshake;
mod input;
mod output;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::receiver::Receiver;
use crate::segment::Segment;
use crate::sender::{Phase, Sender};
use crate::statistics::Statistics;

/// The state of a connection (RFC 9293, section 3.3.2). LISTEN is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// SYN was sent.
    SynSent,
    /// SYN was received and answered.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// This end has closed; its FIN is not acknowledged.
    FinWait1,
    /// This end has closed; the peer has not.
    FinWait2,
    /// The peer has closed; this end has not.
    CloseWait,
    /// Both have closed at once.
    Closing,
    /// Both have closed, the peer first.
    LastAck,
    /// Both have closed; late segments may come.
    TimeWait,
    /// There is no connection.
    Closed,
}

/// A set of events since the last [`Connection::take_events`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events(u8);

impl Events {
    /// The handshake is over.
    pub const CONNECTED: Self = Self(1);
    /// There are more bytes to be read.
    pub const READABLE: Self = Self(2);
    /// There is a message.
    pub const MESSAGE: Self = Self(4);
    /// A writer that was refused may write again.
    pub const WRITABLE: Self = Self(8);
    /// The peer has closed: no more bytes come.
    pub const PEER_CLOSED: Self = Self(16);
    /// The connection is over in good order.
    pub const CLOSED: Self = Self(32);
    /// The peer has reset the connection, or refused it.
    pub const RESET: Self = Self(64);
    /// The peer does not answer.
    pub const TIMED_OUT: Self = Self(128);

    /// True if all events of `other` are in the set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// The present values of a connection, as `ss -i` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The congestion window in segments.
    pub cwnd: u32,
    /// The slow-start threshold in segments.
    pub ssthresh: u32,
    /// Segments in the network.
    pub in_flight: u32,
    /// The smoothed round trip in nanoseconds, once it was measured.
    pub srtt_ns: Option<u64>,
    /// The retransmission time-out in nanoseconds, with its doublings.
    pub rto_ns: u64,
    /// True in fast recovery, or after a time-out.
    pub is_recovering: bool,
}

/// Requests of the connection itself that wait to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Due {
    syn: bool,
    reset: bool,
    syn_was_lost: bool,
}

/// One end of a connection.
///
/// After each call of another method, call [`Connection::poll_transmit`] until it returns `None`, and
/// [`Connection::handle_timeout`] at the time that [`Connection::poll_timeout`] returns then. Times are
/// nanoseconds of the caller's clock and never fall. All calls get the same settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
    statistics: Statistics,
    state: State,
    events: Events,
    due: Due,
}

impl Connection {
    /// Writes up to `bytes` of a message. Returns how many the send buffer took. If it took not all,
    /// the message goes on: after [`Events::WRITABLE`] call again with the rest and the same tag.
    /// Takes nothing once this end has closed.
    pub fn write(&mut self, bytes: u32, tag: u64, config: &Config) -> u32 {
        match self.state {
            State::SynSent | State::SynReceived | State::Established | State::CloseWait
                if !self.sender.is_closing() =>
            {
                self.sender.write(bytes, tag, config)
            }
            _ => 0,
        }
    }

    /// Takes up to `most` bytes in sequence out of the receive buffer. Returns how many. The window
    /// opens, which the peer may have to be told.
    pub fn read(&mut self, most: u32, config: &Config) -> u32 {
        self.receiver.read(most, config, self.sender.options.payload)
    }

    /// Returns the tag of the next message whose bytes are all there in sequence, each once, whether
    /// they were read or not.
    pub fn next_message(&mut self) -> Option<u64> {
        self.receiver.next_message()
    }

    /// Closes this direction: sends FIN after what was written. The other direction stays open until
    /// the peer closes it.
    pub fn close(&mut self) {
        match self.state {
            State::SynSent => self.end(Events::CLOSED),
            State::SynReceived | State::Established | State::CloseWait => self.sender.finish(),
            State::FinWait1
            | State::FinWait2
            | State::Closing
            | State::LastAck
            | State::TimeWait
            | State::Closed => {}
        }
    }

    /// Ends the connection at once, with a reset to the peer.
    pub fn abort(&mut self) {
        let is_known = !matches!(self.state, State::SynSent | State::TimeWait | State::Closed);
        self.end(Events::CLOSED);
        self.due.reset = is_known;
    }

    fn end(&mut self, event: Events) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.events.add(event);
        }
        self.due = Due::default();
        self.sender.stop();
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the events since the last call.
    pub fn take_events(&mut self) -> Events {
        std::mem::take(&mut self.events)
    }

    /// Bytes that can be read.
    pub fn readable(&self) -> u32 {
        self.receiver.unread()
    }

    /// True if [`Connection::next_message`] has one.
    pub fn has_message(&self) -> bool {
        self.receiver.has_message()
    }

    /// Bytes that [`Connection::write`] would take.
    pub fn writable(&self, config: &Config) -> u32 {
        match self.state {
            State::SynSent | State::SynReceived | State::Established | State::CloseWait
                if !self.sender.is_closing() =>
            {
                config.send_buffer.saturating_sub(self.sender.buffered())
            }
            _ => 0,
        }
    }

    /// Bytes that were written and are not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        self.sender.buffered()
    }

    /// True from the end of the handshake until the connection is over.
    pub fn is_connected(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived | State::Closed)
    }

    /// True if the connection is over; TIME-WAIT is not.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Returns the counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the present values.
    pub fn info(&self, config: &Config) -> Info {
        let window = self.sender.window();
        Info {
            cwnd: window.cwnd,
            ssthresh: window.ssthresh,
            in_flight: self.sender.in_flight(),
            srtt_ns: self.sender.rtt.srtt(),
            rto_ns: self.sender.rtt.timeout(&config.rto),
            is_recovering: self.sender.phase() >= Phase::Recovery,
        }
    }

    /// Returns the time of the next [`Connection::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<u64> {
        let acknowledgment = match self.state {
            State::Closed => u64::MAX,
            _ => self.receiver.acknowledgment().deadline(),
        };
        let next = self.sender.deadline.min(acknowledgment);
        (next != u64::MAX).then_some(next)
    }

    /// Returns the reset that answers a segment of no connection (RFC 9293, section 3.10.7.1);
    /// `None` for a reset.
    pub fn refuse(segment: &Segment) -> Option<Segment> {
        output::refuse(segment)
    }
}
