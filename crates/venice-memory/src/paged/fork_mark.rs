//! A mark that a forked child lacks until it is set.
//!
//! A child of the C library's `fork` gets a pager of its own, and the mark with it. In a child made
//! by a bare `clone` the kernel has wiped the mark: the page table that it has a copy of, the lock
//! and the far slots in it belong to its parent.

use super::PAGE;
use super::sys::{self, SysResult};
use std::sync::atomic::{AtomicU32, Ordering};

/// The mark.
#[derive(Debug)]
pub struct ForkMark {
    word: &'static AtomicU32,
}

impl ForkMark {
    /// Makes a mark that is set.
    ///
    /// # Errors
    /// The kernel's, when there is no address space.
    pub fn new() -> SysResult<ForkMark> {
        let memory = sys::map_private(PAGE)?;
        // SAFETY: advice about fresh memory.
        unsafe { sys::madvise(memory as usize, PAGE, sys::MADV_WIPEONFORK)? };
        // SAFETY: fresh zeroed memory, unmapped with the mark.
        let mark = ForkMark { word: unsafe { &*memory.cast::<AtomicU32>() } };
        mark.set();
        Ok(mark)
    }

    /// True if it is set in this process.
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
        // SAFETY: mapped by `new`, and used by nothing else.
        unsafe { sys::unmap(self.word.as_ptr().cast(), PAGE) };
    }
}
