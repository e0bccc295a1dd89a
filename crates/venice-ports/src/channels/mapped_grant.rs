//! Maps a whole grant in one piece.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use venice_wire::SLAB_BYTES;

use crate::PortError;
use crate::shm::ShmConnection;

/// A grant's slabs side by side, and the connection to the donor that lends them.
#[derive(Debug)]
pub(super) struct MappedGrant {
    /// Start of the reserved address range.
    reserved: NonNull<u8>,
    base: NonNull<u8>,
    len_bytes: usize,
    connection: ShmConnection,
}

// SAFETY: this value alone owns the mapping, which is valid on any thread.
unsafe impl Send for MappedGrant {}

impl MappedGrant {
    /// Maps all slabs of `connection` and closes their descriptors.
    pub(super) fn new(mut connection: ShmConnection) -> Result<Self, PortError> {
        let slabs = std::mem::take(&mut connection.slabs);
        let slab_len = SLAB_BYTES as usize;
        let len_bytes = slabs.len() * slab_len;
        // A memory device may have larger pages than the machine: slabs begin at multiples of
        // theirs. SAFETY: the kernel picks a free address range; no existing mapping is replaced.
        let reserved = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes + slab_len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(PortError::at("reserving addresses for a grant"))?;
        let reserved = NonNull::new(reserved.cast::<u8>()).expect("mmap gives no null mapping");
        let ahead = reserved.addr().get().next_multiple_of(slab_len) - reserved.addr().get();
        // SAFETY: less than a slab ahead, within the reservation.
        let base = unsafe { reserved.add(ahead) };
        let mapped = Self { reserved, base, len_bytes, connection };
        for (number, slab) in slabs.iter().enumerate() {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            let (fd, offset) = (slab.as_fd(), slab.offset_bytes());
            // SAFETY: inside the range just reserved, which only this value uses.
            unsafe {
                let at = base.as_ptr().add(number * slab_len).cast();
                mmap(at, slab_len, prot, flags, fd, offset)
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
        // SAFETY: unmaps our own whole mapping; its owner hands out no pointer into it.
        let reserved_bytes = self.len_bytes + SLAB_BYTES as usize;
        // SAFETY: as above.
        let _ = unsafe { munmap(self.reserved.as_ptr().cast(), reserved_bytes) };
    }
}
