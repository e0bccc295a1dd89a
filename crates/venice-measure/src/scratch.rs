//! Names of the files, folders and devices that a benchmark makes outside its own process.
//!
//! Guards remove everything on success, on errors and on Ctrl-C, but not after `kill -9`. Each name
//! therefore has the process id of its maker and the time when that process began ([`Owner`]):
//! remains of a dead owner ([`left_in`]) may be removed, those of a living one are never touched.

use std::fs::{self, DirEntry};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;
use venice_memory::process_stat::ProcessStat;

/// Folder in memory.
pub const MEMORY_FOLDER: &str = "/dev/shm";

/// Kinds, as they appear in names.
pub const FOLDER: &str = "bench";
/// A folder under which a RAM disk is mounted.
pub const RAM_DISK: &str = "ram-disk";
/// A folder in which `nbdfuse` is mounted.
pub const FUSE: &str = "fuse";
/// A swap file.
pub const SWAP_FILE: &str = "swap";
/// A note of a zram device, whose number ends its name.
pub const ZRAM: &str = "zram";
/// The folder of a rack.
pub const RACK: &str = "rack";

/// Returns `venice-KIND-PID-START` for this process.
pub fn name(kind: &str) -> String {
    let Owner { pid, start_ticks } = Owner::this();
    format!("venice-{kind}-{pid}-{start_ticks}")
}

/// Creates a folder for logs, sockets and files, removed when it is dropped.
///
/// # Errors
/// When there is no room for it.
pub fn folder(kind: &str) -> Result<TempDir> {
    folder_in(&std::env::temp_dir(), kind)
}

/// Creates the same in `parent`.
///
/// # Errors
/// When there is no room for it.
pub fn folder_in(parent: &Path, kind: &str) -> Result<TempDir> {
    let prefix = format!("{}-", name(kind));
    let made = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
    made.with_context(|| format!("cannot make a folder in {}", parent.display()))
}

/// A file, existing or planned, that is removed when this is dropped.
#[derive(Debug)]
pub struct RemovedFile {
    /// Path of the file.
    pub path: PathBuf,
}

impl Drop for RemovedFile {
    fn drop(&mut self) {
        // The file is absent if it could not be made.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the remains of `kind` of dead processes in `parent`. Files of other users are ignored.
pub fn left_in(parent: &Path, kind: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let own_uid = rustix::process::geteuid().as_raw();
    let is_left = |entry: &DirEntry| {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| Owner::of(name, kind));
        owner.is_some_and(|owner| !owner.lives())
            && entry.metadata().is_ok_and(|meta| meta.uid() == own_uid)
    };
    entries.flatten().filter(is_left).map(|entry| entry.path()).collect()
}

/// Owner of a name: the process id alone may be reused by another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    pid: u32,
    /// Start of the process, in clock ticks since the machine began.
    start_ticks: u64,
}

impl Owner {
    fn this() -> Self {
        let pid = std::process::id();
        Self { pid, start_ticks: start_ticks(pid).unwrap_or(0) }
    }

    /// Parses `venice-KIND-PID-START`, perhaps with `-` and more.
    fn of(name: &str, kind: &str) -> Option<Self> {
        let mut fields =
            name.strip_prefix("venice-")?.strip_prefix(kind)?.strip_prefix('-')?.split('-');
        let (pid, start) = (fields.next()?, fields.next()?);
        Some(Self { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? })
    }

    fn lives(self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }
}

/// Returns the start of a process as in proc(5); `None` once it is gone.
fn start_ticks(pid: u32) -> Option<u64> {
    ProcessStat::of(pid).map(|stat| stat.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_lives_with_its_process() {
        let this = Owner::this();
        assert!(this.lives() && this.start_ticks > 0);
        assert_eq!(Owner::of(&name(ZRAM), ZRAM), Some(this));
        assert_eq!(Owner::of(&format!("{}-7", name(ZRAM)), ZRAM), Some(this));
        // A process id with another start time is another process.
        assert!(!Owner { start_ticks: this.start_ticks + 1, ..this }.lives());
        for other in
            ["venice-bench-monitor-1-2", "venice-bench-x8Yz", "venice-swap-12", "bench-1-2"]
        {
            assert_eq!(Owner::of(other, FOLDER), None, "{other}");
            assert_eq!(Owner::of(other, SWAP_FILE), None, "{other}");
        }
    }

    #[test]
    fn only_remains_of_the_dead_are_found() {
        let parent = tempfile::tempdir().unwrap();
        // Process ids end at 4194304.
        for name in ["venice-bench-4194305-7-abc", "venice-rack-4194305-7", "other", &name(FOLDER)]
        {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let dead = parent.path().join("venice-bench-4194305-7-abc");
        assert_eq!(left_in(parent.path(), FOLDER), [dead]);
        assert!(left_in(Path::new("/nonexistent"), FOLDER).is_empty());
    }
}
