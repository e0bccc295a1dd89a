//! The window way: anonymous memory of the program on mapped slabs, for plain loads and stores.
//!
//! No pager stands behind it: the program's large mappings and its heap's growth are pieces of the
//! slabs themselves once the local budget is spent. They are populated when they are made, so that
//! accesses fault no more. Slots are taken and given back in the run block as the pager does it, so
//! that the processes of a run share the slabs.
//!
//! The pieces are shared mappings, which a fork would share between parent and child. So they are
//! kept from children (`MADV_DONTFORK`), and a fork of the C library's gives the child a private,
//! local copy while the parent waits. That is a snapshot only if no other thread writes meanwhile:
//! see [`Window::begin_fork`].

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::attach;
use super::lock::{StructureGuard, StructureLock};
use super::page_table::PageNumber;
use super::regions::Regions;
use super::run_block::{RunBlockMap, SLAB_SLOTS};
use super::slab_window::SlabWindow;
use super::slots::Slots;
use super::sys::{self, Errno, SysResult, nr};
use super::{PAGE, address_of, pages_of};

const READ_WRITE: usize = 1 | 2;
const MREMAP_MAYMOVE: usize = 1;
const MREMAP_FIXED: usize = 2;
const MREMAP_DONTUNMAP: usize = 4;
const MAP_PRIVATE_ANONYMOUS: usize = 0x02 | 0x20;
const MAP_FIXED: usize = 0x10;
/// Smaller mappings stay local whatever the budget: each piece is a mapping of its own, and their
/// number is limited.
const LEAST_PAGES: usize = 16;

/// The window of one process. It lives as long as the process and is never dropped.
pub struct Window {
    block: RunBlockMap,
    process: usize,
    /// Where the slabs are mapped one after the other.
    base: usize,
    /// False in a forked child, whose memory is all local.
    is_active: AtomicBool,
    /// Forks under way. Meanwhile nothing is placed on slabs.
    forking: AtomicU32,
    lock: StructureLock,
    ledger: UnsafeCell<Ledger>,
    /// Both ends of the pipe of a fork under way.
    pipe: UnsafeCell<[i32; 2]>,
}

// SAFETY: what is not atomic or never changes is reached only with the lock held.
unsafe impl Sync for Window {}
// SAFETY: as above.
unsafe impl Send for Window {}

/// Who has which page of the address space.
#[derive(Debug)]
struct Ledger {
    slots: Slots,
    /// First page → how many, and the first's slot.
    pieces: BTreeMap<PageNumber, Piece>,
    /// What counts against the local budget.
    local: Regions,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    count: usize,
    slot: u32,
}

/// The window with its lock held: what a thread of the program may change.
pub struct WindowStructure {
    window: &'static Window,
    _guard: StructureGuard<'static>,
}

/// A fork under way.
pub struct WindowFork {
    window: &'static Window,
    /// `None` where nothing lies in the window. Else the lock is held; there is no other thread
    /// that could hold a lock of the C library's and wait for this one.
    structure: Option<WindowStructure>,
}

