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

impl GuestError {
    /// Whether the guest died of a fault of the emulator's: where a kernel changes its own code (a jump
    /// label), QEMU before 8 may run a breakpoint that stood there for a moment, long after it is gone.
    /// It says nothing about what ran in the guest.
    #[must_use]
    pub fn is_emulators(&self) -> bool {
        let GuestError::Silent { console, .. } = self else { return false };
        let said = std::fs::read(console).unwrap_or_default();
        String::from_utf8_lossy(&said).contains("Oops: int3: ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulators_faults_are_known_by_the_console() {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("console");
        let died = || GuestError::Silent {
            limit: Duration::ZERO,
            source: std::io::ErrorKind::UnexpectedEof.into(),
            console: console.clone(),
            tail: String::new(),
        };
        assert!(!died().is_emulators());
        let own = "[    9.1] BUG: kernel NULL pointer dereference, address: 0000000000000000\n\
                   [    9.2] Oops: 0002 [#1] PREEMPT SMP NOPTI\n";
        std::fs::write(&console, own).unwrap();
        assert!(!died().is_emulators());
        std::fs::write(&console, "[   12.3] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n").unwrap();
        assert!(died().is_emulators());
        assert!(!GuestError::Missing("no QEMU".into()).is_emulators());
    }
}
