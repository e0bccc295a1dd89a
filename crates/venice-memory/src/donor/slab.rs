//! One slab: a sealed, locked, zeroed piece of this machine's memory that can be lent.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, munmap};
use venice_fabric::{Atomic, LendingMemory, Lent};
use venice_ports::shm::SlabFile;
use venice_wire::{Checksum, SLAB_BYTES};

use super::DonorError;
use super::pool::DeviceSlot;

/// Length of a slab's mapping, bytes.
pub(super) const SLAB_LEN: NonZeroUsize = NonZeroUsize::new(SLAB_BYTES as usize).unwrap();

/// A memfd of [`SLAB_BYTES`], sealed against resizing, mapped and locked here; or a piece of a
/// memory device of the same length.
///
/// The seals prevent a recipient with the descriptor from shrinking the file, which would raise
/// SIGBUS in the agent, and from adding seals of its own.
#[derive(Debug)]
pub struct Slab {
    file: SlabFile,
    /// The position in the pool's devices; `None` for this machine's memory.
    slot: Option<DeviceSlot>,
    mapping: Arc<Mapping>,
}

/// The mapping of a slab. It lives as long as the slab, or as long as bytes of it are lent to an
/// answer still being sent.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
}

// SAFETY: a Mapping is the only owner of its pages in this process; the pointer is valid on every
// thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared Mapping only copies bytes in and out. The bytes are shared with the recipient's
// processes anyway: two concurrent copies mix the bytes and harm nothing else.
unsafe impl Sync for Mapping {}

impl Slab {
    /// Creates a slab of zeroes.
    ///
    /// # Errors
    /// [`DonorError::Memory`] if the memory is unavailable, [`DonorError::Lock`] if it cannot be
    /// locked.
    pub fn new() -> Result<Self, DonorError> {
        let slab = Self::unlocked()?;
        slab.lock()?;
        Ok(slab)
    }

    /// Creates a slab of zeroes whose memory is allocated page by page at the first use, and may be
    /// swapped out.
    ///
    /// # Errors
    /// [`DonorError::Memory`] if the kernel refuses it.
    pub fn unlocked() -> Result<Self, DonorError> {
        Self::map(memfd()?.into())
    }

    /// Creates a locked slab of zeroes, all of whose memory is allocated before it is mapped.
    ///
    /// The kernel may take long to find that memory. While it does so for a mapping, no thread of
    /// the process can map anything. A process on which that very memory depends must not be
    /// blocked so.
    ///
    /// # Errors
    /// The errors of [`Slab::new`].
    pub fn set_aside() -> Result<Self, DonorError> {
        let fd = memfd()?;
        take_all(&fd)?;
        let slab = Self::map(fd.into())?;
        slab.lock()?;
        Ok(slab)
    }

    /// Creates a slab of zeroes in a file with all its blocks allocated, so that no write to it
    /// finds the disk full. It lives as long as the file is open somewhere.
    ///
    /// # Errors
    /// [`DonorError::Memory`] if the disk has no room or the file cannot grow.
    pub fn in_file(file: OwnedFd) -> Result<Self, DonorError> {
        take_all(&file)?;
        Self::map(file.into())
    }

    /// Creates a slab from a piece of a memory device, and zeroes it.
    ///
    /// # Errors
    /// The kernel's error if it cannot be mapped.
    pub(super) fn in_device(file: SlabFile) -> Result<Self, Errno> {
        let slab = Self::map_file(file)?;
        // SAFETY: the whole mapping, which no other thread uses yet.
        unsafe { std::ptr::write_bytes(slab.mapping.base.as_ptr(), 0, SLAB_LEN.get()) };
        Ok(slab)
    }

    fn map(file: SlabFile) -> Result<Self, DonorError> {
        Self::map_file(file).map_err(no_memory("mmap"))
    }

    fn map_file(file: SlabFile) -> Result<Self, Errno> {
        let (anywhere, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let (fd, offset, flags) = (file.as_fd(), file.offset_bytes(), MapFlags::SHARED);
        // SAFETY: the kernel picks a free address range; no mapping of ours is replaced.
        let base = unsafe { mmap(anywhere, SLAB_LEN.get(), protection, flags, fd, offset)? };
        let base = NonNull::new(base.cast::<u8>()).expect("mmap returns no null mapping");
        Ok(Self { file, slot: None, mapping: Arc::new(Mapping { base }) })
    }

    fn lock(&self) -> Result<(), DonorError> {
        let base = self.mapping.base;
        // Huge pages are a bonus that most machines do not give to shared memory.
        // SAFETY: advice about our own whole mapping; it does not change its contents.
        let _ = unsafe { madvise(base.as_ptr().cast(), SLAB_LEN.get(), Advice::LinuxHugepage) };
        // SAFETY: our own whole mapping, unmapped only when `slab` is dropped.
        unsafe { mlock(base.as_ptr().cast(), SLAB_LEN.get()) }
            .map_err(|errno| DonorError::Lock { source: errno })
    }

    /// The file that it is mapped from, to be passed to the owner of the grant.
    ///
    /// # Errors
    /// The kernel's error if this process has too many descriptors.
    pub fn file(&self) -> std::io::Result<SlabFile> {
        self.file.try_clone()
    }

    /// Returns the same slab once more; `None`: this process has too many descriptors.
    pub(super) fn share(&self) -> Option<Self> {
        let (file, mapping) = (self.file().ok()?, Arc::clone(&self.mapping));
        Some(Self { file, slot: self.slot, mapping })
    }

    /// Sets its position in the pool's devices.
    pub(super) fn at(self, slot: DeviceSlot) -> Self {
        Self { slot: Some(slot), ..self }
    }

    /// The position in the pool's devices; `None`: it is this machine's memory.
    pub(super) fn slot(&self) -> Option<DeviceSlot> {
        self.slot
    }

    /// Copies bytes out of the slab.
    ///
    /// # Panics
    /// If the range leaves the slab; the caller has checked it.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.mapping.copy_to(offset, into);
    }