impl Window {
    /// The window of process `process` of the run, whose slabs the supervisor hands out over the
    /// connection `supervisor`. `None`: they cannot be mapped here.
    pub fn start(
        block: RunBlockMap,
        process: usize,
        supervisor: &OwnedFd,
    ) -> Option<&'static Window> {
        let socket = supervisor.as_raw_fd();
        let source = move |replica| attach::ask_for_slab(socket, replica);
        let base = SlabWindow::new(&block, Box::new(source)).ok()?.into_row(&block)?;
        let ledger = Ledger {
            slots: Slots::new(process),
            pieces: BTreeMap::new(),
            local: Regions::default(),
        };
        let window = Box::leak(Box::new(Window {
            block,
            process,
            base,
            is_active: AtomicBool::new(true),
            forking: AtomicU32::new(0),
            lock: StructureLock::default(),
            ledger: UnsafeCell::new(ledger),
            pipe: UnsafeCell::new([-1; 2]),
        }));
        window.fork_with_slabs(false);
        Some(window)
    }

    /// Whether this process still has it.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Takes the lock for a change of the address space by the program.
    pub fn hold(&'static self) -> WindowStructure {
        WindowStructure { window: self, _guard: self.lock.hold() }
    }

    /// Begins a fork, unless it would give the child something else than what the parent has at
    /// that moment: nothing may lie in the window, or no other thread may be there to write to it
    /// while it is copied. Each that has begun ends with [`Window::end_fork`] in the parent.
    pub fn begin_fork(&'static self) -> bool {
        let mut structure = self.hold();
        let may = structure.ledger().pieces.is_empty() || threads() == 1;
        self.forking.fetch_add(u32::from(may), Ordering::Relaxed);
        may
    }

    /// A fork is over, in the parent.
    pub fn end_fork(&self) {
        self.forking.fetch_sub(1, Ordering::Relaxed);
    }

    /// To be called by the thread that is about to fork, in whatever runs last before it does, and
    /// after [`Window::begin_fork`].
    ///
    /// # Errors
    /// When the two sides cannot talk to each other.
    pub fn before_fork(&'static self) -> SysResult<WindowFork> {
        let mut structure = self.hold();
        if structure.ledger().pieces.is_empty() {
            return Ok(WindowFork { window: self, structure: None });
        }
        let mut ends = [-1i32; 2];
        const PIPE2: usize = 293;
        const CLOEXEC: usize = 0o2000000;
        // SAFETY: the kernel fills in two descriptors.
        unsafe { sys::syscall(PIPE2, [(&raw mut ends).addr(), CLOEXEC, 0, 0, 0, 0])? };
        // SAFETY: the lock is held.
        unsafe { *self.pipe.get() = ends };
        self.fork_with_slabs(true);
        structure.fork_with_pieces(true);
        Ok(WindowFork { window: self, structure: Some(structure) })
    }

    fn pipe(&self) -> [i32; 2] {
        // SAFETY: called with the lock held only.
        unsafe { *self.pipe.get() }
    }

    fn slabs_len(&self) -> usize {
        self.block.slab_count() * SLAB_SLOTS as usize * PAGE
    }

    /// Whether a child gets the mapped slabs.
    fn fork_with_slabs(&self, does: bool) {
        // SAFETY: advice about our own mapping that changes no contents.
        let _ = unsafe { sys::madvise(self.base, self.slabs_len(), fork_advice(does)) };
    }

    fn in_slabs(&self, slot: u32) -> usize {
        self.base + slot as usize * PAGE
    }

    /// Zeros pages by their place in the slabs, whatever the program may do at its own address.
    fn zero(&self, slot: u32, count: usize) {
        // SAFETY: slots that this process holds, mapped for writing for as long as it is active.
        unsafe { std::ptr::write_bytes(self.in_slabs(slot) as *mut u8, 0, count * PAGE) };
    }

    fn own_local_pages(&self) -> &AtomicU64 {
        &self.block.processes[self.process].resident_pages
    }

    /// Pages that may still be local, over all processes of the run.
    fn local_room(&self) -> u64 {
        let used =
            self.block.live_processes().map(|(_, p)| p.resident_pages.load(Ordering::Relaxed));
        self.block.limit_pages.load(Ordering::Relaxed).saturating_sub(used.sum())
    }
}

impl WindowStructure {
    fn ledger(&mut self) -> &mut Ledger {
        // SAFETY: the lock is held, and the borrow of `self` keeps it the only one.
        unsafe { &mut *self.window.ledger.get() }
    }

