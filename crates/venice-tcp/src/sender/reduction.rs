//! The way of the window from its old size to the threshold, in recovery and after an echo of
//! congestion marks.

use serde::{Deserialize, Serialize};

use super::{AckOutcome, Bits, Phase, Sender};
use crate::config::{Basis, Config, Reduction};

/// The state of proportional rate reduction (RFC 6937), in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reducing {
    /// The window before (`RecoverFS`).
    before: u32,
    delivered: u32,
    pub(super) sent: u32,
}

impl Sender {
    /// Returns the threshold after a loss.
    pub(super) fn threshold_after_loss(&mut self, config: &Config) -> u32 {
        let basis = match config.basis {
            Basis::Window => self.window.cwnd,
            Basis::FlightSize => self.outstanding(),
            Basis::Pipe => self.in_flight(),
        };
        self.control.threshold_after_loss(basis)
    }

    /// Begins a reduction to the threshold.
    pub(super) fn begin_reduction(&mut self, ssthresh: u32, phase: Phase, config: &Config) {
        self.window.ssthresh = ssthresh;
        self.window.count = 0;
        self.phase = phase;
        self.high = self.nxt;
        match config.reduction {
            Reduction::Immediate => self.window.cwnd = self.window.cwnd.min(ssthresh),
            Reduction::RateHalving => {}
            Reduction::Proportional => {
                self.reducing =
                    Some(Box::new(Reducing { before: self.window.cwnd, delivered: 0, sent: 0 }));
            }
        }
        self.bits.put(Bits::CWR, self.options.ecn);
    }

    /// Sets the window while it is reduced, after an acknowledgment.
    pub(super) fn reduce(&mut self, outcome: &AckOutcome, config: &Config) {
        match config.reduction {
            Reduction::Immediate => {}
            Reduction::RateHalving => self.halve_rate(outcome),
            Reduction::Proportional => self.reduce_in_proportion(outcome),
        }
    }

    /// One segment for each two acknowledgments, to half the threshold at least, and no more than one
    /// segment beyond what is in flight (Linux before 3.2, `tcp_cwnd_down`).
    fn halve_rate(&mut self, outcome: &AckOutcome) {
        if outcome.delivered == 0 && !outcome.advanced {
            return;
        }
        self.window.count += 1;
        if self.window.count >= 2 {
            self.window.count = 0;
            if self.window.cwnd > self.window.ssthresh / 2 {
                self.window.cwnd -= 1;
            }
        }
        self.window.cwnd = self.window.cwnd.min(self.in_flight() + 1).max(1);
    }

    /// RFC 6937, section 3.1, with the slow-start bound where acknowledgments advance and nothing
    /// more is lost, else the conservative one, as in Linux.
    fn reduce_in_proportion(&mut self, outcome: &AckOutcome) {
        let in_flight = self.in_flight();
        let ssthresh = self.window.ssthresh;
        let Some(state) = &mut self.reducing else { return };
        if outcome.delivered == 0 {
            return;
        }
        state.delivered += outcome.delivered;
        let count = if in_flight > ssthresh {
            let due = u64::from(ssthresh) * u64::from(state.delivered);
            (due.div_ceil(u64::from(state.before)) as u32).saturating_sub(state.sent)
        } else {
            let mut count = state.delivered.saturating_sub(state.sent).max(outcome.delivered);
            if outcome.advanced && outcome.newly_lost == 0 {
                count += 1;
            }
            count.min(ssthresh - in_flight)
        };
        // The fast retransmit itself.
        let count = count.max(u32::from(state.sent == 0));
        self.window.cwnd = in_flight + count;
    }

    /// Ends a reduction.
    pub(super) fn end_reduction(&mut self, config: &Config) {
        self.reducing = None;
        self.window.cwnd = match config.reduction {
            Reduction::Proportional => self.window.ssthresh,
            Reduction::Immediate | Reduction::RateHalving => {
                self.window.cwnd.min(self.window.ssthresh)
            }
        };
        self.window.count = 0;
    }
}
