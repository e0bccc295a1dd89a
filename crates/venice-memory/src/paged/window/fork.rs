//! Forks of a process with a window: the child gets a private, local copy of what lies in it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::super::page_table::PageNumber;
use super::super::regions::Regions;
use super::super::slots::Slots;
use super::super::sys::{self, Errno, SysResult, nr};
use super::super::{PAGE, address_of};
use super::mapped::Mapped;
use super::structure::{MAP_FIXED, MAP_PRIVATE_ANONYMOUS, READ_WRITE};
use super::{Ledger, Window, WindowStructure};

/// A fork under way.
pub struct WindowFork {
    window: &'static Window,
    /// `None` where nothing lies in the window. Else the lock is held; there is no other thread
    /// that could hold a lock of the C library's and wait for this one.
    structure: Option<WindowStructure>,
}

impl Window {
    /// Begins a fork, unless it would give the child something else than what the parent has at
    /// that moment: nothing may lie in the window, or no other thread may be there to write to it
    /// while it is copied. Each that has begun ends with [`Window::end_fork`] in the parent.
    pub fn begin_fork(&'static self) -> bool {
        let mut structure = self.hold();
        let may = structure.ledger().pieces.is_empty() || self.has_one_thread();
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

    /// Whether a child gets the mapped slabs.
    pub(super) fn fork_with_slabs(&self, does: bool) {
        let (base, len_bytes) = self.slabs.reserved();
        // SAFETY: advice about our own mapping that changes no contents.
        let _ = unsafe { sys::madvise(base, len_bytes, fork_advice(does)) };
    }

    /// Is there no other thread of the program?
    fn has_one_thread(&self) -> bool {
        threads() == 1 + self.own_threads.load(Ordering::Relaxed)
    }
}

impl WindowStructure {
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
        let mut mapped = Mapped::default();
        mapped.look()?;
        for (page, piece) in self.parts(0..PageNumber::MAX) {
            let (addr, len_bytes) = (address_of(page), piece.count * PAGE);
            let flags = MAP_PRIVATE_ANONYMOUS | MAP_FIXED;
            // SAFETY: over the piece, which no thread of this new process uses meanwhile; the copy
            // is read from the slabs, which are mapped until the end of this function.
            unsafe {
                sys::syscall(nr::MMAP, [addr, len_bytes, READ_WRITE, flags, usize::MAX, 0])?;
                for offset in (0..len_bytes).step_by(PAGE) {
                    copy_unless_zero(window.in_slabs(&piece, offset / PAGE), addr + offset);
                }
            }
            for mapping in mapped.within(addr..addr + len_bytes) {
                let start = mapping.range.start.max(addr);
                let len_bytes = mapping.range.end.min(addr + len_bytes) - start;
                if mapping.protection != READ_WRITE {
                    let arguments = [start, len_bytes, mapping.protection, 0, 0, 0];
                    // SAFETY: as the piece was.
                    unsafe { sys::syscall(nr::MPROTECT, arguments)? };
                }
            }
        }
        let (base, reserved_bytes) = window.slabs.reserved();
        // SAFETY: nothing of this process lies in the slabs any more.
        unsafe { sys::syscall(nr::MUNMAP, [base, reserved_bytes, 0, 0, 0, 0])? };
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
