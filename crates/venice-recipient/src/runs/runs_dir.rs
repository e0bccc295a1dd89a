//! The directory of the sockets and files of all runs.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::record::{SYSTEM_RUN_DIR, is_run_dir_set, run_dir, run_dir_of_user};

/// The directory of the runs in a run directory. It need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunsDir(PathBuf);

/// The reason why a directory is missing.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// Its parent does not exist.
    #[error("{above}: no such directory, for {path}: make it (mkdir -p)")]
    NothingAbove {
        /// The parent.
        above: String,
        /// The directory.
        path: String,
    },
    /// Another user could replace what is in it.
    #[error(
        "{path} cannot be trusted: {why}: choose another VENICE_RUN_DIR, or make it private (chown, \
         chmod 700)"
    )]
    OfOthers {
        /// The directory.
        path: String,
        /// The reason.
        why: String,
    },
    /// The kernel refused.
    #[error("making the directory {path}")]
    Refused {
        /// The directory.
        path: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl RunsDir {
    /// Returns the directory in this run directory.
    pub fn of(run_dir: &Path) -> RunsDir {
        RunsDir(run_dir.join("runs"))
    }

    /// Returns the directory for the runs of this user with this run directory: in it, unless it is
    /// another user's (a rack for a group); then in the user's own.
    pub fn of_user(run_dir: &Path) -> RunsDir {
        let user = rustix::process::geteuid();
        let is_anothers = |found: fs::Metadata| !user.is_root() && found.uid() != user.as_raw();
        match fs::metadata(run_dir).is_ok_and(is_anothers) {
            true => RunsDir::of(&run_dir_of_user()),
            false => RunsDir::of(run_dir),
        }
    }

    /// Returns the directory for this process's run; `None`: the run directory that the environment
    /// names does not exist.
    pub fn locate() -> Option<RunsDir> {
        // The program may change its directory meanwhile.
        let root = std::path::absolute(run_dir()).ok()?;
        (root.is_dir() || !is_run_dir_set()).then(|| RunsDir::of_user(&root))
    }

    /// Returns the existing directories of all users. The caller may be allowed to read some alone.
    pub fn of_all_users() -> Vec<RunsDir> {
        let inside = |dir: &str| fs::read_dir(dir).into_iter().flatten().flatten();
        let sessions = inside("/run/user").map(|user| user.path().join("venice"));
        let is_own = |name: &std::ffi::OsStr| {
            name.to_str().and_then(|name| name.strip_prefix("venice-")).is_some_and(is_number)
        };
        let others = inside("/tmp").filter(|dir| is_own(&dir.file_name())).map(|dir| dir.path());
        let all = sessions.chain(others).chain([PathBuf::from(SYSTEM_RUN_DIR)]);
        all.map(|dir| RunsDir::of(&dir)).filter(|runs| runs.0.is_dir()).collect()
    }

    /// True if it is a directory of this user's.
    pub fn is_own(&self) -> bool {
        let user = rustix::process::geteuid().as_raw();
        fs::symlink_metadata(&self.0).is_ok_and(|found| found.is_dir() && found.uid() == user)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates it, accessible to its owner alone; the user's own run directory too.
    ///
    /// # Errors
    /// [`DirError`].
    pub fn create(&self) -> Result<(), DirError> {
        let own = run_dir_of_user();
        if self.0.parent() == Some(&own) {
            make_private_dir(&own)?;
        }
        make_private_dir(&self.0)
    }

    /// Returns the path of the status socket of the process `pid`.
    pub fn socket_path(&self, pid: u32) -> PathBuf {
        self.0.join(format!("{pid}.sock"))
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Creates a directory accessible to its owner alone. An existing one is left as it is, if no other
/// user can replace what is in it. Its parents are not created: no one would remove them.
///
/// # Errors
/// [`DirError`].
pub fn make_private_dir(path: &Path) -> Result<(), DirError> {
    let shown = |path: &Path| path.display().to_string();
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(_) if path.is_dir() => check_owner(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(DirError::NothingAbove {
            above: shown(path.parent().unwrap_or(path)),
            path: shown(path),
        }),
        Err(source) => Err(DirError::Refused { path: shown(path), source }),
    }
}

/// Checks that an existing directory, or a link to one, is this user's or root's, and that no other
/// user may write to it.
///
/// # Errors
/// [`DirError::OfOthers`].
fn check_owner(path: &Path) -> Result<(), DirError> {
    let user = rustix::process::geteuid().as_raw();
    let refused = |why: String| Err(DirError::OfOthers { path: path.display().to_string(), why });
    let found = [fs::symlink_metadata(path), fs::metadata(path)];
    for found in found.into_iter().flatten() {
        let (owner, mode) = (found.uid(), found.mode());
        if owner != user && owner != 0 {
            return refused(format!("it belongs to the user with the id {owner}"));
        }
        // The mode of a link says nothing.
        if !found.is_symlink() && mode & 0o022 != 0 {
            return refused(format!("others may write to it (mode {:03o})", mode & 0o777));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn writable_directories_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lab");
        make_private_dir(&path).unwrap();
        make_private_dir(&path).unwrap();
        for (mode, is_right) in [(0o755, true), (0o750, true), (0o777, false), (0o770, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(make_private_dir(&path).is_ok(), is_right, "{mode:o}");
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let refused = make_private_dir(&link).unwrap_err().to_string();
        assert!(refused.contains("link") && refused.contains("mode 770"), "{refused}");
    }

    #[test]
    fn anothers_directory_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lab");
        make_private_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let refused = make_private_dir(&path).unwrap_err().to_string();
        assert!(refused.contains("65534") && refused.contains("VENICE_RUN_DIR"), "{refused}");
    }
}
