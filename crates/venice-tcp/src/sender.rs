//! The sending side: what was written, what is outstanding, and what may be sent.

mod ack;
mod loss;
mod output;
mod reduction;
mod timer;

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::congestion::{Control, Window};
use crate::queue::Queue;
use crate::rto::Estimator;
use crate::sequence::after;
pub(crate) use ack::AckOutcome;
use loss::Rack;
pub(crate) use output::Payload;
use reduction::Reducing;
pub(crate) use timer::Expiry;

/// The options that both ends of a connection agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Negotiated {
    /// Payload bytes of a full segment.
    pub(crate) payload: u16,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    pub(crate) ecn: bool,
}

/// A set of marks on an outstanding segment; never 0, so that an optional segment needs no more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marks(NonZeroU8);

impl Marks {
    /// Selectively acknowledged.
    const SACKED: u8 = 1;
    /// Believed lost.
    const LOST: u8 = 2;
    /// A retransmission is outstanding.
    const RETRANSMITTED: u8 = 4;
    /// Sent more than once: its round trip is ambiguous (Karn).
    const AMBIGUOUS: u8 = 8;
    /// Ends a message.
    const MESSAGE: u8 = 16;
    /// A FIN.
    const FIN: u8 = 32;

    /// On each outstanding segment.
    const NONE: Self = Self(NonZeroU8::new(128).expect("it is not 0"));

    fn has(self, mark: u8) -> bool {
        self.0.get() & mark == mark
    }

    fn has_any(self, marks: u8) -> bool {
        self.0.get() & marks != 0
    }

    fn set(&mut self, mark: u8) {
        self.0 |= mark;
    }

    fn clear(&mut self, mark: u8) {
        self.0 = Self::NONE.0 | self.0.get() & !mark;
    }
}

/// An outstanding segment. It begins where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// The time it was last sent.
    at: u64,
    message: u64,
    end: u32,
    marks: Marks,
}

/// The end of a message that is not sent yet. The tag is in halves, which need no alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Boundary {
    end: u32,
    high: u32,
    low: u32,
}

impl Boundary {
    fn new(end: u32, message: u64) -> Self {
        Self { end, high: (message >> 32) as u32, low: message as u32 }
    }

    fn message(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

/// The states of loss recovery, as Linux has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// Nothing unusual.
    Open,
    /// Duplicate or selective acknowledgments have come.
    Disorder,
    /// The window falls after an echo of congestion marks.
    Reducing,
    /// Fast recovery.
    Recovery,
    /// Recovery after a time-out.
    Loss,
}

/// The sending side of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sender {
    /// First unacknowledged, next to be sent, and end of what was written; FIN not counted in the
    /// last.
    una: u32,
    nxt: u32,
    written: u32,
    /// The right edge of the peer's window, and the segment that set it (RFC 9293, SND.WL1).
    edge: u32,
    edge_seq: u32,
    /// `nxt` when the last reduction or recovery began (RFC 6582, `recover`).
    high: u32,
    /// No segment before this one waits to be retransmitted.
    hint: u32,
    window: Window,
    /// The most outstanding segments of a round trip that ends at `usage_end` (RFC 7661 in spirit).
    usage: u32,
    usage_end: u32,
    /// Outstanding segments by mark.
    sacked: u32,
    lost: u32,
    retransmitted: u32,
    pub(crate) options: Negotiated,
    phase: Phase,
    /// Time-outs, or probes, since the last progress.
    retries: u8,
    bits: Bits,
    sent: Queue<Sent>,
    unsent: Queue<Boundary>,
    control: Control,
    pub(crate) rtt: Estimator,
    /// The time of the timer, `u64::MAX` if it is stopped, and what it waits for.
    pub(crate) deadline: u64,
    expiry: Expiry,
    /// The time of the last segment that was sent with payload.
    last_sent: u64,
    /// The shortest round trip, at most 4 s; 0 before one was measured.
    min_rtt: u32,
    reducing: Option<Box<Reducing>>,
    rack: Option<Box<Rack>>,
}

/// Facts and requests that are true or false.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bits(u16);

impl Bits {
    /// The window was used up since the last round trip.
    const WINDOW_LIMITED: u16 = 1;
    /// One retransmission is due whatever the window.
    const FORCED: u16 = 2;
    /// A probe of a closed window is due.
    const PROBE: u16 = 4;
    /// A tail loss probe is due.
    const TAIL_PROBE: u16 = 8;
    /// The next new segment says that the window was reduced.
    const CWR: u16 = 16;
    /// FIN follows what was written.
    const FIN_QUEUED: u16 = 32;
    /// FIN was sent.
    const FIN_SENT: u16 = 64;
    /// A writer waits for room.
    const WRITER: u16 = 128;

