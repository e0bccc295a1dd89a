//! How long to look for more before sleeping.

/// Longest time to look for the next datagram before going to sleep.
const MAX_SPIN_NS: u64 = 20_000;
/// Datagrams that come closer together than this are worth looking out for.
const DENSE_NS: u64 = 40_000;
/// A look and a yield take less than this, unless somebody else runs in between.
const CROWDED_NS: u64 = 10_000;
/// How long not to spin once that was seen.
const CROWDED_PAUSE_NS: u64 = 2_000_000;

/// How long to look for more before sleeping. A sleeping thread takes microseconds to wake, which
/// a recipient with one page fault after the other would pay every time; but a spinning one takes
/// the processor from the very program it serves. So it looks out only while requests come
/// densely, yields between looks, and stops as soon as looking was in vain or a yield shows that
/// somebody else wants the processor.
#[derive(Debug, Default)]
pub(super) struct Spin {
    /// When the last request came.
    last_ns: u64,
    /// When it last looked.
    looked_ns: u64,
    dense: bool,
    crowded_until_ns: u64,
}

impl Spin {
    /// A request came.
    pub(super) fn busy(&mut self, now_ns: u64) {
        self.dense =
            now_ns.saturating_sub(self.last_ns) < DENSE_NS && now_ns >= self.crowded_until_ns;
        self.last_ns = now_ns;
        self.looked_ns = now_ns;
    }

    /// Begins to look, after doing something else.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.looked_ns = now_ns;
    }

    /// Nothing came: whether to look again.
    pub(super) fn goes_on(&mut self, now_ns: u64) -> bool {
        if self.dense && now_ns.saturating_sub(self.looked_ns) > CROWDED_NS {
            self.crowded_until_ns = now_ns + CROWDED_PAUSE_NS;
            self.dense = false;
        }
        self.looked_ns = now_ns;
        self.dense &= now_ns.saturating_sub(self.last_ns) < MAX_SPIN_NS;
        self.dense
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_while_requests_are_dense_and_not_for_long() {
        let mut spin = Spin::default();
        let start_ns = 1_000_000_000;
        spin.busy(start_ns);
        assert!(!spin.goes_on(start_ns + 1), "one request alone is not dense");
        let second_ns = start_ns + 10_000;
        spin.busy(second_ns);
        assert!(spin.goes_on(second_ns + 9_000));
        assert!(spin.goes_on(second_ns + 18_000));
        assert!(!spin.goes_on(second_ns + MAX_SPIN_NS));
        assert!(!spin.goes_on(second_ns + MAX_SPIN_NS + 1), "it sleeps until the next request");
    }

    #[test]
    fn leaves_the_processor_to_those_who_want_it() {
        let mut spin = Spin::default();
        let start_ns = 1_000_000_000;
        spin.busy(start_ns);
        spin.busy(start_ns + 1_000);
        assert!(!spin.goes_on(start_ns + 1_000 + CROWDED_NS + 1), "somebody else ran");
        spin.busy(start_ns + 20_000);
        assert!(!spin.goes_on(start_ns + 21_000), "not again so soon");
        let later_ns = start_ns + CROWDED_PAUSE_NS + 50_000;
        spin.busy(later_ns);
        spin.busy(later_ns + 10_000);
        assert!(spin.goes_on(later_ns + 11_000));
    }
}
