//! Memory that the program locks (`mlock(2)`): it stays resident, within the budget.
//!
//! The kernel moves no page between locked and unlocked memory (`UFFDIO_MOVE`), so locked pages
//! never leave for the staging area. That must never become locked: `mlockall(2)` of the kernel's
//! is called only for the pages that are there, and undone for the pager's memory.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::page_size::HUGE_BYTES;
use super::page_table::PageNumber;
use super::pager::{Pager, Structure};
use super::proc_maps::{self, Mapping};
use super::sys::{self, Errno, SysResult, nr};
use super::{PAGE, address_of, pages_of};

/// The way in which memory is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Locking {
    /// All of it is brought in at once.
    Populated = 1,
    /// Each page from when it is touched.
    OnFault = 2,
}

const MLOCK_ONFAULT: usize = 1;
const MCL_CURRENT_ONFAULT: usize = 1 | 4;

impl Pager {
    /// Locks a range (`mlock2(2)`).
    ///
    /// # Errors
    /// `ENOMEM` where that exceeds the budget, and the kernel's.
    pub fn lock_range(
        &'static self,
        addr: usize,
        len_bytes: usize,
        locking: Locking,
    ) -> SysResult<()> {
        let Some((addr, len_bytes)) = whole_pages(addr, len_bytes) else {
            return ask(nr::MLOCK2, [addr, len_bytes, 0]);
        };
        let mut structure = self.hold_structure();
        let parts: Vec<_> = structure.guarded().regions.parts(pages_of(addr, len_bytes)).collect();
        structure.check_locks(&parts)?;
        ask(nr::MLOCK2, [addr, len_bytes, MLOCK_ONFAULT])?;
        parts.iter().for_each(|part| structure.guarded().locked.insert(part.clone()));
        structure.lock_shared(pages_of(addr, len_bytes), true);
        drop(structure);
        if locking == Locking::OnFault {
            return Ok(());
        }
        if self.in_thread.is_some() {
            // The kernel finds no page there that is served in threads.
            parts.into_iter().for_each(|part| self.populate_locked(part));
        }
        ask(nr::MLOCK2, [addr, len_bytes, 0])
    }

    /// Keeps a range near that the kernel reads and writes where it serves no fault: at the end of a
    /// thread (`handle_futex_death` in its `kernel/futex/core.c`). Private memory is locked, as far
    /// as that is allowed.
    pub fn keep_near(&'static self, addr: usize, len_bytes: usize) {
        let Some((addr, len_bytes)) = whole_pages(addr, len_bytes) else { return };
        let is_shared = self.hold_structure().keep_shared(pages_of(addr, len_bytes));
        if !is_shared {
            // Without room for it the thread's end may go unnoticed, as with any page that is far.
            let _ = self.lock_range(addr, len_bytes, Locking::OnFault);
        }
    }

