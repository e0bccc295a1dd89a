//! Memory shared by two processes: a sealed memfd with a ring for each direction.
//!
//! | bytes | content |
//! |---|---|
//! | 0..4096 | cursors and flags: 512 bytes for each direction, each field in a pair of lines of its own |
//! | 4096.. | the lines of direction 0, its spare lines, to the end of a page; then direction 1 |
//!
//! The side that made the memory writes direction 0 and reads direction 1.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::RING_FRAME_BYTES;
use super::algorithm::{Flag, LINE_BYTES, MIN_LINES, RECORD_HEAD_BYTES, RECORD_LINES, RingMemory};
use crate::PortError;

const PAGE_BYTES: usize = 4096;
/// Two cache lines: the processor fetches them in pairs.
const FIELD_BYTES: usize = 128;
const DIRECTION_FIELDS_BYTES: usize = 4 * FIELD_BYTES;
const MAX_LINES: u64 = 1 << 19;

/// Mapping of the whole memory; unmapped when both rings are dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the mapping is valid on any thread; see `SharedRing` for its use.
unsafe impl Send for Mapping {}
// SAFETY: a shared Mapping gives out nothing but its address.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps our own whole mapping; the last pointer into it is gone.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// One direction of a mapped pair of rings.
#[derive(Debug)]
pub(crate) struct SharedRing {
    mapping: Arc<Mapping>,
    fields_at: usize,
    lines_at: usize,
    lines: u64,
}

/// Returns the number of lines of a ring of about `bytes`: a power of two within bounds.
pub(crate) fn lines_for(bytes: usize) -> u64 {
    let lines = (bytes / LINE_BYTES).max(1) as u64;
    lines.clamp(MIN_LINES, MAX_LINES).next_power_of_two()
}

fn direction_bytes(lines: u64) -> usize {
    ((lines + RECORD_LINES) as usize * LINE_BYTES).next_multiple_of(PAGE_BYTES)
}

fn total_bytes(lines: u64) -> usize {
    PAGE_BYTES + 2 * direction_bytes(lines)
}

/// Makes a memfd for a pair of rings of `lines` lines each, zeroed and sealed in its size.
pub(crate) fn create(lines: u64) -> Result<OwnedFd, PortError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("venice-ring", flags).map_err(PortError::at("making a ring's memory"))?;
    ftruncate(&fd, total_bytes(lines) as u64).map_err(PortError::at("sizing a ring's memory"))?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(PortError::at("sealing a ring's memory"))?;
    Ok(fd)
}

/// Maps a pair of rings: the one to write and the one to read.
///
/// # Errors
/// Fails if the memfd differs from one that [`create`] makes, or cannot be mapped.
pub(crate) fn map(
    fd: BorrowedFd<'_>,
    lines: u64,
    is_maker: bool,
) -> Result<(SharedRing, SharedRing), PortError> {
    if !lines.is_power_of_two() || !(MIN_LINES..=MAX_LINES).contains(&lines) {
        return Err(PortError::Protocol { what: "invalid ring size" });
    }
    check(fd, total_bytes(lines))?;
    let len_bytes = total_bytes(lines);
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: the kernel picks a free address range; no existing mapping is replaced.
    let base = unsafe { mmap(std::ptr::null_mut(), len_bytes, prot, flags, fd, 0) }
        .map_err(PortError::at("mapping a ring"))?;
    let base = NonNull::new(base.cast()).expect("mmap gives no null mapping");
    let mapping = Arc::new(Mapping { base, len_bytes });
    let direction = |number: usize| SharedRing {
        mapping: Arc::clone(&mapping),
        fields_at: number * DIRECTION_FIELDS_BYTES,
        lines_at: PAGE_BYTES + number * direction_bytes(lines),
        lines,
    };
    let (first, second) = (direction(0), direction(1));
    Ok(if is_maker { (first, second) } else { (second, first) })
}

/// Checks the seals and the length: a file that the other side could shrink would allow a SIGBUS.
fn check(fd: BorrowedFd<'_>, len_bytes: usize) -> Result<(), PortError> {
    let seals = fcntl_get_seals(fd).map_err(PortError::at("reading a ring's seals"))?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(PortError::Protocol { what: "ring memory is not sealed" });
    }
    let stat = fstat(fd).map_err(PortError::at("reading a ring's length"))?;
    if stat.st_size as u64 != len_bytes as u64 {
        return Err(PortError::Protocol { what: "wrong length of the ring memory" });
    }
    Ok(())
}

impl SharedRing {
    /// Returns the number of lines of the ring, without the spare ones.
    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns the address of the first byte of `line`; at least a record's lines are mapped from
    /// there on. The memory is shared with another process: use raw copies, no references that
    /// outlive one write.
    pub(crate) fn line_ptr(&self, line: u64) -> *mut u8 {
        assert!(line < self.lines, "line {line} is not of this ring");
        // SAFETY: line < lines, so this is inside the mapping, with RECORD_LINES spare behind.
        unsafe { self.mapping.base.as_ptr().add(self.lines_at + line as usize * LINE_BYTES) }
    }

