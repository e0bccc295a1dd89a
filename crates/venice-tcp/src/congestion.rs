//! Congestion control: the size of the congestion window, in segments as in Linux.

mod cubic;
mod dctcp;
mod newreno;

use serde::{Deserialize, Serialize};

use crate::config::{Config, Congestion};
use cubic::Cubic;
use dctcp::Dctcp;

/// The congestion window and its threshold, in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) cwnd: u32,
    pub(crate) ssthresh: u32,
    /// Acknowledged segments that count towards the next increase.
    pub(crate) count: u32,
}

impl Window {
    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Slow start (RFC 5681, section 3.1). Returns the segments that are left over at the threshold.
    fn slow_start(&mut self, acked: u32) -> u32 {
        let cwnd = self.cwnd.saturating_add(acked).min(self.ssthresh);
        let rest = acked - (cwnd - self.cwnd);
        self.cwnd = cwnd;
        rest
    }

    /// Congestion avoidance: one segment more for each `per` acknowledged ones.
    fn avoid(&mut self, per: u32, acked: u32) {
        let per = per.max(1);
        if self.count >= per {
            self.count = 0;
            self.cwnd += 1;
        }
        self.count += acked;
        if self.count >= per {
            self.cwnd += self.count / per;
            self.count %= per;
        }
    }
}

/// Facts about an acknowledgment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) now: u64,
    /// Segments that count towards growth.
    pub(crate) segments: u32,
    /// The shortest round trip so far, in nanoseconds; 0 if none was measured.
    pub(crate) min_rtt: u64,
    /// The most that the window may be, in segments.
    pub(crate) clamp: u32,
}

/// The state of the congestion control of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Control {
    NewReno,
    /// Made at the first increase in congestion avoidance.
    Cubic(Option<Box<Cubic>>),
    Dctcp(Dctcp),
}

impl Control {
    pub(crate) fn new(config: &Config, seq: u32) -> Self {
        match config.congestion {
            Congestion::NewReno => Self::NewReno,
            Congestion::Cubic => Self::Cubic(None),
            Congestion::Dctcp => Self::Dctcp(Dctcp::new(seq)),
        }
    }

    /// Grows the window.
    pub(crate) fn grow(&mut self, window: &mut Window, acked: Acknowledged) {
        let mut segments = acked.segments;
        if window.in_slow_start() {
            segments = window.slow_start(segments);
        }
        if segments > 0 {
            self.avoid_congestion(window, segments, acked);
        }
        window.cwnd = window.cwnd.min(acked.clamp);
    }

    fn avoid_congestion(&mut self, window: &mut Window, segments: u32, acked: Acknowledged) {
        let per = match self {
            Self::NewReno | Self::Dctcp(_) => window.cwnd,
            Self::Cubic(state) => {
                state.get_or_insert_default().segments_per_increase(window.cwnd, segments, acked)
            }
        };
        window.avoid(per, segments);
    }

    /// Returns the threshold after a loss.
    pub(crate) fn threshold_after_loss(&mut self, cwnd: u32) -> u32 {
        match self {
            Self::NewReno | Self::Dctcp(_) => newreno::threshold(cwnd),
            Self::Cubic(state) => state.get_or_insert_default().threshold(cwnd),
        }
    }

    /// Returns the threshold after an echo of a congestion mark.
    pub(crate) fn threshold_after_echo(&mut self, cwnd: u32) -> u32 {
        match self {
            Self::Dctcp(state) => state.threshold(cwnd),
            Self::NewReno | Self::Cubic(_) => self.threshold_after_loss(cwnd),
        }
    }

    /// Counts acknowledged segments (DCTCP). `nxt` is the next sequence number to be sent.
    pub(crate) fn count_marks(&mut self, una: u32, nxt: u32, segments: u32, is_marked: bool) {
        if let Self::Dctcp(state) = self {
            state.count(una, nxt, segments, is_marked);
        }
    }

    /// Takes note of a retransmission time-out.
    pub(crate) fn time_out(&mut self) {
        if let Self::Cubic(state) = self {
            // It starts anew, as in Linux (`bictcp_reset`).
            *state = None;
        }
    }

    /// Takes note of an idle time that has ended, in nanoseconds.
    pub(crate) fn resume(&mut self, idle: u64) {
        if let Self::Cubic(Some(state)) = self {
            state.resume(idle);
        }
    }

    pub(crate) fn is_dctcp(&self) -> bool {
        matches!(self, Self::Dctcp(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(segments: u32) -> Acknowledged {
        Acknowledged { now: 0, segments, min_rtt: 0, clamp: 5_000 }
    }

    fn window(cwnd: u32, ssthresh: u32) -> Window {
        Window { cwnd, ssthresh, count: 0 }
    }

    #[test]
    fn slow_start_ends_at_threshold() {
        let mut window = window(10, 13);
        Control::NewReno.grow(&mut window, acked(2));
        assert_eq!(window.cwnd, 12);
        Control::NewReno.grow(&mut window, acked(4));
        // One to the threshold, three towards the next.
        assert_eq!((window.cwnd, window.count), (13, 3));
    }

    #[test]
    fn avoidance_adds_segment_per_window() {
        let mut window = window(4, 4);
        let sizes: Vec<u32> = (0..9)
            .map(|_| {
                Control::NewReno.grow(&mut window, acked(1));
                window.cwnd
            })
            .collect();
        assert_eq!(sizes, [4, 4, 4, 5, 5, 5, 5, 5, 6]);
    }

    #[test]
    fn clamp_bounds_window() {
        let mut window = window(4, u32::MAX);
        Control::NewReno.grow(&mut window, Acknowledged { clamp: 5, ..acked(4) });
        assert_eq!(window.cwnd, 5);
    }
}
