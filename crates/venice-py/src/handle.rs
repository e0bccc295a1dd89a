//! A handle that can be closed, and that is void in a child of `fork`.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use venice_client::Error;
use venice_client::channel::Error as ChannelError;

use crate::errors::exception;

/// A borrowed resource, until it is closed.
#[derive(Debug)]
pub struct Handle<T: Send + Sync> {
    value: Mutex<Option<Arc<T>>>,
    process: u32,
}

/// A reference for one call; another thread may close the handle meanwhile without harm.
#[derive(Debug)]
pub struct Use<T: Send + Sync>(Option<Arc<T>>);

impl<T: Send + Sync> Handle<T> {
    /// Creates a handle.
    pub fn new(value: T) -> Handle<T> {
        Handle { value: Mutex::new(Some(Arc::new(value))), process: std::process::id() }
    }

    /// Returns a reference for one call.
    pub fn get(&self, py: Python<'_>) -> PyResult<Use<T>> {
        if !self.is_owner_process() {
            return Err(exception(py, &ChannelError::Forked.into()));
        }
        let value = self.lock().clone();
        value.map(|value| Use(Some(value))).ok_or_else(|| exception(py, &Error::Closed))
    }

    /// Releases the resource, once no call uses it any more.
    pub fn close(&self) {
        if self.is_owner_process() {
            let value = self.lock().take();
            release(value);
        }
    }

    /// True if it was closed.
    pub fn is_closed(&self) -> bool {
        !self.is_owner_process() || self.lock().is_none()
    }

    /// True in the process that borrowed the resource.
    fn is_owner_process(&self) -> bool {
        self.process == std::process::id()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.value.lock().expect("no thread panics while it holds the lock")
    }
}

impl<T: Send + Sync> Drop for Handle<T> {
    fn drop(&mut self) {
        let is_owner_process = self.is_owner_process();
        let value = self.value.get_mut().ok().and_then(Option::take);
        if is_owner_process {
            release(value);
        } else {
            // Its threads and its memory belong to the parent.
            std::mem::forget(value);
        }
    }
}

impl<T: Send + Sync> Deref for Use<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is taken out only when this is dropped")
    }
}

impl<T: Send + Sync> Drop for Use<T> {
    fn drop(&mut self) {
        release(self.0.take());
    }
}

/// Drops the value with the interpreter's lock released: the last reference calls the rack, and
/// waits for outstanding accesses, whose callbacks need the lock.
pub fn release<T: Send>(value: Option<T>) {
    let mut value = value;
    let dropped = Python::try_attach(|py| {
        let value = value.take();
        py.detach(|| drop(value));
    });
    if dropped.is_none() {
        drop(value);
    }
}
