//! The time, as the core wants it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Nanoseconds since 1970 that never go backwards: the system's clock at the start, a steady one
/// since. So a grant's age survives a restart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    start_ns: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_ns: nanoseconds(since_1970) }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.start_ns.saturating_add(nanoseconds(self.start.elapsed()))
    }

    pub(crate) fn instant_of(&self, at_ns: u64) -> Instant {
        self.start + Duration::from_nanos(at_ns.saturating_sub(self.start_ns))
    }
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
