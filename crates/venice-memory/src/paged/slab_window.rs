//! The donors' slabs where they are mapped: each replica of each slab at an address of its own,
//! mapped when it is first wanted.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use venice_ports::shm::SlabFile;
use venice_wire::SLAB_BYTES;

use super::run_block::{RunBlockMap, SLAB_SLOTS};
use super::{PAGE, sys};

/// Where what a replica's slab is mapped from is to be had; `None`: nowhere (any more).
pub type SlabSource = Box<dyn Fn(usize) -> Option<SlabFile> + Send + Sync>;

const SLAB: usize = SLAB_BYTES as usize;
/// Of memory devices that slabs are lent of.
const LARGEST_PAGE: usize = SLAB;

/// Room for all replicas a run can have, and what of it is mapped.
pub struct SlabWindow {
    reserved: Range<usize>,
    /// Where the first replica is.
    base: usize,
    len_bytes: usize,
    /// A bit for each replica: it is mapped.
    mapped: Box<[AtomicU64]>,
    source: SlabSource,
    /// Held by the thread that maps one.
    turn: AtomicU32,
}

impl std::fmt::Debug for SlabWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlabWindow").field("base", &self.base).finish_non_exhaustive()
    }
}

impl SlabWindow {
    /// Reserves addresses for the replicas of `block`; nothing is mapped yet.
    ///
    /// # Errors
    /// The kernel's, when the address space is used up.
    pub fn new(block: &RunBlockMap, source: SlabSource) -> Result<SlabWindow, Errno> {
        assert_eq!(SLAB, SLAB_SLOTS as usize * PAGE, "slots fill a slab");
        let replicas = block.replica_limit();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let (anywhere, len_bytes) = (std::ptr::null_mut(), replicas.max(1) * SLAB);
        // A memory device may have larger pages than the machine. What is too much is little, and
        // only addresses.
        let reserved = len_bytes + LARGEST_PAGE;
        // SAFETY: a fresh reservation at an address of the kernel's choice disturbs nothing.
        let base =
            unsafe { rustix::mm::mmap_anonymous(anywhere, reserved, ProtFlags::empty(), flags)? };
        let mapped = (0..replicas.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let reserved = base as usize..base as usize + reserved;
        let (base, turn) = (reserved.start.next_multiple_of(LARGEST_PAGE), AtomicU32::new(0));
        Ok(SlabWindow { reserved, base, len_bytes, mapped, source, turn })
    }

    /// The address of a byte of a replica; `None`: that cannot be mapped here.
    pub fn address(&self, replica: usize, offset: usize) -> Option<usize> {
        if !self.is_mapped(replica) && !self.map(replica) {
            return None;
        }
        Some(self.base + replica * SLAB + offset)
    }

    /// Is it mapped now?
    pub fn is_mapped(&self, replica: usize) -> bool {
        self.mapped[replica / 64].load(Ordering::Acquire) & 1 << (replica % 64) != 0
    }

    fn map(&self, replica: usize) -> bool {
        while self.turn.swap(1, Ordering::Acquire) != 0 {
            sys::yield_now();
        }
        let is_mapped = self.is_mapped(replica)
            || (self.source)(replica).is_some_and(|slab| self.map_at(replica, &slab).is_ok());
        if is_mapped {
            self.mapped[replica / 64].fetch_or(1 << (replica % 64), Ordering::Release);
        }
        self.turn.store(0, Ordering::Release);
        is_mapped
    }

    fn map_at(&self, replica: usize, slab: &SlabFile) -> Result<(), Errno> {
        let at = (self.base + replica * SLAB) as *mut std::ffi::c_void;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: within the reservation, at a place that only this replica has.
        unsafe { rustix::mm::mmap(at, SLAB, protection, flags, slab.as_fd(), slab.offset_bytes()) }
            .map(drop)
    }

    /// The address of a byte of a replica that is mapped.
    pub fn mapped_address(&self, replica: usize, offset: usize) -> usize {
        debug_assert!(self.is_mapped(replica), "replica {replica} is mapped");
        self.base + replica * SLAB + offset
    }

    /// All addresses that are reserved for replicas, and how many bytes they are.
    pub fn reserved(&self) -> (usize, usize) {
        (self.base, self.len_bytes)
    }

    /// Maps a replica no longer; its addresses stay reserved.
    ///
    /// # Errors
    /// The kernel's; it is still mapped then.
    ///
    /// # Safety
    /// Nobody may use it any more, nor look its address up meanwhile.
    pub unsafe fn unmap(&self, replica: usize) -> Result<(), Errno> {
        let at = (self.base + replica * SLAB) as *mut std::ffi::c_void;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        self.mapped[replica / 64].fetch_and(!(1 << (replica % 64)), Ordering::AcqRel);
        // SAFETY: within the reservation, at a place that only this replica has, and nobody uses.
        let reserved = unsafe { rustix::mm::mmap_anonymous(at, SLAB, ProtFlags::empty(), flags) };
        if reserved.is_err() {
            self.mapped[replica / 64].fetch_or(1 << (replica % 64), Ordering::AcqRel);
        }
        reserved.map(drop)
    }

    /// In a forked child, where the thread that may have been mapping one does not exist.
    pub fn reset_after_fork(&self) {
        self.turn.store(0, Ordering::Release);
    }

    /// Writes into a replica from `offset` on; `false`: it cannot be mapped here.
    ///
    /// # Safety
    /// `source` must be valid for `len_bytes`, which end within the replica; nobody else may write
    /// there now.
    pub unsafe fn put(
        &self,
        replica: usize,
        offset: usize,
        source: *const u8,
        len_bytes: usize,
    ) -> bool {
        assert!(offset + len_bytes <= SLAB, "it ends within the replica");
        let Some(at) = self.address(replica, offset) else { return false };
        // SAFETY: mapped for as long as the window is; the rest is the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(source, at as *mut u8, len_bytes) };
        true
    }

    /// Copies bytes out of a replica from `offset` on, as they are while others may write them;
    /// `false`: it cannot be mapped here.
    pub fn get(&self, replica: usize, offset: usize, into: &mut [u8]) -> bool {
        assert!(offset + into.len() <= SLAB, "they end within the replica");
        let Some(at) = self.address(replica, offset) else { return false };
        // SAFETY: mapped for as long as the window is. Bytes that another process changes meanwhile
        // come as they were or as they become, which is all that is said of them.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, into.as_mut_ptr(), into.len()) }
        true
    }
}

impl Drop for SlabWindow {
    fn drop(&mut self) {
        // SAFETY: whoever reads or writes there borrows this or shares its ownership.
        unsafe { sys::unmap(self.reserved.start as *mut _, self.reserved.len()) };
    }
}
