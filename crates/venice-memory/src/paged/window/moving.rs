//! Moves the process's pages of a slab to another replica, while the program uses them.
//!
//! The lock that all changes of the address space take is held. For all pieces of the slab at once:
//! 1. The new replica is mapped a second time, at another address, and populated.
//! 2. Writes to the pieces, by the program or by the kernel on its behalf, are blocked by a
//!    userfaultfd. Reads go on.
//! 3. The bytes are copied, unless a device may be writing to them despite that ([`devices`]).
//! 4. The new mapping is moved over the old one, atomically for other threads. Blocked writers go
//!    on, on the new one.
//!
//! Invariant: from step 2 to step 4 no heap memory is allocated here, because a blocked thread may
//! hold the heap's lock.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::page_table::PageNumber;
use super::super::run_block::{Mobility, SLAB_SLOTS};
use super::super::sys::{self, Errno, SysResult, nr};
use super::super::uffd::Uffd;
use super::super::{PAGE, address_of, pages_of};
use super::mapped::{Mapped, Mapping};
use super::structure::{MREMAP_FIXED, MREMAP_MAYMOVE, READ_WRITE};
use super::{Piece, Window, WindowStructure, devices, futex_waiters};

/// The reason why something did not move, in the form in which a process reports it.
type Blocked = Mobility;

/// The part of a piece that is one mapping of the kernel.
#[derive(Debug)]
struct Part {
    range: Range<usize>,
    protection: usize,
    /// The second mapping of the old replica.
    old: usize,
    /// The second mapping of the new replica.
    new: usize,
    /// The temporary address of the mapping that will replace it.
    staged: Option<usize>,
    /// True while writes to it are blocked.
    is_blocked: bool,
    has_moved: bool,
}

impl Window {
    /// Moves all of this process's pages of a slab to `replica`, and records the new location.
    ///
    /// # Errors
    /// The reason why some pages have not moved. The move must be tried again.
    pub(super) fn move_slab(
        &'static self,
        slab: usize,
        replica: usize,
        uffd: Uffd,
        mapped: &mut Mapped,
    ) -> Result<(), Blocked> {
        let row = self.slabs.address(replica, 0).ok_or(Blocked::BlockedByKernel)?;
        // SAFETY: advice about our own mapping that changes no contents.
        let _ = unsafe { sys::madvise(row, SLAB_SLOTS as usize * PAGE, sys::MADV_DONTFORK) };
        let mut structure = self.hold_as_mover();
        self.locations[slab].store(replica as u32 + 1, Ordering::Relaxed);
        mapped.refresh().map_err(|_| Blocked::BlockedByKernel)?;
        let pieces = structure.pieces_to_move(slab, replica);
        let parts = pieces
            .iter()
            .flat_map(|(page, piece)| self.parts_mapped(*page, piece, replica, mapped));
        let mut parts: Vec<Part> = parts.collect();
        let outcome = move_parts(&mut parts, uffd, mapped.has_rings);
        let moved = parts.iter().filter(|part| part.has_moved);
        let moved: Vec<_> = moved.map(|part| (part.range.clone(), part.old)).collect();
        for (range, _) in &moved {
            structure.set_replica(pages_of(range.start, range.len()), replica);
        }
        if !moved.is_empty() {
            // SAFETY: the old replica stays mapped until all pages have left it.
            unsafe { futex_waiters::wake(&moved) };
        }
        outcome?;
        // The remaining ranges were mapped by the program through direct system calls.
        for (page, piece) in pieces {
            structure.set_replica(page..page + piece.count, replica);
        }
        self.unmap_former_locations(slab, replica)?;
        self.block.set_location(self.process, slab, replica);
        Ok(())
    }

    /// The mappings of a piece; none if the program has mapped something else there by a direct
    /// system call.
    fn parts_mapped(
        &self,
        page: PageNumber,
        piece: &Piece,
        replica: usize,
        mapped: &Mapped,
    ) -> Vec<Part> {
        let start = address_of(page);
        let range = start..start + piece.count * PAGE;
        let old = self.in_slabs(piece, 0);
        let new = self.in_slabs(&Piece { replica, ..*piece }, 0);
        let Some(slab) = mapped.at(old) else { return Vec::new() };
        let in_slab = slab.offset + (old - slab.range.start);
        let of_piece = |mapping: &&Mapping| {
            // The file offset that address 0 would have.
            let begins = |offset: usize, addr: usize| offset.wrapping_sub(addr);
            mapping.inode == slab.inode
                && begins(mapping.offset, mapping.range.start) == begins(in_slab, start)
        };
        let part = |mapping: &Mapping| {
            let range = mapping.range.start.max(range.start)..mapping.range.end.min(range.end);
            let offset = range.start - start;
            let (old, new) = (old + offset, new + offset);
            let protection = mapping.protection;
            Part { range, protection, old, new, staged: None, is_blocked: false, has_moved: false }
        };
        mapped.within(range.clone()).filter(of_piece).map(part).collect()
    }

