//! Changes of the address space by the program, and the pager's bookkeeping for them.
//!
//! Every call here is made with the structure lock held. Pages in the range become busy first, then
//! the kernel acts, then the table follows: a fault in between waits and is retried.

use std::ops::Range;

use super::access_pattern::Pattern;
use super::page_size::PageSize;
use super::page_table::{Entry, PageNumber, PageTable, State};
use super::pager::{Pager, Structure};
use super::slots::Slots;
use super::staging::Frame;
use super::sys::{self, Errno, Remap, SysResult};
use super::{PAGE, address_of, pages_of};

const MREMAP_DONTUNMAP: usize = 4;

impl Structure {
    /// Manages a fresh anonymous private mapping from now on. A mapping that cannot be registered
    /// stays the kernel's.
    pub fn adopt(&mut self, addr: usize, len_bytes: usize) {
        self.adopt_as(addr, len_bytes, false);
    }

    /// Does the same as [`Structure::adopt`] for a mapping that may be read and written at once. A
    /// large one is served in the threads that touch it, where the run does so.
    pub fn adopt_usable(&mut self, addr: usize, len_bytes: usize) {
        let in_thread = self.pager.in_thread.as_ref();
        let is_in_thread =
            in_thread.is_some_and(|in_thread| in_thread.serves_mapping(addr, len_bytes));
        self.adopt_as(addr, len_bytes, is_in_thread);
    }

    fn adopt_as(&mut self, addr: usize, len_bytes: usize, is_in_thread: bool) {
        let pages = pages_of(addr, len_bytes);
        self.forget_range(addr, len_bytes);
        let pager = self.pager;
        if pager.table.cover(pages.clone()).is_err() {
            return;
        }
        let len_bytes = pages.len() * PAGE;
        // SAFETY: advice that changes no contents.
        let _ = unsafe { sys::madvise(addr, len_bytes, sys::MADV_NOHUGEPAGE) };
        pager.table.set_in_thread(pages.clone(), is_in_thread);
        let is_shared = pager.shared.is_some();
        let page_size = if is_shared { PageSize::Small } else { pager.block.page_size() };
        pager.table.set_page_size(pages.clone(), page_size);
        if pager.uffd_of(pages.start).register(addr, len_bytes).is_ok() {
            self.guarded().regions.insert(pages);
        }
    }

    /// Lets `change` unmap the range or map it anew. The pager's state of the range is dropped,
    /// unless `change` fails.
    ///
    /// # Errors
    /// The errors of `change`.
    pub fn replace<T>(
        &mut self,
        addr: usize,
        len_bytes: usize,
        change: impl FnOnce() -> SysResult<T>,
    ) -> SysResult<T> {
        let outcome = self.cut(addr, len_bytes, change);
        if outcome.is_ok() {
            self.unmanage(pages_of(addr, len_bytes));
        }
        outcome
    }

    /// Drops the pager's state of a range that was mapped anew by a bare system call.
    fn forget_range(&mut self, addr: usize, len_bytes: usize) {
        let pages = pages_of(addr, len_bytes);
        self.claim_all(pages.clone());
        self.drop_all_with_late(pages.clone());
        self.unmanage(pages);
    }

    /// Ends the management of the pages, and clears their attributes.
    fn unmanage(&mut self, pages: Range<PageNumber>) {
        let table = &self.pager.table;
        table.set_pattern(pages.clone(), Pattern::Normal);
        table.set_page_size(pages.clone(), PageSize::Small);
        table.set_in_thread(pages.clone(), false);
        table.set_dont_fork(pages.clone(), false);
        self.guarded().locked.remove(pages.clone());
        self.guarded().regions.remove(pages.clone());
        self.forget_shared(pages);
    }

    /// Discards contents and keeps the mapping (`MADV_DONTNEED` and `MADV_FREE`).
    ///
    /// # Errors
    /// The kernel's. `ENOMEM`: part of the range is not mapped; the rest is discarded all the same.
    /// Any other error may have stopped it half way, so each part is tried again by itself.
    pub fn discard(&mut self, addr: usize, len_bytes: usize, advice: usize) -> SysResult<()> {
        let parts = self.managed(pages_of(addr, len_bytes));
        for part in &parts {
            self.claim_all(part.clone());
        }
        // SAFETY: what the program asked for.
        let outcome = unsafe { sys::program_madvise(addr, len_bytes, advice) };
        for part in parts {
            let gone = match outcome {
                Ok(()) | Err(Errno::ENOMEM) => true,
                // SAFETY: as above.
                Err(_) => unsafe {
                    sys::program_madvise(address_of(part.start), part.len() * PAGE, advice).is_ok()
                },
            };
            if gone { self.drop_all(part) } else { self.restore_all(part) }
        }
        outcome
    }

