//! Faults served in the thread that touches the page, by the signal that it gets (`SIGBUS`), with no
//! other thread woken: for large mappings of programs that ask for it (docs/decisions/0033).
//!
//! Such mappings are registered with a userfaultfd of their own. The rest of the program's memory,
//! which system calls are given far more often, keeps its handlers. A thread that gets the signal
//! takes a [`Handler`] from a fixed few and does what a handler of the pager does, beside those
//! there are: it claims the page, places it, releases it. It does so on a stack of the handler's,
//! because its own may be far, and with all signals blocked, so that no lock is held by a thread
//! that a signal sends elsewhere. It uses neither thread-local storage nor the program's heap.
//!
//! [`signal`] is the way in, and passes on what is none of this; [`places`] are the few; [`populate`]
//! serves what the kernel is asked to have there before it is touched.

mod places;
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
use places::{Asked, Places};

/// Mappings at least so long are served in the thread. Shorter ones hold what allocators hand out
/// in small pieces: buffers and locks that the kernel is given.
pub const LEAST_BYTES: usize = 4 << 20;

/// One fault in so many tells where it comes from.
const ASK_ONE_IN: u32 = 16;
/// So many answers in a row from elsewhere, and the evictor goes there.
const MOVE_AFTER: u32 = 16;

/// What serves faults in the program's threads.
pub struct InThread {
    uffd_fd: AtomicI32,
    /// A fork tells the pager's userfaultfd first, because that one has a page below this address.
    lowest: usize,
    places: AtomicPtr<Places>,
    stacks: usize,
    /// Faults, modulo 2^32.
    served: AtomicU32,
    /// Answers in a row that named another processor than the evictor's.
    elsewhere: AtomicU32,
}

impl InThread {
    /// For a pager whose own userfaultfd is `uffd`; it forks, if `forks`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(descriptors: &Descriptors, uffd: Uffd, forks: bool) -> SysResult<InThread> {
        let in_thread = Uffd::open_in_thread()?;
        let uffd_fd = AtomicI32::new(descriptors.keep(in_thread.fd));
        let in_thread = Uffd { fd: uffd_fd.load(Ordering::Relaxed) };
        let lowest = if forks { anchor(uffd, in_thread)? } else { 0 };
        Ok(InThread {
            uffd_fd,
            lowest,
            places: AtomicPtr::new(std::ptr::null_mut()),
            stacks: places::map_stacks()?,
            served: AtomicU32::new(0),
            elsewhere: AtomicU32::new(0),
        })
    }

    /// Has `pager`, whose part this is, serve in its threads from here on; also in the child of a
    /// fork, once it has its own userfaultfds.
    ///
    /// # Errors
    /// [`FarError`].
    pub fn begin(&self, pager: &'static Pager) -> Result<(), FarError> {
        let places = Box::leak(Box::new(Places::new(pager, self.stacks)?));
        // In a child the former ones may be half changed: they stay where they are, unused.
        self.places.store(places, Ordering::Release);
        Ok(())
    }

    /// The userfaultfd of what is served so.
    pub fn uffd(&self) -> Uffd {
        Uffd { fd: self.uffd_fd.load(Ordering::Relaxed) }
    }

    /// In the child of a fork: it has one of its own.
    pub fn set_uffd(&self, fd: i32) {
        self.uffd_fd.store(fd, Ordering::Release);
    }

    /// Is a fresh mapping to be served so?
    pub fn takes(&self, addr: usize, len_bytes: usize) -> bool {
        len_bytes >= LEAST_BYTES && addr > self.lowest
    }

    /// Can memory that was served so be served so at `addr`?
    pub fn reaches(&self, addr: usize) -> bool {
        addr > self.lowest
    }

    /// The pager's userfaultfd has told of a fork, so this one tells of it next: the child's. Neither
    /// parent nor child go on before this is read.
    pub fn child_of_fork(&self) -> Uffd {
        let uffd = self.uffd();
        loop {
            let mut queue = [PollFd { fd: uffd.fd, events: sys::POLLIN, revents: 0 }];
            sys::poll(&mut queue, -1);
            if let Some(Event::Fork { child }) = uffd.read_event() {
                return child;
            }
        }
    }

    /// Serves a fault; `false`: the page cannot be placed, whatever is tried.
    fn serve(&self, page: PageNumber, write: bool, is_wanted: bool) -> bool {
        // SAFETY: null, or leaked by `begin`; freed when nobody touches what the pager serves.
        let Some(places) = (unsafe { self.places.load(Ordering::Acquire).as_ref() }) else {
            return false;
        };
        places.serve(Asked { page, write, is_wanted })
    }
}

