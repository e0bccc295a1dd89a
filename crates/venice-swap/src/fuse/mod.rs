//! A file served through FUSE, whose bytes are far memory. Several queues, each a thread: with its
//! own `/dev/fuse` ([`queue`]), or with the rings of some processors ([`ring`]).

mod carry_out;
mod greeting;
mod mount;
mod protocol;
mod queue;
pub(crate) mod ring;

use std::fs::File;
use std::thread::JoinHandle;

use crate::SwapError;
use crate::backing::Backing;
use crate::store::Store;
use queue::Queue;
use ring::SwitchedOn;

/// The server threads of the file. Dropped, it waits for its queues, which end when the last user
/// of the file has closed it.
///
/// The server must not keep its own file open: a killed process closes its files one by one, and a
/// close that waits for an answer of a server already dead, while another of its descriptors still
/// keeps the connection alive, waits for ever.
#[derive(Debug)]
pub(crate) struct FuseServer {
    threads: Vec<JoinHandle<()>>,
}

impl FuseServer {
    /// Serves `store`, with one queue for each of `backings`; returns the file, open with direct
    /// I/O. Close it as soon as another process has it open.
    pub(crate) fn serve(
        store: &Store,
        backings: Vec<Box<dyn Backing>>,
        by_ring: bool,
    ) -> Result<(Self, File), SwapError> {
        // The switch must be on both for the kernel's first request and for the answer to it.
        let switched_on = by_ring.then(SwitchedOn::begin).transpose()?;
        let mut device = mount::open_device()?;
        // Made before the mount, so that the queues end with it on an error.
        let mut this = Self { threads: Vec::new() };
        let mount = mount::mount(&device)?;
        greeting::greet(&mut device, by_ring)?;
        drop(switched_on);
        match by_ring {
            true => ring::start(device, store, backings, &mut this.threads)?,
            false => this.start(device, store, backings)?,
        }
        let file = mount::open_file(&mount)?;
        Ok((this, file))
    }

    /// Starts a thread for each of `backings`, with its own `/dev/fuse`.
    fn start(
        &mut self,
        device: File,
        store: &Store,
        backings: Vec<Box<dyn Backing>>,
    ) -> Result<(), SwapError> {
        let clones = backings[1..].iter().map(|_| mount::clone_device(&device));
        let clones = clones.collect::<Result<Vec<_>, _>>()?;
        let devices = std::iter::once(device).chain(clones);
        for (number, (device, backing)) in devices.zip(backings).enumerate() {
            let queue = Queue::new(device, store.clone(), backing);
            let thread = std::thread::Builder::new().name(format!("swap-queue-{number}"));
            let thread = thread.spawn(move || queue.serve());
            self.threads.push(thread.map_err(SwapError::file("start a thread for", "/dev/fuse"))?);
        }
        Ok(())
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
