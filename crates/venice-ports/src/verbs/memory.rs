//! Memory that a device may reach: protection domains, regions, and buffers of this process.

use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::abi::{Mr, Pd, constants};
use super::{Device, VerbsError};

/// A protection domain: a queue pair reaches the regions of its own domain and no others, whatever
/// keys its owner guesses.
#[derive(Debug)]
pub(super) struct Domain {
    device: Arc<Device>,
    pd: NonNull<Pd>,
}

// SAFETY: libibverbs may be called from any thread; the domain is freed by its last owner.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the device is open.
        let pd = unsafe { (device.library().alloc_pd)(device.context()) };
        let pd = NonNull::new(pd).ok_or_else(|| device.failed("making a protection domain"))?;
        Ok(Arc::new(Self { device: Arc::clone(device), pd }))
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn as_ptr(&self) -> *mut Pd {
        self.pd.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs hold their domain alive, so none is left.
        unsafe { (self.device.library().dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Sides that may reach a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Requests of this side only.
    Local,
    /// Reads, writes and atomics of the other side.
    Remote,
}

/// Registered memory: pinned, and reachable by the device until dropped.
#[derive(Debug)]
pub(super) struct Region {
    domain: Arc<Domain>,
    mr: NonNull<Mr>,
}

// SAFETY: as for the domain.
unsafe impl Send for Region {}

impl Region {
    /// Registers `len_bytes` at `start`, which requests address from `first_address` on.
    ///
    /// # Safety
    /// The memory must stay mapped until the region is dropped, and code that reads or writes it
    /// meanwhile must expect concurrent accesses.
    pub(super) unsafe fn register(
        domain: &Arc<Domain>,
        start: *mut u8,
        len_bytes: usize,
        first_address: u64,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let flags = constants::ACCESS_LOCAL_WRITE
            | match access {
                Access::Local => 0,
                Access::Remote => {
                    constants::ACCESS_REMOTE_READ
                        | constants::ACCESS_REMOTE_WRITE
                        | constants::ACCESS_REMOTE_ATOMIC
                }
            };
        let device = domain.device();
        // SAFETY: the domain is alive; the caller answers for the memory.
        let mr = unsafe {
            let start = start.cast();
            (device.library().reg_mr_iova)(domain.as_ptr(), start, len_bytes, first_address, flags)
        };
        let mr = NonNull::new(mr).ok_or_else(|| {
            device.failed("registering memory (is the limit on locked memory too low?)")
        })?;
        Ok(Self { domain: Arc::clone(domain), mr })
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered as long as it lives.
        unsafe { self.mr.as_ref() }.lkey
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our own region, deregistered once. After the return, the device no longer reaches
        // it.
        let code = unsafe { (self.domain.device().library().dereg_mr)(self.mr.as_ptr()) };
        // To continue would let a past recipient reach memory that belongs to others by now.
        assert!(code == 0, "a registered region cannot be ended: error {code}");
    }
}

/// Memory of this process that its own requests read from and write to.
#[derive(Debug)]
pub(super) struct Buffer {
    region: Region,
    pages: Pages,
}

impl Buffer {
    /// Allocates zeroed memory, shared with forked children: a copy-on-write after a fork would
    /// separate it from the device's pages.
    pub(super) fn new(domain: &Arc<Domain>, len_bytes: usize) -> Result<Self, VerbsError> {
        let pages = Pages::map(len_bytes)?;
        let first_address = pages.base.as_ptr() as u64;
        let start = pages.base.as_ptr();
        // SAFETY: the pages are unmapped after the region is dropped: fields drop in order.
        let region =
            unsafe { Region::register(domain, start, len_bytes, first_address, Access::Local) }?;
        Ok(Self { region, pages })
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.pages.base.as_ptr()
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.pages.len_bytes
    }

    pub(super) fn lkey(&self) -> u32 {
        self.region.lkey()
    }
}

#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: this value alone owns the mapping, which is valid on any thread.
unsafe impl Send for Pages {}

impl Pages {
    fn map(len_bytes: usize) -> Result<Self, VerbsError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel picks a free address range.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len_bytes, protection, MapFlags::SHARED)
        };
        let base = base.map_err(|errno| VerbsError::System {
            step: "mapping memory for buffers",
            source: errno.into(),
        })?;
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap gives no null"), len_bytes })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: unmaps our own whole mapping.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}
