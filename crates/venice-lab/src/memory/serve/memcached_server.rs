//! Debian's memcached at a socket of our own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::protocol::Client;
use venice_measure::child::{ChildGuard, find_program};
use venice_measure::interrupt::wait_until;
use venice_measure::launch::Launch;

/// How long memcached may take to listen after its start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How much it may hold, and what it does beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Room {
    /// `-m`, in MiB.
    pub(in super::super) mib: u64,
    /// Whether it throws the oldest out then; else it stores nothing more (`-M`).
    pub(in super::super) evicts: bool,
}

impl Room {
    /// For `data_bytes` and what memcached loses between its classes of sizes.
    pub(in super::super) fn ample(data_bytes: u64) -> Self {
        Self { mib: ((2 * data_bytes) >> 20) + 64, evicts: true }
    }
}

/// A memcached that ends with its guard.
pub(in super::super) struct Memcached {
    socket: PathBuf,
    guard: ChildGuard,
}

impl Memcached {
    /// Starts it, empty, with its socket and its log in `folder`.
    ///
    /// # Errors
    /// When it is not installed or does not start; the message quotes its log.
    pub(in super::super) fn start(launch: &Launch<'_>, room: Room, folder: &Path) -> Result<Self> {
        let program = find_program("memcached")
            .context("the benchmark needs memcached: apt-get install memcached")?;
        let socket = folder.join("memcached.sock");
        let mut command = launch.command(&program);
        command.args(["-u", "root", "-t", "2", "-I", "2m", "-m", &room.mib.to_string()]);
        if !room.evicts {
            command.arg("-M");
        }
        command.arg("-s").arg(&socket);
        let mut guard = ChildGuard::spawn("memcached", command, &folder.join("memcached.log"))?;
        wait_until("the start of memcached", START_LIMIT, || {
            guard.ensure_alive()?;
            Ok(Client::connect(&socket, 0).ok())
        })?;
        Ok(Self { socket, guard })
    }

    /// Where it listens.
    pub(in super::super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process that holds the data, whoever stands in between.
    ///
    /// # Errors
    /// When it has ended.
    pub(in super::super) fn pid(&self) -> Result<u32> {
        let is_memcached = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == "memcached"
        };
        let pids = self.guard.pids_of_group();
        pids.into_iter().find(is_memcached).context("memcached has ended")
    }

    /// Explains a failed conversation by its death, where that is the reason.
    pub(in super::super) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.guard.explain(error)
    }
}
