//! When data is acknowledged: at once, or delayed (RFC 9293, section 3.8.6.3), with the quick
//! acknowledgments of Linux; and what the acknowledgment says of congestion marks.

use serde::{Deserialize, Serialize};

use crate::config::{Config, Congestion};
use crate::rto::deadline;
use crate::segment::{Flags, Segment};
use crate::sequence::before;

/// The acknowledgment that is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Acknowledgment {
    /// The end of the delay; `u64::MAX` if none runs.
    deadline: u64,
    /// The time of the last data; 0 before any.
    last_data: u64,
    /// The last that was sent.
    last: u32,
    /// One that must precede the next, and says that marks were as before (RFC 8257, section 3.2).
    preceding: u32,
    must_precede: bool,
    /// Acknowledgments that are not delayed.
    quick: u8,
    is_due: bool,
    /// The program answers: acknowledgments travel with its data, and no longer in quick mode.
    is_interactive: bool,
    /// A pushed segment waits for its acknowledgment.
    is_pushed: bool,
    /// Classic ECN: echo until the peer has reduced its window. DCTCP: the last segment was marked.
    echoes: bool,
    echoed_before: bool,
}

impl Acknowledgment {
    pub(super) fn new(seq: u32) -> Self {
        Self {
            deadline: u64::MAX,
            last_data: 0,
            last: seq,
            preceding: seq,
            must_precede: false,
            quick: 0,
            is_due: false,
            is_interactive: false,
            is_pushed: false,
            echoes: false,
            echoed_before: false,
        }
    }

    /// Acknowledges at once.
    pub(crate) fn hurry(&mut self) {
        self.is_due = true;
    }

    /// Acknowledges at once, and delays none of the next few: the peer may wait for them after a
    /// time-out (Linux, `tcp_enter_quickack_mode`).
    pub(super) fn hurry_next(&mut self, config: &Config) {
        self.is_due = true;
        self.quick = config.delayed_ack.quick;
        self.is_interactive = false;
    }

    pub(super) fn last(&self) -> u32 {
        self.last
    }

    pub(crate) fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Takes note of data in sequence that ends before `next`.
    pub(super) fn note_data(
        &mut self,
        now: u64,
        next: u32,
        payload: u16,
        is_pushed: bool,
        config: &Config,
    ) {
        let delayed = &config.delayed_ack;
        let is_resumed = now.saturating_sub(self.last_data) > config.rto.minimum_ns;
        if self.last_data == 0 || is_resumed {
            self.quick = delayed.quick;
        }
        // 0 means none.
        self.last_data = now.max(1);
        self.is_pushed |= is_pushed;
        let unacknowledged = next.wrapping_sub(self.last);
        let full = u32::from(delayed.segments.saturating_sub(1)) * u32::from(payload);
        let is_quick = self.quick > 0 && !self.is_interactive;
        if unacknowledged > full || is_quick {
            self.is_due = true;
        } else if self.deadline == u64::MAX {
            self.deadline = deadline(now, delayed.timeout_ns, &config.rto);
        }
    }

    /// Takes note that data was sent: soon after some came, it is an answer.
    pub(crate) fn note_sent_data(&mut self, now: u64, config: &Config) {
        if self.last_data > 0 && now.saturating_sub(self.last_data) < config.delayed_ack.timeout_ns
        {
            self.is_interactive = true;
        }
    }

    /// Takes note of a congestion mark.
    pub(super) fn note_mark(
        &mut self,
        next: u32,
        segment: &Segment,
        is_marked: bool,
        config: &Config,
    ) {
        if config.congestion == Congestion::Dctcp {
            if is_marked != self.echoes {
                if before(self.last, next) {
                    (self.preceding, self.must_precede) = (next, true);
                    self.echoed_before = self.echoes;
                }
                (self.echoes, self.is_due) = (is_marked, true);
            }
            return;
        }
        if segment.flags.has(Flags::CWR) {
            self.echoes = false;
        }
        self.echoes |= is_marked;
    }

    /// Takes note that the program has read all: a pushed segment is acknowledged then, as in Linux.
    pub(super) fn all_read(&mut self) {
        if self.deadline != u64::MAX && self.is_pushed && !self.is_interactive {
            self.is_due = true;
        }
    }

    /// Handles the time.
    pub(crate) fn handle_timeout(&mut self, now: u64) {
        if self.deadline <= now {
            // The program did not answer in time.
            (self.is_due, self.is_interactive) = (true, false);
            self.deadline = u64::MAX;
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_due || self.must_precede
    }

    /// Returns the acknowledgment that must precede the next, if any, and true if it echoes a mark.
    pub(crate) fn take_preceding(&mut self) -> Option<(u32, bool)> {
        std::mem::take(&mut self.must_precede).then_some((self.preceding, self.echoed_before))
    }

    /// Takes note that `next` is acknowledged by a segment on its way. Returns true if it echoes a
    /// mark.
    pub(crate) fn sent(&mut self, next: u32) -> bool {
        (self.is_due, self.is_pushed) = (false, false);
        self.deadline = u64::MAX;
        self.quick = self.quick.saturating_sub(1);
        self.last = next;
        self.echoes
    }
}
