//! A clock for the liveness of others that stands still while its process does not run.
//!
//! A process that stood still (its machine was suspended, or too busy to run it) sees all deadlines
//! of others pass at once when it goes on, before their messages of that time reach it. Others
//! could not be heard during the pause, so it must not count against them. A donor that counts less
//! time than has passed keeps a grant longer. This is harmless: only the donor itself would use the
//! memory again.

/// The interval at which [`PausableClock::handle_tick`] is to be called while deadlines run, in
/// nanoseconds.
pub const TICK_NS: u64 = 250_000_000;
/// The most time between two ticks that counts, in nanoseconds.
const LONGEST_STEP_NS: u64 = 2 * TICK_NS;

/// A clock that stops while nothing ticks it. It is never faster than the clock it follows, and
/// never goes backwards.
#[derive(Debug, Clone, Copy)]
pub struct PausableClock {
    ticked_ns: u64,
    now_ns: u64,
}

impl PausableClock {
    /// Creates a clock that starts at `clock_ns`.
    pub fn new(clock_ns: u64) -> Self {
        Self { ticked_ns: clock_ns, now_ns: clock_ns }
    }

    /// Returns the time that counts when the followed clock, which never goes backwards, shows
    /// `clock_ns`.
    pub fn now_ns(&self, clock_ns: u64) -> u64 {
        self.now_ns.saturating_add(self.step_ns(clock_ns))
    }

    /// Records that the process runs. Returns the time that did not count since the last tick, in
    /// nanoseconds of the followed clock.
    pub fn handle_tick(&mut self, clock_ns: u64) -> u64 {
        let step_ns = self.step_ns(clock_ns);
        let missed_ns = clock_ns.saturating_sub(self.ticked_ns) - step_ns;
        self.now_ns = self.now_ns.saturating_add(step_ns);
        self.ticked_ns = self.ticked_ns.max(clock_ns);
        missed_ns
    }

    fn step_ns(&self, clock_ns: u64) -> u64 {
        clock_ns.saturating_sub(self.ticked_ns).min(LONGEST_STEP_NS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn regular_ticks_follow_the_clock() {
        let mut clock = PausableClock::new(7 * S);
        for clock_ns in (7 * S..100 * S).step_by(TICK_NS as usize) {
            assert_eq!(clock.now_ns(clock_ns), clock_ns);
            assert_eq!(clock.handle_tick(clock_ns), 0);
        }
    }

    #[test]
    fn paused_time_does_not_count() {
        let mut clock = PausableClock::new(0);
        assert_eq!(clock.now_ns(60 * S), LONGEST_STEP_NS);
        assert_eq!(clock.handle_tick(60 * S), 60 * S - LONGEST_STEP_NS);
        assert_eq!(clock.now_ns(60 * S + 1), LONGEST_STEP_NS + 1);
    }

    proptest! {
        #[test]
        fn clock_is_monotonic_and_never_faster(steps in prop::collection::vec((0..2 * S, any::<bool>()), 1..100)) {
            let mut clock = PausableClock::new(0);
            let (mut clock_ns, mut before_ns) = (0, 0);
            for (step_ns, is_tick) in steps {
                clock_ns += step_ns;
                let now_ns = clock.now_ns(clock_ns);
                prop_assert!(before_ns <= now_ns && now_ns - before_ns <= step_ns);
                if is_tick {
                    clock.handle_tick(clock_ns);
                    prop_assert_eq!(clock.now_ns(clock_ns), now_ns);
                }
                before_ns = now_ns;
            }
        }
    }
}
