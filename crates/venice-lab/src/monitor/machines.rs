//! Threads that stand for the other machines of the rack.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

/// Time limit for unfinished work at the end.
const GRACE: Duration = Duration::from_secs(5);

/// Separate threads for reporting agents, for donors and for the recipient, so that none waits for
/// another's work.
pub(super) struct Machines {
    pub(super) reporters: Runtime,
    pub(super) donors: Runtime,
    pub(super) recipient: Runtime,
}

impl Machines {
    /// Starts the threads.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub(super) fn start() -> Result<Self> {
        Ok(Self {
            reporters: runtime(Builder::new_multi_thread().on_thread_start(give_way))?,
            donors: runtime(Builder::new_multi_thread().worker_threads(1))?,
            recipient: runtime(Builder::new_multi_thread().worker_threads(1))?,
        })
    }

    pub(super) fn stop(self) {
        for runtime in [self.recipient, self.reporters, self.donors] {
            runtime.shutdown_timeout(GRACE);
        }
    }
}

/// Gives the thread the idle scheduling class. Agents that only report run on other machines in a
/// real rack, so here they must not take processor time from others. (Niceness alone lets a waking
/// thread wait milliseconds for the rest of their slice.)
fn give_way() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: it reads the parameters, and changes only how this thread is scheduled.
    let failed = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    assert_eq!(failed, 0, "a thread may always lower its priority");
}

fn runtime(builder: &mut Builder) -> Result<Runtime> {
    builder.enable_all().build().context("cannot start the agents' threads")
}
