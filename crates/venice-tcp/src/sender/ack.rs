//! The handling of acknowledgments.

use super::{Bits, Expiry, Marks, Phase, Sender, Sent};
use crate::config::{Config, LossDetection};
use crate::congestion::Acknowledged;
use crate::segment::{Flags, Segment};
use crate::sequence::{after, before};
use crate::statistics::Statistics;

/// The effects of an acknowledgment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AckOutcome {
    /// The first unacknowledged sequence number moved.
    pub(crate) advanced: bool,
    /// A writer that was refused may write again.
    pub(crate) writable: bool,
    /// Segments that were acknowledged in sequence.
    pub(super) acked: u32,
    /// Segments that were acknowledged in any way for the first time.
    pub(super) delivered: u32,
    pub(super) newly_lost: u32,
    pub(super) is_duplicate: bool,
    /// The round trip of the oldest segment, where it is not ambiguous.
    pub(super) rtt: Option<u64>,
    pub(super) saw_ambiguous: bool,
    pub(super) sacked_rtt: Option<u64>,
}

impl Sender {
    /// Handles an acknowledgment that lies between the first unacknowledged and the next sequence
    /// number.
    pub(crate) fn handle_ack(
        &mut self,
        now: u64,
        config: &Config,
        segment: &Segment,
        statistics: &mut Statistics,
    ) -> AckOutcome {
        let had_outstanding = !self.sent.is_empty();
        let window_changed = self.update_window(segment);
        let mut outcome =
            AckOutcome { advanced: after(segment.ack, self.una), ..Default::default() };
        let highest = self.highest_delivered();
        if self.options.sack && had_outstanding {
            self.mark_sacked(now, config, segment, &mut outcome);
        }
        if outcome.advanced {
            self.remove_acked(now, config, segment.ack, highest, &mut outcome, statistics);
            self.sample_round_trip(now, config, segment, &outcome);
            self.retries = 0;
            self.rtt.backoff = 0;
        }
        outcome.is_duplicate = had_outstanding
            && !outcome.advanced
            && segment.len == 0
            && !window_changed
            && !segment.flags.has_any(Flags::SYN.with(Flags::FIN));
        statistics.duplicate_acks += u32::from(outcome.is_duplicate);
        self.handle_persist(config);
        self.end_tail_probe(&outcome, config);
        if had_outstanding {
            if outcome.advanced || self.may_extend_timer(now, &outcome, config) {
                self.restart_timer(now, config);
            }
            self.recover(now, config, segment, &mut outcome, statistics);
            if outcome.advanced {
                self.schedule_tail_probe(now, config);
            }
        }
        outcome.writable = self.take_writable(config);
        outcome
    }

    /// Takes the peer's window from a segment that is not older than the last (RFC 9293, section
    /// 3.10.7.4). Returns true if the window changed.
    fn update_window(&mut self, segment: &Segment) -> bool {
        let edge = segment.ack.wrapping_add(segment.window);
        let is_newer = after(segment.ack, self.una)
            || after(segment.seq, self.edge_seq)
            || (segment.seq == self.edge_seq && after(edge, self.edge));
        if !is_newer {
            return false;
        }
        let changed = edge != self.edge;
        (self.edge, self.edge_seq) = (edge, segment.seq);
        changed
    }

    /// An answer to a probe shows that the peer lives; an open window ends the probes.
    fn handle_persist(&mut self, config: &Config) {
        if self.expiry != Expiry::Persist || !self.sent.is_empty() {
            return;
        }
        self.retries = 0;
        if self.is_timer_running() && self.next_new(config, 0).is_some() {
            self.stop_timer();
            self.rtt.backoff = 0;
        }
    }

    /// Marks what the blocks of the segment cover (RFC 2018).
    fn mark_sacked(
        &mut self,
        now: u64,
        config: &Config,
        segment: &Segment,
        outcome: &mut AckOutcome,
    ) {
        let mut blocks = segment.sack;
        blocks.sort();
        for &(first, end) in blocks.as_slice() {
            // Old blocks tell of duplicates (RFC 2883).
            if !after(first, segment.ack) || !before(first, end) || after(end, self.nxt) {
                continue;
            }
            let from = self.sent.partition_point(|sent| !after(sent.end, first));
            for index in from..self.sent.len() {
                let start = self.start_of(index);
                let Some(&sent) = self.sent.get(index) else { break };
                if after(sent.end, end) {
                    break;
                }
                if before(start, first) || sent.marks.has(Marks::SACKED) {
                    continue;
                }
                self.sack_one(index, sent, now, config, outcome);
            }
        }
    }

