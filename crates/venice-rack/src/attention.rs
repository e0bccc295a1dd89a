//! Time as somebody perceives it who judges others by their silence.
//!
//! A process that stood still (its machine was suspended, or so busy that it did not run) sees all
//! deadlines of others pass at once when it goes on, before what they sent meanwhile reaches it.
//! While it stood still nobody could have been heard, so that time must not count against them. A
//! donor that counts less time than has passed keeps a grant longer, which harms nobody: only the
//! donor itself would use the memory again.

/// How often [`Attention::handle_tick`] is to be called while deadlines run.
pub const TICK_NS: u64 = 250_000_000;
/// What may pass from one tick to the next and still counts.
const LONGEST_STEP_NS: u64 = 2 * TICK_NS;

/// A time that goes on only while somebody pays attention: never faster than the clock it is told
/// of, and never backwards.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    ticked_ns: u64,
    now_ns: u64,
}

impl Attention {
    /// Both times are the same at first.
    pub fn new(clock_ns: u64) -> Self {
        Self { ticked_ns: clock_ns, now_ns: clock_ns }
    }

    /// The time to judge by when the clock, which never goes backwards, shows `clock_ns`.
    pub fn now_ns(&self, clock_ns: u64) -> u64 {
        self.now_ns.saturating_add(self.step_ns(clock_ns))
    }

    /// Somebody pays attention; returns for how long nobody did, in nanoseconds of the clock.
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
    fn who_is_attentive_sees_the_clock() {
        let mut attention = Attention::new(7 * S);
        for clock_ns in (7 * S..100 * S).step_by(TICK_NS as usize) {
            assert_eq!(attention.now_ns(clock_ns), clock_ns);
            assert_eq!(attention.handle_tick(clock_ns), 0);
        }
    }

    #[test]
    fn what_was_slept_through_does_not_count() {
        let mut attention = Attention::new(0);
        assert_eq!(attention.now_ns(60 * S), LONGEST_STEP_NS);
        assert_eq!(attention.handle_tick(60 * S), 60 * S - LONGEST_STEP_NS);
        assert_eq!(attention.now_ns(60 * S + 1), LONGEST_STEP_NS + 1);
    }

    proptest! {
        #[test]
        fn never_faster_and_never_backwards(steps in prop::collection::vec((0..2 * S, any::<bool>()), 1..100)) {
            let mut attention = Attention::new(0);
            let (mut clock_ns, mut before_ns) = (0, 0);
            for (step_ns, is_tick) in steps {
                clock_ns += step_ns;
                let now_ns = attention.now_ns(clock_ns);
                prop_assert!(before_ns <= now_ns && now_ns - before_ns <= step_ns);
                if is_tick {
                    attention.handle_tick(clock_ns);
                    prop_assert_eq!(attention.now_ns(clock_ns), now_ns);
                }
                before_ns = now_ns;
            }
        }
    }
}
