//! Changes of the window by threads of the program: map, unmap, move and advise.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::lock::StructureGuard;
use super::super::page_table::PageNumber;
use super::super::run_block::SLAB_SLOTS;
use super::super::sys::{self, Errno, Remap, SysResult, nr};
use super::super::{PAGE, address_of, pages_of};
use super::{Contents, Piece, Window};

pub(super) const READ_WRITE: usize = 1 | 2;
pub(super) const MREMAP_MAYMOVE: usize = 1;
pub(super) const MREMAP_FIXED: usize = 2;
pub(super) const MAP_PRIVATE_ANONYMOUS: usize = 0x02 | 0x20;
pub(super) const MAP_FIXED: usize = 0x10;
const MREMAP_DONTUNMAP: usize = 4;
/// Smaller mappings stay local whatever the budget: each piece is a mapping of its own, and the
/// number of mappings is limited.
const LEAST_PAGES: usize = 16;

/// The window with its lock held, for changes by a thread of the program.
pub struct WindowStructure {
    pub(super) window: &'static Window,
    _guard: StructureGuard<'static>,
}

impl Window {
    /// Takes the lock for a change of the address space by the program.
    pub fn hold(&'static self) -> WindowStructure {
        WindowStructure { window: self, _guard: self.lock.hold() }
    }

    /// Takes the lock for the mover, whose signals are always blocked.
    pub(super) fn hold_as_mover(&'static self) -> WindowStructure {
        WindowStructure { window: self, _guard: self.lock.hold_as_evictor() }
    }
}

impl WindowStructure {
    pub(super) fn contents(&mut self) -> &mut Contents {
        // SAFETY: the lock is held, and the borrow of `self` makes it the only reference.
        unsafe { &mut *self.window.contents.get() }
    }

    /// Places a fresh anonymous private mapping for reading and writing: local as far as the budget
    /// allows, the rest on slabs.
    ///
    /// # Errors
    /// `ENOMEM` if all borrowed memory is in use, or the process has too many mappings. The whole
    /// range is then anonymous memory of the kernel again, or unmapped.
    pub fn place(&mut self, addr: usize, len_bytes: usize) -> SysResult<()> {
        let pages = pages_of(addr, len_bytes);
        self.forget(pages.clone());
        let room = usize::try_from(self.window.local_room()).unwrap_or(usize::MAX);
        let stays = pages.len() < LEAST_PAGES || self.window.forking.load(Ordering::Relaxed) > 0;
        let near = if stays { pages.len() } else { room.min(pages.len()) };
        self.count_local(pages.start..pages.start + near);
        let placed = self.map_slots(pages.start + near..pages.end);
        if placed.is_err() {
            self.forget(pages);
        }
        placed
    }

    fn count_local(&mut self, pages: Range<PageNumber>) {
        self.window.own_local_pages().fetch_add(pages.len() as u64, Ordering::Relaxed);
        self.contents().local.insert(pages);
    }

    /// Replaces fresh anonymous pages by slots.
    fn map_slots(&mut self, pages: Range<PageNumber>) -> SysResult<()> {
        let window = self.window;
        let mut at = pages.start;
        while at < pages.end {
            let wanted = u32::try_from(pages.end - at).unwrap_or(u32::MAX);
            let contents = self.contents();
            let run = contents.slots.take_run(&window.block, wanted).ok_or(Errno::ENOMEM)?;
            let location = window.location((run.start / SLAB_SLOTS) as usize);
            let replica = location.expect("slot of a slab with a donor");
            let piece = Piece { count: run.len(), slot: run.start, replica };
            contents.pieces.insert(at, piece);
            let (from, len_bytes) = (window.in_slabs(&piece, 0), run.len() * PAGE);
            let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
            // A shared mapping whose old length is 0 is mapped a second time.
            let arguments = [from, 0, len_bytes, flags, address_of(at), 0];
            // SAFETY: over fresh pages that no thread uses yet; the slots are this process's.
            unsafe {
                sys::syscall(nr::MREMAP, arguments)?;
                // The last holder of the slots has left data in them.
                let _ = sys::madvise(address_of(at), len_bytes, sys::MADV_POPULATE_WRITE);
                std::ptr::write_bytes(address_of(at) as *mut u8, 0, len_bytes);
            }
            window.block.counters.pages_out.fetch_add(run.len() as u64, Ordering::Relaxed);
            at += run.len();
        }
        Ok(())
    }

    /// Releases the slots and the budget of a range that is unmapped, or mapped anew.
    pub fn release(&mut self, addr: usize, len_bytes: usize) {
        self.forget(pages_of(addr, len_bytes));
    }

    fn forget(&mut self, pages: Range<PageNumber>) {
        let window = self.window;
        for (_, piece) in self.take_parts(pages.clone()) {
            for slot in piece.slot..piece.slot + piece.count as u32 {
                self.contents().slots.release(&window.block, slot);
            }
        }
        let contents = self.contents();
        let local: usize = contents.local.parts(pages.clone()).map(|part| part.len()).sum();
        contents.local.remove(pages);
        window.own_local_pages().fetch_sub(local as u64, Ordering::Relaxed);
    }

    /// Removes the parts of pieces that lie in a range. The rest of these pieces stays.
    fn take_parts(&mut self, pages: Range<PageNumber>) -> Vec<(PageNumber, Piece)> {
        let parts = self.parts(pages);
        let pieces = &mut self.contents().pieces;
        for &(start, part) in &parts {
            let (first, whole) = pieces.range(..=start).next_back().expect("it is part of a piece");
            let (first, whole) = (*first, *whole);
            pieces.remove(&first);
            let before = start - first;
            if before > 0 {
                pieces.insert(first, Piece { count: before, ..whole });
            }
            let after = whole.count - before - part.count;
            if after > 0 {
                let slot = part.slot + part.count as u32;
                pieces.insert(start + part.count, Piece { count: after, slot, ..whole });
            }
        }
        parts
    }

