//! The pager of one process: its state, shared by its threads.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use venice_ports::shm::SlabFile;

use super::attach;
use super::budget;
use super::cold_spans::ColdSpans;
use super::descriptors::Descriptors;
use super::far::{Far, FarError};
use super::fork_lock::ForkLock;
use super::fork_mark::ForkMark;
use super::fork_state::ForkState;
use super::huge_slots::{HugeSlot, MOST_SPARES};
use super::image::ImagePage;
use super::in_thread::InThread;
use super::last_look::LastLook;
use super::lock::{StructureGuard, StructureLock};
use super::page_size::{HUGE_BYTES, HUGE_PAGES};
use super::page_table::{PageNumber, PageTable};
use super::pause::Pause;
use super::read_ahead::{MAX_PREFETCH, ReadAhead};
use super::refaults::Refaults;
use super::regions::Regions;
use super::requests::{PageOuts, WillNeed};
use super::run_block::{Owner, Process, RunBlockMap};
use super::shared::{SharedHome, SharedMappings};
use super::slab_window::{SlabSource, SlabWindow};
use super::slots::Slots;
use super::spin::{Spin, SpinGuard};
use super::staging::{CHUNK_FRAMES, Staging};
use super::sys::{self, Errno};
use super::uffd::Uffd;
use super::waker::Waker;
use super::{PAGE, pages_of};

/// One page of the staging ring for this many pages that a process may have resident. Sweep chunks
/// with holes do not fill their chunks, so the ring holds fewer.
const RING_SHARE: usize = 4;
/// Fewest chunks of the staging ring: while one is filled the other waits.
const MIN_RING_CHUNKS: usize = 2;
/// Most chunks of the staging ring.
const MAX_RING_CHUNKS: usize = 1 << 15;
/// Fewest and most huge pages on their way out.
const HUGE_SLOTS: [usize; 2] = [2, 1 << 12];

/// No processor yet. See [`Pager::followed_cpu`].
pub(super) const NO_CPU: usize = usize::MAX;

/// The parts that a pager is made of.
pub struct PagerSetup {
    /// The run's shared block.
    pub block: Arc<RunBlockMap>,
    /// Index of this process in the block.
    pub process: usize,
    /// The memory that the pager serves.
    pub serves: Serves,
    /// Lowest number of the pager's own descriptors.
    pub lowest_fd: i32,
}

/// The memory that a pager serves.
pub enum Serves {
    /// All anonymous memory of a program; the budget is for all that the program has resident.
    Program {
        /// The connection to the supervisor; it closes when the supervisor is gone.
        supervisor: std::os::fd::OwnedFd,
        /// True if the supervisor sees the same process ids as this process.
        shares_pids: bool,
    },
    /// Regions that a process asked for; the budget is for these, and children of a fork do not
    /// have them.
    Regions {
        /// The mapped slabs (shm port).
        window: Option<SharedWindow>,
    },
    /// The shared memory of a run's processes, in their supervisor; the budget is theirs too.
    Shared {
        /// The slabs (shm port), and the file of write-behind.
        slabs: SlabSource,
        /// Its objects and users.
        home: Arc<SharedHome>,
    },
}

/// Mapped slabs that others read and write too.
#[derive(Clone, Debug)]
pub struct SharedWindow(pub(super) Arc<SlabWindow>);

/// An error of the start of a pager.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// There is no userfaultfd.
    #[error(
        "userfaultfd is unavailable ({0}): the paged mode needs Linux 6.8 or newer, and a helper of \
         root's on this machine for other users (`venice helper`, or an agent that runs as root); see \
         `venice doctor`"
    )]
    Userfaultfd(#[source] Errno),
    /// The process may have children in a new PID namespace only, and no threads.
    #[error(
        "the pager could not start its threads: this process has unshared its PID namespace, where \
         only its children can be; fork first (`unshare --pid --fork`)"
    )]
    PidNamespace,
    /// The kernel refused something else.
    #[error("the pager could not {doing}: {source}")]
    Kernel {
        /// The operation.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: Errno,
    },
    /// The donors are unreachable.
    #[error(transparent)]
    Far(#[from] FarError),
}

