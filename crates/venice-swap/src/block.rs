//! The block device between the kernel's paging and the server: whichever this kernel has.

use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use crate::backing::Backing;
use crate::fuse::FuseServer;
use crate::loop_device::LoopDevice;
use crate::nbd::{self, NbdDevice};
use crate::shield::IoFlusher;
use crate::store::Store;
use crate::{SwapError, require_root};

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Network block device, over socket pairs.
    Nbd,
    /// A FUSE file under a loop device with direct I/O.
    FuseLoop,
}

impl BlockKind {
    /// The first of them that this kernel has; asks for nbd's module.
    #[must_use]
    pub fn best() -> Self {
        if !nbd::is_there() {
            // No module, no modprobe: then there is no nbd.
            let _ = Command::new("modprobe").arg("nbd").output();
        }
        if nbd::is_there() { Self::Nbd } else { Self::FuseLoop }
    }

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nbd => "nbd",
            Self::FuseLoop => "fuse",
        }
    }
}

impl FromStr for BlockKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "nbd" => Ok(Self::Nbd),
            "fuse" => Ok(Self::FuseLoop),
            _ => Err("write nbd or fuse".to_owned()),
        }
    }
}

/// A block device whose bytes are a store's. Dropped, it goes once nobody uses it.
#[derive(Debug)]
pub(crate) enum BlockDevice {
    FuseLoop { device: LoopDevice, _server: FuseServer },
    Nbd(NbdDevice),
}

impl BlockDevice {
    /// Serves `store`, one queue for each of `backings`.
    pub(crate) fn serve(
        store: &Store,
        backings: Vec<Box<dyn Backing>>,
        kind: BlockKind,
    ) -> Result<Self, SwapError> {
        require_root()?;
        assert!(!backings.is_empty(), "a device has a queue");
        // The queues' threads are started meanwhile.
        let _flagged = IoFlusher::begin()?;
        match kind {
            BlockKind::Nbd => Ok(Self::Nbd(NbdDevice::serve(store, backings)?)),
            BlockKind::FuseLoop => {
                let (server, file) = FuseServer::serve(store, backings)?;
                let device = LoopDevice::over(file, "venice-swap")?;
                Ok(Self::FuseLoop { device, _server: server })
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::FuseLoop { device, .. } => device.path(),
            Self::Nbd(device) => device.path(),
        }
    }
}
