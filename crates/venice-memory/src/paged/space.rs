//! Paged regions for a process that asks for them: memory larger than its budget, at ordinary
//! addresses, while the rest of the process stays the kernel's.
//!
//! The pager is the one of `venice run`, with three differences. Its threads are ordinary ones and
//! end with the space. Its budget is for its regions alone. Children of a `fork` do not have the
//! regions (`MADV_DONTFORK`): they would need a pager of their own, and most of them only `exec`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::PAGE;
use super::budget::{self, BudgetError};
use super::direct::FarMemory;
use super::end;
use super::evictor::{self, Evictor};
use super::handler::{self, Handler};
use super::hints::Hint;
use super::huge_pages::{self, NoHugePages};
use super::page_size::{HUGE_BYTES, PageSize};
use super::pager::{Pager, PagerError, PagerSetup, Serves};
use super::run_block::Owner;
use super::slots;
use super::sys::{self, Errno};
use super::waker;

/// Least budget, in bytes: under it the pager's own needs outgrow the regions'.
const LEAST_LOCAL_BYTES: u64 = 4 << 20;
/// Least budget of a space, or of a run, with huge pages, in bytes.
pub const LEAST_LOCAL_BYTES_HUGE: u64 = 16 * HUGE_BYTES as u64;
/// Most pages brought in with a demand fault.
const READ_AHEAD_PAGES: u32 = 63;

/// Regions with one budget, over one allocation of far memory.
pub struct Space {
    /// Leaked by `start`; taken back when the threads have ended.
    pager: &'static Pager,
    threads: Vec<JoinHandle<()>>,
    far: Arc<FarMemory>,
    mapped_bytes: AtomicU64,
    process: u32,
}

/// An error of a space, or of a region in it.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    /// The pager could not start.
    #[error(transparent)]
    Pager(#[from] PagerError),
    /// The budget is too small.
    #[error("a budget of {local_bytes} bytes is too small: give {LEAST_LOCAL_BYTES} at least")]
    TooLittle {
        /// The requested budget.
        local_bytes: u64,
    },
    /// The regions are larger than the far memory.
    #[error(
        "mapping a region of {asked_bytes} bytes failed: {free_bytes} bytes of the borrowed memory are free"
    )]
    NoRoom {
        /// The requested length.
        asked_bytes: u64,
        /// The far memory left.
        free_bytes: u64,
    },
    /// Far memory has no room for the pages that so small a budget would evict.
    #[error("changing the budget to {local_bytes} bytes failed")]
    NoRoomFar {
        /// The budget.
        local_bytes: u64,
        /// The pages to evict, and the room.
        #[source]
        source: BudgetError,
    },
    /// The kernel refused advice.
    #[error("advice failed: the kernel refused it ({0})")]
    Advice(Errno),
    /// The kernel refused to map the region.
    #[error("mapping a region of {len_bytes} bytes failed: {source}")]
    Map {
        /// Length of the region.
        len_bytes: u64,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
    /// This machine has no huge pages.
    #[error("no pages of 2 MiB: {0}")]
    NoHugePages(#[from] NoHugePages),
    /// The donors' memory is not mapped here.
    #[error("no pages of 2 MiB: they are assembled from mapped memory; use port shm")]
    HugeNotMapped,
    /// The budget is too small for huge pages, which come and go by 2 MiB.
    #[error(
        "a budget of {local_bytes} bytes is too small for pages of 2 MiB: give {LEAST_LOCAL_BYTES_HUGE} at least"
    )]
    TooLittleForHuge {
        /// The budget.
        local_bytes: u64,
    },
    /// A thread could not start.
    #[error("starting the pager's threads failed")]
    Thread(#[source] std::io::Error),
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mapped_bytes = self.mapped_bytes.load(Ordering::Relaxed);
        f.debug_struct("Space").field("mapped_bytes", &mapped_bytes).finish_non_exhaustive()
    }
}

