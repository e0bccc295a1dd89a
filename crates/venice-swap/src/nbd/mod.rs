//! An nbd device whose bytes are far memory. Several queues, each a thread at one end of a socket
//! pair whose other end the kernel has.

mod protocol;
mod queue;

use std::fs::{File, OpenOptions};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use venice_wire::PAGE_BYTES;

use crate::backing::Backing;
use crate::store::Store;
use crate::{SwapError, shield, sys};
use queue::{MAX_TRANSFER_BYTES, Queue};

/// The time the kernel may take to start a device.
const START_WITHIN: Duration = Duration::from_secs(30);

/// A device and its server threads.
#[derive(Debug)]
pub(crate) struct NbdDevice {
    path: PathBuf,
    device: File,
    /// The queues, and the thread that lends itself to the kernel for as long as the device runs.
    threads: Vec<JoinHandle<()>>,
}

/// True if this kernel has nbd devices, once its module is loaded.
pub(crate) fn is_there() -> bool {
    Path::new("/sys/block/nbd0").exists()
}

impl NbdDevice {
    /// Serves `store`, with one queue for each of `backings`.
    pub(crate) fn serve(store: &Store, backings: Vec<Box<dyn Backing>>) -> Result<Self, SwapError> {
        for number in 0.. {
            let name = format!("nbd{number}");
            if !Path::new("/sys/block").join(&name).exists() {
                break;
            }
            if is_in_use(&name) {
                continue;
            }
            let path = PathBuf::from(format!("/dev/{name}"));
            let opened = OpenOptions::new().read(true).write(true).open(&path);
            let device = opened.map_err(SwapError::file("open", &path))?;
            return Self::start(&name, path, device, store, backings);
        }
        let mend = "modprobe nbd, or with it loaded end one that is in use";
        Err(SwapError::Missing { what: "free nbd device", mend })
    }

    fn start(
        name: &str,
        path: PathBuf,
        device: File,
        store: &Store,
        backings: Vec<Box<dyn Backing>>,
    ) -> Result<Self, SwapError> {
        let at = SwapError::at("setting up the nbd device");
        let prepare = || -> Result<(), Errno> {
            sys::nbd(&device, sys::Nbd::SetBlockBytes, PAGE_BYTES)?;
            sys::nbd(&device, sys::Nbd::SetBlocks, store.len_bytes() / PAGE_BYTES)?;
            sys::nbd(&device, sys::Nbd::SetFlags, protocol::DEVICE_FLAGS)
        };
        prepare().map_err(at)?;
        let mut threads = Vec::new();
        for backing in backings {
            let (ours, theirs) = UnixStream::pair().map_err(SwapError::file("serve", &path))?;
            // The kernel keeps the socket itself; the descriptor is closed here.
            sys::nbd_socket(&device, &theirs).map_err(SwapError::at("giving nbd a socket"))?;
            let queue = Queue::new(ours, store.clone(), backing);
            let body = move || {
                // A refusal is among the gaps reported at the start.
                let _ = shield::reach_the_reserve();
                queue.serve();
            };
            threads.push(spawn("swap-queue", &path, body)?);
        }
        let lent = device.try_clone().map_err(SwapError::file("share", &path))?;
        let run = move || {
            // Returns when the device is disconnected.
            let _ = sys::nbd(&lent, sys::Nbd::Run, 0);
        };
        threads.push(spawn("swap-nbd", &path, run)?);
        let started = Self { path, device, threads };
        started.wait_started(name)?;
        tune(name);
        Ok(started)
    }

    fn wait_started(&self, name: &str) -> Result<(), SwapError> {
        let deadline = Instant::now() + START_WITHIN;
        let size = PathBuf::from(format!("/sys/block/{name}/size"));
        loop {
            let sectors = std::fs::read_to_string(&size).unwrap_or_default();
            if is_in_use(name) && sectors.trim() != "0" {
                return Ok(());
            }
            if Instant::now() > deadline {
                let step = "starting the nbd device";
                return Err(SwapError::System { step, source: Errno::TIMEDOUT });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        // This ends the queues and the lent thread.
        let _ = sys::nbd(&self.device, sys::Nbd::Disconnect, 0);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let _ = sys::nbd(&self.device, sys::Nbd::ClearSockets, 0);
    }
}

fn is_in_use(name: &str) -> bool {
    Path::new("/sys/block").join(name).join("pid").exists()
}

/// Tunes the device: it is non-rotational, writers that free memory need not wait for readers, and
/// a request must fit into a queue's buffer.
fn tune(name: &str) {
    let queue = Path::new("/sys/block").join(name).join("queue");
    for (knob, value) in [("rotational", "0"), ("scheduler", "none"), ("wbt_lat_usec", "0")] {
        let _ = std::fs::write(queue.join(knob), value);
    }
    let kib = MAX_TRANSFER_BYTES >> 10;
    let _ = std::fs::write(queue.join("max_sectors_kb"), kib.to_string());
}

fn spawn(
    name: &str,
    path: &Path,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, SwapError> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    spawned.map_err(SwapError::file("start a thread for", path))
}
