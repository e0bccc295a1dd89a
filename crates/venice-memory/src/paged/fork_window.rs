//! What the fault handler knows of a fork under way, and how the forking thread and the handler
//! speak of it.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::PAGE;
use super::descriptors::Descriptors;
use super::page_table::PageNumber;
use super::sys::{self, PollFd};
use super::uffd::{Event, Uffd};

/// Descriptors [`ForkWindow::watch`] fills in.
pub const WATCHED_FDS: usize = 2;
/// How long the parent of a child that is to be made whole waits for the handler to hear of it,
/// before it takes the fork for failed.
const HEARD_WITHIN_NS: u64 = 200_000_000;

const CLOSED: u32 = 0;
const PREPARED: u32 = 1;
const OPEN: u32 = 2;
const CLOSING: u32 = 3;
const TO_BE_WHOLE: u32 = 4;
const BEING_MADE_WHOLE: u32 = 5;
const CANNOT_PAGE: u32 = 6;

/// What the handler knows of forks under way.
#[derive(Debug)]
pub struct ForkWindow {
    state: AtomicU32,
    child_fd: AtomicI32,
    parent_socket: AtomicI32,
    nudge_fd: AtomicI32,
    /// Children being made whole.
    copying: AtomicU32,
}

impl Default for ForkWindow {
    fn default() -> Self {
        ForkWindow {
            state: AtomicU32::new(CLOSED),
            child_fd: AtomicI32::new(-1),
            parent_socket: AtomicI32::new(-1),
            nudge_fd: AtomicI32::new(-1),
            copying: AtomicU32::new(0),
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
        self.state.load(Ordering::Acquire) != CLOSED
    }

    /// Is a fork about to begin, as far as is known?
    pub fn is_prepared(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), PREPARED | TO_BE_WHOLE)
    }

    /// Has the handler anything to watch for here?
    pub fn is_watching(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), OPEN | CLOSING | CANNOT_PAGE)
    }

    /// Is the handler copying this process's memory into a child?
    pub fn is_copying(&self) -> bool {
        self.copying.load(Ordering::SeqCst) != 0
    }

    /// The handler that is to make a child whole waits until the evictor has put down what it
    /// has in hand; it takes up nothing more then.
    pub fn wait_for_evictor(&self, evictor_busy: &AtomicU32) {
        while evictor_busy.load(Ordering::SeqCst) != 0 {
            sys::yield_now();
        }
    }

    /// Returns when no child is being made whole.
    pub fn wait_while_copying(&self) {
        while self.is_copying() {
            sys::futex_wait(&self.copying, 1, Some(1_000_000), false);
        }
    }

    /// Fills in what to poll.
    pub fn watch(&self, fds: &mut [PollFd]) {
        fds[0].fd = self.child_fd.load(Ordering::Acquire);
        fds[1].fd = self.nudge_fd.load(Ordering::Acquire);
    }

    /// The handler read that a fork made `child`. `true`: it must make the child whole, and then
    /// say so ([`ForkWindow::made_whole`]); until then the evictor, and threads that serve
    /// themselves, stand still.
    #[must_use]
    pub fn adopt_child(&self, descriptors: &Descriptors, child: Uffd) -> bool {
        let begins = |from, to| {
            self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        if !begins(PREPARED, OPEN) {
            self.copying.store(1, Ordering::SeqCst);
            if begins(TO_BE_WHOLE, BEING_MADE_WHOLE) {
                sys::futex_wake(&self.state, u32::MAX >> 1, false);
            }
            return true;
        }
        let fd = descriptors.keep(child.fd);
        self.child_fd.store(fd, Ordering::Release);
        // SAFETY: the socket is open for as long as the window is.
        let socket = unsafe { BorrowedFd::borrow_raw(self.parent_socket.load(Ordering::Acquire)) };
        send_fd(socket, fd);
        false
    }

    /// The child of the same fork has a userfaultfd for what is served in its threads too. Nobody
    /// here places anything by it.
    pub fn pass_on(&self, in_thread: Uffd) {
        // SAFETY: the socket is open for as long as the window is.
        let socket = unsafe { BorrowedFd::borrow_raw(self.parent_socket.load(Ordering::Acquire)) };
        send_fd(socket, in_thread.fd);
        sys::close(in_thread.fd);
    }

    /// A child has all its memory: the kernel serves it now, also what was registered with
    /// `in_thread`.
    pub fn made_whole(&self, child: Uffd, in_thread: Option<Uffd>) {
        self.copying.store(0, Ordering::SeqCst);
        sys::futex_wake(&self.copying, u32::MAX >> 1, false);
        // Their last references: the kernel wakes whoever waits and forgets the registrations.
        sys::close(child.fd);
        if let Some(in_thread) = in_thread {
            sys::close(in_thread.fd);
        }
        let ended = self.state.compare_exchange(
            BEING_MADE_WHOLE,
            CLOSED,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if ended.is_ok() {
            sys::futex_wake(&self.state, u32::MAX >> 1, false);
        }
    }

    /// The next fault of a child that is served here; also lets go of it when it has a pager of
    /// its own.
    pub fn next_child_fault(&self, descriptors: &Descriptors) -> Option<(Uffd, PageNumber)> {
        if self.state.load(Ordering::Acquire) == CLOSING {
            self.let_go(descriptors);
        }
        next_fault(self.child_fd.load(Ordering::Acquire))
    }

    /// Closes the child's userfaultfd; the forking thread goes on.
    pub fn let_go(&self, descriptors: &Descriptors) {
        descriptors.close(self.child_fd.swap(-1, Ordering::AcqRel));
        descriptors.close(self.nudge_fd.swap(-1, Ordering::AcqRel));
        self.state.store(CLOSED, Ordering::Release);
        sys::futex_wake(&self.state, u32::MAX >> 1, false);
    }

    /// Asks the handler to let go of the child, and waits until it has. Where there is no child
    /// the handler knows of none.
    pub fn close(&self, descriptors: &Descriptors) {
        let childless =
            self.state.compare_exchange(PREPARED, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        if childless.is_ok() {
            return descriptors.close(self.nudge_fd.swap(-1, Ordering::AcqRel));
        }
        self.ask_handler(CLOSING);
    }

    /// The child that the handler serves cannot have a pager of its own after all: asks the handler
    /// to make it whole and to let go of it, and waits until it has.
    pub fn close_with_whole_child(&self) {
        self.ask_handler(CANNOT_PAGE);
    }

    fn ask_handler(&self, state: u32) {
        self.state.store(state, Ordering::Release);
        let _ = sys::write(self.nudge_fd.load(Ordering::Acquire), &1u64.to_ne_bytes());
        while self.state.load(Ordering::Acquire) == state {
            sys::futex_wait(&self.state, state, None, false);
        }
    }

    /// The child that is to be made whole after all, and then let go.
    pub fn child_that_cannot_page(&self) -> Option<Uffd> {
        let is_asked = self.state.load(Ordering::Acquire) == CANNOT_PAGE;
        is_asked.then(|| Uffd { fd: self.child_fd.load(Ordering::Acquire) })
    }

    /// A fork comes whose child will have a pager of its own: the handler will send the child's
    /// userfaultfd over `parent_socket`, and hears of the end by `nudge_fd`.
    pub fn prepare(&self, parent_socket: i32, nudge_fd: i32) {
        self.nudge_fd.store(nudge_fd, Ordering::Release);
        self.parent_socket.store(parent_socket, Ordering::Release);
        self.state.store(PREPARED, Ordering::Release);
    }

    /// A fork comes whose child is to be made whole.
    pub fn prepare_whole(&self) {
        self.state.store(TO_BE_WHOLE, Ordering::Release);
    }

    /// In the child, for which no fork is under way. Its parent's descriptors are closed.
    pub fn reset(&self) {
        self.nudge_fd.store(-1, Ordering::Release);
        self.child_fd.store(-1, Ordering::Release);
        self.copying.store(0, Ordering::SeqCst);
        self.state.store(CLOSED, Ordering::Release);
    }

    /// Waits until the child, if there is one, has been made whole.
    pub fn wait_until_whole(&self) {
        sys::futex_wait(&self.state, TO_BE_WHOLE, Some(HEARD_WITHIN_NS), false);
        let failed =
            self.state.compare_exchange(TO_BE_WHOLE, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        while failed.is_err() && self.is_open() {
            sys::futex_wait(&self.state, BEING_MADE_WHOLE, None, false);
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
        Event::Fork { .. } | Event::Other => None,
    }
}

fn send_fd(socket: BorrowedFd<'_>, fd: i32) {
    // SAFETY: the caller's own, open.
    let fds = [unsafe { BorrowedFd::borrow_raw(fd) }];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for one");
    let body = [std::io::IoSlice::new(b"U")];
    if rustix::net::sendmsg(socket, &body, &mut ancillary, SendFlags::NOSIGNAL).is_err() {
        sys::die("a forked child could not be given its userfaultfd");
    }
}