impl Space {
    /// Starts a space over `far`, of which at most `local_bytes` are resident. Nothing else may use
    /// `far`, its block included.
    ///
    /// # Errors
    /// [`SpaceError`].
    pub fn start(far: Arc<FarMemory>, local_bytes: u64) -> Result<Space, SpaceError> {
        if local_bytes < LEAST_LOCAL_BYTES {
            return Err(SpaceError::TooLittle { local_bytes });
        }
        let block = far.block().clone();
        block.limit_pages.store(local_bytes / PAGE as u64, Ordering::Relaxed);
        block.read_ahead_pages.store(READ_AHEAD_PAGES, Ordering::Relaxed);
        let pid = sys::getpid();
        let process = block.enter_process(pid).expect("the block has no other process");
        let setup = PagerSetup {
            block,
            process,
            serves: Serves::Regions { window: far.shared_window() },
            lowest_fd: 3,
        };
        end::remember_standard_error();
        let pager: &'static Pager = Box::leak(Box::new(Pager::new(setup)?));
        let mut space = Space {
            pager,
            threads: Vec::new(),
            far,
            mapped_bytes: AtomicU64::new(0),
            process: pid,
        };
        space.start_threads()?;
        Ok(space)
    }

    fn start_threads(&mut self) -> Result<(), SpaceError> {
        let pager = self.pager;
        let far = || pager.far();
        let owner = Owner::Process(pager.process.load(Ordering::Relaxed));
        let handler = Handler::new(pager, far().map_err(PagerError::Far)?);
        let writing = far().and_then(|far| far.writing(&pager.block, owner));
        let evictor = Evictor::new(pager, writing.map_err(PagerError::Far)?);
        self.spawn("venice-handler", move || handler::run_until_ended(handler))?;
        self.spawn("venice-evictor", move || evictor::run_until_ended(evictor))?;
        self.spawn("venice-waker", move || waker::run_until_ended(pager))
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), SpaceError> {
        let undisturbed = move || {
            // The program's signal handlers may touch a region; they run in other threads.
            sys::block_signals();
            body();
        };
        let started = std::thread::Builder::new().name(name.into()).spawn(undisturbed);
        self.threads.push(started.map_err(SpaceError::Thread)?);
        Ok(())
    }

