//! `fork`: one program becomes two, each with its own pager, and both read what was written
//! before.
//!
//! The kernel copies what is resident. What is far is shared: before the fork the parent lets
//! the child hold all its slots (`slots`), and neither writes to a slot the other holds. The
//! pager's page table is private memory, so the child's copy of it describes the child.
//!
//! From its first instruction the child may touch a far page, long before it has threads of
//! its own: `UFFD_EVENT_FORK` gives the parent a userfaultfd for the child, the parent's
//! handler serves it, and hands it over when the child is ready. Until then the parent's
//! structure lock stays held, so that no slot and no staging frame changes.
//!
//! A child made behind the C library's back (a bare `clone`) is served by the parent for as
//! long as it lives; the parent's evictor rests meanwhile.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::PAGE;
use super::page_table::{Entry, PageNumber, State};
use super::pager::{Pager, PagerError, Structure};
use super::run_block::Process;
use super::slots::{self, Slots};
use super::staging::Frame;
use super::sys::{self, Errno, PollFd};
use super::uffd::{Event, Uffd};

/// Children without a pager that are served at once; more wait for their turn.
const UNPAGED_CHILDREN: usize = 4;
/// Descriptors [`ForkWindow::watch`] fills in.
pub const WATCHED_FDS: usize = UNPAGED_CHILDREN + 2;
/// How often it is checked whether a child without a pager is still there.
const CHECK_CHILDREN_MS: i32 = 20;

const CLOSED: u32 = 0;
const PREPARED: u32 = 1;
const OPEN: u32 = 2;
const CLOSING: u32 = 3;

/// The process index of one whose parent serves it.
const UNPAGED: usize = usize::MAX;

const READY: &[u8] = b"R";
const GO: &[u8] = b"G";

/// What the handler knows of forks under way.
#[derive(Debug)]
pub struct ForkWindow {
    state: AtomicU32,
    child_fd: AtomicI32,
    parent_socket: AtomicI32,
    nudge_fd: AtomicI32,
    unpaged: [AtomicI32; UNPAGED_CHILDREN],
}

impl Default for ForkWindow {
    fn default() -> Self {
        ForkWindow {
            state: AtomicU32::new(CLOSED),
            child_fd: AtomicI32::new(-1),
            parent_socket: AtomicI32::new(-1),
            nudge_fd: AtomicI32::new(-1),
            unpaged: [const { AtomicI32::new(-1) }; UNPAGED_CHILDREN],
        }
    }
}

/// Where a page of a child is to be had while the parent serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Never written before the fork.
    Zeros,
    /// In the parent's staging area, at this address.
    Frame(usize),
    /// In this far slot.
    Slot(u32),
    /// Lost with its donor.
    Lost,
}

impl ForkWindow {
    /// Must frames and slots stay as they are?
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) != CLOSED || self.has_unpaged_children()
    }

    /// Is there a child that only this process's handler serves?
    pub fn has_unpaged_children(&self) -> bool {
        self.unpaged.iter().any(|fd| fd.load(Ordering::Relaxed) >= 0)
    }

    /// Has the handler anything to watch for here?
    pub fn is_watching(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), OPEN | CLOSING) || self.has_unpaged_children()
    }

    /// Fills in what to poll.
    pub fn watch(&self, fds: &mut [PollFd]) {
        fds[0].fd = self.child_fd.load(Ordering::Acquire);
        fds[1].fd = self.nudge_fd.load(Ordering::Acquire);
        for (poll, fd) in fds[2..].iter_mut().zip(&self.unpaged) {
            poll.fd = fd.load(Ordering::Acquire);
        }
    }

    /// How long a poll may take; negative: for ever.
    pub fn timeout_ms(&self) -> i32 {
        if self.has_unpaged_children() { CHECK_CHILDREN_MS } else { -1 }
    }

    /// The handler read that a fork made `child`.
    pub fn adopt_child(&self, pager: &Pager, child: Uffd) {
        let Ok(fd) = sys::move_fd(child.fd, pager.lowest_fd) else {
            sys::die("no descriptor is left for a forked child's userfaultfd");
        };
        let expected =
            self.state.compare_exchange(PREPARED, OPEN, Ordering::AcqRel, Ordering::Acquire);
        if expected.is_ok() {
            self.child_fd.store(fd, Ordering::Release);
            // SAFETY: the socket is open for as long as the window is.
            let socket =
                unsafe { BorrowedFd::borrow_raw(self.parent_socket.load(Ordering::Acquire)) };
            // SAFETY: just moved there.
            let child = unsafe { BorrowedFd::borrow_raw(fd) };
            if send_fd(socket, child).is_err() {
                sys::die("a forked child could not be given its userfaultfd");
            }
            return;
        }
        let free = self.unpaged.iter().find(|place| place.load(Ordering::Relaxed) < 0);
        match free {
            Some(place) => place.store(fd, Ordering::Release),
            None => sys::die("too many children were forked by bare system calls"),
        }
    }

    /// The next fault of any child that is served here; also lets go of children that are
    /// gone or have a pager of their own now.
    pub fn next_child_fault(&self, _pager: &Pager) -> Option<(Uffd, PageNumber)> {
        if self.state.load(Ordering::Acquire) == CLOSING {
            self.let_go();
        }
        let child = self.child_fd.load(Ordering::Acquire);
        if let Some(fault) = next_fault(child) {
            return Some(fault);
        }
        for place in &self.unpaged {
            let fd = place.load(Ordering::Relaxed);
            if fd < 0 {
                continue;
            }
            if let Some(fault) = next_fault(fd) {
                return Some(fault);
            }
            if is_gone(Uffd { fd }) {
                sys::close(fd);
                place.store(-1, Ordering::Release);
            }
        }
        None
    }

    fn let_go(&self) {
        let child = self.child_fd.swap(-1, Ordering::AcqRel);
        if child >= 0 {
            sys::close(child);
        }
        let nudge = self.nudge_fd.swap(-1, Ordering::AcqRel);
        sys::close(nudge);
        self.state.store(CLOSED, Ordering::Release);
        sys::futex_wake(&self.state, u32::MAX >> 1, false);
    }

    /// Asks the handler to let go of the child, and waits until it has. Where there is no child
    /// the handler knows of none.
    fn close(&self) {
        let childless =
            self.state.compare_exchange(PREPARED, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        if childless.is_ok() {
            return sys::close(self.nudge_fd.swap(-1, Ordering::AcqRel));
        }
        self.state.store(CLOSING, Ordering::Release);
        let _ = sys::write(self.nudge_fd.load(Ordering::Acquire), &1u64.to_ne_bytes());
        while self.state.load(Ordering::Acquire) == CLOSING {
            sys::futex_wait(&self.state, CLOSING, None, false);
        }
    }
}

