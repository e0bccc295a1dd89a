//! What can go wrong with a guest.

use std::path::PathBuf;
use std::time::Duration;

/// Why there is no guest, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// This machine cannot have one: no QEMU, or no kernel for it. Such a test is skipped.
    #[error("no guest here: {0}")]
    Missing(String),
    /// QEMU could not be started.
    #[error("cannot start QEMU")]
    Start(#[source] std::io::Error),
    /// The guest did not come up, died or fell silent.
    #[error(
        "the guest does not answer within {limit:?} ({source}); its console: {}\n{tail}",
        console.display()
    )]
    Silent {
        /// How long it was waited for.
        limit: Duration,
        /// What the connection said.
        source: std::io::Error,
        /// Where its console was written to.
        console: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// A command that had to succeed did not.
    #[error("in the guest, `{command}` ended with {status}:\n{output}")]
    Failed {
        /// The command.
        command: String,
        /// Its exit status.
        status: i32,
        /// What it wrote.
        output: String,
    },
}