/// Returns the chunks of the staging ring of a process that may have `limit_pages` resident, at
/// most `most`.
pub(super) fn ring_chunks(limit_pages: u64, most: usize) -> usize {
    (limit_pages as usize / RING_SHARE / CHUNK_FRAMES).clamp(MIN_RING_CHUNKS, most)
}

/// Returns the most huge pages that may be on their way out of such a process, at most `most`.
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
    /// True if the supervisor sees the same process ids as this process.
    pub(super) shares_pids: AtomicBool,
    /// The write-behind file, if there is one.
    pub(super) disk_fd: Option<i32>,
    /// True once its threads are to end ([`Serves::Regions`]).
    pub(super) is_ending: AtomicBool,
    pub(super) table: PageTable,
    pub(super) staging: Staging,
    /// The addresses of both, for debuggers.
    pub(super) image: ImagePage,
    /// The home of its pages, if that is not this process's own memory.
    pub(super) shared: Option<Arc<SharedHome>>,
    /// This process as a user of its run's shared pager.
    pub(super) shared_mappings: SharedMappings,
    pub(super) lock: StructureLock,
    pub(super) guarded: std::cell::UnsafeCell<Guarded>,
    pub(super) zeros: usize,
    /// Memory to assemble a huge page in, if there is no spare.
    pub(super) landing: usize,
    /// Managed pages that this process may be charged for now.
    pub(super) limit_pages: AtomicU64,
    /// Forks of this process, its own birth by one included.
    pub(super) forks: AtomicU32,
    /// Faults read from the userfaultfd.
    pub(super) faults_read: AtomicU64,
    /// Futex that wakes the evictor when set.
    pub(super) evictor_bell: AtomicU32,
    /// The waker of faulting threads.
    pub(super) waker: Waker,
    /// Counts the evictor's turns; the handler waits on it for room.
    pub(super) evictor_progress: AtomicU32,
    /// Held while the userfaultfd's queue is read, and, where threads serve themselves, until it is
    /// known if a `fork` was read.
    pub(super) reading: Spin<()>,
    /// The server of faults on large mappings, if not the handler.
    pub(super) in_thread: Option<InThread>,
    pub(super) read_ahead: Spin<ReadAhead>,
    pub(super) refaults: Refaults,
    /// Spans of cold pages that streams have left behind, or whose prefetch was wasted.
    pub(super) stream_cold: Spin<ColdSpans>,
    /// The pages that a thread wants brought in.
    pub(super) will_need: WillNeed,
    /// Calls that wait for pages to be paged out.
    pub(super) page_outs: PageOuts,
    /// The processor on which the handler follows the program; `NO_CPU`: none yet.
    pub(super) followed_cpu: AtomicUsize,
    /// Thread id of the evictor; 0: it has not started.
    pub(super) evictor_thread: AtomicU32,
    /// Nonzero while the evictor is in the middle of a turn.
    pub(super) evictor_busy: AtomicU32,
    pub(super) fork: ForkState,
    /// The loan of a forking thread's structure lock.
    pub(super) fork_lock: ForkLock,
    /// Set while this process pages by itself.
    pub(super) mark: ForkMark,
    pub(super) last_look: LastLook,
    /// The pager's threads, and their pause.
    pub(super) pause: Pause,
    /// Nonzero while the evictor finds nothing to evict; then no thread waits for it.
    pub(super) evictor_stuck: AtomicU32,
    /// The [`Locking`](super::Locking) of memory that the program maps; 0: it is not locked.
    pub(super) locks_future: AtomicU32,
}

/// The state guarded by the structure lock.
pub struct Guarded {
    pub(super) regions: Regions,
    pub(super) slots: Slots,
    pub(super) hand: PageNumber,
    pub(super) head_chunk: usize,
    /// Slots with huge pages on their way out, the oldest first.
    pub(super) huge_out: VecDeque<HugeSlot>,
    /// Spans of pages advised as cold.
    pub(super) advised_cold: ColdSpans,
    /// Pages that the program has locked.
    pub(super) locked: Regions,
    /// Spans to be paged out at once.
    pub(super) page_outs: VecDeque<Range<PageNumber>>,
    /// Pages that the run's shared pager serves.
    pub(super) shared: Regions,
}