fn next_fault(fd: i32) -> Option<(Uffd, PageNumber)> {
    if fd < 0 {
        return None;
    }
    let child = Uffd { fd };
    match child.read_event()? {
        Event::Fault { address, .. } => Some((child, address / PAGE)),
        // A grandchild of a bare fork: nobody could tell its pages from its parent's.
        Event::Fork { .. } => sys::die("a child forked by a bare system call forked again"),
        Event::Other => None,
    }
}

/// Is the address space that `child` serves gone? Asked with a range that is in no mapping.
fn is_gone(child: Uffd) -> bool {
    child.zero(PAGE, PAGE, true) == Err(Errno::ESRCH)
}

impl Pager {
    /// Does this process page by itself? (Else the kernel and its parent do.)
    pub fn is_paging(&self) -> bool {
        self.process.load(Ordering::Relaxed) != UNPAGED
    }

    /// Where the child's contents of `page` are. Right for as long as the window is open.
    pub(super) fn content_for_child(&self, page: PageNumber) -> Content {
        let Some(entry) = self.table.entry(page) else { return Content::Zeros };
        if entry.state() == State::Poisoned {
            return Content::Lost;
        }
        let frame = entry.frame();
        match self.staging.holds(frame) {
            Frame::Page(owner) | Frame::OrphanOf(owner) if owner == page => {
                return Content::Frame(self.staging.address(frame));
            }
            _ => {}
        }
        match entry.slot() {
            Some(slot) if self.block.slot_is_alive(slot) => Content::Slot(slot),
            Some(_) => Content::Lost,
            None => Content::Zeros,
        }
    }

    /// To be called by the thread that is about to fork, in whatever runs last before it does.
    pub fn before_fork(&'static self) -> ForkedChild {
        let mut structure = self.hold_structure();
        let place = self.block.enter_process(Process::FORKING);
        if let Some(child) = place {
            structure.guarded().slots.share_with(&self.block, child);
        }
        let sockets = place.and_then(|_| self.open_window());
        ForkedChild { structure, place, sockets }
    }

    /// Readies the window; `None` if there are no descriptors left: the child goes unpaged.
    fn open_window(&self) -> Option<(OwnedFd, OwnedFd)> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (parent, child) = socketpair(kind.0, kind.1, kind.2, None).ok()?;
        let parent = keep(parent, self.lowest_fd)?;
        let child = keep(child, self.lowest_fd)?;
        const EFD_CLOEXEC_NONBLOCK: usize = 0o2000000 | 0o4000;
        // SAFETY: touches no memory.
        let nudge =
            unsafe { sys::syscall(sys::nr::EVENTFD2, [0, EFD_CLOEXEC_NONBLOCK, 0, 0, 0, 0]) };
        let nudge = sys::move_fd(nudge.ok()? as i32, self.lowest_fd).ok()?;
        self.fork.nudge_fd.store(nudge, Ordering::Release);
        self.fork.parent_socket.store(raw(&parent), Ordering::Release);
        self.fork.state.store(PREPARED, Ordering::Release);
        Some((parent, child))
    }
}

/// A fork under way.
pub struct ForkedChild {
    structure: Structure,
    place: Option<usize>,
    sockets: Option<(OwnedFd, OwnedFd)>,
}

