//! The directory of the sockets and files of all runs.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::record::run_dir;

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

    /// Returns the directory in this process's run directory; `None`: that does not exist.
    pub fn locate() -> Option<RunsDir> {
        // The program may change its directory meanwhile.
        let root = std::path::absolute(run_dir()?).ok()?;
        root.is_dir().then(|| RunsDir::of(&root))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates it, accessible to its owner alone.
    ///
    /// # Errors
    /// [`DirError`].
    pub fn create(&self) -> Result<(), DirError> {
        make_private_dir(&self.0)
    }

    /// Returns the path of the status socket of the process `pid`.
    pub fn socket_path(&self, pid: u32) -> PathBuf {
        self.0.join(format!("{pid}.sock"))
    }
}

/// Creates a directory accessible to its owner alone; an existing one is left as it is. Its parents
/// are not created: no one would remove them.
///
/// # Errors
/// [`DirError`].
pub fn make_private_dir(path: &Path) -> Result<(), DirError> {
    let shown = |path: &Path| path.display().to_string();
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(_) if path.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(DirError::NothingAbove {
            above: shown(path.parent().unwrap_or(path)),
            path: shown(path),
        }),
        Err(source) => Err(DirError::Refused { path: shown(path), source }),
    }
}