    /// Maps a region of zeros, `len_bytes` rounded up to whole pages of 4 KiB, paged by pages of
    /// `page_size`. With huge pages the region begins with one; a remainder at its end is paged by
    /// 64 KiB.
    ///
    /// # Errors
    /// [`SpaceError::NoRoom`], [`SpaceError::Map`]; [`SpaceError::NoHugePages`],
    /// [`SpaceError::HugeNotMapped`] and [`SpaceError::TooLittleForHuge`] where huge pages are
    /// unavailable.
    pub fn map(
        self: &Arc<Space>,
        len_bytes: u64,
        page_size: PageSize,
    ) -> Result<Region, SpaceError> {
        let len_bytes = len_bytes.max(1).next_multiple_of(PAGE as u64);
        self.check_page_size(page_size)?;
        let capacity = self.far.len_bytes();
        let taken = self.mapped_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |mapped| {
            mapped.checked_add(len_bytes).filter(|sum| *sum <= capacity)
        });
        if let Err(mapped) = taken {
            let free_bytes = capacity - mapped;
            return Err(SpaceError::NoRoom { asked_bytes: len_bytes, free_bytes });
        }
        match self.map_and_adopt(len_bytes as usize, page_size) {
            Ok(addr) => Ok(Region { space: self.clone(), addr, len_bytes: len_bytes as usize }),
            Err(source) => {
                self.mapped_bytes.fetch_sub(len_bytes, Ordering::AcqRel);
                Err(SpaceError::Map { len_bytes, source })
            }
        }
    }

    /// Bytes of all regions that may be resident: the budget.
    pub fn local_bytes(&self) -> u64 {
        self.far.block().limit_pages.load(Ordering::Relaxed) * PAGE as u64
    }

    /// Gives the regions another budget. When it shrinks, pages are evicted in the time of their
    /// transfer; this does not wait for that. The staging area keeps the room of the budget that
    /// the space was started with.
    ///
    /// # Errors
    /// [`Space::check_local_bytes`]; the budget is unchanged.
    pub fn set_local_bytes(&self, local_bytes: u64) -> Result<(), SpaceError> {
        self.check_local_bytes(local_bytes)?;
        let limit_pages = local_bytes / PAGE as u64;
        self.far.block().limit_pages.store(limit_pages, Ordering::Relaxed);
        Ok(())
    }

    /// Checks that the regions can have this budget.
    ///
    /// # Errors
    /// [`SpaceError::TooLittle`], [`SpaceError::TooLittleForHuge`]; [`SpaceError::NoRoomFar`] where
    /// donors are lost and the rest has no room for the evicted pages.
    pub fn check_local_bytes(&self, local_bytes: u64) -> Result<(), SpaceError> {
        let block = self.far.block();
        if local_bytes < LEAST_LOCAL_BYTES {
            return Err(SpaceError::TooLittle { local_bytes });
        }
        if local_bytes < self.least_local_bytes() {
            return Err(SpaceError::TooLittleForHuge { local_bytes });
        }
        // While no donor is lost, each page has room in far memory, whatever slots are in use.
        if self.mapped_bytes() <= slots::alive(block) * PAGE as u64 {
            return Ok(());
        }
        let no_room = |source| SpaceError::NoRoomFar { local_bytes, source };
        budget::check(block, local_bytes / PAGE as u64).map_err(no_room)
    }

    /// The least budget that the regions can have, in bytes: more, once one of them had huge pages.
    pub fn least_local_bytes(&self) -> u64 {
        match self.far.block().largest_page_size() {
            PageSize::Huge => LEAST_LOCAL_BYTES_HUGE,
            _ => LEAST_LOCAL_BYTES,
        }
    }

    /// Bytes of all regions.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes.load(Ordering::Acquire)
    }

    /// Bytes resident now, those on their way out among them.
    pub fn resident_bytes(&self) -> u64 {
        self.pager.resident().load(Ordering::Relaxed) * PAGE as u64
    }

    /// Most bytes of all regions together.
    pub fn capacity_bytes(&self) -> u64 {
        self.far.len_bytes()
    }

    fn check_page_size(&self, page_size: PageSize) -> Result<(), SpaceError> {
        if page_size == PageSize::Huge {
            if self.pager.window.is_none() {
                return Err(SpaceError::HugeNotMapped);
            }
            huge_pages::check_available()?;
            let pages = self.far.block().limit_pages.load(Ordering::Relaxed);
            let local_bytes = pages * PAGE as u64;
            if local_bytes < LEAST_LOCAL_BYTES_HUGE {
                return Err(SpaceError::TooLittleForHuge { local_bytes });
            }
        }
        Ok(())
    }

    fn map_and_adopt(&self, len_bytes: usize, page_size: PageSize) -> Result<usize, Errno> {
        let align_bytes = if page_size == PageSize::Huge { HUGE_BYTES } else { PAGE };
        let addr = sys::map_aligned(len_bytes, align_bytes)?;
        // SAFETY: advice about fresh memory.
        unsafe { sys::madvise(addr, len_bytes, sys::MADV_DONTFORK)? };
        let mut structure = self.pager.hold_structure();
        structure.adopt(addr, len_bytes);
        structure.set_page_size(addr, len_bytes, page_size);
        if structure.touches(addr, len_bytes) {
            return Ok(addr);
        }
        drop(structure);
        // SAFETY: mapped above, and not yet passed on.
        unsafe { sys::unmap(addr as *mut _, len_bytes) };
        Err(Errno::ENOMEM)
    }

    fn unmap(&self, addr: usize, len_bytes: usize) {
        let gone = self.pager.hold_structure().replace(addr, len_bytes, || {
            // SAFETY: a region whose only owner is being dropped.
            unsafe { sys::syscall(sys::nr::MUNMAP, [addr, len_bytes, 0, 0, 0, 0]) }
        });
        assert!(gone.is_ok(), "a region was mapped");
        self.mapped_bytes.fetch_sub(len_bytes as u64, Ordering::AcqRel);
    }

    /// Ends the threads. The handler may sleep until there is a fault, so one is made.
    fn end_threads(&mut self) {
        let pager = self.pager;
        pager.is_ending.store(true, Ordering::Release);
        pager.evictor_bell.store(1, Ordering::Release);
        sys::futex_wake(&pager.evictor_bell, 1, false);
        pager.waker.ring();
        let page = self.map_and_adopt(PAGE, PageSize::Small).ok();
        let fault = page.map(|page| {
            std::thread::spawn(move || {
                // SAFETY: mapped above; unmapped when this has ended.
                unsafe { std::ptr::read_volatile(page as *const u8) };
            })
        });
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some(page) = page {
            // The handler may have ended before it read the fault; and while a child has the
            // descriptor too, closing it wakes no thread.
            let _ = pager.uffd().unregister(page, PAGE);
        }
        pager.descriptors.close(pager.uffd_fd.swap(-1, Ordering::AcqRel));
        if let (Some(fault), Some(page)) = (fault, page) {
            let _ = fault.join();
            // SAFETY: no longer used.
            unsafe { sys::unmap(page as *mut _, PAGE) };
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if sys::getpid() != self.process {
            // The threads, the staging area and the regions are the parent's.
            return;
        }
        self.end_threads();
        slots::leave(&self.pager.block, self.pager.process.load(Ordering::Relaxed), self.process);
        // SAFETY: leaked by `start`; its threads have ended, and every region held this space.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self.pager).cast_mut()) });
    }
}

