//! Connections and mounts. A mount is attached to no tree: it is reached by its descriptor alone,
//! and ends with the last descriptor of it and of its files, so a killed server leaves nothing.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

/// A mount to be made.
#[derive(Clone, Copy, Debug)]
pub struct Mount<'a> {
    /// Its name in lists of mounts.
    pub source: &'a str,
    /// Kind and mode bits of its root.
    pub root_mode: u32,
    /// True if all users may use it, as far as the files' modes allow; else root alone.
    pub is_for_all: bool,
}

/// Opens the kernel's end of a connection (`/dev/fuse`). It may be opened to return at once where
/// there is no request.
///
/// # Errors
/// The kernel's: `ENOENT`, there is no FUSE.
pub fn open_device(waits: bool) -> Result<OwnedFd, Errno> {
    let nonblocking = if waits { OFlags::empty() } else { OFlags::NONBLOCK };
    openat(CWD, c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | nonblocking, Mode::empty())
}

impl Mount<'_> {
    /// Mounts the file system of `device`. The first request, [`Init`](crate::Call::Init), waits in
    /// the device from here on.
    ///
    /// # Errors
    /// The kernel's: `EPERM`, without CAP_SYS_ADMIN.
    pub fn make(&self, device: impl AsFd) -> Result<OwnedFd, Errno> {
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let options = [
            ("source", self.source.to_owned()),
            ("fd", device.as_fd().as_raw_fd().to_string()),
            ("rootmode", format!("{:o}", self.root_mode)),
            ("user_id", "0".to_owned()),
            ("group_id", "0".to_owned()),
        ];
        for (key, value) in &options {
            fsconfig_set_string(context.as_fd(), *key, value)?;
        }
        if self.is_for_all {
            for flag in ["allow_other", "default_permissions"] {
                fsconfig_set_flag(context.as_fd(), flag)?;
            }
        }
        fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    }
}
