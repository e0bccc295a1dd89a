//! Errors of guests.

use std::path::PathBuf;
use std::time::Duration;

/// Reason for a missing or lost guest.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// This machine does not support one: no QEMU, or no kernel for it. Such a test is skipped.
    #[error("no guest here: {0}")]
    Missing(String),
    /// QEMU could not be started.
    #[error("cannot start QEMU")]
    Start(#[source] std::io::Error),
    /// The guest did not come up, died or stopped answering.
    #[error(
        "the guest does not answer within {limit:?} ({source}); its console: {}\n{tail}",
        console.display()
    )]
    Silent {
        /// Time limit.
        limit: Duration,
        /// Error of the connection.
        source: std::io::Error,
        /// Path of its console's file.
        console: PathBuf,
        /// The last lines of the console.
        tail: String,
    },
    /// A required command failed.
    #[error("in the guest, `{command}` ended with {status}:\n{output}")]
    Failed {
        /// The command.
        command: String,
        /// Its exit status.
        status: i32,
        /// Its output.
        output: String,
    },
}

impl GuestError {
    /// True if the guest died of an emulator fault: where a kernel changes its own code (a jump
    /// label), QEMU before 8 may execute a breakpoint that was there for a moment, long after it is
    /// gone. The test in the guest is not to blame.
    #[must_use]
    pub fn is_emulator_fault(&self) -> bool {
        let GuestError::Silent { console, .. } = self else { return false };
        let said = std::fs::read(console).unwrap_or_default();
        String::from_utf8_lossy(&said).contains("Oops: int3: ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulator_fault_is_detected_by_console() {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("console");
        let died = || GuestError::Silent {
            limit: Duration::ZERO,
            source: std::io::ErrorKind::UnexpectedEof.into(),
            console: console.clone(),
            tail: String::new(),
        };
        assert!(!died().is_emulator_fault());
        let own = "[    9.1] BUG: kernel NULL pointer dereference, address: 0000000000000000\n\
                   [    9.2] Oops: 0002 [#1] PREEMPT SMP NOPTI\n";
        std::fs::write(&console, own).unwrap();
        assert!(!died().is_emulator_fault());
        std::fs::write(&console, "[   12.3] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n").unwrap();
        assert!(died().is_emulator_fault());
        assert!(!GuestError::Missing("no QEMU".into()).is_emulator_fault());
    }
}
