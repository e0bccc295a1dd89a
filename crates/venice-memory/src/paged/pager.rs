//! The pager of one process: its parts.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::attach;
use super::budget;
use super::descriptors::Descriptors;
use super::far::{Far, FarError};
use super::first_out::FirstOut;
use super::fork_mark::ForkMark;
use super::fork_window::ForkWindow;
use super::huge_slots::{HugeSlot, MOST_SPARES};
use super::in_thread::InThread;
use super::lending::Lending;
use super::lock::{StructureGuard, StructureLock};
use super::page_size::{HUGE_BYTES, HUGE_PAGES};
use super::page_table::{PageNumber, PageTable};
use super::read_ahead::{MAX_WINDOW, ReadAhead};
use super::refaults::Refaults;
use super::regions::Regions;
use super::requests::{PageOuts, Wanted};
use super::run_block::{Owner, PortKind, Process, RunBlockMap};
use super::slab_window::SlabWindow;
use super::slots::Slots;
use super::spin::{Spin, SpinGuard};
use super::staging::{CHUNK_FRAMES, Staging};
use super::sys::{self, Errno};
use super::uffd::Uffd;
use super::waker::Waker;
use super::{PAGE, pages_of};

/// The staging ring has room for one page in so many of those a process may have resident; windows
/// with holes do not fill their chunks, so it holds fewer.
const RING_SHARE: usize = 4;
/// Fewest chunks of the staging ring: while one is filled the other waits.
const MIN_RING_CHUNKS: usize = 2;
/// Most.
const MAX_RING_CHUNKS: usize = 1 << 15;
/// Fewest and most huge pages on their way out.
const HUGE_SLOTS: [usize; 2] = [2, 1 << 12];

/// See [`Pager::followed_cpu`].
pub(super) const NO_CPU: usize = usize::MAX;

/// What a pager is made of.
#[derive(Debug)]
pub struct PagerSetup {
    /// The run's shared block.
    pub block: Arc<RunBlockMap>,
    /// This process's place in it.
    pub process: usize,
    /// What it serves.
    pub serves: Serves,
    /// Descriptors of the pager are kept at or above this number.
    pub lowest_fd: i32,
}

/// What a pager serves.
#[derive(Debug)]
pub enum Serves {
    /// All anonymous memory of a program; the budget is for all that the program has resident.
    Program {
        /// The connection to the supervisor; it closes when that one is gone.
        supervisor: std::os::fd::OwnedFd,
    },
    /// Some regions of a process that asked for them; the budget is for these, and children of a
    /// fork do not have them.
    Regions {
        /// Where the slabs are mapped (shm port).
        window: Option<SharedWindow>,
    },
}

/// Mapped slabs that others read and write too.
#[derive(Clone, Debug)]
pub struct SharedWindow(pub(super) Arc<SlabWindow>);

