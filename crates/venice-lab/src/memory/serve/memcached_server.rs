//! Debian's memcached at a temporary socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::protocol::Client;
use venice_measure::child::{ChildGuard, find_program};
use venice_measure::interrupt::wait_until;
use venice_measure::launch::Launch;

/// Time limit for memcached to listen after its start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Memory limit of memcached, and its behaviour beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Room {
    /// `-m`, in MiB.
    pub(in super::super) mib: u64,
    /// True if it evicts the oldest value at the limit; otherwise it refuses to store (`-M`).
    pub(in super::super) evicts: bool,
}

impl Room {
    /// Room for `data_bytes` and memcached's losses between its size classes.
    pub(in super::super) fn ample(data_bytes: u64) -> Self {
        Self { mib: ((2 * data_bytes) >> 20) + 64, evicts: true }
    }
}

/// A memcached process; dropping it ends the process.
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

    /// Returns the path of its socket.
    pub(in super::super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the process that holds the data, whatever processes server in between.
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

    /// Replaces a failed conversation's error by the server's death, if that is the cause.
    pub(in super::super) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.guard.explain(error)
    }
}