    /// Unmaps the replicas that a slab has left.
    fn unmap_former_locations(&self, slab: usize, location: usize) -> Result<(), Blocked> {
        for (replica, entry) in self.block.replicas().iter().enumerate() {
            if entry.slab() == slab && replica != location && self.slabs.is_mapped(replica) {
                // SAFETY: no piece lies there, and the lock is held that every search for a piece
                // takes.
                unsafe { self.slabs.unmap(replica) }.map_err(|_| Blocked::BlockedByKernel)?;
            }
        }
        Ok(())
    }
}

impl WindowStructure {
    /// The pieces of a slab that are mapped from another replica.
    fn pieces_to_move(&mut self, slab: usize, replica: usize) -> Vec<(PageNumber, Piece)> {
        let pieces = self.contents().pieces.iter();
        let is_away =
            |piece: &Piece| (piece.slot / SLAB_SLOTS) as usize == slab && piece.replica != replica;
        pieces.filter(|(_, piece)| is_away(piece)).map(|(page, piece)| (*page, *piece)).collect()
    }
}

/// Replaces the old replica by the new one, as far as possible.
fn move_parts(parts: &mut [Part], uffd: Uffd, has_rings: bool) -> Result<(), Blocked> {
    let ready = parts.iter_mut().try_for_each(|part| part.stage()).map_err(by_kernel);
    let held = ready.and_then(|()| parts.iter_mut().try_for_each(|part| part.block_writes(uffd)));
    let moved = match held {
        Ok(()) if !parts.is_empty() && (has_rings || devices::may_write()) => {
            Err(Blocked::BlockedByDevices)
        }
        Ok(()) => parts.iter_mut().try_for_each(|part| part.take_over(uffd)).map_err(by_kernel),
        Err(held) => Err(held),
    };
    // All writers go on, wherever their pages are now.
    parts.iter_mut().for_each(|part| part.unblock_writes(uffd));
    moved
}

fn by_kernel(_: Errno) -> Blocked {
    Blocked::BlockedByKernel
}

impl Part {
    fn len_bytes(&self) -> usize {
        self.range.len()
    }

    /// Maps the new replica at a temporary address, and populates it.
    fn stage(&mut self) -> SysResult<()> {
        let arguments = [self.new, 0, self.len_bytes(), MREMAP_MAYMOVE, 0, 0];
        // SAFETY: a shared mapping with an old length of 0 is mapped a second time, at an address
        // of the kernel's choice.
        let staged = unsafe { sys::syscall(nr::MREMAP, arguments)? };
        self.staged = Some(staged);
        // SAFETY: advice that changes no contents.
        unsafe { sys::madvise(staged, self.len_bytes(), sys::MADV_POPULATE_WRITE) }
    }

    fn block_writes(&mut self, uffd: Uffd) -> Result<(), Blocked> {
        let held = uffd.hold_writes(self.range.start, self.len_bytes());
        held.map_err(|error| match error {
            Errno::EINVAL => Blocked::InDevice,
            error => by_kernel(error),
        })?;
        self.is_blocked = true;
        Ok(())
    }

    fn unblock_writes(&mut self, uffd: Uffd) {
        let len_bytes = self.len_bytes();
        if std::mem::take(&mut self.is_blocked) {
            uffd.let_write(self.range.start, len_bytes);
        }
        if let Some(staged) = self.staged.take() {
            // SAFETY: mapped by `stage`, and unused.
            unsafe { sys::unmap(staged as *mut _, len_bytes) };
        }
    }

    /// Copies the bytes, which no thread writes meanwhile, and moves the copy over them.
    fn take_over(&mut self, uffd: Uffd) -> SysResult<()> {
        let len_bytes = self.len_bytes();
        let staged = self.staged.expect("staged before");
        // SAFETY: both are mapped. Writers to the one are blocked, and no other thread has the
        // address of the other.
        unsafe {
            std::ptr::copy_nonoverlapping(self.old as *const u8, staged as *mut u8, len_bytes)
        };
        if self.protection != READ_WRITE {
            let arguments = [staged, len_bytes, self.protection, 0, 0, 0];
            // SAFETY: sets the protection that the program has set on the old mapping.
            unsafe { sys::syscall(nr::MPROTECT, arguments)? };
        }
        let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        let arguments = [staged, len_bytes, len_bytes, flags, self.range.start, 0];
        // SAFETY: over the copied mapping; the lock is held, so it has not changed.
        match unsafe { sys::syscall(nr::MREMAP, arguments) } {
            Ok(_) => {
                (self.staged, self.is_blocked, self.has_moved) = (None, false, true);
                uffd.wake(self.range.start, len_bytes);
                Ok(())
            }
            Err(error) if self.is_mapped() => Err(error),
            Err(error) => sys::die(lost_words(error)),
        }
    }

    /// True if the program's range is still mapped.
    fn is_mapped(&self) -> bool {
        let is_there = |addr| sys::mincore(addr, &mut [0]).is_ok();
        is_there(self.range.start) && is_there(self.range.end - PAGE)
    }
}

/// The message if the kernel had unmapped the old mapping before it failed to move the new one.
fn lost_words(error: Errno) -> &'static str {
    match error {
        Errno::ENOMEM => {
            "moving the program's memory failed: the kernel is out of memory; the program ends"
        }
        _ => "moving the program's memory failed; the program ends",
    }
}
