//! The pausable wall clock that drives the core.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use venice_rack::pausable_clock::{PausableClock, TICK_NS};

/// Interval between two calls of [`Clock::tick`].
pub(crate) const TICK: Duration = Duration::from_nanos(TICK_NS);

/// Nanoseconds since 1970 that never decrease: the system clock at the start plus a monotonic clock
/// since. A grant's age therefore survives a restart. Time for which this process is stalled does
/// not count, since it receives no heartbeats meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    start_ns: u64,
    clock: PausableClock,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start_ns = nanoseconds(since_1970);
        Self { start: Instant::now(), start_ns, clock: PausableClock::new(start_ns) }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns(self.clock_ns())
    }

    /// Time until `at_ns`, if this process does not stall.
    pub(crate) fn until(&self, at_ns: u64) -> Duration {
        Duration::from_nanos(at_ns.saturating_sub(self.now_ns()))
    }

    /// Advances the clock and returns the length of the stall since the last call. The caller calls
    /// it every [`TICK`].
    pub(crate) fn tick(&mut self) -> Duration {
        Duration::from_nanos(self.clock.handle_tick(self.clock_ns()))
    }

    fn clock_ns(&self) -> u64 {
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
