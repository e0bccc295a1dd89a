//! A donor of one grant over shm.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use venice_ports::shm::{ShmServer, SlabBatch, SlabSource};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::{ID, KEY};

/// Slabs of a grant: memfds (not locked, which makes many of them cheap).
pub struct Slabs(Vec<OwnedFd>);

impl Slabs {
    pub fn new(count: usize) -> Self {
        let slab = |_| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = memfd_create("test-slab", flags).unwrap();
            ftruncate(&fd, SLAB_BYTES).unwrap();
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
            fd
        };
        Self((0..count).map(slab).collect())
    }

    pub fn serve(self, path: &Path) -> ShmServer {
        ShmServer::start(path, self).unwrap()
    }
}

impl SlabSource for Slabs {
    fn slabs(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        if (id, key) != (ID, KEY) {
            return Err("no such grant or wrong key".into());
        }
        let wanted = self.0.get(first..first + count).ok_or("no such slabs")?;
        let files = wanted.iter().map(|fd| fd.try_clone().unwrap().into()).collect();
        Ok(SlabBatch { total: self.0.len(), files })
    }
}
