//! Errors of creating and removing a swap device.

use std::io::ErrorKind;
use std::path::PathBuf;

use rustix::io::Errno;
use venice_wire::ByteSize;

/// An error of a swap device or its surroundings.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// A system call failed.
    #[error("{step} failed")]
    System {
        /// The failed step.
        step: &'static str,
        /// The kernel's error.
        source: Errno,
    },
    /// A file of the kernel could not be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation: `read`, `write`, `make`, ...
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The user lacks the permission.
    #[error("kernel swap and memory cgroups need root: run this with sudo")]
    NotRoot,
    /// This kernel lacks a feature, or a device of it is missing.
    #[error("this kernel has no {what}: {mend}")]
    Missing {
        /// The missing feature.
        what: &'static str,
        /// The remedy.
        mend: &'static str,
    },
    /// Swapping everything back in needs more memory than is available.
    #[error(
        "{} are on it and only {} of memory are available: end some programs first",
        ByteSize(*used_bytes), ByteSize(*available_bytes)
    )]
    NoRoom {
        /// Bytes to swap in.
        used_bytes: u64,
        /// Bytes available.
        available_bytes: u64,
    },
    /// A memory cgroup may not keep its contents of the device resident.
    #[error(
        "the memory cgroup {} has up to {} on it and may keep only {} more resident: raise its limit \
         or end its programs first",
        group.display(), ByteSize(*coming_bytes), ByteSize(*room_bytes)
    )]
    GroupFull {
        /// Its folder.
        group: PathBuf,
        /// The most bytes it has on the device.
        coming_bytes: u64,
        /// Bytes it may take back.
        room_bytes: u64,
    },
    /// No cgroup has this name.
    #[error(
        "there is no cgroup {}: name its folder, or its path below {}",
        group.display(), mount.display()
    )]
    NoSuchGroup {
        /// The requested group.
        group: PathBuf,
        /// The mount point of memory cgroups.
        mount: PathBuf,
    },
    /// The folder is not a cgroup that can have a memory limit.
    #[error(
        "{} is not a memory cgroup that can have a limit: those are the folders below {}",
        group.display(), mount.display()
    )]
    NotMemoryGroup {
        /// The requested group.
        group: PathBuf,
        /// The mount point of memory cgroups.
        mount: PathBuf,
    },
    /// A process would leave a limit with its group.
    #[error(
        "the program would leave the limit that {} sets: remove it, set it for the group above (its \
         slice), or run the program elsewhere",
        limit.display()
    )]
    LimitLeft {
        /// The file that sets the limit.
        limit: PathBuf,
    },
    /// A process may not be moved into a user's memory cgroup.
    #[error("the process is not moved into a memory cgroup: {why}")]
    ForeignProcess {
        /// The reason.
        why: &'static str,
    },
    /// A memory cgroup could not be removed.
    #[error("the memory cgroup {} still has processes", group.display())]
    GroupBusy {
        /// Its folder.
        group: PathBuf,
    },
}

impl SwapError {
    /// No memory cgroup exists to limit programs.
    #[must_use]
    pub fn no_memory_cgroup() -> Self {
        let mend = "mount -t cgroup2 none /sys/fs/cgroup";
        Self::Missing { what: "memory cgroup controller mounted", mend }
    }

    /// The kernel does not support FUSE requests over io_uring.
    pub(crate) fn no_fuse_rings() -> Self {
        let mend = "Linux 6.14 has it (CONFIG_FUSE_IO_URING); until then take fuse";
        Self::Missing { what: "FUSE over io_uring", mend }
    }

    /// FUSE over io_uring is supported and switched off.
    pub(crate) fn fuse_rings_off() -> Self {
        let mend = "write Y to /sys/module/fuse/parameters/enable_uring, which is read-only here, \
                    from outside; until then take fuse";
        Self::Missing { what: "FUSE over io_uring switched on", mend }
    }

    /// True if the kernel reported EBUSY.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == ErrorKind::ResourceBusy)
    }

    pub(crate) fn at(step: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::System { step, source }
    }

    pub(crate) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}