// SAFETY: everything but `guarded` is atomic or never changes, and `guarded` is reached only with
// the structure lock held.
unsafe impl Sync for Pager {}
// SAFETY: as above.
unsafe impl Send for Pager {}

impl Drop for Pager {
    fn drop(&mut self) {
        // Threads that still wait for a page go on now.
        self.descriptors.close(self.uffd_fd.load(Ordering::Relaxed));
        // SAFETY: the pager's own memory, which its threads used, and these have ended.
        unsafe {
            sys::unmap(self.zeros as *mut _, MAX_PREFETCH * PAGE);
            sys::unmap(self.landing as *mut _, HUGE_BYTES);
        }
    }
}

impl Pager {
    /// Makes a pager that has no threads yet.
    pub(super) fn new(setup: PagerSetup) -> Result<Pager, PagerError> {
        let kernel = |doing| move |source| PagerError::Kernel { doing, source };
        let descriptors = Arc::new(Descriptors::new(setup.lowest_fd));
        let mut shared = None;
        let (supervisor_fd, shares_pids, window, disk) = match setup.serves {
            Serves::Program { supervisor, shares_pids } => {
                let supervisor_fd = descriptors.keep(supervisor.into_raw_fd());
                let source: fn(i32) -> SlabSource =
                    |fd| Box::new(move |replica| attach::request_slab(fd, replica));
                let window = window(&setup.block, source(supervisor_fd));
                let window = window.map_err(kernel("reserve room for slabs"))?;
                (supervisor_fd, shares_pids, window, disk(&setup.block, &source(supervisor_fd)))
            }
            Serves::Regions { window } => (-1, true, window.map(|shared| shared.0), Ok(None)),
            Serves::Shared { slabs, home } => {
                shared = Some(home);
                let disk = disk(&setup.block, &slabs);
                let window = window(&setup.block, slabs);
                (-1, true, window.map_err(kernel("reserve room for slabs"))?, disk)
            }
        };
        let uffd = Uffd::open_helped(supervisor_fd).map_err(PagerError::Userfaultfd)?;
        let fd = descriptors.keep(uffd.fd);
        let disk = disk.map_err(kernel("reach the file of --write-behind"))?;
        let disk_fd = disk.map(|file| descriptors.keep(OwnedFd::from(file).into_raw_fd()));
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
        if shared.is_none() {
            Uffd { fd }.register(base, len_bytes).map_err(kernel("register its staging area"))?;
        }
        let zeros = sys::map_private(MAX_PREFETCH * PAGE).map_err(kernel("map its zeros"))?;
        let landing = map_landing().map_err(kernel("map where huge pages land"))?;
        let serves_threads = setup.block.faults_in_thread() && shared.is_none();
        let in_thread =
            serves_threads.then(|| InThread::new(&descriptors, Uffd { fd }, supervisor_fd));
        let in_thread = in_thread.transpose().map_err(kernel("serve faults in threads"))?;
        let table = PageTable::new().map_err(kernel("map its page table"))?;
        let image = ImagePage::new(&staging, table.root_address());
        let image = image.map_err(kernel("map the addresses of its tables"))?;
        let pager = Pager {
            uffd_fd: AtomicI32::new(fd),
            process: AtomicUsize::new(setup.process),
            window,
            descriptors,
            supervisor_fd,
            shares_pids: AtomicBool::new(shares_pids),
            disk_fd,
            is_ending: AtomicBool::new(false),
            table,
            staging,
            image,
            shared,
            shared_mappings: SharedMappings::default(),
            lock: StructureLock::default(),
            guarded: std::cell::UnsafeCell::new(Guarded {
                regions: Regions::default(),
                slots: Slots::new(setup.process),
                hand: 0,
                head_chunk: 0,
                huge_out: VecDeque::with_capacity(huge_slots),
                advised_cold: ColdSpans::default(),
                locked: Regions::default(),
                page_outs: VecDeque::new(),
                shared: Regions::default(),
            }),
            zeros: zeros as usize,
            landing,
            limit_pages: AtomicU64::new(limit_pages),
            forks: AtomicU32::new(0),
            faults_read: AtomicU64::new(0),
            evictor_bell: AtomicU32::new(0),
            evictor_progress: AtomicU32::new(0),
            waker: Waker::default(),
            fork: ForkState::default(),
            fork_lock: ForkLock::default(),
            mark: ForkMark::new().map_err(kernel("make its mark"))?,
            evictor_stuck: AtomicU32::new(0),
            last_look: LastLook::default(),
            pause: Pause::default(),
            locks_future: AtomicU32::new(0),
            reading: Spin::new(()),
            in_thread,
            read_ahead: Spin::default(),
            refaults: Refaults::default(),
            stream_cold: Spin::default(),
            will_need: WillNeed::default(),
            page_outs: PageOuts::default(),
            followed_cpu: AtomicUsize::new(NO_CPU),
            evictor_thread: AtomicU32::new(0),
            evictor_busy: AtomicU32::new(0),
            block: setup.block,
        };
        pager.publish_image();
        Ok(pager)
    }