    /// Lets `change` take the pages of a range away. The pager's state of them is dropped, unless
    /// `change` fails; they stay managed.
    ///
    /// # Errors
    /// The errors of `change`; nothing has changed then.
    pub(super) fn cut<T>(
        &mut self,
        addr: usize,
        len_bytes: usize,
        change: impl FnOnce() -> SysResult<T>,
    ) -> SysResult<T> {
        let parts = self.managed(pages_of(addr, len_bytes));
        for part in &parts {
            self.claim_all(part.clone());
        }
        let outcome = change();
        for part in parts {
            if outcome.is_ok() { self.drop_all_with_late(part) } else { self.restore_all(part) }
        }
        outcome
    }

    /// Calls `mremap(2)`: pages keep their contents wherever they go.
    ///
    /// # Errors
    /// The kernel's; nothing has changed then.
    pub fn relocate(&mut self, remap: Remap) -> SysResult<usize> {
        let Remap { old, old_len, new_len, flags, .. } = remap;
        let old_pages = pages_of(old, old_len);
        let whole = self.guarded().regions.contains(old_pages.clone());
        if !whole && self.touches(old, old_len) {
            // A mapping that is managed in part: bring it in and leave it to the kernel.
            self.release_to_kernel(old, old_len);
            if self.touches(old, old_len) {
                return Err(Errno::ENOMEM);
            }
        }
        let parts = self.managed(old_pages.clone());
        for part in &parts {
            self.claim_all(part.clone());
        }
        // SAFETY: what the program asked for.
        let outcome = unsafe { remap.call() };
        let Ok(new) = outcome else {
            for part in parts {
                self.restore_all(part);
            }
            return outcome;
        };
        if whole {
            self.follow_move(old_pages, new, new_len.div_ceil(PAGE), flags);
        } else {
            self.forget_range(new, new_len);
        }
        Ok(new)
    }

    fn follow_move(&mut self, old: Range<PageNumber>, new: usize, new_count: usize, flags: usize) {
        let new_pages = new / PAGE..new / PAGE + new_count;
        let kept = old.len().min(new_count);
        let was_in_thread = self.pager.table.is_in_thread(old.start);
        let locked: Vec<_> = self.guarded().locked.parts(old.clone()).collect();
        if new_pages.start == old.start {
            self.restore_all(old.start..old.start + kept);
            self.drop_all(old.start + kept..old.end);
            self.unmanage(old.start + kept..old.end);
            if new_count > old.len() {
                let more_bytes = (new_count - old.len()) * PAGE;
                self.adopt_as(address_of(old.end), more_bytes, was_in_thread);
                self.extend_attributes(old.end - 1, old.end..new_pages.end);
            }
            return;
        }
        let reaches = self.pager.in_thread.as_ref().is_some_and(|it| it.reaches(new));
        self.adopt_as(new, new_count * PAGE, was_in_thread && reaches);
        self.pager.table.copy_attributes(old.start..old.start + kept, new_pages.start);
        self.extend_attributes(old.start + kept - 1, new_pages.start + kept..new_pages.end);
        for offset in 0..kept {
            self.pager.move_entry(old.start + offset, new_pages.start + offset);
        }
        for part in locked {
            let moved = |page| page - old.start + new_pages.start;
            let end = moved(part.end).min(new_pages.end);
            self.guarded().locked.insert(moved(part.start).min(end)..end);
        }
        self.drop_all(old.start + kept..old.end);
        if flags & MREMAP_DONTUNMAP == 0 {
            self.unmanage(old);
        } else {
            let uffd = self.pager.uffd_of(old.start);
            let _ = uffd.register(address_of(old.start), old.len() * PAGE);
        }
    }

    /// Copies the attributes of `page` to the `pages` by which a mapping grew.
    fn extend_attributes(&mut self, page: PageNumber, pages: Range<PageNumber>) {
        let table = &self.pager.table;
        table.set_pattern(pages.clone(), table.pattern(page));
        table.set_page_size(pages.clone(), table.page_size(page));
        table.set_dont_fork(pages, table.is_dont_fork(page));
    }

