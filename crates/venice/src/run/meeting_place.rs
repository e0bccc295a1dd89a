//! A run's directories, of its attach socket and of client drivers: in the directory for temporary
//! files, accessible to their owner only. A socket in each shows that it is in use.
//!
//! A killed run leaves its directory behind; the next run removes it. The name of the directory
//! identifies the owning process.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::rack::Identity;

const PREFIX: &str = "venice-run-";

/// A run's directory with a socket; removed on drop.
#[derive(Debug)]
pub struct MeetingPlace {
    folder: tempfile::TempDir,
}

impl MeetingPlace {
    /// Creates a directory and removes those left by killed runs of this user.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn new() -> anyhow::Result<MeetingPlace> {
        let above = std::env::temp_dir();
        sweep(&above);
        let me = Identity::of(std::process::id()).context("reading /proc")?;
        // Programs that change their user read there; nobody else writes, whatever the umask is.
        let mode = fs::Permissions::from_mode(0o755);
        let mut folder = tempfile::Builder::new();
        let folder = folder.prefix(&name_begins(me)).permissions(mode).tempdir_in(&above);
        let folder = folder.with_context(|| {
            let above = above.display();
            format!(
                "making a folder in {above} for the run: set TMPDIR to a folder that can be written"
            )
        })?;
        Ok(MeetingPlace { folder })
    }

    /// Creates a directory in it that nobody else writes to.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn create_dir(&self, name: &str) -> std::io::Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::DirBuilder::new().mode(0o755).recursive(true).create(&path)?;
        Ok(path)
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of the attach socket.
    pub fn socket(&self) -> PathBuf {
        socket_in(self.folder.path())
    }

    /// Starts listening on the attach socket.
    ///
    /// # Errors
    /// Returns the kernel's error, with the path.
    pub fn listen(&self) -> anyhow::Result<OwnedFd> {
        let path = self.socket();
        listen(&path).with_context(|| format!("listening at {}", path.display()))
    }
}

fn listen(path: &Path) -> rustix::io::Result<OwnedFd> {
    listen_alone(path, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Listens at a socket that other users do not reach, whatever the umask is.
///
/// # Errors
/// Returns the kernel's error.
pub fn listen_alone(
    path: &Path,
    kind: SocketType,
    flags: SocketFlags,
) -> rustix::io::Result<OwnedFd> {
    let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    // Before `listen`, which lets others in.
    rustix::fs::chmod(path, rustix::fs::Mode::RWXU)?;
    rustix::net::listen(&listener, 64)?;
    Ok(listener)
}

fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join("run.sock")
}

/// Returns the prefix of the directory's name; the rest is random.
fn name_begins(process: Identity) -> String {
    format!("{PREFIX}{}-{}-", process.pid, process.start_ticks)
}

/// Returns the process that owns the directory of this name.
fn whose(name: &OsStr) -> Option<Identity> {
    let mut numbers = name.to_str()?.strip_prefix(PREFIX)?.split('-');
    let (pid, start_ticks) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some(Identity { pid, start_ticks })
}

/// Removes directories in `above` whose runs have ended. A directory that cannot be removed stays;
/// nothing depends on it.
fn sweep(above: &Path) {
    let me = rustix::process::geteuid().as_raw();
    let Ok(entries) = fs::read_dir(above) else { return };
    for entry in entries.flatten() {
        let is_left = whose(&entry.file_name()).is_some_and(|process| !process.exists());
        let is_mine = || entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == me);
        // Where another PID namespace shares the directory, its processes are not visible here but
        // may listen.
        if is_left && is_mine() && !is_heard(&socket_in(&entry.path())) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// True if a process listens there, as far as can be determined.
fn is_heard(path: &Path) -> bool {
    let connect = || {
        let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    !matches!(connect(), Err(Errno::CONNREFUSED | Errno::NOENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_removes_dead_runs_only() {
        let above = tempfile::tempdir().unwrap();
        let make = |process: Identity, more: &str| {
            let folder = above.path().join(format!("{}{more}", name_begins(process)));
            fs::create_dir(&folder).unwrap();
            folder
        };
        let me = Identity::of(std::process::id()).unwrap();
        // A start time that does not match: the pid has been reused.
        let dead = Identity { start_ticks: me.start_ticks + 1, ..me };
        let (mine, empty, left, heard) =
            (make(me, "a"), make(dead, "b"), make(dead, "c"), make(dead, "d"));
        drop(listen(&socket_in(&left)).unwrap());
        let _listener = listen(&socket_in(&heard)).unwrap();
        let strange = above.path().join("venice-run-x");
        fs::create_dir(&strange).unwrap();
        sweep(above.path());
        for stays in [&mine, &heard, &strange] {
            assert!(stays.exists(), "{}", stays.display());
        }
        for gone in [&empty, &left] {
            assert!(!gone.exists(), "{}", gone.display());
        }
    }
}
