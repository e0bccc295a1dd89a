//! The mount of a run's shared files: attached to no tree, so it is reached by its descriptor alone,
//! and it ends with the last descriptor of it and of its files.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use venice_fuse::mount::{self, Mount};

use super::tree::ROOT_MODE;

/// The reason why a run has no shared files.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// There is no FUSE.
    #[error("FUSE is not there (/dev/fuse: {0})")]
    Device(#[source] Errno),
    /// The mount is refused.
    #[error("mounting a FUSE file system is refused ({0})")]
    Mount(#[source] Errno),
    /// The kernel refused something else.
    #[error("the kernel refused it ({0})")]
    Kernel(#[from] Errno),
    /// A thread could not start.
    #[error("a thread could not start")]
    Thread(#[from] std::io::Error),
}

impl FilesError {
    /// Tries if the files can be mounted here.
    ///
    /// # Errors
    /// The reason why not.
    pub fn tried() -> Result<(), FilesError> {
        // The kernel's first request stays unanswered; the connection ends with its descriptor.
        mount(&open_device()?).map(drop)
    }
}

/// Opens the kernel's end of a connection.
pub(super) fn open_device() -> Result<OwnedFd, FilesError> {
    mount::open_device(false).map_err(FilesError::Device)
}

/// Mounts the file system of `device`. Its root is what all users of this machine may make files
/// in, as they may in `/dev/shm`.
pub(super) fn mount(device: &OwnedFd) -> Result<OwnedFd, FilesError> {
    let mount = Mount { source: "venice-shared", root_mode: ROOT_MODE, is_for_all: true };
    mount.make(device).map_err(FilesError::Mount)
}

/// Returns the device number of a mount, major number above minor. It sends no request.
pub(super) fn device_number(mount: &OwnedFd) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(mount, c"", flags, StatxFlags::INO)?;
    Ok(u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor))
}
