//! Whether who keeps the leases was itself stopped (SIGSTOP, a machine that hung) for longer than
//! they last: then it is not the donors that are to blame.

use std::time::{Duration, Instant};

/// A process that slept through its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overslept {
    /// How long it was stopped.
    pub stopped: Duration,
    /// How long what it had was lent without a renewal.
    pub lease: Duration,
}

impl std::fmt::Display for Overslept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stopped, lease) = (self.stopped.as_secs_f64(), self.lease.as_secs_f64());
        write!(
            f,
            "this process was stopped for {stopped:.0} s, longer than its lease of {lease:.0} s"
        )
    }
}

/// The keeper's eye on itself.
#[derive(Debug)]
pub(crate) struct Wakefulness {
    lease: Duration,
    last_look: Instant,
    woke: Option<(Instant, Overslept)>,
}

impl Wakefulness {
    pub(crate) fn new(lease: Duration, now: Instant) -> Self {
        Self { lease, last_look: now, woke: None }
    }

    /// To be called with every look at the donors. What they lost in a sleep shows within a lease
    /// after it: so long it is what is said.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Overslept> {
        let stopped = now.saturating_duration_since(self.last_look);
        self.last_look = now;
        if stopped > self.lease {
            self.woke = Some((now, Overslept { stopped, lease: self.lease }));
        }
        let (woke, slept) = self.woke?;
        (now.saturating_duration_since(woke) <= self.lease).then_some(slept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_longer_than_the_lease_is_known_for_a_lease_after_it() {
        let (begin, s) = (Instant::now(), Duration::from_secs(1));
        let mut awake = Wakefulness::new(s * 10, begin);
        assert_eq!(awake.look(begin + s * 10), None);
        let slept = Overslept { stopped: s * 14, lease: s * 10 };
        assert_eq!(awake.look(begin + s * 24), Some(slept));
        assert_eq!(awake.look(begin + s * 34), Some(slept));
        assert_eq!(awake.look(begin + s * 35), None);
        let said = "this process was stopped for 14 s, longer than its lease of 10 s";
        assert_eq!(slept.to_string(), said);
    }
}