    /// Unlocks a range (`munlock(2)`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn unlock_range(&'static self, addr: usize, len_bytes: usize) -> SysResult<()> {
        let mut structure = self.hold_structure();
        ask(nr::MUNLOCK, [addr, len_bytes, 0])?;
        if let Some((addr, len_bytes)) = whole_pages(addr, len_bytes) {
            structure.guarded().locked.remove(pages_of(addr, len_bytes));
            structure.lock_shared(pages_of(addr, len_bytes), false);
        }
        Ok(())
    }

    /// Locks all memory that the program has now (`mlockall(2)`). Files and stacks are populated as
    /// far as the kernel can, as it does.
    ///
    /// # Errors
    /// `ENOMEM` where that exceeds the budget, and the kernel's.
    pub fn lock_all(&'static self, locking: Locking) -> SysResult<()> {
        let mut structure = self.hold_structure();
        let mut mappings = Vec::new();
        proc_maps::for_each(|mapping| {
            mappings.push(mapping);
            true
        });
        let regions = &structure.guarded().regions;
        let (mut usable, mut unusable) = (Vec::new(), Vec::new());
        for mapping in &mappings {
            let parts = regions.parts(pages_of(mapping.start, mapping.end - mapping.start));
            for part in parts {
                match mapping.is_usable() {
                    true => usable.push(part),
                    false => unusable.push(part),
                }
            }
        }
        structure.check_locks(&usable)?;
        ask(nr::MLOCKALL, [MCL_CURRENT_ONFAULT, 0, 0])?;
        self.unlock_own();
        // Memory that may not be used yet takes no part of the budget.
        unusable
            .into_iter()
            .for_each(|part| sys::unlock(address_of(part.start), part.len() * PAGE));
        usable.iter().for_each(|part| structure.guarded().locked.insert(part.clone()));
        structure.lock_shared(0..usize::MAX / PAGE, true);
        drop(structure);
        if locking == Locking::Populated {
            usable.into_iter().for_each(|part| self.populate_locked(part));
            let advice = |it: &Mapping| match it.is_writable {
                true => sys::MADV_POPULATE_WRITE,
                false => sys::MADV_POPULATE_READ,
            };
            let files = mappings.iter().filter(|it| it.is_named && it.is_usable());
            files.filter(|it| !self.is_own(it.start)).for_each(|it| {
                // SAFETY: populating changes no contents; where it fails, the kernel's own
                // `mlockall` leaves pages out too.
                let _ = unsafe { sys::madvise(it.start, it.end - it.start, advice(it)) };
            });
        }
        Ok(())
    }

    /// Unlocks all memory, and locks none from now on (`munlockall(2)`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn unlock_all(&'static self) -> SysResult<()> {
        let mut structure = self.hold_structure();
        ask(nr::MUNLOCKALL, [0; 3])?;
        sys::lock_own_again();
        structure.guarded().locked.remove(0..usize::MAX);
        structure.lock_shared(0..usize::MAX / PAGE, false);
        self.lock_future(None);
        Ok(())
    }

    /// Locks memory that the program maps from now on; `None`: does not.
    pub fn lock_future(&self, locking: Option<Locking>) {
        self.locks_future.store(locking.map_or(0, |it| it as u32), Ordering::Relaxed);
    }

    /// The way in which memory is locked that the program maps; `None`: it is not.
    pub fn locks_future(&self) -> Option<Locking> {
        match self.locks_future.load(Ordering::Relaxed) {
            1 => Some(Locking::Populated),
            2 => Some(Locking::OnFault),
            _ => None,
        }
    }

    /// Unlocks what pages are moved to and from.
    fn unlock_own(&self) {
        let (base, len_bytes) = self.staging.memory();
        sys::unlock(base, len_bytes);
        sys::unlock(self.landing, HUGE_BYTES);
    }

    /// Brings in pages of a locked range, to be written to where that is allowed. A page that the
    /// kernel cannot provide is left out.
    fn populate_locked(&'static self, pages: Range<PageNumber>) {
        let (addr, len_bytes) = (address_of(pages.start), pages.len() * PAGE);
        let populate = |advice| match self.in_thread {
            Some(_) => self.populate_as_advised(addr, len_bytes, advice),
            // SAFETY: populating changes no contents.
            None => unsafe { sys::madvise(addr, len_bytes, advice) },
        };
        if populate(sys::MADV_POPULATE_WRITE).is_err() {
            let _ = populate(sys::MADV_POPULATE_READ);
        }
    }

    /// True for addresses of mapped slabs.
    fn is_own(&self, addr: usize) -> bool {
        self.window.as_ref().is_some_and(|window| window.covers(addr))
    }
}

impl Structure {
    /// Checks that the budget has room for `parts` among the locked pages: a quarter of what the
    /// process may have resident stays free.
    fn check_locks(&mut self, parts: &[Range<PageNumber>]) -> SysResult<()> {
        let limit = self.pager.limit_pages.load(Ordering::Relaxed) as usize;
        let locked = &self.guarded().locked;
        let again: usize =
            parts.iter().flat_map(|p| locked.parts(p.clone())).map(|p| p.len()).sum();
        let wanted: usize = parts.iter().map(Range::len).sum();
        let fits = locked.len_pages() + wanted - again <= limit - limit / 4;
        if fits || wanted == again { Ok(()) } else { Err(Errno::ENOMEM) }
    }
}

/// Returns the whole pages that a range touches; `None`: it is empty, or no range.
fn whole_pages(addr: usize, len_bytes: usize) -> Option<(usize, usize)> {
    const USER_END: usize = 1 << 47;
    let start = addr & !(PAGE - 1);
    let end = addr.checked_add(len_bytes)?.checked_next_multiple_of(PAGE)?;
    (len_bytes > 0 && end <= USER_END).then_some((start, end - start))
}

fn ask(number: usize, [first, second, third]: [usize; 3]) -> SysResult<()> {
    // SAFETY: what the program asked for; locking changes no contents.
    unsafe { sys::program_syscall(number, [first, second, third, 0, 0, 0]) }.map(drop)
}
