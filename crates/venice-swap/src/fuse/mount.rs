//! A FUSE file without a path: the mount is attached to no tree, its root is the file itself, and
//! it ends with the last descriptor. A killed server leaves nothing behind.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::io::Errno;
use venice_fuse::mount::{self, Mount};

use super::protocol::FILE_MODE;
use crate::{SwapError, sys};

/// Opens the kernel's end of a FUSE connection.
pub(super) fn open_device() -> Result<File, SwapError> {
    match mount::open_device(true) {
        Ok(device) => Ok(File::from(device)),
        Err(Errno::NOENT) => {
            Err(SwapError::Missing { what: "FUSE (/dev/fuse)", mend: "modprobe fuse" })
        }
        Err(error) => Err(SwapError::file("open", "/dev/fuse")(error.into())),
    }
}

/// Opens one more queue of the same connection.
pub(super) fn clone_device(device: &File) -> Result<File, SwapError> {
    let clone = open_device()?;
    sys::fuse_clone(&clone, device).map_err(SwapError::at("a further FUSE queue"))?;
    Ok(clone)
}

/// Mounts the file system of `device`; the descriptor is the mount.
pub(super) fn mount(device: &File) -> Result<OwnedFd, SwapError> {
    let mount = Mount { source: "venice-swap", root_mode: FILE_MODE, is_for_all: false };
    mount.make(device).map_err(SwapError::at("mounting a FUSE file"))
}

/// Opens the file that is the root of `mount` with direct I/O. The server must be running, and
/// receives a request for the file's length: the loop driver of older kernels uses the cached one.
pub(super) fn open_file(mount: &OwnedFd) -> Result<File, SwapError> {
    let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    let open = || -> std::io::Result<File> {
        let file = options.open(&path)?;
        file.metadata()?;
        Ok(file)
    };
    open().map_err(SwapError::file("open", &path))
}
