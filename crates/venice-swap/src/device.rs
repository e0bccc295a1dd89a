//! The whole chain: far memory, a block device on it, swapping to that.

use std::path::{Path, PathBuf};

use crate::backing::Backing;
use crate::block::{BlockDevice, BlockKind};
use crate::store::Store;
use crate::swap_area::SwapArea;
use crate::{SwapError, home_room, shield, ublk};

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
    /// Without root, or where the kernel lacks something.
    ///
    /// # Panics
    /// Without any backing, or when `len_bytes` is not a number of pages.
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

    /// The block device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it counts.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Brings everything home and takes the device away.
    ///
    /// # Errors
    /// When there is no room for what is on it, in memory or in a memory cgroup; all is as before
    /// then.
    pub fn detach(&mut self) -> Result<(), SwapError> {
        if let Some((area, _)) = &self.in_use {
            home_room::check(&self.path)?;
            area.switch_off()?;
        }
        drop(self.in_use.take());
        Ok(())
    }
}

impl Drop for SwapDevice {
    fn drop(&mut self) {
        let Err(error) = self.detach() else { return };
        eprintln!("venice: {} is still swapped to: {error}", self.path.display());
        // Served until the process ends: without an answer the kernel would wait for ever.
        std::mem::forget(self.in_use.take());
    }
}

/// Stops swapping to `device`, whose server is dead. What was on it is lost: programs are told by
/// SIGBUS when they touch it.
///
/// # Errors
/// The kernel's, when it does not let go.
pub fn abandon(device: &Path) -> Result<(), SwapError> {
    SwapArea::of(device).switch_off()
}

/// Takes away what a server has left that outlives it: devices (ublk), swapped to or not, and the
/// servers' cgroup, where no other is in it. Nothing happens while that process lives.
///
/// # Errors
/// The kernel's, when it does not let go.
pub fn clear_after(server_pid: u32) -> Result<(), SwapError> {
    ublk::remove_orphans(server_pid)?;
    shield::remove_group_after(server_pid);
    Ok(())
}
