//! A file served through FUSE, whose bytes are far memory. Several queues, each a thread with a
//! `/dev/fuse` of its own.

mod mount;
mod protocol;
mod queue;

use std::fs::File;
use std::thread::JoinHandle;

use crate::SwapError;
use crate::backing::Backing;
use crate::store::Store;
use queue::Queue;

/// Those who serve the file. Dropped, it waits for its queues, which end when the last user of the
/// file has closed it.
///
/// The server must not have its own file open for long: a killed process closes its files one by
/// one, and a close that asks a server which is dead already, while another of its descriptors
/// still keeps the connection alive, waits for ever.
#[derive(Debug)]
pub(crate) struct FuseServer {
    threads: Vec<JoinHandle<()>>,
}

impl FuseServer {
    /// Serves `store`, one queue for each of `backings`; the file is open past every cache, and to be
    /// closed as soon as somebody else has it.
    pub(crate) fn serve(
        store: &Store,
        backings: Vec<Box<dyn Backing>>,
    ) -> Result<(Self, File), SwapError> {
        let device = mount::open_device()?;
        let mount = mount::mount(&device)?;
        let mut queues = Vec::new();
        for backing in backings {
            let device = if queues.is_empty() {
                device.try_clone().map_err(SwapError::file("share", "/dev/fuse"))?
            } else {
                mount::clone_device(&device)?
            };
            queues.push(Queue::new(device, store.clone(), backing));
        }
        drop(device);
        let first = queues.first_mut().expect("a device has a queue");
        first.greet().map_err(SwapError::file("answer", "/dev/fuse"))?;
        let threads = queues.into_iter().enumerate().map(|(number, queue)| {
            let name = format!("swap-queue-{number}");
            std::thread::Builder::new().name(name).spawn(move || queue.serve())
        });
        let threads = threads.collect::<Result<Vec<_>, _>>();
        let threads = threads.map_err(SwapError::file("start a thread for", "/dev/fuse"))?;
        let file = mount::open_file(&mount)?;
        Ok((Self { threads }, file))
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
