//! A slab of some donor, mapped into this process.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::SlabFile;
use crate::PortError;

/// A shared, writable mapping of a slab; unmapped on drop.
#[derive(Debug)]
pub struct MappedSlab {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: this value alone owns the mapping, which is valid on any thread.
unsafe impl Send for MappedSlab {}
// SAFETY: a shared MappedSlab gives out nothing but its address and length.
unsafe impl Sync for MappedSlab {}

impl MappedSlab {
    /// Maps the first `len_bytes` of a slab.
    ///
    /// # Errors
    /// Fails if the kernel refuses: no address space, too many mappings, or a length of zero.
    pub fn map(slab: &SlabFile, len_bytes: usize) -> Result<Self, PortError> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let (fd, offset) = (slab.as_fd(), slab.offset_bytes());
        // SAFETY: the kernel picks a free address range; no existing mapping is replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), len_bytes, prot, flags, fd, offset) }
            .map_err(PortError::at("mapping a slab"))?;
        let base = NonNull::new(base.cast()).expect("mmap gives no null mapping");
        Ok(Self { base, len_bytes })
    }

    /// Returns the address of the mapping. The memory is shared with the donor: use raw copies,
    /// never references.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the length of the mapping in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for MappedSlab {
    fn drop(&mut self) {
        // SAFETY: unmaps our own whole mapping; users of `as_ptr` must be done with it by now.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}
