//! Advisory locks on files and directories, shared by all processes of this machine.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// An open file or directory that no other process has locked.
#[derive(Debug)]
pub(super) struct Locked(File);

impl Locked {
    /// Locks the file for as long as the result lives; [`Errno::WOULDBLOCK`] if another process has
    /// locked it.
    pub(super) fn exclusively(file: File) -> Result<Self, Errno> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing is not enough: a child forked a moment ago also has the file open until it
        // executes its program, and the lock belongs to the shared open file.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlocks_although_child_has_file() {
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