impl Drop for InThread {
    fn drop(&mut self) {
        let places = self.places.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !places.is_null() {
            // SAFETY: leaked by `begin`, and nobody serves any more.
            drop(unsafe { Box::from_raw(places) });
        }
        places::unmap_stacks(self.stacks);
    }
}

impl Pager {
    /// The thread got `SIGBUS` at `address`. `true`: it may try again.
    fn serve_in_thread(&'static self, address: usize, write: bool) -> bool {
        let page = address / PAGE;
        let Some(in_thread) = &self.in_thread else { return false };
        // A child without a pager of its own was made whole before it ran.
        let is_ours = self.table.is_in_thread(page) && self.is_paging();
        if is_ours && in_thread.served.fetch_add(1, Ordering::Relaxed) % ASK_ONE_IN == 0 {
            self.lead_evictor(in_thread);
        }
        is_ours && in_thread.serve(page, write, false)
    }

    /// The evictor goes where faults come from (docs/decisions/0007), and stays while some do.
    fn lead_evictor(&self, in_thread: &InThread) {
        let followed = self.followed_cpu.load(Ordering::Relaxed);
        match sys::current_cpu() {
            Some(cpu) if cpu != followed => {
                let others = in_thread.elsewhere.fetch_add(1, Ordering::Relaxed);
                if others >= MOVE_AFTER || followed == NO_CPU {
                    self.followed_cpu.store(cpu, Ordering::Relaxed);
                }
            }
            _ => in_thread.elsewhere.store(0, Ordering::Relaxed),
        }
    }

    /// Has `page` brought in, by whoever serves its faults. What has it brought in holds the
    /// structure lock, so that signals are blocked.
    ///
    /// # Errors
    /// It may not be read just now (`PROT_NONE`), or is lost.
    pub(super) fn populate(&'static self, page: PageNumber, is_wanted: bool) -> SysResult<()> {
        match &self.in_thread {
            Some(in_thread) if self.table.is_in_thread(page) => {
                let state = || self.table.entry(page).map(Entry::state);
                while in_thread.serve(page, false, is_wanted) {
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

    /// The userfaultfd that `page` is registered with.
    pub(super) fn uffd_of(&self, page: PageNumber) -> Uffd {
        match &self.in_thread {
            Some(in_thread) if self.table.is_in_thread(page) => in_thread.uffd(),
            _ => self.uffd(),
        }
    }
}

/// A fork tells each userfaultfd that serves what it copies, in the order of the addresses, and
/// waits until it has been heard. So that a handler knows which comes first, `uffd` gets a page
/// below everything, and `in_thread`, which may have nothing to serve yet, one above it. Returns the
/// address of the lower one.
fn anchor(uffd: Uffd, in_thread: Uffd) -> SysResult<usize> {
    const FIRST_ALLOWED: usize = 1 << 16;
    const TRIED: usize = 256;
    let mut places = (0..TRIED).map(|at| FIRST_ALLOWED + at * PAGE);
    let low = places.find_map(|addr| sys::reserve(addr, PAGE).ok()).ok_or(Errno::ENOMEM)?;
    uffd.register(low, PAGE)?;
    in_thread.register(sys::reserve(0, PAGE)?, PAGE)?;
    Ok(low)
}