    /// A fresh anonymous private mapping for reading and writing: local as far as the budget goes,
    /// the rest on slabs.
    ///
    /// # Errors
    /// `ENOMEM`: what was borrowed is in use, or the process has too many mappings; the whole
    /// range is the kernel's anonymous memory again or unmapped.
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
        self.ledger().local.insert(pages);
    }

    /// Puts slots in the place of fresh anonymous pages.
    fn map_slots(&mut self, pages: Range<PageNumber>) -> SysResult<()> {
        let window = self.window;
        let mut at = pages.start;
        while at < pages.end {
            let wanted = u32::try_from(pages.end - at).unwrap_or(u32::MAX);
            let ledger = self.ledger();
            let run = ledger.slots.take_run(&window.block, wanted).ok_or(Errno::ENOMEM)?;
            let piece = Piece { count: run.len(), slot: run.start };
            ledger.pieces.insert(at, piece);
            let (from, len_bytes) = (window.in_slabs(run.start), run.len() * PAGE);
            let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
            // A shared mapping whose old length is 0 is mapped a second time.
            let arguments = [from, 0, len_bytes, flags, address_of(at), 0];
            // SAFETY: over fresh pages that nobody knows of yet; the slots are this process's.
            unsafe {
                sys::syscall(nr::MREMAP, arguments)?;
                // Whoever had the slots before left something in them.
                let _ = sys::madvise(address_of(at), len_bytes, sys::MADV_POPULATE_WRITE);
                std::ptr::write_bytes(address_of(at) as *mut u8, 0, len_bytes);
            }
            window.block.counters.pages_out.fetch_add(run.len() as u64, Ordering::Relaxed);
            at += run.len();
        }
        Ok(())
    }

    /// The range is mapped no longer, or mapped anew: slots and budget are free again.
    pub fn release(&mut self, addr: usize, len_bytes: usize) {
        self.forget(pages_of(addr, len_bytes));
    }

    fn forget(&mut self, pages: Range<PageNumber>) {
        let window = self.window;
        let parts: Vec<_> = self.parts(pages.clone());
        let ledger = self.ledger();
        for (start, piece) in parts {
            let whole =
                ledger.pieces.range(..=start).next_back().map(|(first, whole)| (*first, *whole));
            let (first, whole) = whole.expect("it is part of a piece");
            ledger.pieces.remove(&first);
            let before = start - first;
            if before > 0 {
                ledger.pieces.insert(first, Piece { count: before, slot: whole.slot });
            }
            let after = whole.count - before - piece.count;
            if after > 0 {
                let slot = piece.slot + piece.count as u32;
                ledger.pieces.insert(start + piece.count, Piece { count: after, slot });
            }
            for slot in piece.slot..piece.slot + piece.count as u32 {
                ledger.slots.give_up(&window.block, slot);
            }
        }
        let local: usize = ledger.local.parts(pages.clone()).map(|part| part.len()).sum();
        ledger.local.remove(pages);
        window.own_local_pages().fetch_sub(local as u64, Ordering::Relaxed);
    }

    /// The parts of pieces that lie in a range.
    fn parts(&mut self, pages: Range<PageNumber>) -> Vec<(PageNumber, Piece)> {
        let pieces = &self.ledger().pieces;
        let first = pieces.range(..=pages.start).next_back().map_or(pages.start, |(at, _)| *at);
        let part = |(at, piece): (&PageNumber, &Piece)| {
            let start = (*at).max(pages.start);
            let end = (at + piece.count).min(pages.end);
            let slot = piece.slot + (start - at) as u32;
            (start < end).then(|| (start, Piece { count: end - start, slot }))
        };
        pieces.range(first..pages.end.max(first)).filter_map(part).collect()
    }

    /// Does any page of the range lie in the window?
    pub fn touches(&mut self, addr: usize, len_bytes: usize) -> bool {
        !self.parts(pages_of(addr, len_bytes)).is_empty()
    }

    /// `MADV_DONTNEED` and `MADV_FREE`: the contents go, the mapping stays.
    ///
    /// # Errors
    /// The kernel's.
    pub fn discard(&mut self, addr: usize, len_bytes: usize) -> SysResult<()> {
        // SAFETY: what the program asked for; to pieces it does nothing.
        let outcome = unsafe { sys::madvise(addr, len_bytes, sys::MADV_DONTNEED) };
        if matches!(outcome, Ok(()) | Err(Errno::ENOMEM)) {
            for (_, piece) in self.parts(pages_of(addr, len_bytes)) {
                self.window.zero(piece.slot, piece.count);
            }
        }
        outcome
    }

    /// `mremap(2)`. What lies in the window shrinks where it is and is copied when it grows or
    /// moves; what is local and would grow over the budget is copied too.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` for ways that the window does not know (`MREMAP_DONTUNMAP`).
    pub fn relocate(&mut self, arguments: [usize; 5]) -> SysResult<usize> {
        let [old, old_len, new_len, flags, new_addr] = arguments;
        let (old_pages, new_pages) = (pages_of(old, old_len), new_len.div_ceil(PAGE));
        let grows_by = new_pages.saturating_sub(old_pages.len()) as u64;
        let is_local = self.ledger().local.parts(old_pages.clone()).next().is_some();
        let touches = self.touches(old, old_len);
        let is_copied = touches || (is_local && grows_by > self.window.local_room());
        if !is_copied {
            let [a, b, c, d, e] = arguments;
            // SAFETY: what the program asked for.
            let new = unsafe { sys::syscall(nr::MREMAP, [a, b, c, d, e, 0])? };
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
        // SAFETY: a fresh mapping, or one where the program wants it.
        let new = unsafe { sys::syscall(nr::MMAP, arguments)? };
        if let Err(error) = self.place(new, new_len) {
            let _ = self.unmap(new, new_len);
            return Err(error);
        }
        let readable = old_len.next_multiple_of(PAGE);
        // SAFETY: both ranges are mapped and do not overlap; the old one is the program's to move
        // and nobody's to use meanwhile.
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
        // SAFETY: what the program gives up, or what nobody else has seen.
        unsafe { sys::syscall(nr::MUNMAP, [addr, len_bytes, 0, 0, 0, 0])? };
        self.release(addr, len_bytes);
        Ok(())
    }

    fn fork_with_pieces(&mut self, does: bool) {
        for (page, piece) in self.parts(0..PageNumber::MAX) {
            // SAFETY: advice that changes no contents.
            let _ =
                unsafe { sys::madvise(address_of(page), piece.count * PAGE, fork_advice(does)) };
        }
    }

    /// Puts private copies in the place of all pieces, and lets go of the slabs.
    fn make_private(&mut self) -> SysResult<()> {
        let window = self.window;
        let protections = protections();
        for (page, piece) in self.parts(0..PageNumber::MAX) {
            let (addr, len_bytes) = (address_of(page), piece.count * PAGE);
            let flags = MAP_PRIVATE_ANONYMOUS | MAP_FIXED;
            // SAFETY: over the piece, which no thread of this new process uses meanwhile; the copy
            // is read from the slabs, which are mapped until the end of this function.
            unsafe {
                sys::syscall(nr::MMAP, [addr, len_bytes, READ_WRITE, flags, usize::MAX, 0])?;
                for offset in (0..len_bytes).step_by(PAGE) {
                    copy_unless_zero(window.in_slabs(piece.slot) + offset, addr + offset);
                }
            }
            let protection = protections.iter().find(|(range, _)| range.contains(&addr));
            if let Some((_, protection)) = protection.filter(|(_, p)| *p != READ_WRITE) {
                // SAFETY: as the piece was.
                unsafe { sys::syscall(nr::MPROTECT, [addr, len_bytes, *protection, 0, 0, 0])? };
            }
        }
        // SAFETY: nothing of this process lies in the slabs any more.
        unsafe { sys::syscall(nr::MUNMAP, [window.base, window.slabs_len(), 0, 0, 0, 0])? };
        *self.ledger() = Ledger {
            slots: Slots::new(window.process),
            pieces: BTreeMap::new(),
            local: Regions::default(),
        };
        Ok(())
    }
}

