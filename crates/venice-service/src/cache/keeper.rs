//! The thread that keeps caches of ended hosts: a disk must not hold the supervisor up.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use venice_wire::GrantId;

use super::keep::keep;
use super::{CacheDir, CacheStore, KeptCache};

/// What a host has left.
#[derive(Debug)]
pub(crate) struct KeepJob {
    pub grant: GrantId,
    /// Its `/cache`.
    pub root: OwnedFd,
    pub dirs: Vec<CacheDir>,
    pub kept: KeptCache,
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct CacheKeeper {
    jobs: Sender<KeepJob>,
    done: Receiver<GrantId>,
}

impl CacheKeeper {
    /// Starts it; `bell` is rung after each job.
    pub(crate) fn start(store: Arc<CacheStore>, bell: Arc<OwnedFd>) -> io::Result<Self> {
        let ((jobs, waiting), (ended, done)) = (channel::<KeepJob>(), channel());
        std::thread::Builder::new().name(String::from("venice-builds")).spawn(move || {
            for KeepJob { grant, root, dirs, kept } in waiting {
                match keep(&root, &dirs, &kept) {
                    Ok(0) => {}
                    Ok(entries) => tracing::info!(grant = grant.0, entries, "kept builds"),
                    Err(error) => tracing::warn!(grant = grant.0, %error, "keeping builds"),
                }
                // The tmpfs ends with its last descriptor.
                drop(root);
                let _ = ended.send(grant);
                let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
                store.evict();
            }
        })?;
        Ok(Self { jobs, done })
    }

    /// Gives a job to the thread; false if it has ended.
    pub(crate) fn put(&self, job: KeepJob) -> bool {
        self.jobs.send(job).is_ok()
    }

    /// Returns the grant of a job that is done.
    ///
    /// # Errors
    /// Fails once the thread has ended: no job will be done any more.
    pub(crate) fn done(&self) -> Result<Option<GrantId>, ()> {
        match self.done.try_recv() {
            Ok(grant) => Ok(Some(grant)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(()),
        }
    }
}
