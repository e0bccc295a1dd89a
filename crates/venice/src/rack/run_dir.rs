//! The run directory: record, sockets, logs and store of a local rack.

use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::fs::{FlockOperation, flock};
use venice_recipient::local_rack::is_listened_at;
use venice_recipient::runs::{self, DirError, RunsDir, make_private_dir};

use venice_cli::failure::Usage;
use venice_cli::terminal;

/// Timeout of one `venice up` or `venice down` waiting for another.
const LOCK_PATIENCE: Duration = Duration::from_secs(120);
const LOCK_POLL: Duration = Duration::from_millis(50);

/// The run directory of one rack.
#[derive(Clone, Debug)]
pub struct RunDir {
    root: PathBuf,
}

/// Exclusive lock of the directory against other `venice up` and `venice down`, until dropped.
#[derive(Debug)]
pub struct RunDirLock {
    file: File,
}

impl Drop for RunDirLock {
    fn drop(&mut self) {
        // Closing is not enough: a child forked a moment ago may have the file open too.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl RunDir {
    /// Returns `$VENICE_RUN_DIR`, else `/run/venice` for root, else `$XDG_RUNTIME_DIR/venice`, else
    /// `/tmp/venice-UID`. The directory need not exist.
    pub fn locate() -> anyhow::Result<RunDir> {
        let root = venice_recipient::local_rack::run_dir();
        let root = std::path::absolute(&root)
            .with_context(|| format!("run directory {}", root.display()))?;
        // The daemons get it as an argument, and other programs in JSON.
        if root.to_str().is_none() {
            let said =
                format!("the run directory {root:?} is not UTF-8: set another VENICE_RUN_DIR");
            return Err(Usage(said).into());
        }
        Ok(RunDir { root })
    }

    /// Returns the run directory at `path`.
    pub fn at(path: &Path) -> RunDir {
        RunDir { root: path.to_path_buf() }
    }

    /// Absolute path of the directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Path of the rack's record.
    pub fn record_path(&self) -> PathBuf {
        self.root.join(venice_recipient::local_rack::RECORD_FILE)
    }

    /// Path of a record being written, before it replaces the old one.
    pub fn half_record_path(&self) -> PathBuf {
        self.record_path().with_extension("json.new")
    }

    /// Directory of the run files and status sockets of this user's programs.
    pub fn runs_dir(&self) -> RunsDir {
        RunsDir::of_user(&self.root)
    }

    /// Directory of one process: `monitor`, `node1`, ...
    pub fn process_dir(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Path of the log of the process `name`.
    pub fn log_path(&self, name: &str) -> PathBuf {
        self.process_dir(name).join("log")
    }

    /// Path of the file in which the process `name` reports its addresses once it is ready.
    pub fn ready_path(&self, name: &str) -> PathBuf {
        self.process_dir(name).join("ready.json")
    }

    /// Path of the socket over which the agent `name` hands out memory on this host.
    pub fn shm_socket_path(&self, name: &str) -> PathBuf {
        self.process_dir(name).join("shm.sock")
    }

    /// Directory of the service hosts of the node `name`.
    pub fn hosts_dir(&self, name: &str) -> PathBuf {
        self.process_dir(name).join("hosts")
    }

    /// Directory of what devices' drivers have compiled on the node `name`.
    pub fn builds_dir(&self, name: &str) -> PathBuf {
        self.process_dir(name).join("builds")
    }

    /// Directory of the certificate of the node `name`.
    pub fn identity_dir(&self, name: &str) -> PathBuf {
        self.process_dir(name).join("identity")
    }

    /// Path of the Monitor Node's socket for programs of this machine.
    pub fn monitor_socket_path(&self) -> PathBuf {
        self.root.join(venice_recipient::local_rack::MONITOR_SOCKET)
    }

    /// Directory of the Monitor Node's store.
    pub fn monitor_state_dir(&self) -> PathBuf {
        self.process_dir("monitor").join("state")
    }

    /// Path of the socket by which users of this machine page.
    pub fn helper_socket_path(&self) -> PathBuf {
        self.root.join(venice_recipient::local_rack::HELPER_SOCKET)
    }

    /// Path of the socket by which users of this machine run programs on swap.
    pub fn swap_helper_socket_path(&self) -> PathBuf {
        self.root.join(venice_recipient::local_rack::SWAP_HELPER_SOCKET)
    }

    /// Creates the directory, accessible to its owner only.
    pub fn create(&self) -> anyhow::Result<()> {
        // An existing directory keeps its owner's permissions.
        let is_new = !self.root.exists();
        make_private_dir(&self.root).map_err(|error| match error {
            DirError::Refused { source, .. } => self.refusal(&self.root, &source),
            error @ (DirError::NothingAbove { .. } | DirError::OfOthers { .. }) => error.into(),
        })?;
        if is_new {
            self.mark()?;
        }
        Ok(())
    }

    /// Lets the members of a group, if the machine has it, reach the sockets in the directory. One that
    /// was not made by Venice keeps its owner's permissions.
    pub fn admit(&self, group: &str) -> anyhow::Result<()> {
        if self.mark_path().exists() {
            allow_group(&self.root, group)?;
        }
        Ok(())
    }

    /// Lets them reach the sockets of the process `name`.
    pub fn admit_to_process(&self, name: &str, group: &str) -> anyhow::Result<()> {
        allow_group(&self.process_dir(name), group)
    }

    /// Marks the directory as made by Venice, which removes it again.
    fn mark(&self) -> anyhow::Result<()> {
        let path = self.mark_path();
        match File::create(&path) {
            // Another process has removed the directory meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.refusal(&path, &error)),
            Ok(_) => Ok(()),
        }
    }

    fn mark_path(&self) -> PathBuf {
        self.root.join(".made-by-venice")
    }

    /// Creates the directory of the process `name`, accessible to its owner only.
    pub fn create_process_dir(&self, name: &str) -> anyhow::Result<()> {
        let path = self.process_dir(name);
        if path.exists() && !path.is_dir() {
            let path = path.display();
            bail!("{path} is not a directory: remove it, or set another VENICE_RUN_DIR");
        }
        Ok(make_private_dir(&path)?)
    }

    /// Waits for every other `venice up` and `venice down` on this directory.
    pub fn lock(&self) -> anyhow::Result<RunDirLock> {
        let path = self.root.join("lock");
        let deadline = Instant::now() + LOCK_PATIENCE;
        let mut said = false;
        loop {
            self.create()?;
            let opened = File::options().create(true).truncate(false).write(true).open(&path);
            let file = match opened {
                // Another process has removed the directory meanwhile.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && Instant::now() < deadline =>
                {
                    continue;
                }
                opened => opened.map_err(|error| self.refusal(&path, &error))?,
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // `venice down` unlinks its locked file: a lock on that file would protect nothing.
                Ok(()) if is_same_file(&file, &path) => return Ok(RunDirLock { file }),
                Ok(()) => continue,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("locking {}", path.display()));
                }
            }
            if Instant::now() > deadline {
                bail!("another `venice up` or `venice down` holds {}", self.root.display());
            }
            if !said {
                terminal::remark("waiting for another `venice up` or `venice down` to finish");
                said = true;
            }
            std::thread::sleep(LOCK_POLL);
        }
    }