    fn sack_one(
        &mut self,
        index: usize,
        sent: Sent,
        now: u64,
        config: &Config,
        outcome: &mut AckOutcome,
    ) {
        outcome.delivered += 1;
        self.sacked += 1;
        self.lost -= u32::from(sent.marks.has(Marks::LOST));
        self.retransmitted -= u32::from(sent.marks.has(Marks::RETRANSMITTED));
        if !sent.marks.has(Marks::AMBIGUOUS) {
            outcome.sacked_rtt = Some(now.saturating_sub(sent.at));
        }
        let record = self.sent.get_mut(index).expect("the caller found it");
        record.marks.clear(Marks::LOST | Marks::RETRANSMITTED);
        record.marks.set(Marks::SACKED);
        self.note_delivery(&sent, now, self.highest_delivered(), config);
    }

    /// Removes what is acknowledged. `highest` was delivered before this acknowledgment.
    fn remove_acked(
        &mut self,
        now: u64,
        config: &Config,
        ack: u32,
        highest: u32,
        outcome: &mut AckOutcome,
        statistics: &mut Statistics,
    ) {
        let bytes = ack.wrapping_sub(self.una);
        let mut fin = 0;
        while let Some(sent) = self.sent.front().copied().filter(|sent| !after(sent.end, ack)) {
            self.sent.pop_front();
            outcome.acked += 1;
            fin += u32::from(sent.marks.has(Marks::FIN));
            if sent.marks.has(Marks::SACKED) {
                self.sacked -= 1;
                continue;
            }
            outcome.delivered += 1;
            self.lost -= u32::from(sent.marks.has(Marks::LOST));
            self.retransmitted -= u32::from(sent.marks.has(Marks::RETRANSMITTED));
            let rtt = now.saturating_sub(sent.at);
            match sent.marks.has(Marks::AMBIGUOUS) {
                true => outcome.saw_ambiguous = true,
                false => outcome.rtt = outcome.rtt.or(Some(rtt)),
            }
            self.note_delivery(&sent, now, highest, config);
        }
        self.una = ack;
        if before(self.hint, ack) {
            self.hint = ack;
        }
        statistics.bytes_acked += u64::from(bytes - fin);
        if !self.options.sack {
            // All but one of those acknowledged had caused a duplicate.
            let by_duplicates = outcome.acked.saturating_sub(1).min(self.sacked);
            self.sacked -= by_duplicates;
            outcome.delivered -= by_duplicates.min(outcome.delivered);
            self.bound_duplicates();
        }
    }

    /// Karn's rule: the round trip of a segment that was sent once, or that of the timestamp (RFC
    /// 6298, section 3).
    fn sample_round_trip(
        &mut self,
        now: u64,
        config: &Config,
        segment: &Segment,
        outcome: &AckOutcome,
    ) {
        let exact = if outcome.saw_ambiguous { None } else { outcome.rtt };
        let sample = exact.or_else(|| {
            let echo = segment.timestamps.filter(|_| self.options.timestamps)?.echo;
            let ticks = crate::stamp(now, config).wrapping_sub(echo);
            (ticks < 1 << 31).then(|| u64::from(ticks) * config.rto.clock_ns)
        });
        let by_sack = outcome.sacked_rtt.filter(|_| config.loss_detection == LossDetection::Rack);
        self.note_shortest(exact);
        self.note_shortest(outcome.sacked_rtt);
        if let Some(rtt) = sample.or(by_sack) {
            self.rtt.sample(rtt, &config.rto, self.una, self.nxt);
        }
    }

    pub(super) fn note_shortest(&mut self, rtt: Option<u64>) {
        let Some(rtt) = rtt else { return };
        let rtt = u32::try_from(rtt).unwrap_or(u32::MAX);
        self.min_rtt = if self.min_rtt == 0 { rtt } else { self.min_rtt.min(rtt) };
    }

    /// True if a selective acknowledgment alone starts the timer anew: of a segment that was sent
    /// after the head (Linux since 4.3).
    fn may_extend_timer(&self, now: u64, outcome: &AckOutcome, config: &Config) -> bool {
        let (Some(rtt), Some(head)) = (outcome.sacked_rtt, self.sent.front()) else { return false };
        config.loss_detection == LossDetection::Rack && now.saturating_sub(rtt) >= head.at
    }

