//! CUBIC (RFC 9438), in integers: times in nanoseconds, windows in segments.

use serde::{Deserialize, Serialize};

use super::Acknowledged;

/// The factor of a decrease, β = 0.7 (section 4.6), and the scaling of the cubic function, C = 0.4
/// segments per cubic second (section 5), as fractions.
const BETA: (u32, u32) = (7, 10);
const C_PER_CUBIC_NS: (u128, u128) = (4, 10_u128.pow(28));
/// Beyond this distance from K, half an hour, the cube would overflow.
const FARTHEST_NS: u64 = 1 << 41;

/// The state since the last decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cubic {
    /// The start of the epoch of growth; `None` before the first acknowledgment in it.
    epoch_start: Option<u64>,
    /// The time from the start to the plateau.
    k: u64,
    /// The window at the plateau.
    origin: u32,
    /// The window before the last decrease, and what fast convergence made of it.
    last_max: u32,
    /// The window that Reno would have, and acknowledged segments towards its next.
    reno: u32,
    reno_count: u32,
}

impl Cubic {
    /// Returns the number of acknowledged segments for each of which the window grows by one.
    pub(super) fn segments_per_increase(
        &mut self,
        cwnd: u32,
        segments: u32,
        acked: Acknowledged,
    ) -> u32 {
        let start = match self.epoch_start {
            Some(start) => start,
            None => self.start_epoch(cwnd, acked.now),
        };
        // The window at the end of the next round trip.
        let elapsed = acked.now.saturating_sub(start).saturating_add(acked.min_rtt);
        let target = self.window_at(elapsed).clamp(cwnd, cwnd + cwnd / 2);
        let per = match target - cwnd {
            0 => cwnd.saturating_mul(100),
            growth => cwnd / growth,
        };
        // Without a loss so far, grow by 5 % a round trip at least (Linux).
        let per = if self.last_max == 0 { per.min(20) } else { per };
        // One segment for each two at most.
        self.at_least_reno(cwnd, segments, per).max(2)
    }

    fn start_epoch(&mut self, cwnd: u32, now: u64) -> u64 {
        self.epoch_start = Some(now);
        (self.reno, self.reno_count) = (cwnd, 0);
        self.origin = self.last_max.max(cwnd);
        // K = ∛((W_max − cwnd) / C)
        let (c, per) = C_PER_CUBIC_NS;
        self.k = cube_root(u128::from(self.origin - cwnd) * (per / c));
        now
    }

    /// W(t) = C (t − K)³ + W_max (equation 1).
    fn window_at(&self, elapsed: u64) -> u32 {
        let distance = u128::from(elapsed.abs_diff(self.k).min(FARTHEST_NS));
        let (c, per) = C_PER_CUBIC_NS;
        let change = u32::try_from(distance.pow(3) * c / per).unwrap_or(u32::MAX);
        if elapsed < self.k {
            self.origin.saturating_sub(change)
        } else {
            self.origin.saturating_add(change)
        }
    }

    /// Follows the window of Reno with α = 3 (1 − β) / (1 + β) = 9/17 (section 4.3), which grows by a
    /// segment for each cwnd / α segments.
    fn at_least_reno(&mut self, cwnd: u32, segments: u32, per: u32) -> u32 {
        self.reno_count += segments;
        let step = (cwnd.saturating_mul(17) / 9).max(1);
        if self.reno_count > step {
            self.reno += self.reno_count / step;
            self.reno_count %= step;
        }
        match self.reno.checked_sub(cwnd) {
            None | Some(0) => per,
            Some(lead) => per.min(cwnd / lead),
        }
    }

    /// Returns β × cwnd, at least two segments, and begins a new epoch. A window below the last
    /// maximum releases bandwidth to others (fast convergence, section 4.7).
    pub(super) fn threshold(&mut self, cwnd: u32) -> u32 {
        let (beta, of) = BETA;
        self.epoch_start = None;
        self.last_max = match cwnd < self.last_max {
            true => (u64::from(cwnd) * u64::from(of + beta) / u64::from(2 * of)) as u32,
            false => cwnd,
        };
        ((u64::from(cwnd) * u64::from(beta) / u64::from(of)) as u32).max(2)
    }

    /// Moves the epoch by an idle time, so that the window does not jump (section 5.8).
    pub(super) fn resume(&mut self, idle: u64) {
        self.epoch_start = self.epoch_start.map(|start| start.saturating_add(idle));
    }
}

/// Returns the integer cube root.
fn cube_root(of: u128) -> u64 {
    let mut root: u128 = 0;
    for bit in (0..42).rev() {
        let with = root | 1 << bit;
        if with.pow(3) <= of {
            root = with;
        }
    }
    root as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(now: u64) -> Acknowledged {
        Acknowledged { now, segments: 1, min_rtt: 0, clamp: 5_000 }
    }

    #[test]
    fn cube_root_rounds_down() {
        let roots: Vec<u64> = [0, 1, 7, 8, 26, 27, 1_000_000_007].map(cube_root).into();
        assert_eq!(roots, [0, 1, 1, 2, 2, 3, 1_000]);
        assert_eq!(cube_root(u128::MAX), (1 << 42) - 1);
    }

    #[test]
    fn plateau_is_last_maximum() {
        let mut state = Cubic::default();
        assert_eq!(state.threshold(1_000), 700);
        state.segments_per_increase(700, 1, at(5 * SECOND));
        // ∛(300 / 0.4) s = 9.085603 s
        assert_eq!(state.k / 1_000, 9_085_602);
        assert_eq!(state.window_at(0), 701);
        assert_eq!(state.window_at(state.k), 1_000);
        // 0.4 · 5³ = 50 beyond.
        assert_eq!(state.window_at(state.k + 5 * SECOND), 1_050);
        assert_eq!(state.window_at(state.k - 5 * SECOND), 950);
    }

    #[test]
    fn falling_maximum_converges_fast() {
        let mut state = Cubic::default();
        state.threshold(1_000);
        state.threshold(800);
        assert_eq!(state.last_max, 680);
    }

    #[test]
    fn small_window_grows_like_reno() {
        let mut state = Cubic::default();
        state.threshold(20);
        let mut window = super::super::Window { cwnd: 14, ssthresh: 14, count: 0 };
        // Twenty windows within 2 ms: the cubic function has not moved.
        for n in 0..20 * 17 {
            let per = state.segments_per_increase(window.cwnd, 1, at(n * 6_000));
            window.avoid(per, 1);
        }
        // About 9/17 of a segment for each window.
        assert!((22..=25).contains(&window.cwnd), "{window:?}");
    }

    #[test]
    fn idle_time_is_no_growth() {
        let mut state = Cubic::default();
        state.threshold(100);
        state.segments_per_increase(70, 1, at(0));
        let before = state.window_at(SECOND);
        state.resume(3 * SECOND);
        assert_eq!(state.window_at(4 * SECOND - state.epoch_start.unwrap()), before);
    }
}
