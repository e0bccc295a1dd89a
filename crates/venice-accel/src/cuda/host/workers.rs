//! Threads for what may take long: one loads and links, one frees.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::Brought;
use crate::cuda::library::{Library, call};
use crate::stream::host::Inbox;

/// Something to do, which may bring a result.
type Job = Box<dyn FnOnce(&'static Library) -> Option<Brought> + Send>;

/// A thread that does one thing after the other.
pub(super) struct Worker {
    jobs: Sender<Job>,
}

impl Worker {
    /// Starts one.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn start(
        name: &str,
        library: &'static Library,
        context: usize,
        inbox: &Arc<Inbox<Brought>>,
    ) -> io::Result<Self> {
        let (sender, jobs) = channel::<Job>();
        let inbox = Arc::clone(inbox);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = call!(library, cuCtxSetCurrent(context));
            for job in jobs {
                if let Some(brought) = job(library) {
                    inbox.put(brought);
                }
            }
        })?;
        Ok(Self { jobs: sender })
    }

    /// Gives it something to do, behind all that was given before.
    pub(super) fn give(
        &self,
        job: impl FnOnce(&'static Library) -> Option<Brought> + Send + 'static,
    ) {
        // The thread ends with the last sender.
        let _ = self.jobs.send(Box::new(job));
    }
}
