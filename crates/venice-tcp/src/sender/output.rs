//! The choice of the next segment.

use super::{Bits, Boundary, Expiry, Marks, Phase, Sender, Sent};
use crate::config::{Config, LossDetection};
use crate::sequence::{after, before};
use crate::statistics::Statistics;

/// The part of a segment that the sending side determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) message: Option<u64>,
    pub(crate) is_fin: bool,
    pub(crate) is_retransmission: bool,
    pub(crate) cwr: bool,
}

impl Sender {
    /// Returns the next segment to be sent, if one may be. `options` is the space that options need
    /// besides those of every segment.
    pub(crate) fn poll(
        &mut self,
        now: u64,
        config: &Config,
        options: u16,
        statistics: &mut Statistics,
    ) -> Option<Payload> {
        if self.sent.is_empty() && self.has_sent_all() {
            return None;
        }
        let payload = self
            .poll_tail_probe(now, config, options, statistics)
            .or_else(|| self.poll_retransmission(now, config))
            .or_else(|| self.poll_new(now, config, options))
            .or_else(|| self.poll_window_probe(now, config))?;
        if payload.len > 0 || payload.is_fin {
            statistics.segments += 1;
            statistics.retransmits += u32::from(payload.is_retransmission);
        }
        Some(payload)
    }

    fn poll_retransmission(&mut self, now: u64, config: &Config) -> Option<Payload> {
        if self.lost == 0 && self.phase != Phase::Recovery {
            self.bits.put(Bits::FORCED, false);
            return None;
        }
        let is_forced = self.bits.has(Bits::FORCED);
        if !is_forced && self.in_flight() >= self.window.cwnd {
            return None;
        }
        self.bits.put(Bits::FORCED, false);
        let index = self.next_lost().or_else(|| self.next_forward(config))?;
        Some(self.retransmit(index, now, config))
    }

    /// Returns the first lost segment that no retransmission of is outstanding.
    fn next_lost(&mut self) -> Option<usize> {
        if self.lost == 0 {
            return None;
        }
        let hint = self.hint;
        let start = self.sent.partition_point(|sent| !after(sent.end, hint));
        for index in start..self.sent.len() {
            let sent = self.sent.get(index)?;
            if sent.marks.has(Marks::LOST) && !sent.marks.has(Marks::RETRANSMITTED) {
                self.hint = self.start_of(index);
                return Some(index);
            }
        }
        self.hint = self.nxt;
        None
    }

    /// Returns a segment below the highest that was selectively acknowledged, where there is nothing
    /// new to be sent (RFC 6675, `NextSeg` rule 3; Linux before 4.14).
    fn next_forward(&self, config: &Config) -> Option<usize> {
        if self.phase != Phase::Recovery
            || self.sacked == 0
            || !self.options.sack
            || config.loss_detection == LossDetection::Rack
            || self.next_new(config, 0).is_some()
        {
            return None;
        }
        let highest = self.highest_sacked()?;
        let none = Marks::SACKED | Marks::LOST | Marks::RETRANSMITTED;
        (0..highest)
            .find(|&index| self.sent.get(index).is_some_and(|sent| !sent.marks.has_any(none)))
    }

    pub(super) fn retransmit(&mut self, index: usize, now: u64, config: &Config) -> Payload {
        let seq = self.start_of(index);
        let at = self.note_transmission(now, config);
        let sent = self.sent.get_mut(index).expect("the caller found it");
        sent.at = at;
        if !sent.marks.has(Marks::RETRANSMITTED) {
            self.retransmitted += 1;
        }
        sent.marks.set(Marks::RETRANSMITTED | Marks::AMBIGUOUS);
        let sent = *sent;
        if let Some(reducing) = &mut self.reducing {
            reducing.sent += 1;
        }
        if index == 0 || !self.is_timer_running() {
            self.restart_timer(now, config);
        }
        let is_fin = sent.marks.has(Marks::FIN);
        Payload {
            seq,
            len: sent.end.wrapping_sub(seq) - u32::from(is_fin),
            message: sent.marks.has(Marks::MESSAGE).then_some(sent.message),
            is_fin,
            is_retransmission: true,
            cwr: false,
        }
    }

    /// Returns the next new segment by its length: what a full segment, the end of a message and the
    /// peer's window allow; FIN where it is 0. `None` if there is none, or it waits.
    pub(super) fn next_new(&self, config: &Config, options: u16) -> Option<u32> {
        if self.has_sent_all() {
            return None;
        }
        let full = u32::from(self.options.payload.saturating_sub(options).max(1));
        let end = self.unsent.front().map_or(self.written, |boundary| boundary.end);
        let waiting = end.wrapping_sub(self.nxt);
        if waiting == 0 {
            return Some(0);
        }
        let len = waiting.min(full);
        let room = self.edge.wrapping_sub(self.nxt);
        if before(self.edge, self.nxt) || room < len {
            return None;
        }
        // What lies behind it would make it full, if messages were joined.
        let is_small = self.written.wrapping_sub(self.nxt) < full;
        let is_held = config.nagle
            && is_small
            && !self.bits.has(Bits::FIN_QUEUED)
            && self.has_sent_small(full);
        (!is_held).then_some(len)
    }

    /// True if a segment that is not full is outstanding: the rule of Linux (Minshall's change to
    /// Nagle's, `tcp_minshall_check`), which does not hold back the end of a long message.
    fn has_sent_small(&self, full: u32) -> bool {
        let mut from = self.una;
        self.sent.iter().any(|sent| {
            let len = sent.end.wrapping_sub(from);
            from = sent.end;
            len < full
        })
    }