    /// Checks that this user may list it; a directory that does not exist is an empty one.
    pub fn check_readable(&self) -> anyhow::Result<()> {
        match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(self.refusal(&self.root, &error))
            }
            // Any other error has its message where the directory is read.
            _ => Ok(()),
        }
    }

    /// Converts the error of an access to `path`, the directory or a file in it, into one with a
    /// remedy.
    pub fn refusal(&self, path: &Path, error: &io::Error) -> anyhow::Error {
        let root = self.root.display();
        let owner = fs::metadata(&self.root).map(|meta| meta.uid());
        let own = rustix::process::geteuid().as_raw();
        match (error.kind(), owner) {
            (io::ErrorKind::PermissionDenied, Ok(uid)) if uid != own => anyhow!(
                "the rack in {root} belongs to another user (user id {uid}): run this as that user or as \
                 root, or set VENICE_RUN_DIR for a rack of your own"
            ),
            (io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists, _) => {
                anyhow!("{root} is not a directory: set VENICE_RUN_DIR to one")
            }
            (io::ErrorKind::IsADirectory, _) => is_a_directory(path),
            _ => anyhow!(
                "the run directory {root} cannot be used: {}: {error}: set another VENICE_RUN_DIR",
                path.display()
            ),
        }
    }

    /// Removes the files of a rack with these processes, and the directory if Venice has made it and
    /// nothing else is in it. The lock is removed last, still held by `_lock`.
    pub fn remove(&self, processes: &[String], _lock: &RunDirLock) -> anyhow::Result<()> {
        self.remove_processes(processes)?;
        remove_file(&self.record_path())?;
        remove_file(&self.half_record_path())?;
        let sockets =
            [self.monitor_socket_path(), self.helper_socket_path(), self.swap_helper_socket_path()];
        // A daemon that `venice up` has not started goes on listening.
        sockets
            .iter()
            .filter(|path| !is_listened_at(path))
            .try_for_each(|path| remove_file(path))?;
        runs::sweep(&self.runs_dir());
        // Programs may still use it.
        let _ = fs::remove_dir(self.runs_dir().path());
        remove_file(&self.root.join("lock"))?;
        self.remove_root()
    }

    fn remove_root(&self) -> anyhow::Result<()> {
        let mark = self.mark_path();
        let Ok(mut entries) = fs::read_dir(&self.root) else { return Ok(()) };
        let is_foreign = |entry: io::Result<DirEntry>| entry.map_or(true, |it| it.path() != mark);
        if !mark.exists() || entries.any(is_foreign) {
            return Ok(());
        }
        remove_file(&mark)?;
        match fs::remove_dir(&self.root) {
            Ok(()) => Ok(()),
            // Another `venice up` has begun: its rack's end removes the directory.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => self.mark(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // A mount point stays (a container's volume, systemd's RuntimeDirectory).
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            Err(error) => Err(error).with_context(|| format!("removing {}", self.root.display())),
        }
    }

    /// Removes the logs, sockets and store of these processes.
    pub fn remove_processes(&self, processes: &[String]) -> anyhow::Result<()> {
        processes.iter().try_for_each(|name| remove_tree(&self.process_dir(name)))
    }

    /// Returns the directories named like a process of a rack: `monitor`, `router`, `node1`,
    /// `node2`, ...
    pub fn process_dirs(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.root) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| matches!(&**name, "monitor" | "router") || is_node_name(name))
            .collect();
        names.sort();
        names
    }
}