impl WindowFork {
    /// In the parent: waits until the child has its copy, or is dead.
    pub fn in_parent(self) {
        if let Some(mut structure) = self.structure {
            let [mine, childs] = self.window.pipe();
            sys::close(childs);
            // Nothing is ever written: the child's end closes when it is done or dead.
            while sys::read(mine, &mut [0]) == Err(Errno::EINTR) {}
            sys::close(mine);
            self.window.fork_with_slabs(false);
            structure.fork_with_pieces(false);
        }
        self.window.end_fork();
    }

    /// In the child: its memory is its own from here on, and all local.
    ///
    /// # Errors
    /// The kernel's: there is no memory for it, and the child must end.
    pub fn in_child(self) -> SysResult<()> {
        if let Some(mut structure) = self.structure {
            structure.make_private()?;
            for end in self.window.pipe() {
                sys::close(end);
            }
        }
        self.window.is_active.store(false, Ordering::Release);
        Ok(())
    }
}

fn fork_advice(does: bool) -> usize {
    const MADV_DOFORK: usize = 11;
    if does { MADV_DOFORK } else { sys::MADV_DONTFORK }
}

/// Copies a page; pages of zeros need not be there.
///
/// # Safety
/// Both are mapped, one for reading, one, fresh, for writing.
unsafe fn copy_unless_zero(from: usize, to: usize) {
    const WORDS: usize = PAGE / 8;
    let (from, to) = (from as *const [u64; WORDS], to as *mut [u64; WORDS]);
    // SAFETY: forwarded to the caller; pages are aligned.
    unsafe {
        if (*from).iter().any(|word| *word != 0) {
            std::ptr::copy_nonoverlapping(from, to, 1);
        }
    }
}

/// Threads of this process; many where the kernel does not say.
fn threads() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(usize::MAX)
}

/// The protection of every mapping of this process.
fn protections() -> Vec<(Range<usize>, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let parse = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let bit = |letter: char, bit: usize| if rest[..3].contains(letter) { bit } else { 0 };
        Some((number(start)?..number(end)?, bit('r', 1) | bit('w', 2) | bit('x', 4)))
    };
    maps.lines().filter_map(parse).collect()
}