    fn poll_new(&mut self, now: u64, config: &Config, options: u16) -> Option<Payload> {
        let len = self.next_new(config, options)?;
        self.restart_after_idle(now, config);
        if self.in_flight() >= self.window.cwnd {
            self.note_usage(true);
            return None;
        }
        let payload = self.send_new(len, now, config);
        self.note_usage(self.in_flight() >= self.window.cwnd);
        Some(payload)
    }

    /// Returns the time for the record of a segment. RACK and forward acknowledgment tell by it which was
    /// sent first: those of one instant are a nanosecond apart.
    fn note_transmission(&mut self, now: u64, config: &Config) -> u64 {
        self.last_sent = match config.loss_detection {
            LossDetection::Rack | LossDetection::Forward => now.max(self.last_sent + 1),
            LossDetection::DuplicateThreshold => now,
        };
        self.last_sent
    }

    /// Sends new bytes, or FIN if `len` is 0.
    fn send_new(&mut self, len: u32, now: u64, config: &Config) -> Payload {
        let seq = self.nxt;
        let is_fin = len == 0;
        self.nxt = seq.wrapping_add(len + u32::from(is_fin));
        let mut marks = Marks::NONE;
        let mut message = None;
        if is_fin {
            self.bits.put(Bits::FIN_SENT, true);
            marks.set(Marks::FIN);
        } else if self.unsent.front().is_some_and(|boundary| boundary.end == self.nxt) {
            message = self.unsent.pop_front().map(Boundary::message);
            marks.set(Marks::MESSAGE);
        }
        let at = self.note_transmission(now, config);
        self.sent.push_back(Sent {
            at,
            message: message.unwrap_or_default(),
            end: self.nxt,
            marks,
        });
        if let Some(reducing) = &mut self.reducing {
            reducing.sent += 1;
        }
        if !self.is_timer_running() || self.expiry == Expiry::Persist {
            self.restart_timer(now, config);
        }
        self.schedule_tail_probe(now, config);
        let cwr = !is_fin && self.bits.take(Bits::CWR);
        Payload { seq, len, message, is_fin, is_retransmission: false, cwr }
    }

    /// Shrinks the window by half for each time-out that the sender was idle (RFC 2861).
    fn restart_after_idle(&mut self, now: u64, config: &Config) {
        if !self.sent.is_empty() || self.last_sent == 0 {
            return;
        }
        let idle = now.saturating_sub(self.last_sent);
        self.control.resume(idle);
        let timeout = self.rtt.timeout(&config.rto);
        if !config.restart_after_idle || idle <= timeout {
            return;
        }
        let least = u32::from(config.initial_window).min(self.window.cwnd);
        self.window.ssthresh = self.window.ssthresh.max(self.window.cwnd / 4 * 3);
        let halvings = (idle / timeout).min(31) as u32;
        self.window.cwnd = (self.window.cwnd >> halvings).max(least);
        self.window.count = 0;
        self.last_sent = now;
    }

    /// Notes how far the window is used: one that is not must not grow (RFC 7661; Linux,
    /// `tcp_cwnd_validate`).
    fn note_usage(&mut self, is_limited: bool) {
        let was_limited = self.bits.has(Bits::WINDOW_LIMITED);
        let outstanding = self.outstanding();
        if is_limited
            || !before(self.una, self.usage_end)
            || (!was_limited && outstanding > self.usage)
        {
            self.bits.put(Bits::WINDOW_LIMITED, is_limited);
            self.usage = outstanding;
            self.usage_end = self.nxt;
        }
    }

    /// True if the window was what limited the sender.
    pub(super) fn is_window_limited(&self) -> bool {
        self.bits.has(Bits::WINDOW_LIMITED)
            || (self.window.in_slow_start() && self.window.cwnd < 2 * self.usage)
    }

    /// Sends what a small window takes, or nothing at an old sequence number: an answer tells the
    /// window. Starts the timer of such probes where all waits for the window.
    fn poll_window_probe(&mut self, now: u64, config: &Config) -> Option<Payload> {
        let is_due = self.bits.take(Bits::PROBE);
        if !self.sent.is_empty() || self.written == self.nxt {
            return None;
        }
        if !is_due {
            if !self.is_timer_running() {
                self.start_retransmission_timer(now, Expiry::Persist, config);
            }
            return None;
        }
        let room = self.edge.wrapping_sub(self.nxt);
        if after(self.edge, self.nxt) {
            let end = self.unsent.front().map_or(self.written, |boundary| boundary.end);
            let full = u32::from(self.options.payload);
            return Some(self.send_new(
                end.wrapping_sub(self.nxt).min(room).min(full),
                now,
                config,
            ));
        }
        Some(Payload {
            seq: self.una.wrapping_sub(1),
            len: 0,
            message: None,
            is_fin: false,
            is_retransmission: false,
            cwr: false,
        })
    }

    fn poll_tail_probe(
        &mut self,
        now: u64,
        config: &Config,
        options: u16,
        statistics: &mut Statistics,
    ) -> Option<Payload> {
        if !self.bits.take(Bits::TAIL_PROBE) || self.sent.is_empty() {
            return None;
        }
        statistics.tail_probes += 1;
        let payload = match self.next_new(config, options) {
            Some(len) => self.send_new(len, now, config),
            None => self.retransmit(self.sent.len() - 1, now, config),
        };
        if let Some(rack) = &mut self.rack {
            rack.probe_end = Some(self.nxt);
            rack.probe_was_new = !payload.is_retransmission;
        }
        self.restart_timer(now, config);
        Some(payload)
    }
}
