//! A swap file on a local disk: the usual alternative without Venice.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::SwapDevice;
use super::swap_area::SwapArea;
use crate::scratch::{self, RemovedFile};

/// Room left free on the disk beside the swap file.
const SPARE_BYTES: u64 = 256 << 20;

/// A swap file in use. Dropping it switches swapping to it off and removes it.
#[derive(Debug)]
pub struct SwapFile {
    // The fields drop in this order: swap off first, then unlinked.
    _area: SwapArea,
    file: RemovedFile,
}

impl SwapFile {
    /// Makes a swap file of `len_bytes` in `folder` and starts to use it.
    ///
    /// # Errors
    /// Without root, without the room, or when the file system cannot hold a swap file.
    pub fn create(folder: &Path, len_bytes: u64) -> Result<Self> {
        venice_swap::require_root()?;
        require_room(folder, len_bytes)?;
        let file = RemovedFile { path: folder.join(scratch::name(scratch::SWAP_FILE)) };
        allocate(&file.path, len_bytes)
            .with_context(|| format!("cannot make the swap file {}", file.path.display()))?;
        let area = SwapArea::switch_on(&file.path).with_context(|| {
            format!("the file system under {} cannot hold a swap file", folder.display())
        })?;
        Ok(Self { _area: area, file })
    }
}

impl SwapDevice for SwapFile {
    fn path(&self) -> &Path {
        &self.file.path
    }
}

fn require_room(folder: &Path, len_bytes: u64) -> Result<()> {
    let stat = statvfs(folder)
        .with_context(|| format!("cannot read the free space of {}", folder.display()))?;
    let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free_bytes < len_bytes.saturating_add(SPARE_BYTES) {
        bail!(
            "{} has {} MiB free, the swap file needs {} MiB (choose another with --swap-dir)",
            folder.display(),
            free_bytes >> 20,
            (len_bytes + SPARE_BYTES) >> 20,
        );
    }
    Ok(())
}

/// Allocates the blocks, since swap files must not have holes; writes zeros where allocation is not
/// supported.
fn allocate(path: &Path, len_bytes: u64) -> Result<()> {
    // The new file is private: it will hold other programs' memory.
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    if fallocate(&file, FallocateFlags::empty(), 0, len_bytes).is_ok() {
        return Ok(());
    }
    write_zeros(&mut file, len_bytes)?;
    file.sync_all()?;
    Ok(())
}

/// Writes so many zeros at the position of `file`.
///
/// # Errors
/// When the file does not take them, and on an interrupt.
pub(super) fn write_zeros(file: &mut File, len_bytes: u64) -> Result<()> {
    let zeros = vec![0u8; 1 << 20];
    let mut left_bytes = len_bytes;
    while left_bytes > 0 {
        crate::interrupt::check()?;
        let now_bytes = left_bytes.min(zeros.len() as u64);
        file.write_all(&zeros[..now_bytes as usize])?;
        left_bytes -= now_bytes;
    }
    Ok(())
}
