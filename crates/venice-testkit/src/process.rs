//! Child processes that end with the test.

use std::ops::{Deref, DerefMut};
use std::process::Child;

/// A child process, killed and reaped when dropped.
#[derive(Debug)]
pub struct ChildGuard(pub Child);

impl Deref for ChildGuard {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for ChildGuard {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // It fails where the child has been reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