    /// Follows the phases of recovery (RFC 5681, 6582 and 6675; Linux, `tcp_fastretrans_alert`).
    fn recover(
        &mut self,
        now: u64,
        config: &Config,
        segment: &Segment,
        outcome: &mut AckOutcome,
        statistics: &mut Statistics,
    ) {
        let echo = self.options.ecn && segment.flags.has(Flags::ECE);
        self.control.count_marks(self.una, self.nxt, outcome.acked, echo);
        if self.phase == Phase::Open && outcome.advanced && self.sacked == 0 && !echo {
            if after(self.una, self.high) {
                self.high = self.una.wrapping_sub(1);
            }
            self.grow(now, outcome, config);
            return;
        }
        self.leave_phase(config);
        match self.phase {
            Phase::Recovery => self.handle_in_recovery(outcome),
            Phase::Loss => self.handle_in_loss(outcome),
            Phase::Open | Phase::Disorder | Phase::Reducing => self.count_duplicate(outcome),
        }
        outcome.newly_lost = self.detect_losses(now, outcome, config);
        if self.phase < Phase::Recovery {
            if self.is_time_to_recover(now, config) {
                self.begin_recovery(config, statistics);
            } else {
                self.handle_echo(echo, config, statistics);
            }
        }
        match self.phase {
            Phase::Recovery | Phase::Reducing => self.reduce(outcome, config),
            Phase::Open | Phase::Disorder | Phase::Loss => self.grow(now, outcome, config),
        }
    }

    /// Ends a phase when all that was outstanding at its start is acknowledged.
    fn leave_phase(&mut self, config: &Config) {
        if before(self.una, self.high) {
            return;
        }
        match self.phase {
            Phase::Open | Phase::Disorder => return,
            // Until the peer has seen CWR its echoes tell nothing new.
            Phase::Reducing if self.una == self.high => return,
            Phase::Reducing | Phase::Recovery => self.end_reduction(config),
            Phase::Loss => {}
        }
        if !self.options.sack {
            self.sacked = 0;
        }
        self.phase = Phase::Open;
    }

    fn handle_in_recovery(&mut self, outcome: &mut AckOutcome) {
        if self.options.sack {
            return;
        }
        if outcome.is_duplicate {
            self.add_duplicate();
            outcome.delivered += 1;
        } else if outcome.advanced {
            // A partial acknowledgment: retransmit the first at once (RFC 6582, section 3.2, step 5).
            self.bits.put(Bits::FORCED, true);
        }
    }

    fn handle_in_loss(&mut self, outcome: &AckOutcome) {
        if self.options.sack {
            return;
        }
        if outcome.is_duplicate {
            self.add_duplicate();
        } else if outcome.advanced {
            self.sacked = 0;
        }
    }

    fn count_duplicate(&mut self, outcome: &mut AckOutcome) {
        if self.options.sack {
            if self.sacked > 0 && self.phase == Phase::Open {
                self.phase = Phase::Disorder;
            } else if self.sacked == 0 && self.phase == Phase::Disorder {
                self.phase = Phase::Open;
            }
            return;
        }
        if outcome.advanced {
            self.sacked = 0;
            if self.phase == Phase::Disorder {
                self.phase = Phase::Open;
            }
        } else if outcome.is_duplicate {
            self.add_duplicate();
            outcome.delivered += 1;
            if self.phase == Phase::Open {
                self.phase = Phase::Disorder;
            }
        }
    }

    /// Without SACK each duplicate means that some segment has left the network.
    fn add_duplicate(&mut self) {
        self.sacked += 1;
        self.bound_duplicates();
    }

    /// Reduces the window once a round trip (RFC 3168, section 6.1.2; RFC 8257, section 3.4).
    fn handle_echo(&mut self, echo: bool, config: &Config, statistics: &mut Statistics) {
        if echo && self.phase < Phase::Reducing {
            statistics.ecn_reductions += 1;
            let ssthresh = self.control.threshold_after_echo(self.window.cwnd);
            self.begin_reduction(ssthresh, Phase::Reducing, config);
        }
    }

    fn grow(&mut self, now: u64, outcome: &AckOutcome, config: &Config) {
        if !outcome.advanced || outcome.delivered == 0 || !self.is_window_limited() {
            return;
        }
        let segments = if config.byte_counting { outcome.delivered } else { 1 };
        let acked = Acknowledged {
            now,
            segments,
            min_rtt: self.min_rtt.into(),
            clamp: config.window_clamp,
        };
        self.control.grow(&mut self.window, acked);
    }
}
