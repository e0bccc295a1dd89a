//! The state of a fork under way, as the fault handler sees it, and the messages between the
//! forking thread and the handler.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::PAGE;
use super::descriptors::Descriptors;
use super::page_table::PageNumber;
use super::sys::{self, PollFd};
use super::uffd::{Event, Uffd};

/// Descriptors that [`ForkState::watch`] fills in.
pub const WATCHED_FDS: usize = 2;
/// Time that the parent of a child which is to get a full copy waits for the handler to read the
/// event, before it takes the fork for failed, in nanoseconds.
const EVENT_TIMEOUT_NS: u64 = 200_000_000;

const CLOSED: u32 = 0;
const PREPARED: u32 = 1;
const OPEN: u32 = 2;
const CLOSING: u32 = 3;
const COPY_PENDING: u32 = 4;
const COPYING: u32 = 5;
const CANNOT_PAGE: u32 = 6;

/// The state of forks under way.
#[derive(Debug)]
pub struct ForkState {
    state: AtomicU32,
    child_fd: AtomicI32,
    parent_socket: AtomicI32,
    nudge_fd: AtomicI32,
    /// Children that are getting a full copy.
    copying: AtomicU32,
}

impl Default for ForkState {
    fn default() -> Self {
        ForkState {
            state: AtomicU32::new(CLOSED),
            child_fd: AtomicI32::new(-1),
            parent_socket: AtomicI32::new(-1),
            nudge_fd: AtomicI32::new(-1),
            copying: AtomicU32::new(0),
        }
    }
}

/// The source of a child's page while the parent serves it.
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

