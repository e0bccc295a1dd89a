//! What stands for the other machines of the rack.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

/// How long what is under way may take to its end.
const GRACE: Duration = Duration::from_secs(5);

/// Threads of their own for those who report, those who lend, and who borrows: nobody of them waits for
/// another's work.
pub(super) struct Machines {
    pub(super) reporters: Runtime,
    pub(super) donors: Runtime,
    pub(super) recipient: Runtime,
}

impl Machines {
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

/// Those who only report take no processor of anybody else's machine in a rack: here they run while nobody
/// else wants to. (By niceness alone, whoever wakes waits for the rest of their slice, milliseconds.)
fn give_way() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: it reads the parameters, and changes how this thread is scheduled, nothing else.
    let failed = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    assert_eq!(failed, 0, "a thread may always give way");
}

fn runtime(builder: &mut Builder) -> Result<Runtime> {
    builder.enable_all().build().context("cannot start the agents' threads")
}
