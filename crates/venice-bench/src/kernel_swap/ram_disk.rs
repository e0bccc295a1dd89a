//! Swap to a RAM disk of this machine: a file in tmpfs under a loop device.

use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, fallocate};
use tempfile::NamedTempFile;

use super::loop_device::LoopDevice;
use super::swap_area::SwapArea;

const FOLDER: &str = "/dev/shm";

/// A RAM disk in use as swap. Dropping it switches it off and gives its memory back.
#[derive(Debug)]
pub(crate) struct RamDiskSwap {
    // Dropped in this order: off first, then the device, then its memory.
    _area: SwapArea,
    _device: LoopDevice,
    _file: NamedTempFile,
}

impl RamDiskSwap {
    /// Swaps to a RAM disk of `len_bytes`, whose memory is taken at once.
    ///
    /// # Errors
    /// Without root, without the memory, or where tmpfs or loop devices are missing.
    pub(crate) fn create(len_bytes: u64) -> Result<Self> {
        venice_swap::require_root()?;
        let file = tempfile::Builder::new()
            .prefix("venice-ram-disk-")
            .tempfile_in(Path::new(FOLDER))
            .with_context(|| format!("cannot make a file in {FOLDER}"))?;
        fallocate(&file, FallocateFlags::empty(), 0, len_bytes)
            .with_context(|| format!("{FOLDER} has no room for a RAM disk"))?;
        let device = LoopDevice::attach(file.path(), false)?;
        let area = SwapArea::switch_on(&device.path)?;
        Ok(Self { _area: area, _device: device, _file: file })
    }
}
