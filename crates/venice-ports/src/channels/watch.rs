//! A thread that notices the death of a donor on this host, which spares each access the check.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::PortError;

/// Watches connections until dropped.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    orders: Mutex<Orders>,
}

#[derive(Debug, Default)]
struct Orders {
    added: Vec<(OwnedFd, Arc<AtomicBool>)>,
    stop: bool,
}

impl Watch {
    pub(super) fn start() -> Result<Self, PortError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(PortError::at("making an eventfd"))?;
        let shared = Arc::new(Shared { wake, orders: Mutex::default() });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("venice-watch".into())
            .spawn(move || run(&theirs))
            .map_err(|_| PortError::System { step: "starting a thread", source: Errno::AGAIN })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets `gone` when `connection` ends or becomes readable: a living donor sends nothing. The
    /// watch ends once no other holder of `gone` is left.
    pub(super) fn add(
        &self,
        connection: BorrowedFd<'_>,
        gone: Arc<AtomicBool>,
    ) -> Result<(), PortError> {
        let fd = rustix::io::fcntl_dupfd_cloexec(connection, 0)
            .map_err(PortError::at("duplicating a descriptor"))?;
        self.order(|orders| orders.added.push((fd, gone)));
        Ok(())
    }

    /// Wakes the thread after an unmapping, to drop the connections that are no longer used.
    pub(super) fn review(&self) {
        self.order(|_| {});
    }

    fn order(&self, give: impl FnOnce(&mut Orders)) {
        give(&mut self.shared.orders.lock().expect("no thread panics under this lock"));
        // A write fails only when the counter is full; the thread is awake then.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.order(|orders| orders.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    let mut watched: Vec<(OwnedFd, Arc<AtomicBool>)> = Vec::new();
    loop {
        let _ = rustix::io::read(&shared.wake, &mut [0u8; 8]);
        {
            let mut orders = shared.orders.lock().expect("no thread panics under this lock");
            if orders.stop {
                return;
            }
            watched.append(&mut orders.added);
        }
        watched.retain(|(_, gone)| Arc::strong_count(gone) > 1);
        let mut fds = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        fds.extend(
            watched.iter().map(|(fd, _)| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)),
        );
        if poll(&mut fds, None).is_err_and(|errno| errno != Errno::INTR) {
            // The kernel is out of memory for a moment: retry later rather than spin.
            std::thread::sleep(std::time::Duration::from_millis(10));
            continue;
        }
        let ended: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ended = ended.into_iter();
        watched.retain(|(_, gone)| {
            let is_over = ended.next().unwrap_or(false);
            if is_over {
                gone.store(true, Ordering::Release);
            }
            !is_over
        });
    }
}
