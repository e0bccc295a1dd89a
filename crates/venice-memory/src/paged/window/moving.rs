//! Moving what a process has of a slab to another replica of it, while the program uses it.
//!
//! With the lock held that all changes of the address space take, for all pieces of it at once:
//! 1. the new replica is mapped a second time, somewhere else, and made ready;
//! 2. who writes to a piece is held up, by a userfaultfd, whether it is the program or the kernel for
//!    it; reads go on;
//! 3. unless a device may be writing to it past all that ([`devices`]), its bytes are copied;
//! 4. the new mapping is moved over the old one, which for other threads is one step, and who was
//!    held up goes on, on the new one.
//!
//! From 2 to 4 nothing here takes memory of the heap: a thread that is held up may have its lock.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::page_table::PageNumber;
use super::super::run_block::{Mobility, SLAB_SLOTS};
use super::super::sys::{self, Errno, SysResult, nr};
use super::super::uffd::Uffd;
use super::super::{PAGE, address_of, pages_of};
use super::mapped::{Mapped, Mapping};
use super::structure::{MREMAP_FIXED, MREMAP_MAYMOVE, READ_WRITE};
use super::{Piece, Window, WindowStructure, devices, sleepers};

/// Why something did not move: as a process says it.
type Held = Mobility;

/// A part of a piece that is one mapping of the kernel's.
#[derive(Debug)]
struct Part {
    range: Range<usize>,
    protection: usize,
    /// Where what it has is mapped besides.
    old: usize,
    /// Where what it is to have is mapped besides.
    new: usize,
    /// Where what is to be in its place is mapped for now.
    staged: Option<usize>,
    /// Who writes to it is held up.
    is_held: bool,
    has_moved: bool,
}

impl Window {
    /// Takes all that this process has of a slab to `replica`, and says that its home is there.
    ///
    /// # Errors
    /// Why some of it is still where it was; then it is to be tried again.
    pub(super) fn move_slab(
        &'static self,
        slab: usize,
        replica: usize,
        uffd: Uffd,
        mapped: &mut Mapped,
    ) -> Result<(), Held> {
        let row = self.slabs.address(replica, 0).ok_or(Held::HeldByKernel)?;
        // SAFETY: advice about our own mapping that changes no contents.
        let _ = unsafe { sys::madvise(row, SLAB_SLOTS as usize * PAGE, sys::MADV_DONTFORK) };
        let mut structure = self.hold_as_mover();
        self.homes[slab].store(replica as u32 + 1, Ordering::Relaxed);
        mapped.look().map_err(|_| Held::HeldByKernel)?;
        let pieces = structure.away_from_home(slab, replica);
        let parts = pieces
            .iter()
            .flat_map(|(page, piece)| self.parts_mapped(*page, piece, replica, mapped));
        let mut parts: Vec<Part> = parts.collect();
        let outcome = move_parts(&mut parts, uffd, mapped.has_rings);
        let moved = parts.iter().filter(|part| part.has_moved);
        let moved: Vec<_> = moved.map(|part| (part.range.clone(), part.old)).collect();
        for (range, _) in &moved {
            structure.rehome(pages_of(range.start, range.len()), replica);
        }
        if !moved.is_empty() {
            // SAFETY: the old replica stays mapped until all of the slab has left it.
            unsafe { sleepers::wake(&moved) };
        }
        outcome?;
        // What else is there the program has mapped by a bare system call.
        for (page, piece) in pieces {
            structure.rehome(page..page + piece.count, replica);
        }
        self.forget_former_homes(slab, replica)?;
        self.block.set_home(self.process, slab, replica);
        Ok(())
    }

    /// The mappings that a piece is made of; none where the program has mapped something else by a
    /// bare system call.
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
            // The file's byte that would be at address 0.
            let begins = |offset: usize, addr: usize| offset.wrapping_sub(addr);
            mapping.inode == slab.inode
                && begins(mapping.offset, mapping.range.start) == begins(in_slab, start)
        };
        let part = |mapping: &Mapping| {
            let range = mapping.range.start.max(range.start)..mapping.range.end.min(range.end);
            let offset = range.start - start;
            let (old, new) = (old + offset, new + offset);
            let protection = mapping.protection;
            Part { range, protection, old, new, staged: None, is_held: false, has_moved: false }
        };
        mapped.within(range.clone()).filter(of_piece).map(part).collect()
    }

    /// Maps no longer what a slab has left.
    fn forget_former_homes(&self, slab: usize, home: usize) -> Result<(), Held> {
        for (replica, entry) in self.block.replicas().iter().enumerate() {
            if entry.slab() == slab && replica != home && self.slabs.is_mapped(replica) {
                // SAFETY: no piece is there, and the lock is held that whoever looks for one takes.
                unsafe { self.slabs.unmap(replica) }.map_err(|_| Held::HeldByKernel)?;
            }
        }
        Ok(())
    }
}

