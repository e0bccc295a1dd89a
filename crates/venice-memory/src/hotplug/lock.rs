//! Locks on files and folders that others on this machine heed.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// An open file or folder that nobody else has locked.
#[derive(Debug)]
pub(super) struct Locked(File);

impl Locked {
    /// Locks it for as long as this lives; [`Errno::WOULDBLOCK`] where somebody else has.
    pub(super) fn exclusively(file: File) -> Result<Self, Errno> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing it would not do: a child that was forked a moment ago has it open too until it runs
        // its program, and the lock is of what both have.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_given_up_although_a_child_has_the_file_open() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::open(folder.path()).unwrap();
        let file = open();
        let childs = file.try_clone().unwrap();
        let locked = Locked::exclusively(file).unwrap();
        assert_eq!(Locked::exclusively(open()).unwrap_err(), Errno::WOULDBLOCK);
        drop(locked);
        Locked::exclusively(open()).unwrap();
        drop(childs);
    }
}
