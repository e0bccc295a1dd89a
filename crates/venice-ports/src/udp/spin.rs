//! Decides how long a thread polls for more before it sleeps.

use crate::spin_policy::Next;

/// Longest time of polling for the next datagram before a sleep, in nanoseconds.
const MAX_SPIN_NS: u64 = 20_000;
/// Longest interval between datagrams at which polling pays, in nanoseconds.
const DENSE_NS: u64 = 40_000;
/// Looks after each yield: a yield takes longer than a look, and delays what comes meanwhile.
const LOOKS_PER_YIELD: u8 = 8;
/// Upper bound of one look and one yield, in nanoseconds, unless another thread runs in between.
const CROWDED_NS: u64 = 10_000;
/// Pause of polling, as a multiple of the time that another thread ran: it costs threads that want
/// the processor for long no more than a fifth of it, and a short interruption hardly counts.
const CROWDED_PAUSES: u64 = 4;
/// Longest such pause, in nanoseconds.
const MAX_CROWDED_PAUSE_NS: u64 = 20_000_000;

/// Spin policy of a socket. A sleeping thread takes microseconds to wake, which a recipient with
/// one page fault after the other would pay every time; a spinning one takes the processor from the
/// very program it serves. The policy therefore polls only while requests come densely. It yields
/// first (an answer cannot have come at once, and its sender may wait for this very processor) and
/// then after every few looks. It stops once polling was in vain or a yield shows that another
/// thread wants the processor.
#[derive(Debug, Default)]
pub(super) struct Spin {
    /// Time of the last request.
    last_ns: u64,
    /// Time of the last look.
    looked_ns: u64,
    /// Looks left until the next yield.
    looks: u8,
    dense: bool,
    crowded_until_ns: u64,
}

impl Spin {
    /// Records that a request came.
    pub(super) fn busy(&mut self, now_ns: u64) {
        self.dense =
            now_ns.saturating_sub(self.last_ns) < DENSE_NS && now_ns >= self.crowded_until_ns;
        self.last_ns = now_ns;
        self.begin(now_ns);
    }

    /// Begins to poll, after other work.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.looked_ns = now_ns;
        self.looks = 0;
    }

    /// Records that nothing came; returns the next action.
    pub(super) fn nothing(&mut self, now_ns: u64) -> Next {
        let away_ns = now_ns.saturating_sub(self.looked_ns);
        if self.dense && away_ns > CROWDED_NS {
            let pause_ns = away_ns.saturating_mul(CROWDED_PAUSES).min(MAX_CROWDED_PAUSE_NS);
            self.crowded_until_ns = now_ns + pause_ns;
            self.dense = false;
        }
        self.looked_ns = now_ns;
        self.dense &= now_ns.saturating_sub(self.last_ns) < MAX_SPIN_NS;
        if !self.dense {
            return Next::Sleep;
        }
        match self.looks.checked_sub(1) {
            Some(left) => {
                self.looks = left;
                Next::Look
            }
            None => {
                self.looks = LOOKS_PER_YIELD;
                Next::Yield
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_before_and_between_looks() {
        let mut spin = Spin::default();
        for now_ns in [1_000_000_000, 1_000_010_000] {
            spin.busy(now_ns);
        }
        for turn in 0..3 {
            assert_eq!(spin.nothing(1_000_010_100), Next::Yield, "turn {turn}");
            for _ in 0..LOOKS_PER_YIELD {
                assert_eq!(spin.nothing(1_000_010_100), Next::Look);
            }
        }
        spin.nothing(1_000_010_100);
        spin.begin(1_000_010_200);
        assert_eq!(spin.nothing(1_000_010_300), Next::Yield, "it did other work");
    }

    #[test]
    fn spins_briefly_on_dense_requests() {
        let mut spin = Spin::default();
        let start_ns = 1_000_000_000;
        spin.busy(start_ns);
        assert_eq!(spin.nothing(start_ns + 1), Next::Sleep, "one request alone is not dense");
        let second_ns = start_ns + 10_000;
        spin.busy(second_ns);
        assert_ne!(spin.nothing(second_ns + 9_000), Next::Sleep);
        assert_ne!(spin.nothing(second_ns + 18_000), Next::Sleep);
        assert_eq!(spin.nothing(second_ns + MAX_SPIN_NS), Next::Sleep);
        assert_eq!(
            spin.nothing(second_ns + MAX_SPIN_NS + 1),
            Next::Sleep,
            "it sleeps until the next request"
        );
    }

    #[test]
    fn pause_scales_with_contention() {
        for (away_ns, pause_ns) in
            [(12_000, 48_000), (4_000_000, 16_000_000), (1 << 40, 20_000_000)]
        {
            let mut spin = Spin::default();
            let start_ns = 1_000_000_000;
            spin.busy(start_ns);
            spin.busy(start_ns + 1_000);
            let back_ns = start_ns + 1_000 + away_ns;
            assert_eq!(spin.nothing(back_ns), Next::Sleep, "another thread ran");
            for asked_ns in [back_ns + pause_ns - 2_000, back_ns + pause_ns - 1_000] {
                spin.busy(asked_ns);
                assert_eq!(spin.nothing(asked_ns + 500), Next::Sleep, "still in the pause");
            }
            spin.busy(back_ns + pause_ns);
            assert_ne!(spin.nothing(back_ns + pause_ns + 500), Next::Sleep);
        }
    }
}
