//! Forks of a process with a window: the child gets a private, local copy of the window's pages.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::super::page_table::PageNumber;
use super::super::regions::Regions;
use super::super::slots::Slots;
use super::super::sys::{self, Errno, SysResult, nr};
use super::super::{PAGE, address_of};
use super::mapped::Mapped;
use super::structure::{MAP_FIXED, MAP_PRIVATE_ANONYMOUS, READ_WRITE};
use super::{Contents, Window, WindowStructure};

/// A fork under way.
pub struct WindowFork {
    window: &'static Window,
    /// `None` if the window has no piece. Otherwise the lock is held. No other thread exists that
    /// could hold a lock of the C library and wait for this one.
    structure: Option<WindowStructure>,
}

impl Window {
    /// Begins a fork; `false` if the child could get other contents than the parent has at that
    /// moment. The window must have no piece, or the process no other thread that could write
    /// during the copy. Each begun fork ends with [`Window::end_fork`] in the parent.
    pub fn begin_fork(&'static self) -> bool {
        let mut structure = self.hold();
        let may = structure.contents().pieces.is_empty() || self.has_one_thread();
        self.forking.fetch_add(u32::from(may), Ordering::Relaxed);
        may
    }

    /// Ends a fork, in the parent.
    pub fn end_fork(&self) {
        self.forking.fetch_sub(1, Ordering::Relaxed);
    }

    /// Prepares the fork. The forking thread calls it in the last handler that runs before the
    /// fork, after [`Window::begin_fork`].
    ///
    /// # Errors
    /// The kernel's error if the pipe between parent and child cannot be made.
    pub fn before_fork(&'static self) -> SysResult<WindowFork> {
        let mut structure = self.hold();
        if structure.contents().pieces.is_empty() {
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

    /// Sets whether a child inherits the mapped slabs.
    pub(super) fn fork_with_slabs(&self, does: bool) {
        let (base, len_bytes) = self.slabs.reserved();
        // SAFETY: advice about our own mapping that changes no contents.
        let _ = unsafe { sys::madvise(base, len_bytes, fork_advice(does)) };
    }

    /// True if the program has no other thread.
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

    /// Replaces all pieces by private copies, and unmaps the slabs.
    fn make_private(&mut self) -> SysResult<()> {
        let window = self.window;
        let mut mapped = Mapped::default();
        mapped.refresh()?;
        for (page, piece) in self.parts(0..PageNumber::MAX) {
            let (addr, len_bytes) = (address_of(page), piece.count * PAGE);
            let flags = MAP_PRIVATE_ANONYMOUS | MAP_FIXED;
            // SAFETY: over the piece, which no thread of this new process uses meanwhile. The copy
            // is read from the slabs, which stay mapped until the end of this function.
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
                    // SAFETY: the same range as the piece.
                    unsafe { sys::syscall(nr::MPROTECT, arguments)? };
                }
            }
        }
        let (base, reserved_bytes) = window.slabs.reserved();
        // SAFETY: no memory of this process lies in the slabs any more.
        unsafe { sys::syscall(nr::MUNMAP, [base, reserved_bytes, 0, 0, 0, 0])? };
        *self.contents() = Contents {
            slots: Slots::new(window.process),
            pieces: BTreeMap::new(),
            local: Regions::default(),
        };
        Ok(())
    }
}

impl WindowFork {
    /// Ends the fork in the parent: waits until the child has its copy, or is dead.
    pub fn in_parent(self) {
        if let Some(mut structure) = self.structure {
            let [mine, childs] = self.window.pipe();
            sys::close(childs);
            // No byte is ever written: the child's end closes when the child is done or dead.
            while sys::read(mine, &mut [0]) == Err(Errno::EINTR) {}
            sys::close(mine);
            self.window.fork_with_slabs(false);
            structure.fork_with_pieces(false);
        }
        self.window.end_fork();
    }

    /// Ends the fork in the child: its memory is private and local from here on.
    ///
    /// # Errors
    /// The kernel's error if there is no memory for the copy. The child must exit then.
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

/// Copies a page unless it holds only zeros.
///
/// # Safety
/// Both pages must be mapped: `from` for reading, `to`, fresh, for writing.
unsafe fn copy_unless_zero(from: usize, to: usize) {
    const WORDS: usize = PAGE / 8;
    let (from, to) = (from as *const [u64; WORDS], to as *mut [u64; WORDS]);
    // SAFETY: the caller's promise; pages are aligned.
    unsafe {
        if (*from).iter().any(|word| *word != 0) {
            std::ptr::copy_nonoverlapping(from, to, 1);
        }
    }
}

/// The number of threads of this process; `usize::MAX` if the kernel does not report it.
fn threads() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(usize::MAX)
}
