//! Window mode: anonymous memory of the program on mapped slabs, for plain loads and stores.
//!
//! No pager is involved. Once the local budget is spent, the program's large mappings and the
//! growth of its heap are pieces of the slabs themselves. They are populated when they are made, so
//! that accesses fault no more. Slots are taken and released in the run block as the pager does it,
//! so that the processes of a run share the slabs.
//!
//! The pieces are shared mappings, which a fork would share between parent and child. They are
//! therefore kept from children (`MADV_DONTFORK`), and a fork by the C library gives the child a
//! private, local copy while the parent waits. That is a snapshot only if no other thread writes
//! meanwhile: see [`Window::begin_fork`].
//!
//! If a donor reclaims its memory, a thread of the process ([`mover`]) moves its pages to another
//! donor's slab, piece by piece, while the program uses them ([`moving`]).

mod devices;
mod fork;
mod futex_waiters;
mod mapped;
mod mover;
mod moving;
mod proc_numbers;
mod structure;
#[cfg(test)]
mod tests;

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub use self::fork::WindowFork;
pub use self::structure::WindowStructure;
use super::PAGE;
use super::attach;
use super::end;
use super::lifeline::Tether;
use super::lock::StructureLock;
use super::page_table::PageNumber;
use super::regions::Regions;
use super::run_block::{RunBlockMap, SLAB_SLOTS};
use super::slab_window::{SlabSource, SlabWindow};
use super::slots::Slots;
use super::sys::Errno;

/// The window of one process. It lives as long as the process and is never dropped.
pub struct Window {
    block: RunBlockMap,
    process: usize,
    /// The slabs, mapped a second time outside the program's own addresses.
    slabs: SlabWindow,
    /// The replica that new pieces of each slab are mapped from, plus one; 0: none.
    locations: Box<[AtomicU32]>,
    /// Threads that do not belong to the program.
    own_threads: AtomicUsize,
    /// False in a forked child, all of whose memory is local.
    is_active: AtomicBool,
    /// Forks under way. Meanwhile no mapping is placed on slabs.
    forking: AtomicU32,
    lock: StructureLock,
    contents: UnsafeCell<Contents>,
    /// Both ends of the pipe of a fork under way.
    pipe: UnsafeCell<[i32; 2]>,
}

// SAFETY: fields that are neither atomic nor constant are reached only with the lock held.
unsafe impl Sync for Window {}
// SAFETY: as above.
unsafe impl Send for Window {}

/// The window's use of the address space.
#[derive(Debug)]
struct Contents {
    slots: Slots,
    /// The piece that begins at each page.
    pieces: BTreeMap<PageNumber, Piece>,
    /// Pages that count against the local budget.
    local: Regions,
}

/// Contiguous pages in contiguous slots of one slab.
#[derive(Clone, Copy, Debug)]
struct Piece {
    count: usize,
    /// The first page's slot.
    slot: u32,
    /// The replica of its slab that is mapped there.
    replica: usize,
}

/// An error of starting a window.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// A slab cannot be mapped.
    #[error("window failed: the donors' memory cannot be mapped into this process")]
    Unmappable,
    /// A thread of the window cannot start.
    #[error("window failed: its thread cannot start: {0}")]
    NoThread(#[source] Errno),
}

impl Window {
    /// Starts the window of process `process` of the run. The supervisor passes its slabs over the
    /// connection `supervisor`, and `tether` ends the process with the supervisor.
    ///
    /// # Errors
    /// [`WindowError`] if a slab cannot be mapped, or a thread cannot start.
    pub fn start(
        block: RunBlockMap,
        process: usize,
        supervisor: OwnedFd,
        tether: &'static Tether,
    ) -> Result<&'static Window, WindowError> {
        let socket = supervisor.as_raw_fd();
        let source = move |replica| attach::request_slab(socket, replica);
        let window = Window::new(block, process, Box::new(source))?;
        end::report_in(&window.block);
        tether.watch().map_err(WindowError::NoThread)?;
        window.count_own_thread();
        // From here on the mover has the connection, under the same number, out of the program's
        // reach.
        mover::start(window, socket).map_err(WindowError::NoThread)?;
        Ok(window)
    }

    /// The run's shared block.
    pub fn block(&self) -> &RunBlockMap {
        &self.block
    }

    fn new(
        block: RunBlockMap,
        process: usize,
        source: SlabSource,
    ) -> Result<&'static Window, WindowError> {
        let slabs = SlabWindow::new(&block, source).map_err(|_| WindowError::Unmappable)?;
        let location = |slab| {
            // A slab lost with its donor is not used again.
            let Some(location) = block.newest_location(slab) else { return Ok(AtomicU32::new(0)) };
            slabs.address(location, 0).ok_or(WindowError::Unmappable)?;
            block.set_location(process, slab, location);
            Ok(AtomicU32::new(location as u32 + 1))
        };
        let locations =
            (0..block.slab_count()).map(location).collect::<Result<_, WindowError>>()?;
        let contents = Contents {
            slots: Slots::new(process),
            pieces: BTreeMap::new(),
            local: Regions::default(),
        };
        let window = Box::leak(Box::new(Window {
            block,
            process,
            slabs,
            locations,
            own_threads: AtomicUsize::new(0),
            is_active: AtomicBool::new(true),
            forking: AtomicU32::new(0),
            lock: StructureLock::default(),
            contents: UnsafeCell::new(contents),
            pipe: UnsafeCell::new([-1; 2]),
        }));
        window.fork_with_slabs(false);
        Ok(window)
    }

    /// True if this process still has the window.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    fn count_own_thread(&self) {
        self.own_threads.fetch_add(1, Ordering::Relaxed);
    }

    /// The replica that new pieces of a slab are mapped from.
    fn location(&self, slab: usize) -> Option<usize> {
        self.locations[slab].load(Ordering::Relaxed).checked_sub(1).map(|replica| replica as usize)
    }

    /// The address of a piece's page number `page` outside the program's own addresses.
    fn in_slabs(&self, piece: &Piece, page: usize) -> usize {
        let offset = (piece.slot % SLAB_SLOTS) as usize + page;
        self.slabs.mapped_address(piece.replica, offset * PAGE)
    }

    /// Zeros the pages of a piece through their second mapping, whatever the protection at the
    /// program's own address.
    fn zero(&self, piece: &Piece) {
        let addr = self.in_slabs(piece, 0);
        // SAFETY: slots that this process holds, mapped for writing as long as the window is
        // active. The lock is held, so no piece changes its replica.
        unsafe { std::ptr::write_bytes(addr as *mut u8, 0, piece.count * PAGE) };
    }

    fn own_local_pages(&self) -> &AtomicU64 {
        &self.block.processes[self.process].resident_pages
    }

    /// Pages that may still be local, over all processes of the run.
    fn local_room(&self) -> u64 {
        let used =
            self.block.live_processes().map(|(_, p)| p.resident_pages.load(Ordering::Relaxed));
        self.block.limit_pages.load(Ordering::Relaxed).saturating_sub(used.sum())
    }
}
