//! Values that are void in a forked child.

use venice_ports::Process;

use super::Error;

/// A value with threads or a link of the process that made it. A forked child can neither use nor
/// drop it: both would wait for threads that the child does not have.
#[derive(Debug)]
pub(super) struct Owned<T> {
    value: Option<T>,
    process: Process,
}

impl<T> Owned<T> {
    pub(super) fn new(value: T) -> Result<Self, Error> {
        let process = Process::current().map_err(Error::of_port)?;
        Ok(Self { value: Some(value), process })
    }

    pub(super) fn get(&self) -> Result<&T, Error> {
        self.value.as_ref().filter(|_| self.process.is_current()).ok_or(Error::Forked)
    }

    pub(super) fn get_mut(&mut self) -> Result<&mut T, Error> {
        let is_current = self.process.is_current();
        self.value.as_mut().filter(|_| is_current).ok_or(Error::Forked)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.value.take());
        }
    }
}
