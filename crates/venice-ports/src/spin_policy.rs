//! Spin policy of a ring, and of whatever waits beside one: when a thread stops polling and sleeps.

/// Time of polling without a yield in between, in nanoseconds: a frame may come within nanoseconds.
const CLOSE_NS: u64 = 2_000;
/// Longest time of polling, yields included, in nanoseconds.
const MAX_SPIN_NS: u64 = 50_000;
/// Longest interval between frames at which polling pays, in nanoseconds.
const DENSE_NS: u64 = 100_000;
/// Upper bound of one look and one yield, in nanoseconds, unless another thread runs in between.
const CROWDED_NS: u64 = 10_000;
/// Sleep after such an interruption, in nanoseconds.
const CROWDED_PAUSE_NS: u64 = 2_000_000;

/// Next action after a look that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look again at once.
    Look,
    /// Let others run, then look again.
    Yield,
    /// Sleep until the bell rings.
    Sleep,
}

/// Spin policy of a ring. A wake-up takes 5 to 20 µs here, a frame through the ring a tenth of one.
/// While frames come densely, a thread first polls without a pause, then yields between looks. It
/// sleeps once polling was in vain for longer than a wake-up takes, or when a yield shows that
/// another thread wants the processor: on a busy machine the other side may be waiting for this
/// very core.
#[derive(Debug, Default)]
pub struct SpinPolicy {
    /// Time of the last frame.
    last_ns: u64,
    /// Time of the last yield.
    yielded_ns: Option<u64>,
    dense: bool,
    crowded_until_ns: u64,
}

impl SpinPolicy {
    /// Records that a frame came.
    pub fn found(&mut self, now_ns: u64) {
        self.dense = now_ns.saturating_sub(self.last_ns) < DENSE_NS;
        self.last_ns = now_ns;
        self.yielded_ns = None;
    }

    /// Records that nothing came; returns the next action.
    pub fn nothing(&mut self, now_ns: u64) -> Next {
        if self.yielded_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) > CROWDED_NS) {
            self.crowded_until_ns = now_ns + CROWDED_PAUSE_NS;
        }
        let waited_ns = now_ns.saturating_sub(self.last_ns);
        let in_vain = waited_ns >= MAX_SPIN_NS;
        if !self.dense || in_vain || now_ns < self.crowded_until_ns {
            self.dense &= !in_vain;
            self.yielded_ns = None;
            return Next::Sleep;
        }
        if waited_ns < CLOSE_NS {
            return Next::Look;
        }
        self.yielded_ns = Some(now_ns);
        Next::Yield
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_NS: u64 = 1_000_000_000;

    #[test]
    fn looks_then_yields_then_sleeps() {
        let mut spin = SpinPolicy::default();
        spin.found(START_NS);
        assert_eq!(spin.nothing(START_NS + 1), Next::Sleep, "one frame alone is not dense");
        let second_ns = START_NS + 10_000;
        spin.found(second_ns);
        assert_eq!(spin.nothing(second_ns + 100), Next::Look);
        assert_eq!(spin.nothing(second_ns + CLOSE_NS), Next::Yield);
        assert_eq!(spin.nothing(second_ns + CLOSE_NS + 400), Next::Yield);
        let mut now_ns = second_ns + CLOSE_NS;
        while now_ns < second_ns + MAX_SPIN_NS {
            assert_eq!(spin.nothing(now_ns), Next::Yield);
            now_ns += 1000;
        }
        assert_eq!(spin.nothing(now_ns), Next::Sleep);
        assert_eq!(spin.nothing(now_ns + 1), Next::Sleep, "until the next frame");
    }

    #[test]
    fn sleeps_while_processor_is_contended() {
        let mut spin = SpinPolicy::default();
        spin.found(START_NS);
        spin.found(START_NS + 1_000);
        let now_ns = START_NS + 1_000 + CLOSE_NS;
        assert_eq!(spin.nothing(now_ns), Next::Yield);
        assert_eq!(spin.nothing(now_ns + CROWDED_NS + 1), Next::Sleep, "another thread ran");
        spin.found(now_ns + 20_000);
        assert_eq!(spin.nothing(now_ns + 20_001), Next::Sleep, "still in the pause");
        let later_ns = now_ns + CROWDED_PAUSE_NS + CROWDED_NS + 2;
        spin.found(later_ns);
        spin.found(later_ns + 1_000);
        assert_eq!(spin.nothing(later_ns + 1_001), Next::Look);
    }
}
