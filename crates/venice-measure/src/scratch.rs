//! What a benchmark makes outside its own process, by name.
//!
//! Guards remove everything on success, on errors and on Ctrl-C; on `kill -9` nobody does. So each
//! name has the process id of its maker and when that process began ([`Owner`]): what is found of an
//! owner that is gone ([`left_in`]) may be taken away, what a living one uses is never touched.

use std::fs::{self, DirEntry};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Where files are memory.
pub const MEMORY_FOLDER: &str = "/dev/shm";

/// Kinds of what is made, as names have them.
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

/// `venice-KIND-PID-START`, for what this process makes.
pub fn name(kind: &str) -> String {
    let Owner { pid, start_ticks } = Owner::this();
    format!("venice-{kind}-{pid}-{start_ticks}")
}

/// A folder for logs, sockets and files, removed when it is dropped.
///
/// # Errors
/// Where there is no room for it.
pub fn folder(kind: &str) -> Result<TempDir> {
    folder_in(&std::env::temp_dir(), kind)
}

/// The same in `parent`.
///
/// # Errors
/// Where there is no room for it.
pub fn folder_in(parent: &Path, kind: &str) -> Result<TempDir> {
    let prefix = format!("{}-", name(kind));
    let made = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
    made.with_context(|| format!("cannot make a folder in {}", parent.display()))
}

/// A file, made or yet to be, that is removed when this is dropped.
#[derive(Debug)]
pub struct RemovedFile {
    /// Path of the file.
    pub path: PathBuf,
}

impl Drop for RemovedFile {
    fn drop(&mut self) {
        // Absent where it could not be made.
        let _ = fs::remove_file(&self.path);
    }
}

/// What of `kind` dead processes left in `parent`. What another user calls so is not believed.
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

/// Who makes something: a process id alone may be another process's by the time somebody looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    pid: u32,
    /// Since the machine began.
    start_ticks: u64,
}

impl Owner {
    fn this() -> Self {
        let pid = std::process::id();
        Self { pid, start_ticks: start_ticks(pid).unwrap_or(0) }
    }

    /// Of `venice-KIND-PID-START`, perhaps with `-` and more.
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

/// When a process began, as proc(5) has it; `None` once it is gone.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything: what counts comes after the last one.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_in_the_name_and_lives_as_long_as_its_process() {
        let this = Owner::this();
        assert!(this.lives() && this.start_ticks > 0);
        assert_eq!(Owner::of(&name(ZRAM), ZRAM), Some(this));
        assert_eq!(Owner::of(&format!("{}-7", name(ZRAM)), ZRAM), Some(this));
        // The process id of a process that began at another time is not enough.
        assert!(!Owner { start_ticks: this.start_ticks + 1, ..this }.lives());
        for other in
            ["venice-bench-monitor-1-2", "venice-bench-x8Yz", "venice-swap-12", "bench-1-2"]
        {
            assert_eq!(Owner::of(other, FOLDER), None, "{other}");
            assert_eq!(Owner::of(other, SWAP_FILE), None, "{other}");
        }
    }

    #[test]
    fn only_what_the_dead_left_is_found() {
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
