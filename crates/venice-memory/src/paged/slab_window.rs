//! Mapped slabs: each replica of each slab has its own address, and is mapped at its first use.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use venice_ports::shm::SlabFile;
use venice_wire::SLAB_BYTES;

use super::run_block::{RunBlockMap, SLAB_SLOTS};
use super::{PAGE, sys};

/// Returns the file of a replica's slab; `None`: it is not available (any more).
pub type SlabSource = Box<dyn Fn(usize) -> Option<SlabFile> + Send + Sync>;

const SLAB: usize = SLAB_BYTES as usize;
/// Most replicas that get a mapping each at the start (16 GiB in two copies).
const MOST_SPLIT: usize = 2048;
/// The largest page of a memory device that slabs are lent from.
const LARGEST_PAGE: usize = SLAB;

/// Reserved addresses for all replicas of a run, with the state of their mappings.
pub struct SlabWindow {
    reserved: Range<usize>,
    /// The address of the first replica.
    base: usize,
    len_bytes: usize,
    /// A bit for each mapped replica.
    mapped: Box<[AtomicU64]>,
    source: SlabSource,
    /// True if the replicas are the program's own memory, which belongs into its core dumps.
    is_dumped: bool,
    /// 1: a thread maps a replica.
    turn: AtomicU32,
}

impl std::fmt::Debug for SlabWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlabWindow").field("base", &self.base).finish_non_exhaustive()
    }
}

impl SlabWindow {
    /// Reserves addresses for the replicas of `block`. Maps nothing yet.
    ///
    /// # Errors
    /// The kernel's error if the address space is used up.
    pub fn new(block: &RunBlockMap, source: SlabSource) -> Result<SlabWindow, Errno> {
        assert_eq!(SLAB, SLAB_SLOTS as usize * PAGE, "a slab is a whole number of slots");
        let replicas = block.replica_limit();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let (anywhere, len_bytes) = (std::ptr::null_mut(), replicas.max(1) * SLAB);
        // A memory device may have larger pages than the machine. The excess is small, and consists
        // of addresses only.
        let reserved = len_bytes + LARGEST_PAGE;
        // SAFETY: a fresh reservation at an address of the kernel's choice disturbs nothing.
        let base =
            unsafe { rustix::mm::mmap_anonymous(anywhere, reserved, ProtFlags::empty(), flags)? };
        let mapped = (0..replicas.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let reserved = base as usize..base as usize + reserved;
        let (base, turn) = (reserved.start.next_multiple_of(LARGEST_PAGE), AtomicU32::new(0));
        let is_dumped = block.is_window();
        // A debugger would write all of it to its core file, mapped or not.
        sys::leave_out_of_dumps(reserved.start, reserved.len());
        split(base, block.replicas().len());
        Ok(SlabWindow { reserved, base, len_bytes, mapped, source, is_dumped, turn })
    }

    /// The address of a byte of a replica; `None`: the replica cannot be mapped here.
    pub fn address(&self, replica: usize, offset: usize) -> Option<usize> {
        if !self.is_mapped(replica) && !self.map(replica) {
            return None;
        }
        Some(self.base + replica * SLAB + offset)
    }

    /// True if the replica is mapped.
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
        // SAFETY: within the reservation, at the address of this replica alone.
        unsafe {
            rustix::mm::mmap(at, SLAB, protection, flags, slab.as_fd(), slab.offset_bytes())?
        };
        if !self.is_dumped {
            sys::leave_out_of_dumps(at as usize, SLAB);
        }
        Ok(())
    }

    /// The address of a byte of a mapped replica.
    pub fn mapped_address(&self, replica: usize, offset: usize) -> usize {
        debug_assert!(self.is_mapped(replica), "replica {replica} must be mapped");
        self.base + replica * SLAB + offset
    }

    /// The first address reserved for replicas, and the number of bytes reserved.
    pub fn reserved(&self) -> (usize, usize) {
        (self.base, self.len_bytes)
    }

    /// True if the address belongs to the reservation.
    pub fn covers(&self, addr: usize) -> bool {
        self.reserved.contains(&addr)
    }

    /// Unmaps a replica. Its addresses stay reserved.
    ///
    /// # Errors
    /// The kernel's error. The replica is still mapped then.
    ///
    /// # Safety
    /// No thread may use the replica any more, nor look its address up meanwhile.
    pub unsafe fn unmap(&self, replica: usize) -> Result<(), Errno> {
        let at = (self.base + replica * SLAB) as *mut std::ffi::c_void;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        self.mapped[replica / 64].fetch_and(!(1 << (replica % 64)), Ordering::AcqRel);
        // SAFETY: within the reservation, at the address of this replica alone, which no thread
        // uses.
        let reserved = unsafe { rustix::mm::mmap_anonymous(at, SLAB, ProtFlags::empty(), flags) };
        if reserved.is_err() {
            self.mapped[replica / 64].fetch_or(1 << (replica % 64), Ordering::AcqRel);
        }
        reserved.map(|_| sys::leave_out_of_dumps(at as usize, SLAB))
    }

    /// Resets the lock in a forked child. The thread that may have held it does not exist there.
    pub fn reset_after_fork(&self) {
        self.turn.store(0, Ordering::Release);
    }

    /// Writes into a replica from `offset` on; `false`: the replica cannot be mapped here.
    ///
    /// # Safety
    /// `source` must be valid for `len_bytes`, which must end within the replica. No other thread
    /// may write there now.
    pub unsafe fn put(
        &self,
        replica: usize,
        offset: usize,
        source: *const u8,
        len_bytes: usize,
    ) -> bool {
        assert!(offset + len_bytes <= SLAB, "write ends within the replica");
        let Some(at) = self.address(replica, offset) else { return false };
        // SAFETY: mapped as long as the window lives; the caller vouches for the rest.
        unsafe { std::ptr::copy_nonoverlapping(source, at as *mut u8, len_bytes) };
        true
    }

    /// Copies bytes out of a replica from `offset` on, even while others write them; `false`: the
    /// replica cannot be mapped here.
    pub fn get(&self, replica: usize, offset: usize, into: &mut [u8]) -> bool {
        assert!(offset + into.len() <= SLAB, "read ends within the replica");
        let Some(at) = self.address(replica, offset) else { return false };
        // SAFETY: mapped as long as the window lives. Bytes that another process changes meanwhile
        // are read as before or after the change; no more is promised.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, into.as_mut_ptr(), into.len()) }
        true
    }
}

/// Gives each of the first `replicas` replicas a mapping of its own, by a flag that every other one
/// has: to map its slab in place of that takes no further one, which a program at the limit of
/// mappings (`vm.max_map_count`) would not have.
fn split(base: usize, replicas: usize) {
    for replica in (1..replicas.min(MOST_SPLIT)).step_by(2) {
        // SAFETY: advice about a reservation that nothing uses.
        let _ = unsafe { sys::madvise(base + replica * SLAB, SLAB, sys::MADV_NOHUGEPAGE) };
    }
}

impl Drop for SlabWindow {
    fn drop(&mut self) {
        // SAFETY: all readers and writers borrow this or share its ownership.
        unsafe { sys::unmap(self.reserved.start as *mut _, self.reserved.len()) };
    }
}
