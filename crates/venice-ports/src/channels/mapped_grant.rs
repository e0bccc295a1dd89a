//! The whole of a grant, mapped in one piece.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use venice_wire::SLAB_BYTES;

use crate::PortError;
use crate::shm::ShmConnection;

/// A grant's slabs side by side, and the connection to the donor that lends them.
#[derive(Debug)]
pub(super) struct MappedGrant {
    base: NonNull<u8>,
    len_bytes: usize,
    connection: ShmConnection,
}

// SAFETY: the mapping belongs to this value alone and is as good on one thread as on another.
unsafe impl Send for MappedGrant {}

impl MappedGrant {
    /// Maps all slabs of `connection` and closes their descriptors.
    pub(super) fn new(mut connection: ShmConnection) -> Result<Self, PortError> {
        let slabs = std::mem::take(&mut connection.slabs);
        let len_bytes = slabs.len() * SLAB_BYTES as usize;
        // SAFETY: the kernel picks a free address range; nothing of ours is replaced.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(PortError::at("reserving addresses for a grant"))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap gives no null mapping");
        let mapped = Self { base, len_bytes, connection };
        for (number, slab) in slabs.iter().enumerate() {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: inside the range just reserved, which is nobody else's.
            unsafe {
                let at = base.as_ptr().add(number * SLAB_BYTES as usize).cast();
                mmap(at, SLAB_BYTES as usize, prot, flags, slab.as_fd(), 0)
            }
            .map_err(PortError::at("mapping a slab"))?;
        }
        Ok(mapped)
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(super) fn connection(&self) -> &ShmConnection {
        &self.connection
    }
}

impl Drop for MappedGrant {
    fn drop(&mut self) {
        // SAFETY: our own whole mapping; its owner hands out no pointer into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}
