//! Times of transfers that this side carries out itself.

use std::sync::LazyLock;
use std::time::Instant;

use venice_accel::opencl::wire::Times;

/// Returns the present time as all four times of a command.
pub fn now() -> Times {
    let ns = now_ns();
    Times { ns: [ns; 4] }
}

/// Returns the time of this machine's monotonic clock in nanoseconds.
pub fn now_ns() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}
