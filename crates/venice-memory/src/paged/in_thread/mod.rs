//! In-thread faults: served in the thread that touches the page, in its `SIGBUS` handler, with no
//! other thread woken. They are for large mappings of programs that ask for it
//! (docs/decisions/0033).
//!
//! These mappings are registered with a userfaultfd of their own. The rest of the program's memory,
//! which is passed to system calls far more often, keeps the fault handler. A thread that gets the
//! signal takes a [`Handler`](super::handler::Handler) from a fixed pool and does the work of the
//! pager's handler, concurrently with it: it claims the page, places it, releases it. It does so on
//! a stack of the pool, because its own may be far, and with all signals blocked, so that no lock
//! is held by a thread that a signal diverts. It uses neither thread-local storage nor the
//! program's heap.
//!
//! [`signal`] is the signal handler and passes other signals on; [`pool`] holds the handlers;
//! [`populate`] serves memory that the kernel is asked to populate before it is touched.

mod pool;
mod populate;
pub mod signal;

use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use super::descriptors::Descriptors;
use super::far::FarError;
use super::page_table::{Entry, PageNumber, State};
use super::pager::{NO_CPU, Pager};
use super::sys::{self, Errno, PollFd, SysResult};
use super::uffd::{Event, Uffd};
use super::{PAGE, address_of};
use pool::{FaultRequest, HandlerPool};

/// Least length of a mapping served in the thread, in bytes. Shorter ones hold what allocators hand
/// out in small pieces: buffers and locks that are passed to the kernel.
pub const LEAST_BYTES: usize = 4 << 20;

/// One fault in this many reports its processor.
const REPORT_ONE_IN: u32 = 16;
/// Reports in a row from another processor after which the evictor moves there.
const MOVE_AFTER: u32 = 16;

/// The in-thread part of a pager.
pub struct InThread {
    uffd_fd: AtomicI32,
    /// Address of a page of the pager's own userfaultfd, below all others, so that a fork is
    /// reported to that one first.
    lowest: usize,
    pool: AtomicPtr<HandlerPool>,
    stacks: usize,
    /// Faults, modulo 2^32.
    served: AtomicU32,
    /// Reports in a row that named another processor than the evictor's.
    remote_reports: AtomicU32,
}

impl InThread {
    /// Makes the in-thread part of a pager whose own userfaultfd is `uffd`, and whose supervisor is
    /// at the other end of `supervisor`; -1: there is none, and its process does not fork.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(descriptors: &Descriptors, uffd: Uffd, supervisor: i32) -> SysResult<InThread> {
        let in_thread = Uffd::open_in_thread(supervisor)?;
        let uffd_fd = AtomicI32::new(descriptors.keep(in_thread.fd));
        let in_thread = Uffd { fd: uffd_fd.load(Ordering::Relaxed) };
        let lowest = if supervisor >= 0 { anchor(uffd, in_thread)? } else { 0 };
        Ok(InThread {
            uffd_fd,
            lowest,
            pool: AtomicPtr::new(std::ptr::null_mut()),
            stacks: pool::map_stacks()?,
            served: AtomicU32::new(0),
            remote_reports: AtomicU32::new(0),
        })
    }

    /// Begins to serve faults in the threads of `pager`, which owns this; also in the child of a
    /// fork, once the child has its own userfaultfds.
    ///
    /// # Errors
    /// [`FarError`].
    pub fn begin(&self, pager: &'static Pager) -> Result<(), FarError> {
        let pool = Box::leak(Box::new(HandlerPool::new(pager, self.stacks)?));
        // In a child the former pool may be half changed: it is leaked, unused.
        self.pool.store(pool, Ordering::Release);
        Ok(())
    }

    /// Returns the userfaultfd of the mappings that are served in threads.
    pub fn uffd(&self) -> Uffd {
        Uffd { fd: self.uffd_fd.load(Ordering::Relaxed) }
    }

    /// Sets the userfaultfd, in the child of a fork.
    pub fn set_uffd(&self, fd: i32) {
        self.uffd_fd.store(fd, Ordering::Release);
    }

    /// True if a fresh mapping is to be served in threads.
    pub fn serves_mapping(&self, addr: usize, len_bytes: usize) -> bool {
        len_bytes >= LEAST_BYTES && addr > self.lowest
    }

    /// True if memory that was served in threads can be served so at `addr`.
    pub fn reaches(&self, addr: usize) -> bool {
        addr > self.lowest
    }

    /// Returns the child's userfaultfd of a fork that the pager's userfaultfd has reported: this
    /// one reports it next. Neither parent nor child go on before it is read.
    pub fn read_forked_child(&self) -> Uffd {
        let uffd = self.uffd();
        loop {
            let mut queue = [PollFd { fd: uffd.fd, events: sys::POLLIN, revents: 0 }];
            sys::poll(&mut queue, -1);
            if let Some(Event::Fork { child }) = uffd.read_event() {
                return child;
            }
        }
    }

    /// Serves a fault. `false`: the page cannot be placed.
    fn serve(&self, page: PageNumber, write: bool, is_advised: bool) -> bool {
        // SAFETY: null, or leaked by `begin`; freed when no thread touches what the pager serves.
        let Some(pool) = (unsafe { self.pool.load(Ordering::Acquire).as_ref() }) else {
            return false;
        };
        pool.serve(FaultRequest { page, write, is_advised })
    }
}