/// Why a pager could not start.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// No userfaultfd for us.
    #[error(
        "userfaultfd is not to be had ({0}): the paged mode needs Linux 6.8 or newer and \
         CAP_SYS_PTRACE (run as root); `venice doctor` tells more"
    )]
    Userfaultfd(#[source] Errno),
    /// The kernel refused something else.
    #[error("the pager could not {doing} ({source})")]
    Kernel {
        /// What it was doing.
        doing: &'static str,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
    /// The donors cannot be reached.
    #[error(transparent)]
    Far(#[from] FarError),
}

/// Chunks of the staging ring of a process that may have `limit_pages` resident, `most` at most.
pub(super) fn ring_chunks(limit_pages: u64, most: usize) -> usize {
    (limit_pages as usize / RING_SHARE / CHUNK_FRAMES).clamp(MIN_RING_CHUNKS, most)
}

/// Huge pages on their way out of such a process at most, `most` at most.
pub(super) fn huge_on_their_way(limit_pages: u64, most: usize) -> usize {
    (limit_pages as usize / RING_SHARE / HUGE_PAGES).clamp(HUGE_SLOTS[0], most)
}

/// The pager. One that serves a program lives as long as its process and is never dropped.
pub struct Pager {
    pub(super) uffd_fd: AtomicI32,
    pub(super) block: Arc<RunBlockMap>,
    pub(super) process: AtomicUsize,
    pub(super) window: Option<Arc<SlabWindow>>,
    pub(super) descriptors: Arc<Descriptors>,
    /// -1: there is none, and only regions that were asked for are served ([`Serves::Regions`]).
    pub(super) supervisor_fd: i32,
    /// The file that has what is far too, if there is one.
    pub(super) disk_fd: Option<i32>,
    /// Its threads are to end ([`Serves::Regions`]).
    pub(super) is_ending: AtomicBool,
    pub(super) table: PageTable,
    pub(super) staging: Staging,
    pub(super) lock: StructureLock,
    pub(super) guarded: std::cell::UnsafeCell<Guarded>,
    pub(super) zeros: usize,
    /// Where a huge page is put together that is to come in, if there is no spare.
    pub(super) landing: usize,
    /// Pages this process may have resident now.
    pub(super) limit_pages: AtomicU64,
    /// Raised to wake the evictor.
    pub(super) evictor_bell: AtomicU32,
    /// Wakes who waits while the handler sleeps.
    pub(super) waker: Waker,
    /// Counts what the evictor has done; the handler waits on it for room.
    pub(super) evictor_progress: AtomicU32,
    /// Is the userfaultfd's queue being read just now? Kept until it is known whether a `fork` was
    /// read, where threads serve themselves.
    pub(super) reading: Spin<()>,
    /// Who serves faults on large mappings, if not the handler.
    pub(super) in_thread: Option<InThread>,
    pub(super) read_ahead: Spin<ReadAhead>,
    pub(super) refaults: Refaults,
    /// Where pages are that a stream has left behind for good.
    pub(super) behind: Spin<FirstOut>,
    /// What is to be brought in.
    pub(super) wanted: Wanted,
    /// Calls that wait for pages to have left.
    pub(super) page_outs: PageOuts,
    /// The processor the handler follows the program on; `NO_CPU`: none yet.
    pub(super) followed_cpu: AtomicUsize,
    /// The kernel's number of the evictor's thread; 0: it has not started.
    pub(super) evictor_thread: AtomicU32,
    /// Is the evictor in the middle of a turn?
    pub(super) evictor_busy: AtomicU32,
    pub(super) fork: ForkWindow,
    /// The structure lock of a thread that forks.
    pub(super) lending: Lending,
    /// Set where this process pages by itself.
    pub(super) mark: ForkMark,
    /// Raised while the evictor finds nothing to evict; then nobody waits for it.
    pub(super) evictor_stuck: AtomicU32,
}

/// What the structure lock guards.
pub struct Guarded {
    pub(super) regions: Regions,
    pub(super) slots: Slots,
    pub(super) hand: PageNumber,
    pub(super) head_chunk: usize,
    /// Slots with huge pages on their way out, the oldest first.
    pub(super) huge_out: VecDeque<HugeSlot>,
    /// Where cold pages are.
    pub(super) first_out: FirstOut,
    /// What is to leave at once.
    pub(super) page_outs: VecDeque<Range<PageNumber>>,
}

// SAFETY: everything but `guarded` is atomic or never changes, and `guarded` is reached only
// with the structure lock held.
unsafe impl Sync for Pager {}
// SAFETY: as above.
unsafe impl Send for Pager {}

impl Drop for Pager {
    fn drop(&mut self) {
        // Whoever still waits for a page goes on now.
        self.descriptors.close(self.uffd_fd.load(Ordering::Relaxed));
        // SAFETY: the pager's own memory, which its threads used, and these have ended.
        unsafe {
            sys::unmap(self.zeros as *mut _, MAX_WINDOW * PAGE);
            sys::unmap(self.landing as *mut _, HUGE_BYTES);
        }
    }
}

impl Pager {
    /// A pager that has no threads yet.
    pub(super) fn new(setup: PagerSetup) -> Result<Pager, PagerError> {
        let kernel = |doing| move |source| PagerError::Kernel { doing, source };
        sys::remember_standard_error();
        let uffd = Uffd::open().map_err(PagerError::Userfaultfd)?;
        let descriptors = Arc::new(Descriptors::new(setup.lowest_fd));
        let fd = descriptors.keep(uffd.fd);
        let (supervisor_fd, window) = match setup.serves {
            Serves::Program { supervisor } => {
                let supervisor_fd = descriptors.keep(supervisor.into_raw_fd());
                let window = window(&setup.block, supervisor_fd);
                (supervisor_fd, window.map_err(kernel("reserve room for slabs"))?)
            }
            Serves::Regions { window } => (-1, window.map(|shared| shared.0)),
        };
        let disk = setup.block.first_on_disk().map(|replica| {
            attach::ask_for_slab(supervisor_fd, replica)
                .ok_or(kernel("reach the file of --write-behind")(Errno::ENOENT))
        });
        let disk_fd =
            disk.transpose()?.map(|file| descriptors.keep(OwnedFd::from(file).into_raw_fd()));
        let limit_pages = setup.block.limit_pages.load(Ordering::Relaxed);
        let huge_slots = huge_on_their_way(limit_pages, HUGE_SLOTS[1]) + MOST_SPARES + 1;
        let staging = Staging::new(ring_chunks(limit_pages, MAX_RING_CHUNKS), huge_slots)
            .map_err(kernel("map its staging area"))?;
        let (base, len_bytes) = staging.memory();
        // SAFETY: advice about the pager's own, empty memory.
        let _ = unsafe { sys::madvise(base, len_bytes, sys::MADV_NOHUGEPAGE) };
        if supervisor_fd < 0 {
            // SAFETY: as above.
            let _ = unsafe { sys::madvise(base, len_bytes, sys::MADV_DONTFORK) };
        }
        Uffd { fd }.register(base, len_bytes).map_err(kernel("register its staging area"))?;
        let zeros = sys::map_private(MAX_WINDOW * PAGE).map_err(kernel("map its zeros"))?;
        let landing = map_landing().map_err(kernel("map where huge pages land"))?;
        let forks = supervisor_fd >= 0;
        let in_thread =
            setup.block.faults_in_thread().then(|| InThread::new(&descriptors, Uffd { fd }, forks));
        let in_thread = in_thread.transpose().map_err(kernel("serve faults in threads"))?;
        Ok(Pager {
            uffd_fd: AtomicI32::new(fd),
            process: AtomicUsize::new(setup.process),
            window,
            descriptors,
            supervisor_fd,
            disk_fd,
            is_ending: AtomicBool::new(false),
            table: PageTable::new().map_err(kernel("map its page table"))?,
            staging,
            lock: StructureLock::default(),
            guarded: std::cell::UnsafeCell::new(Guarded {
                regions: Regions::default(),
                slots: Slots::new(setup.process),
                hand: 0,
                head_chunk: 0,
                huge_out: VecDeque::with_capacity(huge_slots),
                first_out: FirstOut::default(),
                page_outs: VecDeque::new(),
            }),
            zeros: zeros as usize,
            landing,
            limit_pages: AtomicU64::new(limit_pages),
            evictor_bell: AtomicU32::new(0),
            evictor_progress: AtomicU32::new(0),
            waker: Waker::default(),
            fork: ForkWindow::default(),
            lending: Lending::default(),
            mark: ForkMark::new().map_err(kernel("make its mark"))?,
            evictor_stuck: AtomicU32::new(0),
            reading: Spin::new(()),
            in_thread,
            read_ahead: Spin::default(),
            refaults: Refaults::default(),
            behind: Spin::default(),
            wanted: Wanted::default(),
            page_outs: PageOuts::default(),
            followed_cpu: AtomicUsize::new(NO_CPU),
            evictor_thread: AtomicU32::new(0),
            evictor_busy: AtomicU32::new(0),
            block: setup.block,
        })
    }

    /// A way to the donors for one thread.
    pub(super) fn far(&self) -> Result<Far, FarError> {
        let owner = Owner::Process(self.process.load(Ordering::Relaxed));
        let mut far = Far::open(&self.block, self.window.as_ref(), &self.descriptors, owner)?;
        far.set_disk(self.disk_fd);
        Ok(far)
    }

    /// Does it serve regions that were asked for, and not all of a program?
    pub(super) fn serves_regions(&self) -> bool {
        self.supervisor_fd < 0
    }

    /// Are its threads to end?
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// The userfaultfd of this process.
    pub fn uffd(&self) -> Uffd {
        Uffd { fd: self.uffd_fd.load(Ordering::Relaxed) }
    }

    /// Descriptors a pager needs room for.
    pub const FDS: i32 = 32;

    /// The pager's own descriptors.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// The run's shared block.
    pub fn block(&self) -> &RunBlockMap {
        &self.block
    }

    /// Takes the structure lock for a change of the address space by the program, or borrows it
    /// from a thread that is about to fork.
    pub fn hold_structure(&'static self) -> Structure {
        Structure { pager: self, guard: self.lock.hold_or_borrow(|| self.borrows_structure()) }
    }

    fn borrows_structure(&self) -> bool {
        let is_too_late = || !self.fork.is_prepared() || self.is_forking_now();
        if is_too_late() || !self.lending.borrow() {
            return false;
        }
        if is_too_late() {
            self.lending.give_back();
            return false;
        }
        true
    }

    /// Does the kernel copy the address space just now, or has it done so, and nobody has read of
    /// it yet?
    fn is_forking_now(&self) -> bool {
        // Waits while it copies; what it says does not matter.
        let _ = sys::mincore(self.zeros, &mut [0]);
        self.uffd().is_changing()
    }

    /// Pages this process has resident no longer. Never below none: a count that is off by a
    /// page must not become one that is off by all of them.
    pub(super) fn count_gone(&self, pages: u64) {
        let less = |count: u64| Some(count.saturating_sub(pages));
        let _ = self.resident().fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Frees what is in a slot that the caller has, and gives the slot up.
    pub(super) fn empty_slot(&self, slot: HugeSlot) {
        // SAFETY: nobody needs what is there.
        let _ = unsafe {
            sys::madvise(self.staging.address_of_huge(slot), HUGE_BYTES, sys::MADV_DONTNEED)
        };
        self.staging.huge().give_empty(slot);
    }

    pub(super) fn resident(&self) -> &AtomicU64 {
        &self.own_place().resident_pages
    }

    /// What the run block has of this process.
    pub(super) fn own_place(&self) -> &Process {
        &self.block.processes[self.process.load(Ordering::Relaxed)]
    }

    /// Wakes the evictor if pages near the budget.
    pub(super) fn ring_if_needed(&self, resident_pages: u64) {
        let limit = self.limit_pages.load(Ordering::Relaxed);
        if resident_pages > budget::high_watermark(limit, self.block.largest_page_size())
            && self.evictor_bell.swap(1, Ordering::AcqRel) == 0
        {
            sys::futex_wake(&self.evictor_bell, 1, false);
        }
    }

    /// Does the handler serve all faults, with nobody beside it?
    pub(super) fn is_served_by_one(&self) -> bool {
        self.in_thread.is_none()
    }

    /// Keeps the handler from reading what comes next, a fork above all, and lets a copy into
    /// a forked child end first. A handler that serves alone need not ask.
    pub(super) fn keep_readers_out(&self) -> Option<SpinGuard<'_, ()>> {
        loop {
            if self.is_served_by_one() {
                return None;
            }
            let reading = self.reading.hold();
            if !self.fork.is_copying() {
                return Some(reading);
            }
            drop(reading);
            self.fork.wait_while_copying();
        }
    }

    /// In the child of a fork: what its parent's handlers had in hand is over.
    pub(super) fn forget_handlers(&self) {
        // SAFETY: whoever held them is a thread of the parent.
        unsafe {
            self.reading.forget_holder(());
            self.read_ahead.forget_holder(ReadAhead::default());
            self.behind.forget_holder(FirstOut::default());
        }
        self.waker.reset();
        self.evictor_thread.store(0, Ordering::Relaxed);
    }

    /// Wakes whoever waits for `page`. Who is served in his thread tries again by himself.
    pub(super) fn wake_page(&self, page: PageNumber) {
        if self.in_thread.is_none() || !self.table.is_in_thread(page) {
            self.uffd().wake(page * PAGE, PAGE);
        }
    }
}

/// 2 MiB for which the kernel is to have a huge page, empty in the child of a fork.
fn map_landing() -> Result<usize, Errno> {
    let landing = sys::map_aligned(HUGE_BYTES, HUGE_BYTES)?;
    for advice in [sys::MADV_HUGEPAGE, sys::MADV_WIPEONFORK] {
        // SAFETY: advice about fresh memory. A kernel without huge pages refuses the first, and gives
        // small ones.
        let _ = unsafe { sys::madvise(landing, HUGE_BYTES, advice) };
    }
    Ok(landing)
}

/// Room for the slabs of a program, which its supervisor hands out.
fn window(block: &RunBlockMap, supervisor_fd: i32) -> Result<Option<Arc<SlabWindow>>, Errno> {
    if block.port() != PortKind::Shm {
        return Ok(None);
    }
    let source = move |replica| attach::ask_for_slab(supervisor_fd, replica);
    let window = SlabWindow::new(block, Box::new(source));
    window.map(|window| Some(Arc::new(window))).map_err(|errno| Errno(errno.raw_os_error()))
}

/// The structure lock held by a thread of the program: what may be changed with it is in
/// `mappings` and `fork`.
pub struct Structure {
    pub(super) pager: &'static Pager,
    pub(super) guard: StructureGuard<'static>,
}

impl Drop for Structure {
    fn drop(&mut self) {
        if self.guard.is_borrowed() {
            self.pager.lending.give_back();
        }
    }
}

impl Structure {
    pub(super) fn guarded(&mut self) -> &mut Guarded {
        // SAFETY: the lock is held, and the borrow of `self` keeps it the only one.
        unsafe { &mut *self.pager.guarded.get() }
    }

    /// Does any page of the range belong to a managed region?
    pub fn touches(&mut self, addr: usize, len_bytes: usize) -> bool {
        self.guarded().regions.parts(pages_of(addr, len_bytes)).next().is_some()
    }
}