impl ForkedChild {
    /// After the fork, in the parent; also when there is no child because it failed. Returns
    /// when the child can do without the parent.
    pub fn in_parent(self) {
        let pager = self.structure.pager;
        let (Some(place), Some((parent, child))) = (self.place, self.sockets) else {
            if let Some(place) = self.place {
                forget_child(pager, place);
            }
            return;
        };
        drop(child);
        let ready = receive(parent.as_fd()) == READY[0];
        pager.fork.close();
        if ready {
            let _ = rustix::net::send(&parent, GO, SendFlags::NOSIGNAL);
        } else {
            forget_child(pager, place);
        }
    }

    /// After the fork, in the child: gives it its own pager.
    ///
    /// # Errors
    /// The kernel's refusals. The child must not go on then.
    pub fn in_child(mut self) -> Result<(), PagerError> {
        let pager = self.structure.pager;
        let (Some(place), Some((parent, child))) = (self.place, self.sockets.take()) else {
            pager.process.store(UNPAGED, Ordering::Release);
            return Ok(());
        };
        drop(parent);
        let refused =
            |errno| PagerError::Kernel { doing: "take over a forked child", source: errno };
        let uffd = receive_fd(child.as_fd()).ok_or(refused(Errno::ESRCH))?;
        let inherited = pager.uffd().fd;
        let fd = sys::move_fd(uffd, pager.lowest_fd).map_err(refused)?;
        pager.uffd_fd.store(fd, Ordering::Release);
        sys::close(inherited);
        sys::close(pager.fork.nudge_fd.swap(-1, Ordering::AcqRel));
        pager.fork.state.store(CLOSED, Ordering::Release);
        pager.fork.child_fd.store(-1, Ordering::Release);
        self.take_place(place);
        self.settle_busy_pages();
        let _ = rustix::net::send(&child, READY, SendFlags::NOSIGNAL);
        if receive(child.as_fd()) != GO[0] {
            sys::die("the parent of a forked child died before the child had its memory");
        }
        pager.start_threads()
    }

    fn take_place(&mut self, place: usize) {
        let pager = self.structure.pager;
        let resident = pager.resident().load(Ordering::Relaxed);
        pager.process.store(place, Ordering::Release);
        pager.resident().store(resident, Ordering::Relaxed);
        self.structure.guarded().slots = Slots::new(place);
        pager.block.processes[place].pid.store(sys::getpid(), Ordering::Release);
    }

    /// Pages the parent's handler had in hand are nobody's here: each becomes what it is.
    fn settle_busy_pages(&mut self) {
        let pager = self.structure.pager;
        let all = self.structure.guarded().regions.parts(0..usize::MAX).collect::<Vec<_>>();
        for range in all {
            pager.table.for_each_live(range, |page, entry| {
                if entry.state() == State::Busy {
                    settle(pager, page, entry);
                }
            });
        }
    }
}

fn settle(pager: &Pager, page: PageNumber, entry: &Entry) {
    let to = if is_present(page) {
        pager.resident().fetch_add(1, Ordering::Relaxed);
        State::Resident
    } else if pager.staging.holds(entry.frame()) == Frame::Page(page) {
        State::Staged
    } else if entry.slot().is_some() {
        State::Far
    } else {
        pager.table.count_dead(page);
        State::Zero
    };
    // Whoever waited for it is a thread of the parent.
    let _ = entry.release(to);
}

/// Is the page mapped in this process? From the kernel's own word, `mincore(2)`.
fn is_present(page: PageNumber) -> bool {
    let mut answer = 0u8;
    let arguments = [page * PAGE, PAGE, &mut answer as *mut u8 as usize, 0, 0, 0];
    // SAFETY: one page asks for one byte.
    let asked = unsafe { sys::syscall(sys::nr::MINCORE, arguments) };
    asked.is_ok() && answer & 1 != 0
}

fn forget_child(pager: &Pager, place: usize) {
    slots::release_all(&pager.block, place);
    pager.block.processes[place].pid.store(0, Ordering::Release);
}

fn keep(fd: OwnedFd, lowest_fd: i32) -> Option<OwnedFd> {
    let moved = sys::move_fd(fd.into_raw_fd(), lowest_fd).ok()?;
    // SAFETY: just made, and nobody else knows it.
    Some(unsafe { OwnedFd::from_raw_fd(moved) })
}

fn raw(fd: &OwnedFd) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}

/// One byte from the other side; 0 if it is gone.
fn receive(socket: BorrowedFd<'_>) -> u8 {
    let mut byte = [0u8; 1];
    loop {
        match rustix::net::recv(socket, &mut byte, RecvFlags::empty()) {
            Ok((_, 1)) => return byte[0],
            Err(rustix::io::Errno::INTR) => {}
            _ => return 0,
        }
    }
}

fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for one");
    let body = [std::io::IoSlice::new(b"U")];
    rustix::net::sendmsg(socket, &body, &mut ancillary, SendFlags::NOSIGNAL)
}

fn receive_fd(socket: BorrowedFd<'_>) -> Option<i32> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut body = [std::io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut body, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Some(fds.next()?.next()?.into_raw_fd())
}