    fn has(self, bit: u16) -> bool {
        self.0 & bit == bit
    }

    fn put(&mut self, bit: u16, is_set: bool) {
        if is_set { self.0 |= bit } else { self.0 &= !bit }
    }

    /// Clears the bit. Returns true if it was set.
    fn take(&mut self, bit: u16) -> bool {
        let was = self.has(bit);
        self.put(bit, false);
        was
    }
}

impl Sender {
    /// `seq` is the sequence number of the first byte.
    pub(crate) fn new(seq: u32, config: &Config) -> Self {
        Self {
            una: seq,
            nxt: seq,
            written: seq,
            edge: seq,
            edge_seq: seq,
            high: seq.wrapping_sub(1),
            hint: seq,
            window: Window {
                cwnd: u32::from(config.initial_window).min(config.window_clamp),
                ssthresh: config.initial_threshold,
                count: 0,
            },
            usage: 0,
            usage_end: seq,
            sacked: 0,
            lost: 0,
            retransmitted: 0,
            options: Negotiated::default(),
            phase: Phase::Open,
            retries: 0,
            bits: Bits::default(),
            sent: Queue::default(),
            unsent: Queue::default(),
            control: Control::new(config, seq),
            rtt: Estimator::new(),
            deadline: u64::MAX,
            expiry: Expiry::Retransmit,
            last_sent: 0,
            min_rtt: 0,
            reducing: None,
            rack: None,
        }
    }

    /// Sets the peer's first window, and the window after lost SYNs: one segment (RFC 5681,
    /// section 3.1).
    pub(crate) fn open(&mut self, seq: u32, window: u32, syn_was_lost: bool) {
        self.edge = self.una.wrapping_add(window);
        self.edge_seq = seq;
        if syn_was_lost {
            self.window.cwnd = 1;
        }
    }

    /// Writes up to `bytes` of a message. Returns what fits into the send buffer.
    pub(crate) fn write(&mut self, bytes: u32, message: u64, config: &Config) -> u32 {
        let accepted = bytes.min(config.send_buffer.saturating_sub(self.buffered()));
        self.written = self.written.wrapping_add(accepted);
        if accepted < bytes {
            self.bits.put(Bits::WRITER, true);
        } else if bytes > 0 {
            self.unsent.push_back(Boundary::new(self.written, message));
        }
        accepted
    }

    /// Sends FIN after what was written.
    pub(crate) fn finish(&mut self) {
        self.bits.put(Bits::FIN_QUEUED, true);
    }

    /// Bytes that were written and are not acknowledged.
    pub(crate) fn buffered(&self) -> u32 {
        // FIN has no room in the buffer.
        if after(self.una, self.written) { 0 } else { self.written.wrapping_sub(self.una) }
    }

    /// True if all that was written, and FIN, was sent once.
    fn has_sent_all(&self) -> bool {
        self.bits.has(Bits::FIN_SENT)
            || (self.written == self.nxt && !self.bits.has(Bits::FIN_QUEUED))
    }

    /// True if a refused writer may write again: a third of the buffer is free, as in Linux.
    fn take_writable(&mut self, config: &Config) -> bool {
        let is_roomy = self.buffered() <= config.send_buffer / 3 * 2;
        is_roomy && self.bits.take(Bits::WRITER)
    }

    pub(crate) fn una(&self) -> u32 {
        self.una
    }

    pub(crate) fn nxt(&self) -> u32 {
        self.nxt
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// True if FIN was sent and acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        self.bits.has(Bits::FIN_SENT) && self.sent.is_empty()
    }

    /// True if no more may be written.
    pub(crate) fn is_closing(&self) -> bool {
        self.bits.has(Bits::FIN_QUEUED)
    }

    pub(crate) fn is_dctcp(&self) -> bool {
        self.control.is_dctcp()
    }

    fn outstanding(&self) -> u32 {
        self.sent.len() as u32
    }

    /// Segments in the network (RFC 6675, `pipe`).
    pub(crate) fn in_flight(&self) -> u32 {
        (self.outstanding() + self.retransmitted).saturating_sub(self.sacked + self.lost)
    }

    /// Returns the first sequence number of an outstanding segment.
    fn start_of(&self, index: usize) -> u32 {
        let previous = index.checked_sub(1).and_then(|index| self.sent.get(index));
        previous.map_or(self.una, |sent| sent.end)
    }
}