    /// Keeps the range from children, or no longer (`MADV_DONTFORK`, `MADV_DOFORK`). It stays
    /// managed here.
    ///
    /// # Errors
    /// The kernel's. `ENOMEM`: part of the range is not mapped; the rest is advised all the same.
    pub fn advise_on_fork(
        &mut self,
        addr: usize,
        len_bytes: usize,
        advice: usize,
    ) -> SysResult<()> {
        let dont_fork = advice == sys::MADV_DONTFORK;
        // A bare `clone` may come in between: then a page is offered to a child without need,
        // never kept from one that has it.
        if !dont_fork {
            self.set_dont_fork(addr, len_bytes, false);
        }
        // SAFETY: advice that changes no contents.
        let outcome = unsafe { sys::madvise(addr, len_bytes, advice) };
        if dont_fork && matches!(outcome, Ok(()) | Err(Errno::ENOMEM)) {
            self.set_dont_fork(addr, len_bytes, true);
        }
        outcome
    }

    fn set_dont_fork(&mut self, addr: usize, len_bytes: usize, dont_fork: bool) {
        let parts = self.managed(pages_of(addr, len_bytes));
        parts.into_iter().for_each(|part| self.pager.table.set_dont_fork(part, dont_fork));
    }

    /// Drops, in a forked child, the pages that its parent kept from children: they are not mapped
    /// here.
    pub(super) fn forget_unforked(&mut self) {
        for pages in self.unforked() {
            self.forget_range(address_of(pages.start), pages.len() * PAGE);
        }
    }

    /// Keeps the kernel from mapping memory of the pager where a forked child lacks pages of its
    /// parent: the program may map there again, at a fixed address.
    pub(super) fn reserve_unforked(&mut self) -> UnforkedHoles {
        let holes = self.unforked().into_iter().map(|pages| {
            let (addr, len_bytes) = (address_of(pages.start), pages.len() * PAGE);
            sys::reserve(addr, len_bytes).map(|_| (addr, len_bytes))
        });
        // What is mapped there already needs no reservation.
        UnforkedHoles(holes.flatten().collect())
    }

    fn unforked(&mut self) -> Vec<Range<PageNumber>> {
        let table = &self.pager.table;
        let parts = self.managed(0..usize::MAX / PAGE);
        parts.into_iter().flat_map(|part| table.dont_fork_stretches(part)).collect()
    }

    /// Brings a range in and leaves it to the kernel for good (as for `MADV_WIPEONFORK`).
    pub fn release_to_kernel(&mut self, addr: usize, len_bytes: usize) {
        let parts = self.managed(pages_of(addr, len_bytes));
        let table = &self.pager.table;
        for part in parts.into_iter().flat_map(|part| split_by_server(table, part)) {
            let (start, len_bytes) = (address_of(part.start), part.len() * PAGE);
            let mut all_resident = true;
            self.pager.table.for_each_live(part.clone(), |page, entry| {
                if matches!(entry.state(), State::Far | State::Staged | State::Busy) {
                    // Faults are served while this lock is held.
                    all_resident &= self.pager.populate(page, false).is_ok();
                }
            });
            if !all_resident {
                // Memory that may not be read just now (`PROT_NONE`) cannot be brought in.
                continue;
            }
            let _ = self.pager.uffd_of(part.start).unregister(start, len_bytes);
            self.claim_all(part.clone());
            self.drop_all(part.clone());
            self.unmanage(part);
        }
    }

    fn managed(&mut self, pages: Range<PageNumber>) -> Vec<Range<PageNumber>> {
        self.guarded().regions.parts(pages).collect()
    }

    /// Makes every page of the range's live blocks busy; each remembers its state. All of them
    /// count as live until they are released, the zero ones too: else their block might be skipped
    /// then, when the handler's own pages in it are dead again.
    fn claim_all(&mut self, pages: Range<PageNumber>) {
        let table = &self.pager.table;
        table.for_each_live(pages, |page, entry| {
            let state = entry.claim_any();
            if state == State::Zero {
                table.count_live(page);
            }
            entry.remember(state);
        });
    }

    /// Undoes [`Structure::claim_all`].
    fn restore_all(&mut self, pages: Range<PageNumber>) {
        let pager = self.pager;
        pager.table.for_each_live(pages, |page, entry| {
            let Some(state) = entry.take_remembered() else { return };
            if state == State::Zero {
                pager.table.count_dead(page);
            }
            if entry.release(state) {
                pager.wake_page(page);
            }
        });
    }

    /// Drops the pages claimed by [`Structure::claim_all`].
    fn drop_all(&mut self, pages: Range<PageNumber>) {
        let pager = self.pager;
        let slots = &self.guarded().slots;
        pager.table.for_each_live(pages, |page, entry| {
            if let Some(state) = entry.take_remembered() {
                pager.drop_page(slots, page, entry, state);
            }
        });
    }

