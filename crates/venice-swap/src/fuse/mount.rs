//! A FUSE file without a path: the mount is attached to no tree, its root is the file itself, and
//! it ends with the last descriptor. A killed server leaves nothing behind.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

use super::protocol::FILE_MODE;
use crate::{SwapError, sys};

/// Opens the kernel's end of a FUSE connection.
pub(super) fn open_device() -> Result<File, SwapError> {
    const PATH: &str = "/dev/fuse";
    match OpenOptions::new().read(true).write(true).open(PATH) {
        Ok(device) => Ok(device),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(SwapError::Missing { what: "FUSE (/dev/fuse)", mend: "modprobe fuse" })
        }
        Err(error) => Err(SwapError::file("open", PATH)(error)),
    }
}

/// Opens one more queue of the same connection.
pub(super) fn clone_device(device: &File) -> Result<File, SwapError> {
    let clone = open_device()?;
    sys::fuse_clone(&clone, device).map_err(SwapError::at("a further FUSE queue"))?;
    Ok(clone)
}

/// Mounts the file system of `device`; the descriptor is the mount. The first request, `Init`,
/// waits in the device from here on.
pub(super) fn mount(device: &File) -> Result<OwnedFd, SwapError> {
    let mount = || {
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let options = [
            ("source", "venice-swap".to_owned()),
            ("fd", device.as_raw_fd().to_string()),
            ("rootmode", format!("{FILE_MODE:o}")),
            ("user_id", "0".to_owned()),
            ("group_id", "0".to_owned()),
        ];
        for (key, value) in &options {
            fsconfig_set_string(context.as_fd(), *key, value)?;
        }
        fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    mount().map_err(SwapError::at("mounting a FUSE file"))
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