impl Drop for InThread {
    fn drop(&mut self) {
        let pool = self.pool.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !pool.is_null() {
            // SAFETY: leaked by `begin`, and no thread serves any more.
            drop(unsafe { Box::from_raw(pool) });
        }
        pool::unmap_stacks(self.stacks);
    }
}

impl Pager {
    /// Serves the fault of a thread that got `SIGBUS` at `address`. True if the thread may try
    /// again.
    fn serve_in_thread(&'static self, address: usize, write: bool) -> bool {
        let page = address / PAGE;
        let Some(in_thread) = &self.in_thread else { return false };
        // A child without a pager of its own got all its memory before it ran.
        let is_ours = self.table.is_in_thread(page) && self.is_paging();
        if is_ours && in_thread.served.fetch_add(1, Ordering::Relaxed) % REPORT_ONE_IN == 0 {
            self.lead_evictor(in_thread);
        }
        is_ours && in_thread.serve(page, write, false)
    }

    /// Moves the evictor to the processor that faults come from (docs/decisions/0007), where it
    /// stays while some do.
    fn lead_evictor(&self, in_thread: &InThread) {
        let followed = self.followed_cpu.load(Ordering::Relaxed);
        match sys::current_cpu() {
            Some(cpu) if cpu != followed => {
                let others = in_thread.remote_reports.fetch_add(1, Ordering::Relaxed);
                if others >= MOVE_AFTER || followed == NO_CPU {
                    self.followed_cpu.store(cpu, Ordering::Relaxed);
                }
            }
            _ => in_thread.remote_reports.store(0, Ordering::Relaxed),
        }
    }

    /// Brings in `page`, by the server of its faults. The caller holds the structure lock, so
    /// signals are blocked.
    ///
    /// # Errors
    /// The page may not be read just now (`PROT_NONE`), or is lost.
    pub(super) fn populate(&'static self, page: PageNumber, is_advised: bool) -> SysResult<()> {
        match &self.in_thread {
            Some(in_thread) if self.table.is_in_thread(page) => {
                let state = || self.table.entry(page).map(Entry::state);
                while in_thread.serve(page, false, is_advised) {
                    match state() {
                        Some(State::Resident) => return Ok(()),
                        Some(State::Poisoned) | None => break,
                        _ => {}
                    }
                }
                Err(Errno::EFAULT)
            }
            // SAFETY: populating changes no contents.
            _ => unsafe { sys::madvise(address_of(page), PAGE, sys::MADV_POPULATE_READ) },
        }
    }

    /// Returns the userfaultfd that `page` is registered with.
    pub(super) fn uffd_of(&self, page: PageNumber) -> Uffd {
        match &self.in_thread {
            Some(in_thread) if self.table.is_in_thread(page) => in_thread.uffd(),
            _ => self.uffd(),
        }
    }
}

/// Fixes the order in which a fork is reported to the two userfaultfds. A fork reports to each
/// userfaultfd that serves what it copies, in the order of the addresses, and waits until the
/// report is read. `uffd` gets a page below everything, and `in_thread`, which may have nothing to
/// serve yet, one above it. Returns the address of the lower one.
fn anchor(uffd: Uffd, in_thread: Uffd) -> SysResult<usize> {
    const FIRST_ALLOWED: usize = 1 << 16;
    const TRIED: usize = 256;
    let mut pool = (0..TRIED).map(|at| FIRST_ALLOWED + at * PAGE);
    let low = pool.find_map(|addr| sys::reserve(addr, PAGE).ok()).ok_or(Errno::ENOMEM)?;
    uffd.register(low, PAGE)?;
    in_thread.register(sys::reserve(0, PAGE)?, PAGE)?;
    Ok(low)
}