    /// Does the same as [`Structure::drop_all`] where the mapping itself is gone: pages that came
    /// in between the claim and the kernel's act went with it.
    fn drop_all_with_late(&mut self, pages: Range<PageNumber>) {
        let pager = self.pager;
        let slots = &self.guarded().slots;
        pager.table.for_each_live(pages, |page, entry| {
            let state = entry.take_remembered().unwrap_or_else(|| {
                let late = entry.claim_any();
                if late == State::Zero {
                    pager.table.count_live(page);
                }
                late
            });
            pager.drop_page(slots, page, entry, state);
        });
    }
}

/// Reserved addresses, free again when this is dropped.
#[derive(Debug, Default)]
pub struct UnforkedHoles(Vec<(usize, usize)>);

impl Drop for UnforkedHoles {
    fn drop(&mut self) {
        for (addr, len_bytes) in self.0.drain(..) {
            // SAFETY: reserved by `reserve_unforked`, and used by nothing.
            unsafe { sys::unmap(addr as *mut std::ffi::c_void, len_bytes) };
        }
    }
}

/// Splits a range into stretches that are each registered with one userfaultfd.
fn split_by_server(table: &PageTable, pages: Range<PageNumber>) -> Vec<Range<PageNumber>> {
    let mut stretches = Vec::new();
    let mut start = pages.start;
    while start < pages.end {
        let is_in_thread = table.is_in_thread(start);
        let ends = |page: &PageNumber| table.is_in_thread(*page) != is_in_thread;
        let end = (start..pages.end).find(ends).unwrap_or(pages.end);
        stretches.push(start..end);
        start = end;
    }
    stretches
}

impl Pager {
    /// Drops a busy page that was in `state`: its slot and its frame are free.
    fn drop_page(&self, slots: &Slots, page: PageNumber, entry: &Entry, state: State) {
        slots.forget(&self.block, entry);
        if state == State::Resident {
            self.count_gone(1);
        }
        if matches!(self.staging.holds(entry.frame()), Frame::Page(of) | Frame::OrphanOf(of) if of == page)
        {
            self.staging.set(entry.frame(), Frame::Orphan);
        }
        self.make_zero(page, entry);
    }

    /// Makes a busy page one of zeros.
    fn make_zero(&self, page: PageNumber, entry: &Entry) {
        self.table.count_dead(page);
        if entry.release(State::Zero) {
            self.wake_page(page);
        }
    }

    /// Moves the entry of a page claimed at `old` to `new`.
    fn move_entry(&self, old: PageNumber, new: PageNumber) {
        if !self.table.block_is_live(old) {
            return;
        }
        let (Some(from), Some(to)) = (self.table.entry(old), self.table.entry(new)) else { return };
        let Some(state) = from.take_remembered() else { return };
        if state != State::Zero {
            self.table.count_live(new);
            let before = to.claim_any();
            assert_eq!(
                before,
                State::Zero,
                "page {new:#x} was dropped before page {old:#x} moved to it"
            );
            let copied = Frame::OrphanOf(old);
            if self.staging.holds(from.frame()) == copied {
                self.staging.set(from.frame(), Frame::Orphan);
            }
            to.take_from(from);
            if state == State::Staged {
                self.staging.set(to.frame(), Frame::Page(new));
            }
            let _ = to.release(state);
        }
        self.make_zero(old, from);
    }
}

/// The way in which a mapping is managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// By the pager of its process.
    Private,
    /// By the shared pager of the run.
    Shared,
    /// By the kernel.
    Unmanaged,
}

/// Returns how a mapping with these flags of `mmap(2)` is managed: anonymous memory, unless it is of
/// huge pages, a stack, or locked.
pub fn management(flags: usize) -> Management {
    const MAP_TYPE: usize = 0x0f;
    const MAP_SHARED: usize = 0x01;
    const MAP_PRIVATE: usize = 0x02;
    const MAP_ANONYMOUS: usize = 0x20;
    const UNMANAGED: usize = 0x100 // GROWSDOWN
        | 0x2000 // LOCKED
        | 0x20000 // STACK
        | 0x40000; // HUGETLB
    let is_plain = flags & MAP_ANONYMOUS != 0 && flags & UNMANAGED == 0;
    match flags & MAP_TYPE {
        MAP_PRIVATE if is_plain => Management::Private,
        MAP_SHARED if is_plain => Management::Shared,
        _ => Management::Unmanaged,
    }
}
