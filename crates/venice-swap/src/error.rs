//! Why there is no swap device, or why it cannot go.

use std::io::ErrorKind;
use std::path::PathBuf;

use rustix::io::Errno;
use venice_wire::ByteSize;

/// What can go wrong with a swap device and what is around it.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// A system call failed.
    #[error("{step} failed")]
    System {
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        source: Errno,
    },
    /// A file of the kernel could not be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// `read`, `write`, `make`, ...
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// This user may not.
    #[error("kernel swap and memory cgroups need root: run this with sudo")]
    NotRoot,
    /// No device that this kernel has can be used.
    #[error("this kernel has no {what}: {mend}")]
    Missing {
        /// What it lacks.
        what: &'static str,
        /// What to do about it.
        mend: &'static str,
    },
    /// Bringing everything home needs more memory than there is.
    #[error(
        "{} are on it and only {} of memory are available: end some programs first",
        ByteSize(*used_bytes), ByteSize(*available_bytes)
    )]
    NoRoom {
        /// What would come home.
        used_bytes: u64,
        /// Where to.
        available_bytes: u64,
    },
    /// A memory cgroup may not keep resident what it has on the device.
    #[error(
        "the memory cgroup {} has up to {} on it and may keep only {} more resident: raise its limit \
         or end its programs first",
        group.display(), ByteSize(*coming_bytes), ByteSize(*room_bytes)
    )]
    GroupFull {
        /// Its folder.
        group: PathBuf,
        /// What it has on the device, at most.
        coming_bytes: u64,
        /// What it may take back.
        room_bytes: u64,
    },
    /// There is no cgroup of this name.
    #[error(
        "there is no cgroup {}: name its folder, or its path below {}",
        group.display(), mount.display()
    )]
    NoSuchGroup {
        /// What was asked for.
        group: PathBuf,
        /// Where memory cgroups are.
        mount: PathBuf,
    },
    /// Not a cgroup that can have a memory limit.
    #[error(
        "{} is not a memory cgroup that can have a limit: those are the folders below {}",
        group.display(), mount.display()
    )]
    NotMemoryGroup {
        /// What was asked for.
        group: PathBuf,
        /// Where memory cgroups are.
        mount: PathBuf,
    },
    /// A memory cgroup could not be taken away.
    #[error("the memory cgroup {} still has processes", group.display())]
    GroupBusy {
        /// Its folder.
        group: PathBuf,
    },
}

impl SwapError {
    /// There is no memory cgroup to hold programs to a limit.
    #[must_use]
    pub fn no_memory_cgroup() -> Self {
        let mend = "mount -t cgroup2 none /sys/fs/cgroup";
        Self::Missing { what: "memory cgroup controller mounted", mend }
    }

    /// FUSE requests do not come by rings here.
    pub(crate) fn no_fuse_rings() -> Self {
        let mend = "Linux 6.14 has it (CONFIG_FUSE_IO_URING); until then take fuse";
        Self::Missing { what: "FUSE over io_uring", mend }
    }

    /// They would, if somebody had said so.
    pub(crate) fn fuse_rings_off() -> Self {
        let mend = "write Y to /sys/module/fuse/parameters/enable_uring, which is read-only here, \
                    from outside; until then take fuse";
        Self::Missing { what: "FUSE over io_uring switched on", mend }
    }

    /// Did the kernel say that it is busy with what it was asked for?
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
