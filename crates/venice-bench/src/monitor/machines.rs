//! What stands for the other machines of the rack.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::setpriority_process;
use tokio::runtime::{Builder, Runtime};

/// What those who only report yield to all others: in a rack they take no processor of the Monitor
/// Node's machine.
const YIELD: i32 = 10;
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
        let give_way = || {
            setpriority_process(None, YIELD).expect("a thread may always yield");
        };
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

fn runtime(builder: &mut Builder) -> Result<Runtime> {
    builder.enable_all().build().context("cannot start the agents' threads")
}