    /// Publishes the addresses of its tables in the run block.
    pub(super) fn publish_image(&self) {
        self.own_process().image_address.store(self.image.address(), Ordering::Release);
    }

    /// Opens access to the donors for one thread.
    pub(super) fn far(&self) -> Result<Far, FarError> {
        let owner = Owner::Process(self.process.load(Ordering::Relaxed));
        let mut far = Far::open(&self.block, self.window.as_ref(), &self.descriptors, owner)?;
        far.set_disk(self.disk_fd);
        Ok(far)
    }

    /// True if it serves regions that were asked for, and not all of a program.
    pub(super) fn serves_regions(&self) -> bool {
        self.supervisor_fd < 0
    }

    /// True if its threads are to end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// The userfaultfd of this process.
    pub fn uffd(&self) -> Uffd {
        Uffd { fd: self.uffd_fd.load(Ordering::Relaxed) }
    }

    /// The descriptor that is readable while there is a fault to serve.
    pub(super) fn event_fd(&self) -> i32 {
        self.shared.as_ref().map_or(self.uffd().fd, |home| home.event_fd())
    }

    /// Descriptors that a pager needs room for.
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
        if is_too_late() || !self.fork_lock.borrow() {
            return false;
        }
        if is_too_late() {
            self.fork_lock.return_lock();
            return false;
        }
        true
    }

    /// True if the kernel is copying the address space, or has done so and the event is not yet
    /// read.
    fn is_forking_now(&self) -> bool {
        // Waits while the kernel copies; the result does not matter.
        let _ = sys::mincore(self.zeros, &mut [0]);
        self.uffd().is_changing()
    }

    /// Counts pages as no longer resident. Never below zero: a count that is off by a page must not
    /// become one that is off by all of them.
    pub(super) fn count_gone(&self, pages: u64) {
        let less = |count: u64| Some(count.saturating_sub(pages));
        let _ = self.resident().fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Frees the memory in a slot that the caller owns, and gives the slot up.
    pub(super) fn empty_slot(&self, slot: HugeSlot) {
        // SAFETY: the contents are not needed.
        let _ = unsafe {
            sys::madvise(self.staging.address_of_huge(slot), HUGE_BYTES, sys::MADV_DONTNEED_LOCKED)
        };
        self.staging.huge().give_empty(slot);
    }

    pub(super) fn resident(&self) -> &AtomicU64 {
        &self.own_process().resident_pages
    }

    /// Managed pages that this process is charged for now: resident ones, without those that other
    /// processes are charged for.
    pub(super) fn charged(&self) -> u64 {
        self.own_process().charge().resident_pages
    }

    /// This process's entry in the run block.
    pub(super) fn own_process(&self) -> &Process {
        &self.block.processes[self.process.load(Ordering::Relaxed)]
    }

    /// Wakes the evictor if `charged_pages` is near the budget.
    pub(super) fn ring_if_needed(&self, charged_pages: u64) {
        let limit = self.limit_pages.load(Ordering::Relaxed);
        if charged_pages > budget::high_watermark(limit, self.block.largest_page_size())
            && self.evictor_bell.swap(1, Ordering::AcqRel) == 0
        {
            sys::futex_wake(&self.evictor_bell, 1, false);
        }
    }

    /// True if the handler serves all faults alone.
    pub(super) fn is_served_by_one(&self) -> bool {
        self.in_thread.is_none()
    }

    /// Keeps the handler from reading the next message, which may be a fork, and waits for a copy
    /// into a forked child to end. `None` if the handler serves alone: it need not lock.
    pub(super) fn block_event_reads(&self) -> Option<SpinGuard<'_, ()>> {
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

    /// Resets the state of the parent's handlers in the child of a fork.
    pub(super) fn reset_handlers(&self) {
        // SAFETY: the holders are threads of the parent.
        unsafe {
            self.reading.forget_holder(());
            self.read_ahead.forget_holder(ReadAhead::default());
            self.stream_cold.forget_holder(ColdSpans::default());
            self.pause.reset();
        }
        self.waker.reset();
        self.evictor_thread.store(0, Ordering::Relaxed);
    }

    /// Wakes the threads that wait for `page`. A thread that serves its own faults tries again by
    /// itself.
    pub(super) fn wake_page(&self, page: PageNumber) {
        if let Some(home) = &self.shared {
            return home.wake(page);
        }
        if self.in_thread.is_none() || !self.table.is_in_thread(page) {
            self.uffd().wake(page * PAGE, PAGE);
        }
    }
}

