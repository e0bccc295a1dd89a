//! The block device between the kernel's paging and the server: the best kind this kernel has.

use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use crate::backing::Backing;
use crate::fuse::{self, FuseServer};
use crate::loop_device::LoopDevice;
use crate::nbd::{self, NbdDevice};
use crate::shield::IoFlusher;
use crate::store::Store;
use crate::ublk::{self, UblkDevice};
use crate::{SwapError, require_root};

/// The transport of the kernel's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// A block device in user space, over io_uring.
    Ublk,
    /// Network block device, over socket pairs.
    Nbd,
    /// A FUSE file under a loop device with direct I/O, its requests over io_uring.
    FuseRing,
    /// The same, its requests read from `/dev/fuse`.
    FuseLoop,
}

impl BlockKind {
    /// Returns the first kind that this kernel has; loads the modules.
    #[must_use]
    pub fn best() -> Self {
        load_module(!Path::new("/dev/ublk-control").exists(), "ublk_drv");
        if Self::ublk_serves().is_ok() {
            return Self::Ublk;
        }
        load_module(!nbd::is_there(), "nbd");
        if nbd::is_there() {
            return Self::Nbd;
        }
        load_module(!Path::new("/sys/module/fuse").exists(), "fuse");
        if Self::fuse_rings_serve().is_ok() { Self::FuseRing } else { Self::FuseLoop }
    }

    /// Checks that this kernel has ublk devices that can be swapped to; the module must be loaded.
    ///
    /// # Errors
    /// [`SwapError::Missing`] if it has none, or none that outlive their server (Linux 6.13);
    /// others if they, or io_uring, may not be used.
    pub fn ublk_serves() -> Result<(), SwapError> {
        ublk::check()
    }

    /// Checks that FUSE requests can come over io_uring here; the module must be loaded.
    ///
    /// # Errors
    /// [`SwapError::Missing`] if the kernel lacks the feature (Linux 6.14), or it is switched off
    /// and this process may not change that; others if io_uring may not be used.
    pub fn fuse_rings_serve() -> Result<(), SwapError> {
        fuse::ring::check()
    }

    /// Returns the name used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
            Self::FuseRing => "fuse-ring",
            Self::FuseLoop => "fuse",
        }
    }
}

impl FromStr for BlockKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ublk" => Ok(Self::Ublk),
            "nbd" => Ok(Self::Nbd),
            "fuse-ring" => Ok(Self::FuseRing),
            "fuse" => Ok(Self::FuseLoop),
            _ => Err("unknown kind of block device: write ublk, nbd, fuse-ring or fuse".to_owned()),
        }
    }
}

/// A block device whose bytes are a store's. Dropped, it is removed once it is no longer in use.
#[derive(Debug)]
pub(crate) enum BlockDevice {
    FuseLoop { device: LoopDevice, _server: FuseServer },
    Nbd(NbdDevice),
    Ublk(Box<UblkDevice>),
}

impl BlockDevice {
    /// Serves `store`, with one queue for each of `backings`.
    pub(crate) fn serve(
        store: &Store,
        backings: Vec<Box<dyn Backing>>,
        kind: BlockKind,
    ) -> Result<Self, SwapError> {
        require_root()?;
        assert!(!backings.is_empty(), "a device has a queue");
        // The queues' threads are started while the flag is set.
        let _flagged = IoFlusher::begin()?;
        match kind {
            BlockKind::Ublk => Ok(Self::Ublk(Box::new(UblkDevice::serve(store, backings)?))),
            BlockKind::Nbd => Ok(Self::Nbd(NbdDevice::serve(store, backings)?)),
            BlockKind::FuseRing | BlockKind::FuseLoop => {
                let by_ring = kind == BlockKind::FuseRing;
                let (server, file) = FuseServer::serve(store, backings, by_ring)?;
                let device = LoopDevice::over(file, "venice-swap")?;
                Ok(Self::FuseLoop { device, _server: server })
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::FuseLoop { device, .. } => device.path(),
            Self::Nbd(device) => device.path(),
            Self::Ublk(device) => device.path(),
        }
    }
}

/// Without the module or modprobe the device stays missing.
fn load_module(is_missing: bool, module: &str) {
    if is_missing {
        let _ = Command::new("modprobe").arg(module).output();
    }
}
