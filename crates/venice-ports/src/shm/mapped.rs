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

// SAFETY: the mapping belongs to this value alone and is as good on one thread as on another.
unsafe impl Send for MappedSlab {}
// SAFETY: a shared MappedSlab gives out nothing but its address and length.
unsafe impl Sync for MappedSlab {}

impl MappedSlab {
    /// Maps the first `len_bytes` of a slab.
    ///
    /// # Errors
    /// When the kernel refuses: no address space, too many mappings, or a length of zero.
    pub fn map(slab: &SlabFile, len_bytes: usize) -> Result<Self, PortError> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let (fd, offset) = (slab.as_fd(), slab.offset_bytes());
        // SAFETY: the kernel picks a free address range; nothing of ours is replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), len_bytes, prot, flags, fd, offset) }
            .map_err(PortError::at("mapping a slab"))?;
        let base = NonNull::new(base.cast()).expect("mmap gives no null mapping");
        Ok(Self { base, len_bytes })
    }

    /// Where it is mapped. The memory is shared with the donor: use raw copies, never references.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How much of it is mapped.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for MappedSlab {
    fn drop(&mut self) {
        // SAFETY: our own whole mapping; whoever used `as_ptr` must be done with it by now.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}