/// Maps 2 MiB advised as a huge page, empty in the child of a fork.
fn map_landing() -> Result<usize, Errno> {
    let landing = sys::map_aligned(HUGE_BYTES, HUGE_BYTES)?;
    sys::mark_own(landing, HUGE_BYTES);
    for advice in [sys::MADV_HUGEPAGE, sys::MADV_WIPEONFORK] {
        // SAFETY: advice about fresh memory. A kernel without huge pages refuses the first, and
        // gives small ones.
        let _ = unsafe { sys::madvise(landing, HUGE_BYTES, advice) };
    }
    Ok(landing)
}

/// Returns the file of write-behind, if there is one.
fn disk(block: &RunBlockMap, slabs: &SlabSource) -> Result<Option<SlabFile>, Errno> {
    let file = block.first_on_disk().map(|replica| slabs(replica).ok_or(Errno::ENOENT));
    file.transpose()
}

/// Reserves room for the slabs of a program, which its supervisor hands out.
fn window(block: &RunBlockMap, slabs: SlabSource) -> Result<Option<Arc<SlabWindow>>, Errno> {
    if !block.port().capabilities().mapped {
        return Ok(None);
    }
    let window = SlabWindow::new(block, slabs);
    window.map(|window| Some(Arc::new(window))).map_err(|errno| Errno(errno.raw_os_error()))
}

/// The structure lock held by a thread of the program. The changes made under it are in `mappings`
/// and `fork`.
pub struct Structure {
    pub(super) pager: &'static Pager,
    pub(super) guard: StructureGuard<'static>,
}

impl Drop for Structure {
    fn drop(&mut self) {
        if self.guard.is_borrowed() {
            self.pager.fork_lock.return_lock();
        }
    }
}

impl Structure {
    pub(super) fn guarded(&mut self) -> &mut Guarded {
        // SAFETY: the lock is held, and the borrow of `self` keeps it the only one.
        unsafe { &mut *self.pager.guarded.get() }
    }

    /// True if any page of the range belongs to a managed region.
    pub fn touches(&mut self, addr: usize, len_bytes: usize) -> bool {
        self.guarded().regions.parts(pages_of(addr, len_bytes)).next().is_some()
    }
}
