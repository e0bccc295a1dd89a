//! Which segments are lost: by duplicate or selective acknowledgments (RFC 5681, 6582, 6675, 5827),
//! or by time (RACK, RFC 8985).

use serde::{Deserialize, Serialize};

use super::{AckOutcome, Bits, Expiry, Marks, Phase, Sender, Sent};
use crate::config::{Config, LossDetection};
use crate::sequence::{after, before, later};
use crate::statistics::Statistics;

/// Round trips that differ by less are equal, in nanoseconds.
const CLOCK: u64 = 1_000;

/// The state of RACK and of tail loss probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rack {
    /// The segment that was sent last of those delivered: time and end.
    at: u64,
    end: u32,
    /// Its round trip in nanoseconds.
    rtt: u64,
    /// The highest sequence number delivered.
    highest: u32,
    is_started: bool,
    /// A segment was delivered after a later one.
    reordering_seen: bool,
    /// A tail loss probe is outstanding, and ends here.
    pub(super) probe_end: Option<u32>,
    pub(super) probe_was_new: bool,
}

impl Rack {
    /// Takes note of a delivered segment (RFC 8985, section 6.2, steps 1 to 3). As in Linux the round
    /// trip is that of the last one noted, also if another was sent later. `highest` is the highest
    /// sequence number delivered before.
    fn update(&mut self, sent: &Sent, now: u64, min_rtt: u64, highest: u32) {
        let rtt = now.saturating_sub(sent.at);
        let is_ambiguous = sent.marks.has(Marks::AMBIGUOUS);
        // Acknowledged sooner than possible: it was the first transmission that arrived.
        if is_ambiguous && rtt + CLOCK < min_rtt {
            return;
        }
        if !is_ambiguous {
            self.reordering_seen |= self.is_started && before(sent.end, highest);
            self.highest = later(self.highest, sent.end);
        }
        self.rtt = rtt;
        let is_later = sent.at > self.at || (sent.at == self.at && after(sent.end, self.end));
        if !self.is_started || is_later {
            (self.at, self.end, self.is_started) = (sent.at, sent.end, true);
        }
    }

    /// Returns the time that a segment may stay unacknowledged for (step 4).
    pub(super) fn patience(&self, sender: &Sender, config: &Config) -> u64 {
        let is_hurried = !self.reordering_seen
            && (sender.phase >= Phase::Recovery
                || sender.sacked >= u32::from(config.duplicate_threshold));
        let window = match is_hurried {
            true => 0,
            false => (u64::from(sender.min_rtt) / 4).min(sender.rtt.srtt().unwrap_or(u64::MAX)),
        };
        self.rtt + window
    }
}

impl Sender {
    /// Takes note of the delivery of a segment for RACK.
    pub(super) fn note_delivery(&mut self, sent: &Sent, now: u64, highest: u32, config: &Config) {
        if config.loss_detection == LossDetection::Rack && self.options.sack {
            let min_rtt = self.min_rtt.into();
            let first = || Box::new(Rack { highest, ..Rack::default() });
            self.rack.get_or_insert_with(first).update(sent, now, min_rtt, highest);
        }
    }

    /// Returns the highest sequence number that was delivered.
    pub(super) fn highest_delivered(&self) -> u32 {
        self.rack.as_ref().map_or(self.una, |rack| rack.highest)
    }

    /// Returns the index of the highest segment that was selectively acknowledged.
    pub(super) fn highest_sacked(&self) -> Option<usize> {
        let from_back = self.sent.iter().rev().position(|sent| sent.marks.has(Marks::SACKED))?;
        Some(self.sent.len() - 1 - from_back)
    }

    fn mark_lost(&mut self, index: usize) {
        let start = self.start_of(index);
        let Some(sent) = self.sent.get_mut(index) else { return };
        if sent.marks.has_any(Marks::SACKED | Marks::LOST) {
            return;
        }
        sent.marks.set(Marks::LOST);
        self.lost += 1;
        if before(start, self.hint) {
            self.hint = start;
        }
    }

    /// Marks the segments that are lost. Returns how many are new.
    pub(super) fn detect_losses(&mut self, now: u64, outcome: &AckOutcome, config: &Config) -> u32 {
        let before = self.lost;
        if !self.options.sack {
            self.detect_without_sack(outcome, config);
        } else if config.loss_detection == LossDetection::Rack {
            return self.detect_by_time(now, config);
        } else if self.sacked > 0 && self.phase != Phase::Loss {
            match config.loss_detection {
                LossDetection::DuplicateThreshold => self.detect_by_count(config),
                LossDetection::Forward => self.detect_by_distance(config),
                LossDetection::Rack => {}
            }
        }
        self.lost - before
    }