/// A region of a space; it is unmapped when this is dropped.
#[derive(Debug)]
pub struct Region {
    space: Arc<Space>,
    addr: usize,
    len_bytes: usize,
}

impl Region {
    /// Address of the first byte, a multiple of the page size. It may be read and written like any
    /// other memory for as long as this lives, by kernel and program, but not in a child of a
    /// `fork`. If the only donor of a page is lost, touching the page raises `SIGBUS`.
    pub fn as_ptr(&self) -> *mut u8 {
        self.addr as *mut u8
    }

    /// Length in bytes, a multiple of the page size.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Applies advice to all pages that `len_bytes` bytes from `offset` on touch. The effect is
    /// that of `madvise(2)` in a program of `venice run`: WILLNEED pages are resident, or the last
    /// of them on their way, and PAGEOUT pages have left, when this returns.
    ///
    /// # Errors
    /// [`SpaceError::Advice`].
    ///
    /// # Panics
    /// If the range exceeds the region.
    pub fn advise(&self, offset: usize, len_bytes: usize, hint: Hint) -> Result<(), SpaceError> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.len_bytes);
        let end = end.expect("the range exceeds the region");
        if sys::getpid() != self.space.process {
            // A child of a fork has neither the region nor its pager.
            return Err(SpaceError::Advice(Errno::ENOMEM));
        }
        if len_bytes == 0 {
            return Ok(());
        }
        let first = offset / PAGE * PAGE;
        let len_bytes = end.next_multiple_of(PAGE) - first;
        self.space.pager.apply_hint(self.addr + first, len_bytes, hint).map_err(SpaceError::Advice)
    }

    /// The space of the region.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The bytes of the region.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this lives; written only through a mutable borrow of this, or
        // through `as_ptr` by a caller that takes responsibility.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len_bytes) }
    }

    /// The bytes of the region, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len_bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if sys::getpid() == self.space.process {
            self.space.unmap(self.addr, self.len_bytes);
        } else {
            // A child of a fork has no such memory, and no right to the space's slots.
            std::mem::forget(self.space.clone());
        }
    }
}
