//! Suspend detection: a process that was stopped for longer than its leases (SIGSTOP, a machine
//! that hung) lost them by itself; its donors are not to blame.

use std::time::{Duration, Instant};

/// A suspension of this process for longer than its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspended {
    /// Time it was stopped.
    pub stopped: Duration,
    /// Time its grants were lent without a renewal.
    pub lease: Duration,
}

impl std::fmt::Display for Suspended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stopped, lease) = (self.stopped.as_secs_f64(), self.lease.as_secs_f64());
        write!(
            f,
            "this process was stopped for {stopped:.0} s, longer than its lease of {lease:.0} s"
        )
    }
}

/// Detects suspensions of the keeper's own process.
#[derive(Debug)]
pub(crate) struct SuspendDetector {
    lease: Duration,
    last_check: Instant,
    woke: Option<(Instant, Suspended)>,
}

impl SuspendDetector {
    pub(crate) fn new(lease: Duration, now: Instant) -> Self {
        Self { lease, last_check: now, woke: None }
    }

    /// Checks for a suspension; to be called with every check of the donors. Losses during a
    /// suspension show within a lease after it, so it is returned for that long.
    pub(crate) fn check(&mut self, now: Instant) -> Option<Suspended> {
        let stopped = now.saturating_duration_since(self.last_check);
        self.last_check = now;
        if stopped > self.lease {
            self.woke = Some((now, Suspended { stopped, lease: self.lease }));
        }
        let (woke, suspended) = self.woke?;
        (now.saturating_duration_since(woke) <= self.lease).then_some(suspended)
    }

    /// True if the check at `now` found a suspension.
    pub(crate) fn woke_at(&self, now: Instant) -> bool {
        self.woke.is_some_and(|(woke, _)| woke == now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspension_is_reported_for_one_lease() {
        let (begin, s) = (Instant::now(), Duration::from_secs(1));
        let mut detector = SuspendDetector::new(s * 10, begin);
        assert_eq!(detector.check(begin + s * 10), None);
        let suspended = Suspended { stopped: s * 14, lease: s * 10 };
        assert_eq!(detector.check(begin + s * 24), Some(suspended));
        assert!(detector.woke_at(begin + s * 24) && !detector.woke_at(begin + s * 34));
        assert_eq!(detector.check(begin + s * 34), Some(suspended));
        assert_eq!(detector.check(begin + s * 35), None);
        let text = "this process was stopped for 14 s, longer than its lease of 10 s";
        assert_eq!(suspended.to_string(), text);
    }
}
