//! The folder where each program on borrowed memory has its desk and its file.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::record::run_dir;

/// The folder of the runs in a run directory. It need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunsDir(PathBuf);

/// Why a directory is not there.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// It was not to be made where none is above it.
    #[error("{above}: no such directory, for {path}: make it (mkdir -p)")]
    NothingAbove {
        /// What should be above it.
        above: String,
        /// It.
        path: String,
    },
    /// The kernel refused.
    #[error("making the directory {path}")]
    Refused {
        /// It.
        path: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl RunsDir {
    /// That of this run directory.
    pub fn of(run_dir: &Path) -> RunsDir {
        RunsDir(run_dir.join("runs"))
    }

    /// That of the run directory of this process; `None`: there is no such directory.
    pub fn locate() -> Option<RunsDir> {
        // Whoever borrows may go to another directory meanwhile.
        let root = std::path::absolute(run_dir()?).ok()?;
        root.is_dir().then(|| RunsDir::of(&root))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it, for its owner alone.
    ///
    /// # Errors
    /// [`DirError`].
    pub fn create(&self) -> Result<(), DirError> {
        make_private_dir(&self.0)
    }

    /// Where the desk of the process `pid` is.
    pub fn desk_path(&self, pid: u32) -> PathBuf {
        self.0.join(format!("{pid}.sock"))
    }
}

/// Makes a directory for its owner alone; one that is there is as its owner wants it. Not the
/// directories above it: nobody would take those away again.
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