    /// Records that the pages of a range are now mapped from another replica of their slab.
    pub(super) fn set_replica(&mut self, pages: Range<PageNumber>, replica: usize) {
        for (start, part) in self.take_parts(pages) {
            self.contents().pieces.insert(start, Piece { replica, ..part });
        }
    }

    /// The parts of pieces that lie in a range.
    pub(super) fn parts(&mut self, pages: Range<PageNumber>) -> Vec<(PageNumber, Piece)> {
        let pieces = &self.contents().pieces;
        let first = pieces.range(..=pages.start).next_back().map_or(pages.start, |(at, _)| *at);
        let part = |(at, piece): (&PageNumber, &Piece)| {
            let start = (*at).max(pages.start);
            let end = (at + piece.count).min(pages.end);
            let slot = piece.slot + (start - at) as u32;
            (start < end).then(|| (start, Piece { count: end - start, slot, ..*piece }))
        };
        pieces.range(first..pages.end.max(first)).filter_map(part).collect()
    }

    /// True if any page of the range lies in the window.
    pub fn touches(&mut self, addr: usize, len_bytes: usize) -> bool {
        !self.parts(pages_of(addr, len_bytes)).is_empty()
    }

    /// Discards the contents of a range and keeps the mapping (`MADV_DONTNEED`, `MADV_FREE`).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn discard(&mut self, addr: usize, len_bytes: usize) -> SysResult<()> {
        // SAFETY: the program's own request; it has no effect on pieces.
        let outcome = unsafe { sys::madvise(addr, len_bytes, sys::MADV_DONTNEED) };
        if matches!(outcome, Ok(()) | Err(Errno::ENOMEM)) {
            for (_, piece) in self.parts(pages_of(addr, len_bytes)) {
                self.window.zero(&piece);
            }
        }
        outcome
    }

    /// Performs `mremap(2)`. Pieces shrink in place, and are copied when they grow or move. Local
    /// memory that would exceed the budget is copied too.
    ///
    /// # Errors
    /// The kernel's error; `EINVAL` for flags that the window does not support
    /// (`MREMAP_DONTUNMAP`).
    pub fn relocate(&mut self, remap: Remap) -> SysResult<usize> {
        let Remap { old, old_len, new_len, flags, new_addr } = remap;
        let (old_pages, new_pages) = (pages_of(old, old_len), new_len.div_ceil(PAGE));
        let grows_by = new_pages.saturating_sub(old_pages.len()) as u64;
        let is_local = self.contents().local.parts(old_pages.clone()).next().is_some();
        let touches = self.touches(old, old_len);
        let is_copied = touches || (is_local && grows_by > self.window.local_room());
        if !is_copied {
            // SAFETY: the program's own request.
            let new = unsafe { remap.call()? };
            if is_local {
                self.forget(old_pages);
            }
            self.forget(pages_of(new, new_len));
            if is_local {
                self.count_local(pages_of(new, new_len));
            }
            return Ok(new);
        }
        if old_len == 0 || new_len == 0 || flags & MREMAP_DONTUNMAP != 0 {
            return Err(Errno::EINVAL);
        }
        let is_fixed = flags & MREMAP_FIXED != 0;
        if !is_fixed && new_pages <= old_pages.len() {
            let tail = old + new_pages * PAGE;
            self.unmap(tail, old_pages.end * PAGE - tail)?;
            return Ok(old);
        }
        if flags & MREMAP_MAYMOVE == 0 {
            return Err(Errno::ENOMEM);
        }
        self.copy_to(old, old_len, new_len, is_fixed.then_some(new_addr))
    }

    fn copy_to(
        &mut self,
        old: usize,
        old_len: usize,
        new_len: usize,
        at: Option<usize>,
    ) -> SysResult<usize> {
        let flags = MAP_PRIVATE_ANONYMOUS | if at.is_some() { MAP_FIXED } else { 0 };
        let arguments = [at.unwrap_or(0), new_len, READ_WRITE, flags, usize::MAX, 0];
        // SAFETY: a fresh mapping, or one at the address that the program chose.
        let new = unsafe { sys::syscall(nr::MMAP, arguments)? };
        if let Err(error) = self.place(new, new_len) {
            let _ = self.unmap(new, new_len);
            return Err(error);
        }
        let readable = old_len.next_multiple_of(PAGE);
        // SAFETY: both ranges are mapped and do not overlap. The program moves the old one, so no
        // thread uses it meanwhile.
        unsafe {
            sys::syscall(nr::MPROTECT, [old, readable, READ_WRITE, 0, 0, 0])?;
            std::ptr::copy_nonoverlapping(old as *const u8, new as *mut u8, old_len.min(new_len));
        }
        self.unmap(old, old_len)?;
        Ok(new)
    }

    fn unmap(&mut self, addr: usize, len_bytes: usize) -> SysResult<()> {
        if len_bytes == 0 {
            return Ok(());
        }
        // SAFETY: a range that the program unmaps, or that no other thread has used.
        unsafe { sys::syscall(nr::MUNMAP, [addr, len_bytes, 0, 0, 0, 0])? };
        self.release(addr, len_bytes);
        Ok(())
    }
}