    /// RFC 6582: the first is lost at the third duplicate, and at each partial acknowledgment.
    fn detect_without_sack(&mut self, outcome: &AckOutcome, config: &Config) {
        let is_lost = match self.phase {
            // Duplicates of what was retransmitted in vain begin no other recovery (RFC 6582, section
            // 3.2, step 2).
            Phase::Open | Phase::Disorder | Phase::Reducing => {
                self.sacked >= u32::from(config.duplicate_threshold) && after(self.una, self.high)
            }
            Phase::Recovery => outcome.advanced,
            Phase::Loss => false,
        };
        if is_lost {
            self.mark_lost(0);
            self.bound_duplicates();
        }
    }

    /// Keeps the count of duplicates below that of the segments that can have caused them.
    pub(super) fn bound_duplicates(&mut self) {
        let holes = self.lost.max(1).min(self.outstanding());
        self.sacked = self.sacked.min(self.outstanding() - holes);
    }

    /// RFC 6675, `IsLost`.
    fn detect_by_count(&mut self, config: &Config) {
        let threshold = u32::from(config.duplicate_threshold);
        let mut above = self.sacked;
        for index in 0..self.sent.len() {
            if above < threshold {
                return;
            }
            match self.sent.get(index).is_some_and(|sent| sent.marks.has(Marks::SACKED)) {
                true => above -= 1,
                false => self.mark_lost(index),
            }
        }
    }

    /// Forward acknowledgment: all that lies the threshold below the highest.
    fn detect_by_distance(&mut self, config: &Config) {
        let highest = self.highest_sacked().unwrap_or_default();
        for index in 0..(highest + 1).saturating_sub(usize::from(config.duplicate_threshold)) {
            self.mark_lost(index);
        }
        // A retransmission is lost too once something new that was sent after it has arrived (old
        // Linux, `tcp_mark_lost_retrans`).
        let Some(&arrived) = self.sent.get(highest) else { return };
        if arrived.marks.has(Marks::AMBIGUOUS) || self.retransmitted == 0 {
            return;
        }
        for index in 0..highest {
            let is_lost = self.sent.get(index).is_some_and(|sent| {
                sent.marks.has(Marks::LOST | Marks::RETRANSMITTED) && sent.at < arrived.at
            });
            if is_lost {
                self.lose_retransmission(index);
            }
        }
    }

    /// RFC 8985, section 6.2, step 5. Starts the timer for those that may still come.
    fn detect_by_time(&mut self, now: u64, config: &Config) -> u32 {
        let Some(rack) = self.rack.filter_started() else { return 0 };
        let patience = rack.patience(self, config);
        let mut wait = 0;
        let mut count = 0;
        for index in 0..self.sent.len() {
            let Some(&sent) = self.sent.get(index) else { break };
            if sent.marks.has(Marks::SACKED)
                || (sent.marks.has(Marks::LOST) && !sent.marks.has(Marks::RETRANSMITTED))
            {
                continue;
            }
            let is_earlier =
                sent.at < rack.at || (sent.at == rack.at && before(sent.end, rack.end));
            if !is_earlier {
                continue;
            }
            let deadline = sent.at.saturating_add(patience);
            if deadline > now {
                wait = wait.max(deadline - now);
                continue;
            }
            // A retransmission is lost too.
            if sent.marks.has(Marks::RETRANSMITTED) {
                self.lose_retransmission(index);
            }
            self.mark_lost(index);
            count += 1;
        }
        if wait > 0 {
            let slack = 2 * config.rto.granularity_ns;
            self.start_timer(now, wait + slack, Expiry::Reordering, config);
        }
        count
    }

    fn lose_retransmission(&mut self, index: usize) {
        let start = self.start_of(index);
        let Some(sent) = self.sent.get_mut(index) else { return };
        sent.marks.clear(Marks::RETRANSMITTED);
        self.retransmitted -= 1;
        if before(start, self.hint) {
            self.hint = start;
        }
    }

    /// Handles the timer of reordered segments.
    pub(super) fn detect_after_reordering(
        &mut self,
        now: u64,
        config: &Config,
        statistics: &mut Statistics,
    ) {
        let in_flight = self.in_flight();
        let newly_lost = self.detect_by_time(now, config);
        if self.in_flight() != in_flight && self.phase < Phase::Recovery {
            self.begin_recovery(config, statistics);
            // As if one had been delivered, for the first retransmission.
            let outcome = AckOutcome { delivered: 1, newly_lost, ..AckOutcome::default() };
            self.reduce(&outcome, config);
        }
        if !self.is_timer_running() {
            self.restart_timer(now, config);
        }
    }

