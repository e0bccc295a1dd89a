//! A mark that a forked child does not have until it is given one.
//!
//! A child of the C library's `fork` is given a pager of its own and the mark with it. One made
//! behind the library's back by a bare `clone` finds the mark wiped by the kernel: the page table
//! it has a copy of, the lock and the far slots in it are its parent's business.

use super::PAGE;
use super::sys::{self, SysResult};
use std::sync::atomic::{AtomicU32, Ordering};

/// The mark.
#[derive(Debug)]
pub struct ForkMark {
    word: &'static AtomicU32,
}

impl ForkMark {
    /// A mark that is set.
    ///
    /// # Errors
    /// The kernel's: no address space.
    pub fn new() -> SysResult<ForkMark> {
        let memory = sys::map_private(PAGE)?;
        // SAFETY: advice about fresh memory.
        unsafe { sys::madvise(memory as usize, PAGE, sys::MADV_WIPEONFORK)? };
        // SAFETY: fresh zeroed memory, unmapped with the mark.
        let mark = ForkMark { word: unsafe { &*memory.cast::<AtomicU32>() } };
        mark.set();
        Ok(mark)
    }

    /// Is it set in this process?
    pub fn is_set(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }

    /// Sets it.
    pub fn set(&self) {
        self.word.store(1, Ordering::Relaxed);
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has it but this.
        unsafe { sys::unmap(self.word.as_ptr().cast(), PAGE) };
    }
}
