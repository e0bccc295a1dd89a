//! Box of what threads bring to the service's thread, with a bell.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// Box with a bell.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    brought: Mutex<Vec<T>>,
    is_rung: AtomicBool,
    bell: OwnedFd,
}

impl<T> Inbox<T> {
    /// Makes an empty one.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let brought = Mutex::new(Vec::new());
        Ok(Arc::new(Self { brought, is_rung: AtomicBool::new(false), bell }))
    }

    /// Returns the descriptor that is readable while something is in the box.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Puts something in.
    pub(crate) fn put(&self, brought: T) {
        self.brought.lock().unwrap_or_else(PoisonError::into_inner).push(brought);
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            // Fails only when the counter is full: then it is readable.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Takes all that was brought, and silences the bell.
    pub(crate) fn take(&self) -> Vec<T> {
        if self.is_rung.load(Ordering::Acquire) {
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
            self.is_rung.store(false, Ordering::Release);
        }
        std::mem::take(&mut *self.brought.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
