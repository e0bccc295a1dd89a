//! Identity of the process that made an object. A forked child has a copy of every object of its
//! parent. It must not use a copy whose next nonce, or position in a link, the parent uses too, nor
//! clean up after it.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{PortError, random_u64};

/// One page that the kernel wipes in a forked child (`MADV_WIPEONFORK`, madvise(2)), whatever call
/// forks it. Its first word is the mark of this process; 0: not drawn yet. Null: not mapped yet.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// Length of the mapping. The kernel rounds up to its pages.
const PAGE_BYTES: usize = 4096;

/// Mark of the process that made an object. A check costs one read of memory, because it is made
/// for every datagram; nothing here needs thread-local storage or libc's list of fork handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    mark: u64,
}

impl Process {
    /// Returns the mark of this process.
    ///
    /// # Errors
    /// Fails if the kernel has no memory or random numbers, or cannot wipe pages (before Linux
    /// 4.14).
    pub fn current() -> Result<Self, PortError> {
        let word = page()?;
        let drawn = random_u64().map_err(PortError::at("drawing a random number"))?.max(1);
        match word.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(Self { mark: drawn }),
            Err(mark) => Ok(Self { mark }),
        }
    }

    /// True if this is the process that made it; false in its forked children.
    pub fn is_current(self) -> bool {
        mapped().is_some_and(|word| word.load(Ordering::Relaxed) == self.mark)
    }

    /// Checks that this process made it.
    ///
    /// # Errors
    /// [`PortError::Forked`] in a forked child.
    pub fn check(self) -> Result<(), PortError> {
        if self.is_current() { Ok(()) } else { Err(PortError::Forked) }
    }
}

fn mapped() -> Option<&'static AtomicU64> {
    // SAFETY: null, or a page that `page` mapped and that is never unmapped, in which every bit
    // pattern is a valid word.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn page() -> Result<&'static AtomicU64, PortError> {
    if let Some(word) = mapped() {
        return Ok(word);
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { mmap_anonymous(null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) }
        .map_err(PortError::at("mapping a page"))?;
    // SAFETY: the page is ours, and empty.
    let wiped = unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) };
    let step = "setting MADV_WIPEONFORK (Linux 4.14 or later)";
    let installed = wiped.map_err(PortError::at(step)).map(|()| {
        PAGE.compare_exchange(null_mut(), page.cast(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    });
    if !matches!(installed, Ok(true)) {
        // SAFETY: the page is ours, and no other thread has its address.
        let _ = unsafe { munmap(page, PAGE_BYTES) };
    }
    installed?;
    Ok(mapped().expect("the page was mapped above, by this thread or another"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_current_process() {
        let process = Process::current().unwrap();
        assert!(process.is_current() && process.check().is_ok());
        assert_eq!(Process::current().unwrap(), process);
        assert!(!Process { mark: 0 }.is_current() && !Process { mark: !process.mark }.is_current());
    }
}
