//! Memory shared with the kernel.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping that stays until it is unmapped explicitly: only its owner can tell whether the kernel
/// still writes there.
pub(crate) struct Mapping {
    start: *mut std::ffi::c_void,
    len_bytes: usize,
}

// SAFETY: the value owns the memory; nothing else in this process refers to it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps memory of a driver for reading.
    pub(crate) fn of(device: impl AsFd, len_bytes: usize, offset: u64) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len_bytes, protection, flags, device, offset)? };
        Ok(Self { start, len_bytes })
    }

    /// Maps zeroed memory.
    pub(crate) fn anonymous(len_bytes: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, protection, flags)? };
        Ok(Self { start, len_bytes })
    }

    /// Returns the start, which is page-aligned.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.cast()
    }

    pub(crate) fn unmap(self) {
        // SAFETY: mapped above with this length; the value was the only way to it.
        let _ = unsafe { munmap(self.start, self.len_bytes) };
    }
}