    /// Tells the writer for good that its records are no longer read.
    pub(crate) fn set_deaf(&self) {
        self.field(3).store(1, Ordering::Release);
    }

    /// True if the reader has called [`SharedRing::set_deaf`].
    pub(crate) fn is_deaf(&self) -> bool {
        self.field(3).load(Ordering::Acquire) != 0
    }

    /// Sets the second word of a record's head, before the record is published.
    pub(crate) fn set_tag(&self, line: u64, tag: u64) {
        let at = self.line_ptr(line).cast::<u64>();
        // SAFETY: inside a line, aligned, and accessed only atomically in rings of pipes.
        unsafe { AtomicU64::from_ptr(at.add(1)) }.store(tag, Ordering::Relaxed);
    }

    /// Returns the second word of the head of a published record.
    pub(crate) fn tag(&self, line: u64) -> u64 {
        let at = self.line_ptr(line).cast::<u64>();
        // SAFETY: as in `set_tag`; the record's publication orders the load.
        unsafe { AtomicU64::from_ptr(at.add(1)) }.load(Ordering::Relaxed)
    }

    /// Copies `bytes` behind the head of the record at `line`.
    ///
    /// # Panics
    /// Panics if a record cannot hold them.
    pub(crate) fn fill(&self, line: u64, bytes: &[u8]) {
        assert!(bytes.len() <= RING_FRAME_BYTES, "a record holds them");
        // SAFETY: a record's lines are mapped from `line_ptr` on. A hostile reader only changes
        // what it will read.
        unsafe {
            let to = self.line_ptr(line).add(RECORD_HEAD_BYTES);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Copies bytes behind the head of the record at `line`, from `offset` on.
    ///
    /// # Panics
    /// Panics if they lie outside a record.
    pub(crate) fn copy(&self, line: u64, offset: usize, into: &mut [u8]) {
        assert!(
            offset.checked_add(into.len()).is_some_and(|end| end <= RING_FRAME_BYTES),
            "a record holds them"
        );
        // SAFETY: a record's lines are mapped from `line_ptr` on. A hostile writer may change them
        // meanwhile: then the copy holds arbitrary bytes.
        unsafe {
            let from = self.line_ptr(line).add(RECORD_HEAD_BYTES + offset);
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
    }

    fn line_word(&self, line: u64) -> &AtomicU64 {
        let at = self.line_ptr(line).cast::<u64>();
        // SAFETY: mapped for as long as `self`, aligned to a line, and used as the start of a line
        // by atomic accesses only while it can be a record's word; see `algorithm`.
        unsafe { AtomicU64::from_ptr(at) }
    }

    fn field(&self, number: usize) -> &AtomicU64 {
        let at = self.fields_at + number * FIELD_BYTES;
        assert!(at < PAGE_BYTES);
        // SAFETY: inside the first page of the mapping, aligned, and accessed only atomically.
        unsafe { AtomicU64::from_ptr(self.mapping.base.as_ptr().add(at).cast()) }
    }

    fn flag(&self, flag: Flag) -> &AtomicU64 {
        match flag {
            Flag::ReaderSleeps => self.field(1),
            Flag::WriterSleeps => self.field(2),
        }
    }
}

impl RingMemory for SharedRing {
    fn word(&self, line: u64) -> u64 {
        self.line_word(line).load(Ordering::Acquire)
    }

    fn clear_word(&self, line: u64) {
        self.line_word(line).store(0, Ordering::Relaxed);
    }

    fn publish_word(&self, line: u64, word: u64) {
        self.line_word(line).store(word, Ordering::Release);
    }

    fn head(&self) -> u64 {
        self.field(0).load(Ordering::Acquire)
    }

    fn publish_head(&self, head: u64) {
        self.field(0).store(head, Ordering::Release);
    }

    fn set_flag(&self, flag: Flag, raised: bool) {
        self.flag(flag).store(u64::from(raised), Ordering::Relaxed);
    }

    fn is_raised(&self, flag: Flag) -> bool {
        self.flag(flag).load(Ordering::Relaxed) != 0
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn map_requires_size_seals() {
        let lines = lines_for(0);
        let unsealed = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, total_bytes(lines) as u64).unwrap();
        assert!(matches!(map(unsealed.as_fd(), lines, true), Err(PortError::Protocol { .. })));
        let short = create(lines).unwrap();
        for wrong in [0, 1, 1000, lines * 2, u64::MAX] {
            assert!(matches!(map(short.as_fd(), wrong, true), Err(PortError::Protocol { .. })));
        }
        assert!(map(short.as_fd(), lines, true).is_ok());
    }

    #[test]
    fn both_sides_share_memory() {
        let lines = lines_for(1 << 18);
        let fd = create(lines).unwrap();
        let (write, _) = map(fd.as_fd(), lines, true).unwrap();
        let (_, read) = map(fd.as_fd(), lines, false).unwrap();
        write.publish_word(lines - 1, 7);
        write.set_flag(Flag::WriterSleeps, true);
        assert_eq!((read.word(lines - 1), read.word(0)), (7, 0));
        assert!(read.is_raised(Flag::WriterSleeps) && !read.is_raised(Flag::ReaderSleeps));
    }
}