impl WindowStructure {
    /// The pieces of a slab that are mapped from another replica.
    fn away_from_home(&mut self, slab: usize, replica: usize) -> Vec<(PageNumber, Piece)> {
        let pieces = self.ledger().pieces.iter();
        let is_away =
            |piece: &Piece| (piece.slot / SLAB_SLOTS) as usize == slab && piece.replica != replica;
        pieces.filter(|(_, piece)| is_away(piece)).map(|(page, piece)| (*page, *piece)).collect()
    }
}

/// Puts the new replica in the place of the old one, all of it or as much as goes.
fn move_parts(parts: &mut [Part], uffd: Uffd, has_rings: bool) -> Result<(), Held> {
    let ready = parts.iter_mut().try_for_each(|part| part.stage()).map_err(by_kernel);
    let held = ready.and_then(|()| parts.iter_mut().try_for_each(|part| part.hold(uffd)));
    let moved = match held {
        Ok(()) if !parts.is_empty() && (has_rings || devices::may_write()) => {
            Err(Held::HeldByDevices)
        }
        Ok(()) => parts.iter_mut().try_for_each(|part| part.take_over(uffd)).map_err(by_kernel),
        Err(held) => Err(held),
    };
    // All go on, wherever what they write to is now.
    parts.iter_mut().for_each(|part| part.let_go(uffd));
    moved
}

fn by_kernel(_: Errno) -> Held {
    Held::HeldByKernel
}

impl Part {
    fn len_bytes(&self) -> usize {
        self.range.len()
    }

    /// Maps the new replica where nobody looks, with all its pages there.
    fn stage(&mut self) -> SysResult<()> {
        let arguments = [self.new, 0, self.len_bytes(), MREMAP_MAYMOVE, 0, 0];
        // SAFETY: a shared mapping whose old length is 0 is mapped a second time, at an address of
        // the kernel's choice.
        let staged = unsafe { sys::syscall(nr::MREMAP, arguments)? };
        self.staged = Some(staged);
        // SAFETY: advice that changes no contents.
        unsafe { sys::madvise(staged, self.len_bytes(), sys::MADV_POPULATE_WRITE) }
    }

    fn hold(&mut self, uffd: Uffd) -> Result<(), Held> {
        let held = uffd.hold_writes(self.range.start, self.len_bytes());
        held.map_err(|error| match error {
            Errno::EINVAL => Held::InDevice,
            error => by_kernel(error),
        })?;
        self.is_held = true;
        Ok(())
    }

    fn let_go(&mut self, uffd: Uffd) {
        let len_bytes = self.len_bytes();
        if std::mem::take(&mut self.is_held) {
            uffd.let_write(self.range.start, len_bytes);
        }
        if let Some(staged) = self.staged.take() {
            // SAFETY: mapped by `stage`, and in nobody's use.
            unsafe { sys::unmap(staged as *mut _, len_bytes) };
        }
    }

    /// Copies the bytes, which nobody writes meanwhile, and moves the copy to where they were.
    fn take_over(&mut self, uffd: Uffd) -> SysResult<()> {
        let len_bytes = self.len_bytes();
        let staged = self.staged.expect("it is mapped");
        // SAFETY: both are mapped; who would write to the one is held up, of the other nobody knows.
        unsafe {
            std::ptr::copy_nonoverlapping(self.old as *const u8, staged as *mut u8, len_bytes)
        };
        if self.protection != READ_WRITE {
            let arguments = [staged, len_bytes, self.protection, 0, 0, 0];
            // SAFETY: as the program has what is moved.
            unsafe { sys::syscall(nr::MPROTECT, arguments)? };
        }
        let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        let arguments = [staged, len_bytes, len_bytes, flags, self.range.start, 0];
        // SAFETY: over what was copied; the lock is held, so it is what it was.
        match unsafe { sys::syscall(nr::MREMAP, arguments) } {
            Ok(_) => {
                (self.staged, self.is_held, self.has_moved) = (None, false, true);
                uffd.wake(self.range.start, len_bytes);
                Ok(())
            }
            Err(error) if self.is_mapped() => Err(error),
            Err(error) => sys::die(lost_words(error)),
        }
    }

    /// Is anything still where the program has it?
    fn is_mapped(&self) -> bool {
        let is_there = |addr| sys::mincore(addr, &mut [0]).is_ok();
        is_there(self.range.start) && is_there(self.range.end - PAGE)
    }
}

/// The kernel had unmapped the old mapping when it found that it cannot move the new one.
fn lost_words(error: Errno) -> &'static str {
    match error {
        Errno::ENOMEM => {
            "the kernel ran out of memory while it moved the program's, which cannot go on"
        }
        _ => "the kernel could not move the program's memory, which cannot go on",
    }
}
