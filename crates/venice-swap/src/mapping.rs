//! Memory that is shared with the kernel.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// It stays unless it is unmapped: whether the kernel still writes there, only its owner knows.
pub(crate) struct Mapping {
    start: *mut std::ffi::c_void,
    len_bytes: usize,
}

// SAFETY: whoever has the value has the memory; nobody else in this process does.
unsafe impl Send for Mapping {}

impl Mapping {
    /// What a driver has written for us to read.
    pub(crate) fn of(device: impl AsFd, len_bytes: usize, offset: u64) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len_bytes, protection, flags, device, offset)? };
        Ok(Self { start, len_bytes })
    }

    /// Zeros.
    pub(crate) fn anonymous(len_bytes: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, protection, flags)? };
        Ok(Self { start, len_bytes })
    }

    /// Where it begins; on a page.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.cast()
    }

    pub(crate) fn unmap(self) {
        // SAFETY: mapped above with this length; the value was the only way to it.
        let _ = unsafe { munmap(self.start, self.len_bytes) };
    }
}
