//! Slabs mapped side by side in one piece.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use venice_wire::SLAB_BYTES;

use super::SlabFile;
use crate::PortError;

/// Step that fails where the program's addresses are limited.
const NO_ADDRESSES: &str = "reserving addresses for slabs (ulimit -v limits them: raise it)";

/// Shared, writable mappings of slabs, one after the other; unmapped on drop.
///
/// The memory is shared with other processes: use raw copies and atomics, never references.
#[derive(Debug)]
pub struct SlabMapping {
    /// Start of the reserved address range.
    reserved: NonNull<u8>,
    base: NonNull<u8>,
    slabs: usize,
}

// SAFETY: this value alone owns the mapping, which is valid on any thread.
unsafe impl Send for SlabMapping {}
// SAFETY: a shared SlabMapping gives out nothing but its address and length.
unsafe impl Sync for SlabMapping {}

impl SlabMapping {
    /// Maps `slabs` in their order. The descriptors are not needed afterwards.
    ///
    /// # Errors
    /// Fails if the kernel refuses: no address space, or too many mappings.
    pub fn new(slabs: &[SlabFile]) -> Result<Self, PortError> {
        let mapping = Self::reserve(slabs.len())?;
        slabs.iter().enumerate().try_for_each(|(number, slab)| mapping.map(number, slab))?;
        Ok(mapping)
    }

    /// Reserves addresses for `slabs` slabs, of which none is mapped.
    ///
    /// # Errors
    /// Fails if there is no address space.
    pub fn reserve(slabs: usize) -> Result<Self, PortError> {
        let slab_len = SLAB_BYTES as usize;
        // A memory device may have larger pages than the machine: slabs begin at multiples of
        // theirs. SAFETY: the kernel picks a free address range; no existing mapping is replaced.
        let reserved = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                (slabs + 1) * slab_len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|error| match error {
            Errno::NOMEM => PortError::at(NO_ADDRESSES)(error),
            error => PortError::at("reserving addresses for slabs")(error),
        })?;
        let reserved = NonNull::new(reserved.cast::<u8>()).expect("mmap gives no null mapping");
        let ahead = reserved.addr().get().next_multiple_of(slab_len) - reserved.addr().get();
        // SAFETY: less than a slab ahead, within the reservation.
        let base = unsafe { reserved.add(ahead) };
        Ok(Self { reserved, base, slabs })
    }

    /// Maps a slab at its place, instead of what is there.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    ///
    /// # Panics
    /// If `number` is not below the number of slabs.
    pub fn map(&self, number: usize, slab: &SlabFile) -> Result<(), PortError> {
        assert!(number < self.slabs, "slab {number} of {}", self.slabs);
        let slab_len = SLAB_BYTES as usize;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let (fd, offset) = (slab.as_fd(), slab.offset_bytes());
        // SAFETY: inside the reserved range (asserted above), which only this value uses.
        unsafe {
            let at = self.base.as_ptr().add(number * slab_len).cast();
            mmap(at, slab_len, prot, flags, fd, offset)
        }
        .map_err(PortError::at("mapping a slab"))?;
        Ok(())
    }

    /// Returns the address of the first slab.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the length of all slabs in bytes.
    pub fn len_bytes(&self) -> usize {
        self.slabs * SLAB_BYTES as usize
    }
}

impl Drop for SlabMapping {
    fn drop(&mut self) {
        let reserved_bytes = (self.slabs + 1) * SLAB_BYTES as usize;
        // SAFETY: unmaps our own whole reservation; users of its address must be done by now.
        let _ = unsafe { munmap(self.reserved.as_ptr().cast(), reserved_bytes) };
    }
}
