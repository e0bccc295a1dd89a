//! The time, as the core wants it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use venice_rack::pausable_clock::{PausableClock, TICK_NS};

/// How often the clock wants to be looked at.
pub(crate) const TICK: Duration = Duration::from_nanos(TICK_NS);

/// Nanoseconds since 1970 that never go backwards: the system's clock at the start, a steady one
/// since. So a grant's age survives a restart. Standstills of this process do not count, for it
/// hears nobody meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    start_ns: u64,
    attention: PausableClock,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start_ns = nanoseconds(since_1970);
        Self { start: Instant::now(), start_ns, attention: PausableClock::new(start_ns) }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.attention.now_ns(self.clock_ns())
    }

    /// How long until then, if this process does not stand still.
    pub(crate) fn until(&self, at_ns: u64) -> Duration {
        Duration::from_nanos(at_ns.saturating_sub(self.now_ns()))
    }

    /// To be called every [`TICK`]; for how long this process stood still.
    pub(crate) fn tick(&mut self) -> Duration {
        Duration::from_nanos(self.attention.handle_tick(self.clock_ns()))
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
