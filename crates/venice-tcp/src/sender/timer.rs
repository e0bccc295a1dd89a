//! The timer of the sending side. As in Linux there is one: what it waits for changes.

use serde::{Deserialize, Serialize};

use super::{Bits, Marks, Phase, Sender};
use crate::config::{Config, LossDetection};
use crate::rto::deadline;
use crate::statistics::Statistics;

/// The event that a timer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Expiry {
    /// Retransmission time-out (RFC 6298).
    Retransmit,
    /// A probe of a closed window (RFC 9293, section 3.8.6.1).
    Persist,
    /// An early retransmit that waits for reordered segments (RFC 5827, section 3.2).
    Early,
    /// Segments that are lost unless acknowledged by now (RFC 8985, section 6.2, step 5).
    Reordering,
    /// Tail loss probe (RFC 8985, section 7).
    TailProbe,
}

impl Sender {
    /// Starts the retransmission timer anew, or stops it where nothing is outstanding (RFC 6298,
    /// rules 5.2 and 5.3).
    pub(crate) fn restart_timer(&mut self, now: u64, config: &Config) {
        match self.sent.is_empty() {
            true => self.stop_timer(),
            false => self.start_retransmission_timer(now, Expiry::Retransmit, config),
        }
    }

    pub(super) fn start_retransmission_timer(&mut self, now: u64, expiry: Expiry, config: &Config) {
        self.start_timer(now, self.rtt.timeout(&config.rto), expiry, config);
    }

    /// Starts the timer in place of what it waited for.
    pub(crate) fn start_timer(&mut self, now: u64, after: u64, expiry: Expiry, config: &Config) {
        (self.deadline, self.expiry) = (deadline(now, after, &config.rto), expiry);
    }

    pub(super) fn stop_timer(&mut self) {
        self.deadline = u64::MAX;
    }

    pub(super) fn is_timer_running(&self) -> bool {
        self.deadline != u64::MAX
    }

    /// Stops, and forgets tries.
    pub(crate) fn stop(&mut self) {
        self.stop_timer();
        self.retries = 0;
    }

    /// Starts the timer of a SYN that is sent now.
    pub(crate) fn start_handshake_timer(&mut self, now: u64, config: &Config) {
        self.last_sent = now;
        self.start_retransmission_timer(now, Expiry::Retransmit, config);
    }

    /// Doubles the time-out of the SYN. Returns false if the connection is to be given up.
    pub(crate) fn retry_handshake(&mut self, config: &Config) -> bool {
        self.stop_timer();
        self.retries += 1;
        self.rtt.backoff = self.rtt.backoff.saturating_add(1);
        self.retries <= config.syn_retries
    }

    /// Takes the round trip of the SYN: since it was sent if that was once, else by the timestamp.
    pub(crate) fn sample_handshake(
        &mut self,
        now: u64,
        by_stamp: Option<u64>,
        was_lost: bool,
        config: &Config,
    ) {
        self.rtt.backoff = 0;
        let exact = (!was_lost).then(|| now.saturating_sub(self.last_sent));
        self.note_shortest(exact);
        if let Some(rtt) = exact.or(by_stamp) {
            self.rtt.sample(rtt, &config.rto, self.una, self.nxt);
        }
        self.last_sent = 0;
    }

    /// Handles the end of the time. Returns false if the connection is to be given up.
    pub(crate) fn handle_expiry(
        &mut self,
        now: u64,
        config: &Config,
        statistics: &mut Statistics,
    ) -> bool {
        self.stop_timer();
        match self.expiry {
            Expiry::Retransmit => self.time_out(now, config, statistics),
            Expiry::Persist => self.probe_window(now, config),
            Expiry::Early => {
                self.recover_early(now, config, statistics);
                true
            }
            Expiry::Reordering => {
                self.detect_after_reordering(now, config, statistics);
                true
            }
            Expiry::TailProbe => {
                self.bits.put(Bits::TAIL_PROBE, true);
                true
            }
        }
    }

    /// All that is outstanding is lost; slow start begins (RFC 5681, section 3.1; RFC 6675, section
    /// 5.1, where Linux keeps the selective acknowledgments).
    fn time_out(&mut self, now: u64, config: &Config, statistics: &mut Statistics) -> bool {
        if self.sent.is_empty() {
            return true;
        }
        if self.retries >= config.data_retries {
            return false;
        }
        statistics.timeouts += 1;
        let is_new_window = !crate::sequence::after(self.high, self.una);
        if self.phase <= Phase::Disorder
            || is_new_window
            || (self.phase == Phase::Loss && self.retries == 0)
        {
            self.window.ssthresh = self.threshold_after_loss(config);
        }
        self.control.time_out();
        self.mark_all_lost(now, config);
        self.reducing = None;
        (self.window.cwnd, self.window.count) = (self.in_flight() + 1, 0);
        (self.phase, self.high) = (Phase::Loss, self.nxt);
        self.retries += 1;
        self.rtt.backoff = self.rtt.backoff.saturating_add(1);
        self.bits.put(Bits::FORCED, true);
        self.restart_timer(now, config);
        true
    }

    fn mark_all_lost(&mut self, now: u64, config: &Config) {
        // Recent ones are not, by time.
        let keep = match (config.loss_detection, &self.rack) {
            (LossDetection::Rack, Some(rack)) if self.options.sack => {
                now.saturating_sub(rack.patience(self, config))
            }
            _ => u64::MAX,
        };
        if !self.options.sack {
            self.sacked = 0;
        }
        (self.lost, self.retransmitted) = (0, 0);
        for (index, sent) in self.sent.iter_mut().enumerate() {
            sent.marks.clear(Marks::RETRANSMITTED | Marks::LOST);
            if !sent.marks.has(Marks::SACKED) && (index == 0 || sent.at <= keep) {
                sent.marks.set(Marks::LOST);
                self.lost += 1;
            }
        }
        self.hint = self.una;
    }

    /// Probes a closed window. An acknowledgment of any kind resets the count of tries.
    fn probe_window(&mut self, now: u64, config: &Config) -> bool {
        if self.retries >= config.data_retries {
            return false;
        }
        self.retries += 1;
        self.bits.put(Bits::PROBE, true);
        self.rtt.backoff = self.rtt.backoff.saturating_add(1);
        self.start_retransmission_timer(now, Expiry::Persist, config);
        true
    }
}
