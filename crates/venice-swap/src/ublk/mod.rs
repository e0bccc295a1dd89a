//! A ublk device whose bytes are far memory. Several queues, each a thread with a ring; the kernel
//! copies a request's bytes from and to the queue's buffers.
//!
//! A device outlives its server: what is asked of it fails then, so that it can be swapped off. A device
//! that went with its server would leave a swap area that nothing can switch off.

mod control;
mod protocol;
mod queue;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::SwapError;
use crate::backing::Backing;
use crate::store::Store;
use control::Control;
use queue::Queue;

const BLOCK_DEVICE: &str = "/dev/ublkb";

/// A device and those who serve it.
pub(crate) struct UblkDevice {
    control: Control,
    number: u32,
    path: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

/// Whether this kernel has ublk devices that can be swapped to.
pub(crate) fn check() -> Result<(), SwapError> {
    Control::open().map(drop)
}

impl UblkDevice {
    /// Serves `store`, one queue for each of `backings`, or for as many as there are processors.
    pub(crate) fn serve(store: &Store, backings: Vec<Box<dyn Backing>>) -> Result<Self, SwapError> {
        let mut control = Control::open()?;
        let wanted = u16::try_from(backings.len()).unwrap_or(u16::MAX);
        let info = control.add(wanted)?;
        let number = info.device();
        let path = PathBuf::from(format!("{BLOCK_DEVICE}{number}"));
        // From here on it is taken away where something fails.
        let mut this = Self { control, number, path, threads: Vec::new() };
        this.control.describe(number, store.len_bytes())?;
        let at = PathBuf::from(format!("/dev/ublkc{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&at);
        let device = Arc::new(device.map_err(SwapError::file("open", &at))?);
        for (queue, backing) in (0..info.queues()).zip(backings) {
            let place = (queue, info.depth());
            let queue = Queue::new(Arc::clone(&device), place, store.clone(), backing)?;
            let thread = std::thread::Builder::new().name("swap-queue".to_owned());
            let thread = thread.spawn(move || queue.serve());
            this.threads.push(thread.map_err(SwapError::file("start a thread for", &at))?);
        }
        drop(device);
        this.control.start(number)?;
        Ok(this)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        // The queues end by it.
        let _ = self.control.stop(self.number);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let _ = self.control.delete(self.number);
    }
}

/// Takes away a device whose server is dead, if it is one of these.
pub(crate) fn remove_orphan(path: &Path) -> Result<(), SwapError> {
    let number = path.to_str().and_then(|path| path.strip_prefix(BLOCK_DEVICE)?.parse().ok());
    let Some(number) = number else { return Ok(()) };
    let mut control = Control::open()?;
    let removed = control.stop(number).and_then(|()| control.delete(number));
    removed.map_err(SwapError::at("taking the ublk device away"))
}

impl std::fmt::Debug for UblkDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UblkDevice").field("path", &self.path).finish_non_exhaustive()
    }
}
