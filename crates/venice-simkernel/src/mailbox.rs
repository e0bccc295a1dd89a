//! Messages from threads to one that reads them all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Messages that wait for their reader.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    messages: Mutex<Vec<T>>,
    len: AtomicUsize,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { messages: Mutex::default(), len: AtomicUsize::new(0) }
    }
}

impl<T> Mailbox<T> {
    /// True if there are none, without a lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Moves messages into it.
    pub(crate) fn post(&self, sent: &mut Vec<T>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.append(sent);
        self.len.store(messages.len(), Ordering::Release);
    }

    /// Exchanges its messages for an empty list.
    pub(crate) fn exchange(&self, empty: &mut Vec<T>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *messages, empty);
        self.len.store(0, Ordering::Release);
    }
}