impl ForkState {
    /// True if frames and slots must stay as they are.
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) != CLOSED
    }

    /// True if a fork is announced and not yet read.
    pub fn is_prepared(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), PREPARED | COPY_PENDING)
    }

    /// True if the handler must watch descriptors of a fork.
    pub fn is_watching(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), OPEN | CLOSING | CANNOT_PAGE)
    }

    /// True if the handler is copying this process's memory into a child.
    pub fn is_copying(&self) -> bool {
        self.copying.load(Ordering::SeqCst) != 0
    }

    /// Waits until the evictor has finished its turn. The handler calls it before a full copy; the
    /// evictor starts no turn then.
    pub fn wait_for_evictor(&self, evictor_busy: &AtomicU32) {
        while evictor_busy.load(Ordering::SeqCst) != 0 {
            sys::yield_now();
        }
    }

    /// Returns when no child is getting a full copy.
    pub fn wait_while_copying(&self) {
        while self.is_copying() {
            sys::futex_wait(&self.copying, 1, Some(1_000_000), false);
        }
    }

    /// Fills in the descriptors to poll.
    pub fn watch(&self, fds: &mut [PollFd]) {
        fds[0].fd = self.child_fd.load(Ordering::Acquire);
        fds[1].fd = self.nudge_fd.load(Ordering::Acquire);
    }

    /// Takes `child`, whose fork the handler has read. True if the handler must copy everything
    /// into it, and then call [`ForkState::finish_full_copy`]; until then the evictor, and threads that
    /// serve themselves, stand still.
    #[must_use]
    pub fn adopt_child(&self, descriptors: &Descriptors, child: Uffd) -> bool {
        let begins = |from, to| {
            self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        if !begins(PREPARED, OPEN) {
            self.copying.store(1, Ordering::SeqCst);
            if begins(COPY_PENDING, COPYING) {
                sys::futex_wake(&self.state, u32::MAX >> 1, false);
            }
            return true;
        }
        let fd = descriptors.keep(child.fd);
        self.child_fd.store(fd, Ordering::Release);
        // SAFETY: the socket is open for as long as the fork is.
        let socket = unsafe { BorrowedFd::borrow_raw(self.parent_socket.load(Ordering::Acquire)) };
        send_fd(socket, fd);
        false
    }

    /// Sends the child its second userfaultfd, for the memory that is served in its threads. This
    /// process places nothing by it.
    pub fn send_in_thread_uffd(&self, in_thread: Uffd) {
        // SAFETY: the socket is open for as long as the fork is.
        let socket = unsafe { BorrowedFd::borrow_raw(self.parent_socket.load(Ordering::Acquire)) };
        send_fd(socket, in_thread.fd);
        sys::close(in_thread.fd);
    }

    /// Ends a full copy: the kernel serves the child now, also in the memory that was registered
    /// with `in_thread`.
    pub fn finish_full_copy(&self, child: Uffd, in_thread: Option<Uffd>) {
        self.copying.store(0, Ordering::SeqCst);
        sys::futex_wake(&self.copying, u32::MAX >> 1, false);
        // Their last references: the kernel wakes the waiting threads and drops the registrations.
        sys::close(child.fd);
        if let Some(in_thread) = in_thread {
            sys::close(in_thread.fd);
        }
        let ended =
            self.state.compare_exchange(COPYING, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_ok() {
            sys::futex_wake(&self.state, u32::MAX >> 1, false);
        }
    }

    /// Returns the next fault of a child that is served here. Releases the child when it has a
    /// pager of its own.
    pub fn next_child_fault(&self, descriptors: &Descriptors) -> Option<(Uffd, PageNumber)> {
        if self.state.load(Ordering::Acquire) == CLOSING {
            self.release_child(descriptors);
        }
        next_fault(self.child_fd.load(Ordering::Acquire))
    }

    /// Closes the child's userfaultfd; the forking thread goes on.
    pub fn release_child(&self, descriptors: &Descriptors) {
        descriptors.close(self.child_fd.swap(-1, Ordering::AcqRel));
        descriptors.close(self.nudge_fd.swap(-1, Ordering::AcqRel));
        self.state.store(CLOSED, Ordering::Release);
        sys::futex_wake(&self.state, u32::MAX >> 1, false);
    }

    /// Requests the handler to release the child, and waits until it has. If there is no child, the
    /// handler has read of none.
    pub fn close(&self, descriptors: &Descriptors) {
        let childless =
            self.state.compare_exchange(PREPARED, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        if childless.is_ok() {
            return descriptors.close(self.nudge_fd.swap(-1, Ordering::AcqRel));
        }
        self.ask_handler(CLOSING);
    }

    /// Requests the handler to copy everything into the child that it serves and to release it, and
    /// waits until it has: the child cannot have a pager of its own after all.
    pub fn close_with_full_copy(&self) {
        self.ask_handler(CANNOT_PAGE);
    }

    fn ask_handler(&self, state: u32) {
        self.state.store(state, Ordering::Release);
        let _ = sys::write(self.nudge_fd.load(Ordering::Acquire), &1u64.to_ne_bytes());
        while self.state.load(Ordering::Acquire) == state {
            sys::futex_wait(&self.state, state, None, false);
        }
    }

    /// Returns the child that needs a full copy after all.
    pub fn child_that_cannot_page(&self) -> Option<Uffd> {
        let is_asked = self.state.load(Ordering::Acquire) == CANNOT_PAGE;
        is_asked.then(|| Uffd { fd: self.child_fd.load(Ordering::Acquire) })
    }

    /// Announces a fork whose child will have a pager of its own. The handler will send the child's
    /// userfaultfd over `parent_socket`; `nudge_fd` tells it of the end.
    pub fn prepare(&self, parent_socket: i32, nudge_fd: i32) {
        self.nudge_fd.store(nudge_fd, Ordering::Release);
        self.parent_socket.store(parent_socket, Ordering::Release);
        self.state.store(PREPARED, Ordering::Release);
    }

    /// Announces a fork whose child is to get a full copy.
    pub fn prepare_full_copy(&self) {
        self.state.store(COPY_PENDING, Ordering::Release);
    }

    /// Resets the state in the child, for which no fork is under way. Its parent's descriptors are
    /// closed.
    pub fn reset(&self) {
        self.nudge_fd.store(-1, Ordering::Release);
        self.child_fd.store(-1, Ordering::Release);
        self.copying.store(0, Ordering::SeqCst);
        self.state.store(CLOSED, Ordering::Release);
    }

    /// Waits until the child, if there is one, has its full copy.
    pub fn wait_for_full_copy(&self) {
        sys::futex_wait(&self.state, COPY_PENDING, Some(EVENT_TIMEOUT_NS), false);
        let failed =
            self.state.compare_exchange(COPY_PENDING, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        while failed.is_err() && self.is_open() {
            sys::futex_wait(&self.state, COPYING, None, false);
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
        sys::die("fork failed: the child's userfaultfd could not be sent to it");
    }
}