/// True if `name` is one that `venice up` gives: `node` and a number.
pub fn is_node_name(name: &str) -> bool {
    name.strip_prefix("node")
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn is_same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => a.dev() == b.dev() && a.ino() == b.ino(),
        _ => false,
    }
}

/// Removes a file; a missing file is no error.
pub fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => Err(is_a_directory(path)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn is_a_directory(path: &Path) -> anyhow::Error {
    let path = path.display();
    anyhow!("{path} is a directory that no rack has made: remove it, or set another VENICE_RUN_DIR")
}

fn remove_tree(path: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        // Missing, or a file that no rack has made.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(()),
        Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
    }
}

fn allow_group(dir: &Path, group: &str) -> anyhow::Result<()> {
    venice_control::server::allow_group(dir, group)
        .with_context(|| format!("opening {} to the group {group}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_temp() -> (tempfile::TempDir, RunDir) {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("rack");
        (temp, RunDir { root })
    }

    #[test]
    fn lock_excludes_others_until_dropped() {
        let (_temp, dir) = in_temp();
        let lock = dir.lock().unwrap();
        let file = File::open(dir.path().join("lock")).unwrap();
        let second = flock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(second, Err(rustix::io::Errno::WOULDBLOCK));
        drop(lock);
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    }

    #[test]
    fn remove_keeps_foreign_files() {
        let (_temp, dir) = in_temp();
        let lock = dir.lock().unwrap();
        dir.create_process_dir("node1").unwrap();
        fs::write(dir.path().join("mine.txt"), "").unwrap();
        assert_eq!(dir.process_dirs(), ["node1"]);
        dir.remove(&dir.process_dirs(), &lock).unwrap();
        assert!(!dir.process_dir("node1").exists());
        assert!(dir.path().join("mine.txt").exists());
        drop(lock);
        // A new lock is a new file: the old one was unlinked while held.
        let lock = dir.lock().unwrap();
        fs::remove_file(dir.path().join("mine.txt")).unwrap();
        dir.remove(&[], &lock).unwrap();
        assert!(!dir.path().exists());
    }

    #[test]
    fn remove_keeps_foreign_directory() {
        let (_temp, dir) = in_temp();
        fs::create_dir(dir.path()).unwrap();
        let lock = dir.lock().unwrap();
        dir.create_process_dir("node1").unwrap();
        dir.remove(&dir.process_dirs(), &lock).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn unusable_directory_names_remedy() {
        let (_temp, dir) = in_temp();
        fs::write(dir.path(), "").unwrap();
        let refused = dir.lock().unwrap_err().to_string();
        assert!(refused.contains("set VENICE_RUN_DIR"), "{refused}");
        fs::remove_file(dir.path()).unwrap();
        let lock = dir.lock().unwrap();
        fs::create_dir(dir.record_path()).unwrap();
        let refused = dir.remove(&[], &lock).unwrap_err().to_string();
        assert!(refused.contains("remove it"), "{refused}");
        fs::write(dir.process_dir("monitor"), "").unwrap();
        let refused = dir.create_process_dir("monitor").unwrap_err().to_string();
        assert!(refused.contains("remove it"), "{refused}");
    }

    #[test]
    fn remove_sweeps_dead_runs() {
        let (_temp, dir) = in_temp();
        let lock = dir.lock().unwrap();
        dir.runs_dir().create().unwrap();
        // Process ids end at 4194304.
        for name in ["4194305.json", "4194305.sock", "4194306.new"] {
            fs::write(dir.runs_dir().path().join(name), "").unwrap();
        }
        let living = dir.runs_dir().socket_path(std::process::id());
        fs::write(&living, "").unwrap();
        dir.remove(&[], &lock).unwrap();
        let left: Vec<_> = fs::read_dir(dir.runs_dir().path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        fs::remove_file(living).unwrap();
        dir.remove(&[], &lock).unwrap();
        assert!(!dir.path().exists());
    }

    #[test]
    fn create_needs_parent_directory() {
        let (_temp, dir) = in_temp();
        let nested = RunDir::at(&dir.path().join("deep"));
        let refused = nested.create().unwrap_err().to_string();
        assert!(refused.contains("make it"), "{refused}");
        assert!(!dir.path().exists());
        dir.create().unwrap();
        nested.create().unwrap();
        nested.create().unwrap();
    }

    #[test]
    fn node_names() {
        assert!(is_node_name("node1") && is_node_name("node250"));
        assert!(!is_node_name("node") && !is_node_name("nodeA") && !is_node_name("monitor"));
    }
}