    /// Lends bytes of the slab. They stay mapped, and the slab's memory returns to the kernel only
    /// after they are returned.
    ///
    /// # Panics
    /// If the range leaves the slab; the caller has checked it.
    pub fn lend(&self, range: Range<usize>) -> Lent {
        assert!(range.end <= SLAB_LEN.get());
        Lent::new(Arc::clone(&self.mapping) as Arc<dyn LendingMemory>, range)
    }

    /// True if no bytes are lent: no answer that is still to be sent reads the slab.
    pub fn is_unlent(&self) -> bool {
        Arc::strong_count(&self.mapping) == 1
    }

    /// Copies bytes into the slab. Eight bytes at a multiple of eight are stored at once, after all
    /// that this thread stored before: who reads them atomically sees that too.
    ///
    /// # Panics
    /// If the range leaves the slab; the caller has checked it.
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset <= SLAB_LEN.get() && from.len() <= SLAB_LEN.get() - offset);
        if let Ok(number) = <[u8; Atomic::BYTES]>::try_from(from)
            && offset.is_multiple_of(Atomic::BYTES)
        {
            self.mapping.word(offset).store(u64::from_ne_bytes(number), Ordering::Release);
            return;
        }
        // SAFETY: as in `Mapping::copy_to`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr(),
                self.mapping.base.as_ptr().add(offset),
                from.len(),
            );
        }
    }

    /// Performs `atomic` on the eight bytes at `offset` and returns the earlier value. It is atomic
    /// for all processes that map the slab and use atomic instructions too.
    ///
    /// # Panics
    /// If the eight bytes leave the slab or `offset` is not a multiple of eight; the caller has
    /// checked both.
    pub fn atomic(&self, offset: usize, atomic: Atomic) -> u64 {
        let word = self.mapping.word(offset);
        match atomic {
            Atomic::FetchAdd(add) => fetch_add_little_endian(word, add),
            Atomic::CompareSwap { expected, new } => {
                let (expected, new) = (expected.to_le(), new.to_le());
                let old = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
                u64::from_le(old.unwrap_or_else(|found| found))
            }
        }
    }
}

/// Creates a slab's memory, with no page allocated yet.
fn memfd() -> Result<OwnedFd, DonorError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("venice-slab", flags).map_err(no_memory("memfd_create"))?;
    ftruncate(&fd, SLAB_BYTES).map_err(no_memory("ftruncate"))?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(no_memory("fcntl(F_ADD_SEALS)"))?;
    Ok(fd)
}

/// Allocates all the memory, or all the blocks, of a slab's file.
fn take_all(file: &OwnedFd) -> Result<(), DonorError> {
    fallocate(file, FallocateFlags::empty(), 0, SLAB_BYTES).map_err(no_memory("fallocate"))
}

fn no_memory(step: &'static str) -> impl Fn(Errno) -> DonorError {
    move |source| DonorError::Memory { step, source }
}

/// Adds in one instruction on little-endian machines: the fabric's numbers are little-endian.
fn fetch_add_little_endian(word: &AtomicU64, add: u64) -> u64 {
    if cfg!(target_endian = "little") {
        return word.fetch_add(add, Ordering::AcqRel);
    }
    let sum = |found| Some(u64::from_le(found).wrapping_add(add).to_le());
    let old = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum);
    u64::from_le(old.unwrap_or_else(|found| found))
}

