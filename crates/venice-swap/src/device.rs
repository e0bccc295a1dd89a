//! The whole chain: far memory, a block device on it, and a swap area on that.

use std::path::{Path, PathBuf};

use crate::backing::Backing;
use crate::block::{BlockDevice, BlockKind};
use crate::store::Store;
use crate::swap_area::SwapArea;
use crate::{SwapError, shield, swap_off_room, ublk};

/// A swap device in use. [`SwapDevice::detach`] ends it.
#[derive(Debug)]
pub struct SwapDevice {
    path: PathBuf,
    // `None` once it is off. Taken down in this order, from the kernel's end to the server's.
    in_use: Option<(SwapArea, BlockDevice)>,
    store: Store,
}

impl SwapDevice {
    /// Makes a device of `len_bytes` and starts swapping to it, with one queue for each of
    /// `backings`; areas of a higher `priority` are filled first.
    ///
    /// # Errors
    /// Without root, or if the kernel lacks a feature.
    ///
    /// # Panics
    /// Panics without any backing, or if `len_bytes` is not a whole number of pages.
    pub fn attach(
        len_bytes: u64,
        backings: Vec<Box<dyn Backing>>,
        priority: u16,
        kind: BlockKind,
    ) -> Result<Self, SwapError> {
        let store = Store::new(len_bytes);
        let block = BlockDevice::serve(&store, backings, kind)?;
        let path = block.path().to_owned();
        let area = SwapArea::switch_on(&path, len_bytes, priority)?;
        Ok(Self { path, in_use: Some((area, block)), store })
    }

    /// Returns the path of the block device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the store, with its counters.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Swaps everything back in and removes the device.
    ///
    /// # Errors
    /// If there is no room for its contents, in memory or in a memory cgroup; nothing is changed
    /// then.
    pub fn detach(&mut self) -> Result<(), SwapError> {
        if let Some((area, _)) = &self.in_use {
            swap_off_room::check(&self.path)?;
            area.switch_off()?;
        }
        drop(self.in_use.take());
        Ok(())
    }
}

impl Drop for SwapDevice {
    fn drop(&mut self) {
        let Err(error) = self.detach() else { return };
        eprintln!("venice: cannot stop swapping to {}: {error}", self.path.display());
        // Served until the process ends: without an answer the kernel would wait for ever.
        std::mem::forget(self.in_use.take());
    }
}

/// Stops swapping to `device`, whose server is dead. Its contents are lost: programs that touch
/// them get SIGBUS.
///
/// # Errors
/// The kernel's error, if it does not release the device.
pub fn abandon(device: &Path) -> Result<(), SwapError> {
    SwapArea::of(device).switch_off()
}

/// Removes what a dead server has left: devices (ublk), swapped to or not, and the servers' cgroup,
/// unless another server is in it. Does nothing while that process lives.
///
/// # Errors
/// The kernel's error, if it does not release a device.
pub fn clear_after(server_pid: u32) -> Result<(), SwapError> {
    ublk::remove_orphans(server_pid)?;
    shield::remove_group_after(server_pid);
    Ok(())
}
