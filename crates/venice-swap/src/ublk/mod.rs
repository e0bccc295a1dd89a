//! A ublk device whose bytes are far memory. Several queues, each a thread with a ring; the kernel
//! copies a request's bytes from and to the queue's buffers.
//!
//! A device outlives its server: its requests fail then, so that it can be swapped off. A device
//! that ended with its server would leave a swap area that cannot be switched off.

mod control;
mod protocol;
mod queue;

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::SwapError;
use crate::backing::Backing;
use crate::store::Store;
use crate::swap_area::{SwapArea, used_bytes};
use control::Control;
use queue::Queue;

const DEVICES: &str = "/sys/class/ublk-char";
const STOP_AGAIN: Duration = Duration::from_millis(10);

/// A device and its server threads.
pub(crate) struct UblkDevice {
    control: Control,
    number: u32,
    path: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

/// Checks that this kernel has ublk devices that can be swapped to.
pub(crate) fn check() -> Result<(), SwapError> {
    Control::open().map(drop)
}

impl UblkDevice {
    /// Serves `store`, with one queue for each of `backings`, or for as many as there are
    /// processors.
    pub(crate) fn serve(store: &Store, backings: Vec<Box<dyn Backing>>) -> Result<Self, SwapError> {
        let mut control = Control::open()?;
        let wanted = u16::try_from(backings.len()).unwrap_or(u16::MAX);
        let info = control.add(wanted)?;
        let number = info.device();
        let path = block_device(number);
        // From here on the device is removed on an error.
        let mut this = Self { control, number, path, threads: Vec::new() };
        this.control.describe(number, store.len_bytes())?;
        let at = PathBuf::from(format!("/dev/ublkc{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&at);
        let device = Arc::new(device.map_err(SwapError::file("open", &at))?);
        // All queues are made before the first one serves: requests to a device that is stopped
        // already would be waited for.
        let places = (0..info.queues()).zip(backings);
        let queues = places.map(|(queue, backing)| {
            Queue::new(Arc::clone(&device), (queue, info.depth()), store.clone(), backing)
        });
        let queues = queues.collect::<Result<Vec<_>, _>>()?;
        drop(device);
        for queue in queues {
            let thread = std::thread::Builder::new().name("swap-queue".to_owned());
            let thread = thread.spawn(move || queue.serve());
            this.threads.push(thread.map_err(SwapError::file("start a thread for", &at))?);
        }
        this.control.start(number)?;
        Ok(this)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        // This ends the queues. A queue that had not begun yet at the stop is stopped again.
        loop {
            let _ = self.control.stop(self.number);
            if self.threads.iter().all(JoinHandle::is_finished) {
                break;
            }
            std::thread::sleep(STOP_AGAIN);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let _ = self.control.delete(self.number);
    }
}

/// Swaps off and removes the devices that a dead server has left. Devices of a living process are
/// not examined: it may have the number of a dead one.
pub(crate) fn remove_orphans(server_pid: u32) -> Result<(), SwapError> {
    let is_alive = Path::new(&format!("/proc/{server_pid}")).exists();
    let numbers = devices()?;
    if is_alive || numbers.is_empty() {
        return Ok(());
    }
    let mut control = match Control::open() {
        Ok(control) => control,
        // Such a driver has only others' devices.
        Err(SwapError::Missing { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    for number in numbers {
        // A device that goes meanwhile is skipped.
        if control.server(number) != Ok(Some(server_pid)) {
            continue;
        }
        let path = block_device(number);
        if used_bytes(&path).is_some() {
            SwapArea::of(&path).switch_off()?;
        }
        let removed = control.stop(number).and_then(|()| control.delete(number));
        removed.map_err(SwapError::at("taking the ublk device away"))?;
    }
    Ok(())
}

/// Returns the numbers of all ublk devices.
fn devices() -> Result<Vec<u32>, SwapError> {
    let entries = match std::fs::read_dir(DEVICES) {
        Ok(entries) => entries,
        // No device was ever made.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(SwapError::file("read", DEVICES)(error)),
    };
    let number = |name: &str| name.strip_prefix("ublkc")?.parse().ok();
    Ok(entries.flatten().filter_map(|entry| number(entry.file_name().to_str()?)).collect())
}

fn block_device(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

impl std::fmt::Debug for UblkDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UblkDevice").field("path", &self.path).finish_non_exhaustive()
    }
}