impl Mapping {
    /// Returns the eight bytes at `offset`, a multiple of eight inside the slab.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(Atomic::BYTES) && offset < SLAB_LEN.get());
        // SAFETY: the eight bytes lie in the mapping and are aligned (asserted above; the mapping
        // starts on a page). Other accesses here are raw copies, and other processes that map the
        // slab access it like any shared memory. A concurrent plain copy reads or leaves a mixture,
        // but forms no reference.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl LendingMemory for Mapping {
    /// Copies bytes out; eight of them at a multiple of eight are loaded at once, before all that
    /// this thread loads afterwards.
    fn copy_to(&self, offset: usize, into: &mut [u8]) {
        assert!(offset <= SLAB_LEN.get() && into.len() <= SLAB_LEN.get() - offset);
        if into.len() == Atomic::BYTES && offset.is_multiple_of(Atomic::BYTES) {
            let number = self.word(offset).load(Ordering::Acquire);
            into.copy_from_slice(&number.to_ne_bytes());
            return;
        }
        // SAFETY: the range lies in the mapping (asserted above). `into` is private memory of this
        // process and so cannot overlap. A recipient on this machine may write the same bytes at
        // the same time. The copy then holds a mixture of old and new bytes, as with any
        // unsynchronised access to shared memory.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.base.as_ptr().add(offset),
                into.as_mut_ptr(),
                into.len(),
            );
        }
    }

    fn feed(&self, range: Range<usize>, checksum: &mut Checksum) {
        assert!(range.start <= range.end && range.end <= SLAB_LEN.get());
        // SAFETY: the range lies in the mapping (asserted above), which lives as long as `self`.
        // This is the only reference to bytes of a slab. A recipient may write to them meanwhile,
        // which Rust's rules leave open, and no copy for the checksum would be fast enough to avoid
        // it. The routine loads each byte into registers, and no byte decides its control flow or
        // its next read. The worst result is a sum that fits no bytes: the other side refuses the
        // frame and gets a copy.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) };
        checksum.update(bytes);
    }

    fn address(&self, offset: usize) -> *const u8 {
        assert!(offset < SLAB_LEN.get());
        // SAFETY: inside the mapping (asserted above).
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own whole mapping, which no thread can use after the drop. A recipient's
        // mapping of the same memfd stays valid.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), SLAB_LEN.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fcntl_get_seals;

    #[test]
    fn new_slab_is_zeroed_and_writable() {
        let slab = Slab::new().unwrap();
        let mut bytes = [1u8; 64];
        slab.read(SLAB_LEN.get() - 64, &mut bytes);
        assert_eq!(bytes, [0; 64]);
        slab.write(4090, b"across a page");
        let mut back = [0u8; 13];
        slab.read(4090, &mut back);
        assert_eq!(&back, b"across a page");
    }

    #[test]
    fn lent_bytes_outlive_slab() {
        let slab = Slab::new().unwrap();
        slab.write(8, b"as it was");
        let lent = slab.lend(8..17);
        slab.write(8, b"as it is ");
        drop(slab);
        let mut bytes = [0; 9];
        lent.copy_to(&mut bytes);
        assert_eq!(&bytes, b"as it is ");
    }

    #[test]
    fn atomics_of_two_mappings_add_up() {
        const ADDS: u64 = 20_000;
        let slab = Slab::new().unwrap();
        // SAFETY: a fresh mapping of the slab's memfd, like that of a recipient on this machine.
        let other = unsafe {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), 4096, flags, MapFlags::SHARED, &slab.file, 0).unwrap()
        };
        // SAFETY: the mapping's first eight bytes, which outlive the thread below.
        let word = unsafe { AtomicU64::from_ptr(other.cast()) };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ADDS {
                    word.fetch_add(1, Ordering::Relaxed);
                }
            });
            for _ in 0..ADDS {
                slab.atomic(0, Atomic::FetchAdd(1));
            }
        });
        assert_eq!(slab.atomic(0, Atomic::FetchAdd(0)), 2 * ADDS);
        let swap = |expected, new| slab.atomic(8, Atomic::CompareSwap { expected, new });
        assert_eq!((swap(1, 7), swap(0, 7), swap(7, 9), swap(9, 9)), (0, 0, 7, 9));
        // SAFETY: mapped above, not used any more.
        unsafe { munmap(other, 4096).unwrap() };
    }

    #[test]
    fn rejects_resize_and_further_seals() {
        let slab = Slab::new().unwrap();
        assert_eq!(ftruncate(&slab.file, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&slab.file, SLAB_BYTES * 2), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&slab.file, SealFlags::WRITE), Err(Errno::PERM));
        let seals = fcntl_get_seals(&slab.file).unwrap();
        assert_eq!(seals, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    }

    #[test]
    #[should_panic]
    fn read_outside_slab_panics() {
        Slab::new().unwrap().read(SLAB_LEN.get() - 1, &mut [0; 2]);
    }

    /// Kilobytes of this process's memory that the kernel counts as locked.
    fn locked_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn slabs_are_locked() {
        let slabs = [Slab::new().unwrap(), Slab::set_aside().unwrap()];
        assert!(locked_kib() * 1024 >= 2 * SLAB_BYTES);
        drop(slabs);
    }

    #[test]
    fn set_aside_slab_is_allocated() {
        let slab = Slab::set_aside().unwrap();
        let taken_bytes = rustix::fs::fstat(&slab.file).unwrap().st_blocks as u64 * 512;
        assert!(taken_bytes >= SLAB_BYTES, "{taken_bytes} bytes are there");
        let mut bytes = [1; 64];
        slab.read(SLAB_LEN.get() - 64, &mut bytes);
        assert_eq!(bytes, [0; 64]);
    }
}
