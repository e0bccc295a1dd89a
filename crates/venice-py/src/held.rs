//! A handle that can be closed, and that means nothing in a child of `fork`.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use venice_client::Error;

use crate::errors::raised;

/// What was borrowed, until it is closed.
#[derive(Debug)]
pub struct Held<T: Send + Sync> {
    value: Mutex<Option<Arc<T>>>,
    process: u32,
}

/// It, for one call; another thread may close it meanwhile without harm.
#[derive(Debug)]
pub struct Use<T: Send + Sync>(Option<Arc<T>>);

impl<T: Send + Sync> Held<T> {
    /// Holds it.
    pub fn new(value: T) -> Held<T> {
        Held { value: Mutex::new(Some(Arc::new(value))), process: std::process::id() }
    }

    /// It, for one call.
    pub fn get(&self, py: Python<'_>) -> PyResult<Use<T>> {
        let value = if self.is_at_home() { self.lock().clone() } else { None };
        value.map(|value| Use(Some(value))).ok_or_else(|| raised(py, &Error::Closed))
    }

    /// Gives it back, once no call uses it any more.
    pub fn close(&self) {
        if self.is_at_home() {
            let value = self.lock().take();
            release(value);
        }
    }

    /// Was it closed?
    pub fn is_closed(&self) -> bool {
        !self.is_at_home() || self.lock().is_none()
    }

    /// Is this the process that borrowed it?
    fn is_at_home(&self) -> bool {
        self.process == std::process::id()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.value.lock().expect("nobody panics with it in hand")
    }
}

impl<T: Send + Sync> Drop for Held<T> {
    fn drop(&mut self) {
        let is_at_home = self.is_at_home();
        let value = self.value.get_mut().ok().and_then(Option::take);
        if is_at_home {
            release(value);
        } else {
            // Its threads are the parent's, and so is the memory.
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

/// Drops it with the interpreter's lock given up: the last one asks the rack, and waits for
/// accesses under way, whose callbacks want the lock.
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