    /// True if an early retransmit is called for (RFC 5827, section 3.1, counted in segments): fewer
    /// than four are outstanding, all but one were received, and nothing new can be sent.
    fn is_early(&self, config: &Config) -> bool {
        config.early_retransmit
            && self.options.sack
            && self.retransmitted == 0
            && self.sacked > 0
            && self.outstanding() == self.sacked + 1
            && self.outstanding() < 4
            && self.next_new_is_blocked(config)
    }

    fn next_new_is_blocked(&self, config: &Config) -> bool {
        self.in_flight() >= self.window.cwnd || self.next_new(config, 0).is_none()
    }

    /// Returns true if recovery is to begin now; starts the timer of an early retransmit.
    pub(super) fn is_time_to_recover(&mut self, now: u64, config: &Config) -> bool {
        if self.lost > 0 {
            return true;
        }
        if self.is_early(config) {
            let delay = self.rtt.srtt().unwrap_or(0) / 4;
            let delay = delay.max(2 * config.rto.granularity_ns.min(1_000_000));
            if self.expiry != Expiry::Early && now.saturating_add(delay) < self.deadline {
                self.start_timer(now, delay, Expiry::Early, config);
            }
        }
        false
    }

    /// Handles the timer of an early retransmit.
    pub(super) fn recover_early(&mut self, now: u64, config: &Config, statistics: &mut Statistics) {
        if self.phase < Phase::Recovery && self.is_early(config) {
            self.mark_lost(0);
            self.begin_recovery(config, statistics);
            let outcome = AckOutcome { delivered: 1, newly_lost: 1, ..AckOutcome::default() };
            self.reduce(&outcome, config);
        }
        self.restart_timer(now, config);
    }

    /// Enters fast recovery.
    pub(super) fn begin_recovery(&mut self, config: &Config, statistics: &mut Statistics) {
        statistics.fast_retransmits += 1;
        if self.phase < Phase::Reducing {
            let ssthresh = self.threshold_after_loss(config);
            self.begin_reduction(ssthresh, Phase::Recovery, config);
        }
        (self.phase, self.high) = (Phase::Recovery, self.nxt);
        self.bits.put(Bits::FORCED, true);
    }

    /// Starts the timer of a tail loss probe in place of the retransmission timer (RFC 8985, section
    /// 7.2).
    pub(super) fn schedule_tail_probe(&mut self, now: u64, config: &Config) {
        if !config.tail_loss_probe
            || !self.options.sack
            || self.phase != Phase::Open
            || self.sacked > 0
            || self.sent.is_empty()
            || self.rack.as_ref().is_some_and(|rack| rack.probe_end.is_some())
        {
            return;
        }
        let Some(srtt) = self.rtt.srtt() else { return };
        let slack = match self.outstanding() {
            // Its acknowledgment may be delayed.
            1 => config.rto.minimum_ns,
            _ => 2 * config.rto.granularity_ns,
        };
        let after = (2 * srtt + slack).min(self.rtt.timeout(&config.rto));
        self.start_timer(now, after, Expiry::TailProbe, config);
    }

    /// Handles an acknowledgment while a tail loss probe is outstanding (RFC 8985, section 7.4): one
    /// beyond it, without a duplicate of it, shows that the probe repaired a loss.
    pub(super) fn end_tail_probe(&mut self, outcome: &AckOutcome, config: &Config) {
        let una = self.una;
        let Some(rack) = &mut self.rack else { return };
        let Some(end) = rack.probe_end.filter(|end| !before(una, *end)) else { return };
        let was_duplicate = !outcome.advanced && outcome.delivered == 0;
        if rack.probe_was_new || was_duplicate {
            rack.probe_end = None;
        } else if after(una, end) {
            rack.probe_end = None;
            if self.phase < Phase::Reducing {
                let ssthresh = self.threshold_after_loss(config);
                self.begin_reduction(ssthresh, Phase::Reducing, config);
                self.end_reduction(config);
                self.phase = Phase::Open;
            }
        }
    }
}

trait FilterStarted {
    fn filter_started(&self) -> Option<Rack>;
}

impl FilterStarted for Option<Box<Rack>> {
    fn filter_started(&self) -> Option<Rack> {
        self.as_deref().copied().filter(|rack| rack.is_started)
    }
}
