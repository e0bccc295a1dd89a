//! Memory shared with the kernel: the frames, and the rings that hand them over.

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::XdpRingOffset;

/// A mapping, until dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Makes shared memory, which belongs to the kernel and this process also after a fork.
    pub(super) fn anonymous(len: usize) -> rustix::io::Result<Self> {
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(null_mut(), len, access, flags) }?;
        Ok(Self { start: start.cast(), len })
    }

    fn of(socket: BorrowedFd<'_>, offset: u64, len: usize) -> rustix::io::Result<Self> {
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap(null_mut(), len, access, flags, socket, offset) }?;
        Ok(Self { start: start.cast(), len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of `offset`.
    ///
    /// # Panics
    /// Panics if it does not lie within the mapping.
    pub(super) fn at<T>(&self, offset: u64) -> *mut T {
        let offset = offset as usize;
        let is_within = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len);
        assert!(is_within, "the offset lies outside the mapping");
        // SAFETY: within the mapping.
        unsafe { self.start.add(offset).cast() }
    }

    /// Returns the bytes of a frame that this process owns now.
    ///
    /// # Safety
    /// The kernel must not own them, nor may another reference exist.
    ///
    /// # Panics
    /// Same as [`Mapping::at`].
    pub(super) unsafe fn bytes(&mut self, offset: u64, len: usize) -> &mut [u8] {
        let end = (offset as usize).checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "the range lies outside the mapping");
        // SAFETY: within the mapping; owned by the caller, by its promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset as usize), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no longer used.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}

/// One of the kernel's rings. One end is ours, the other the kernel's.
#[derive(Debug)]
pub(super) struct Ring<T> {
    mapping: Mapping,
    entries: u64,
    places: u32,
    /// Offset of the counters.
    producer: u64,
    consumer: u64,
    _holds: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `places` entries, a power of two, at `page_offset` of the socket.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        offsets: &XdpRingOffset,
        page_offset: u64,
        places: u32,
    ) -> rustix::io::Result<Self> {
        let XdpRingOffset { producer, consumer, desc, .. } = *offsets;
        let len = desc as usize + places as usize * size_of::<T>();
        let mapping = Mapping::of(socket, page_offset, len)?;
        Ok(Self { mapping, entries: desc, places, producer, consumer, _holds: PhantomData })
    }

    /// True if there is nothing to take.
    pub(super) fn is_empty(&self) -> bool {
        let consumed = self.counter(self.consumer).load(Ordering::Relaxed);
        self.counter(self.producer).load(Ordering::Acquire) == consumed
    }

    /// Adds the entries; the total never exceeds the ring's places.
    pub(super) fn put(&mut self, entries: impl Iterator<Item = T>) {
        let mut produced = self.counter(self.producer).load(Ordering::Relaxed);
        for entry in entries {
            // SAFETY: the kernel has consumed the old entry, and does not read before the counter
            // moves.
            unsafe { self.entry(produced).write(entry) };
            produced = produced.wrapping_add(1);
        }
        self.counter(self.producer).store(produced, Ordering::Release);
    }

    /// Takes the next entry; the kernel may reuse its place only after [`Ring::release`].
    pub(super) fn take(&self, taken: u32) -> Option<T> {
        let consumed = self.counter(self.consumer).load(Ordering::Relaxed).wrapping_add(taken);
        if self.counter(self.producer).load(Ordering::Acquire) == consumed {
            return None;
        }
        // SAFETY: the kernel has produced it, and leaves it until it is consumed.
        Some(unsafe { self.entry(consumed).read() })
    }

    /// Releases the places of the first `taken` entries.
    pub(super) fn release(&mut self, taken: u32) {
        let consumed = self.counter(self.consumer).load(Ordering::Relaxed);
        self.counter(self.consumer).store(consumed.wrapping_add(taken), Ordering::Release);
    }

    fn counter(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: a counter lies there, and both ends use it as an atomic.
        unsafe { &*self.mapping.at::<AtomicU32>(offset) }
    }

    fn entry(&self, count: u32) -> *mut T {
        let index = u64::from(count % self.places);
        self.mapping.at(self.entries + index * size_of::<T>() as u64)
    }
}
