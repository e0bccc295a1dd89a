//! The clocks of the Monitor Node.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use venice_rack::pausable_clock::TICK_NS;

/// Interval between two ticks.
pub(crate) const TICK: Duration = Duration::from_nanos(TICK_NS);

/// Nanoseconds since 1970 that never decrease: the system clock at the start plus a monotonic clock
/// since. A grant's age therefore survives a restart.
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
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The time of day, in milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
