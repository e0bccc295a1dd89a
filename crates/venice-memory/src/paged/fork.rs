//! `fork`: one program becomes two, each with its own pager, and both read what was written before.
//!
//! The kernel copies the resident pages. Far pages are shared: before the fork the parent makes the
//! child a holder of all its slots (`slots`), and neither writes to a slot that the other holds.
//! The pager's page table is private memory, so the child's copy of it describes the child.
//!
//! From its first instruction the child may touch a far page, long before it has threads of its
//! own. `UFFD_EVENT_FORK` gives the parent a userfaultfd for the child; the parent's handler serves
//! it, and hands it over when the child is ready. Until then the parent's structure lock stays
//! held, so that no slot and no staging frame changes.
//!
//! A child that can have no pager of its own (made by a bare `clone` system call, or one more than
//! a run has entries for) gets a full copy instead: the parent's handler copies all far pages into
//! it, and the kernel serves it from then on.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::Ordering;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};

use super::fork_state::Content;
use super::in_thread::signal;
use super::mappings::UnforkedHoles;
use super::page_table::{Entry, PageNumber, State};
use super::pager::{Pager, PagerError, Structure};
use super::presence::look_once;
use super::run_block::Process;
use super::slots::{self, Slots};
use super::staging::Frame;
use super::start;
use super::sys::{self, Errno};
use super::uffd::Uffd;
use super::{PAGE, attach};

const READY: &[u8] = b"R";
const CANNOT_PAGE: &[u8] = b"W";
const GO: &[u8] = b"G";

impl Pager {
    /// True if this process pages by itself; else the kernel serves it.
    pub fn is_paging(&self) -> bool {
        self.mark.is_set()
    }

    /// The id of this process as its supervisor sees it.
    pub(super) fn supervisors_pid(&self) -> u32 {
        self.own_process().pid.load(Ordering::Acquire)
    }

    /// Claims the entry of the run block for this process, which has just been forked. In another
    /// PID namespace than the supervisor's it does not know its id there; the parent's id is 0 in
    /// the first process of such a namespace (`getppid(2)`).
    fn claim_entry(&self, place: usize) -> bool {
        if sys::getppid() == 0 {
            self.shares_pids.store(false, Ordering::Relaxed);
        }
        match self.shares_pids.load(Ordering::Relaxed) {
            true => self.block.claim_forked(place, sys::getpid()),
            false => attach::claim_forked(self.supervisor_fd, place),
        }
    }

    /// Returns where the child's contents of `page` are. Valid while the fork is open.
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

    /// Prepares a fork. To be called by the thread that is about to fork, last of all before it
    /// does.
    pub fn before_fork(&'static self) -> ForkedChild {
        let mut structure = Structure { pager: self, guard: self.lock.hold() };
        self.drop_spares();
        self.before_shared_fork();
        // rdma-core allocates from the program's own heap, and a child's heap is paged already when
        // it would open its device. Such a child gets a full copy instead.
        let may_page = !self.block.port().capabilities().registers();
        let place = may_page.then(|| self.block.enter_forking(self.supervisors_pid())).flatten();
        let sockets = place.and_then(|_| self.open_sockets());
        match (place, &sockets) {
            (Some(place), Some(_)) => {
                self.block.share_contents();
                self.forks.fetch_add(1, Ordering::Relaxed);
                structure.guarded().slots.share_with(&self.block, place);
            }
            _ => self.fork.prepare_full_copy(),
        }
        let resident_pages = self.resident().load(Ordering::Relaxed);
        self.fork_lock.offer();
        ForkedChild { structure, place, sockets, resident_pages }
    }

    /// Frees the spares: a page shared with the child would be split as soon as one of the two
    /// writes to it.
    fn drop_spares(&self) {
        while let Some(slot) = self.staging.huge().take_spare() {
            self.empty_slot(slot);
        }
    }

    /// Frees, in the child, the slots that the parent's handler was using.
    fn drop_parent_slots(&self) {
        self.staging.huge().parent_slots().for_each(|slot| self.empty_slot(slot));
    }

    /// Opens the fork; `None` if there are no descriptors left, or the handler cannot reach those
    /// of this thread (`unshare(2)`).
    fn open_sockets(&self) -> Option<(i32, i32)> {
        if !sys::shares_descriptors_with(self.evictor_thread.load(Ordering::Acquire)) {
            return None;
        }
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (parent, child) = socketpair(kind.0, kind.1, kind.2, None).ok()?;
        const EFD_CLOEXEC_NONBLOCK: usize = 0o2000000 | 0o4000;
        // SAFETY: touches no memory.
        let nudge =
            unsafe { sys::syscall(sys::nr::EVENTFD2, [0, EFD_CLOEXEC_NONBLOCK, 0, 0, 0, 0]) };
        let nudge = self.descriptors.keep(nudge.ok()? as i32);
        let parent = self.descriptors.keep(parent.into_raw_fd());
        let child = self.descriptors.keep(child.into_raw_fd());
        self.fork.prepare(parent, nudge);
        Some((parent, child))
    }
}

/// A fork under way.
pub struct ForkedChild {
    structure: Structure,
    place: Option<usize>,
    /// The parent's end and the child's.
    sockets: Option<(i32, i32)>,
    /// Pages resident before the fork.
    resident_pages: u64,
}

impl ForkedChild {
    /// Completes the fork in the parent, also when it failed and there is no child. Returns when
    /// the child no longer needs the parent.
    pub fn in_parent(self) {
        let pager = self.structure.pager;
        pager.fork_lock.withdraw();
        let Some((parent, child)) = self.sockets else {
            pager.fork.wait_for_full_copy();
            return self.forget_place();
        };
        pager.descriptors.close(child);
        let answer = receive(parent);
        if answer == CANNOT_PAGE[0] {
            pager.fork.close_with_full_copy();
        } else {
            pager.fork.close(&pager.descriptors);
        }
        if answer == READY[0] || answer == CANNOT_PAGE[0] {
            send(parent, GO);
        }
        if answer != READY[0] {
            self.forget_place();
        }
        pager.descriptors.close(parent);
    }

    fn forget_place(&self) {
        let Some(place) = self.place else { return };
        let block = &self.structure.pager.block;
        // A child that was born and is dead already has its number in the entry; the supervisor
        // cleans that up.
        slots::leave(block, place, Process::FORKING);
    }

    /// Completes the fork in the child: gives it its own pager. Returns the addresses of its parent
    /// that it has nothing at, reserved until the last thread of the pager has its stack.
    ///
    /// # Errors
    /// The kernel's refusals. The child must not go on then.
    pub fn in_child(mut self) -> Result<UnforkedHoles, PagerError> {
        let pager = self.structure.pager;
        // SAFETY: this is the child's only thread.
        unsafe { signal::take_over_in_child() };
        let (Some(place), Some((_, child))) = (self.place, self.sockets) else {
            // The parent's handler copies everything private; the rest is served as before.
            let shared = self.take_over_shared();
            pager.descriptors.close_all_but(&[shared]);
            return Ok(UnforkedHoles::default());
        };
        let holes = self.structure.reserve_unforked();
        let refused =
            |errno| PagerError::Kernel { doing: "take over a forked child", source: errno };
        let disk = pager.disk_fd.unwrap_or(-1);
        let shared = self.take_over_shared();
        pager.descriptors.close_all_but(&[child, pager.supervisor_fd, disk, shared]);
        let receive = || receive_fd(child).ok_or(refused(Errno::ESRCH));
        let uffd = Uffd { fd: receive()? };
        let in_thread = pager.in_thread.as_ref().map(|_| receive()).transpose()?;
        if !serves_this_process(uffd) {
            sys::die("fork failed: two forks at once were confused");
        }
        if pager.fork_lock.is_borrowed() {
            // A thread of the parent, absent here, was about to change the pager's state.
            sys::close(uffd.fd);
            report_and_wait(child, CANNOT_PAGE);
            // Only registered memory can be copied.
            in_thread.into_iter().for_each(sys::close);
            pager.descriptors.close_all_but(&[shared]);
            return Ok(holes);
        }
        pager.fork_lock.reset();
        self.forget_locks();
        pager.uffd_fd.store(pager.descriptors.keep(uffd.fd), Ordering::Release);
        if let (Some(in_thread), Some(fd)) = (&pager.in_thread, in_thread) {
            in_thread.set_uffd(pager.descriptors.keep(fd));
        }
        pager.fork.reset();
        if let Some(window) = &pager.window {
            window.reset_after_fork();
        }
        pager.reset_handlers();
        pager.drop_parent_slots();
        self.take_place(place);
        self.settle_busy_pages();
        self.structure.forget_unforked();
        report_and_wait(child, READY);
        pager.descriptors.close(child);
        pager.mark.set();
        start::threads(pager)?;
        Ok(holes)
    }

    /// Makes the child a user of the run's shared pager. Returns the descriptor to keep; -1: none.
    fn take_over_shared(&mut self) -> i32 {
        let Some(fd) = self.structure.pager.take_over_shared() else {
            self.structure.guarded().shared.remove(0..usize::MAX);
            return -1;
        };
        if !serves_this_process(Uffd { fd }) {
            sys::die("fork failed: two forks at once were confused");
        }
        fd
    }

    /// Forgets what the parent has locked: a child does not inherit it.
    fn forget_locks(&mut self) {
        self.structure.guarded().locked.remove(0..usize::MAX);
        self.structure.pager.lock_future(None);
    }

    fn take_place(&mut self, place: usize) {
        let pager = self.structure.pager;
        if !pager.claim_entry(place) {
            sys::die("fork failed: the run-block entry of the child was given to another process");
        }
        let overhead_pages = pager.own_process().overhead_pages.load(Ordering::Relaxed);
        pager.process.store(place, Ordering::Release);
        // The parent is charged for all of it.
        let own = pager.own_process();
        own.overhead_pages.store(overhead_pages, Ordering::Relaxed);
        own.shared_pages.store(self.resident_pages + overhead_pages, Ordering::Relaxed);
        pager.image.forget_threads();
        pager.publish_image();
        pager.resident().store(self.resident_pages, Ordering::Relaxed);
        pager.faults_read.store(0, Ordering::Relaxed);
        pager.forks.store(1, Ordering::Relaxed);
        self.structure.guarded().slots = Slots::new(place);
    }

    /// Settles the pages that the parent's handler was working on: each gets the state that it is
    /// in.
    fn settle_busy_pages(&self) {
        let pager = self.structure.pager;
        pager.table.for_each_live_anywhere(|page, entry| {
            if entry.state() == State::Busy {
                settle(pager, page, entry);
            }
        });
    }
}

fn settle(pager: &Pager, page: PageNumber, entry: &Entry) {
    let staged = pager.staging.holds(entry.frame()) == Frame::Page(page);
    let to = if is_there(page * PAGE) {
        if staged {
            // It had just been brought back; the rest of the frame is not needed.
            pager.staging.set(entry.frame(), Frame::Orphan);
        }
        pager.resident().fetch_add(1, Ordering::Relaxed);
        State::Resident
    } else if staged {
        State::Staged
    } else if entry.slot().is_some() {
        State::Far
    } else {
        pager.table.count_dead(page);
        State::Zero
    };
    // The threads that waited for it are the parent's.
    let _ = entry.release(to);
}

/// True if `uffd` serves this process, not another one forked at the same time. A page placed
/// through it must arrive here.
fn serves_this_process(uffd: Uffd) -> bool {
    let Ok(probe) = sys::map_private(PAGE) else { return false };
    let probe = probe as usize;
    sys::unlock(probe, PAGE);
    let placed = uffd.register(probe, PAGE).is_ok() && uffd.zero(probe, PAGE, true).is_ok();
    let there = is_there(probe);
    // SAFETY: nothing else uses the page.
    unsafe { sys::unmap(probe as *mut std::ffi::c_void, PAGE) };
    placed && there
}

/// True if the page is present; a page that is not mapped is not.
fn is_there(address: usize) -> bool {
    look_once(address, 1).is_ok_and(|there| there[0])
}

/// Reports the child's outcome to the parent, and waits for its permission to go on.
fn report_and_wait(parent: i32, what: &[u8]) {
    send(parent, what);
    if receive(parent) != GO[0] {
        sys::die("fork failed: the parent died before the child had its memory");
    }
}

fn send(socket: i32, what: &[u8]) {
    // SAFETY: the pager's own socket, open until the fork is over.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    // A dead peer is noticed when it should answer.
    let _ = rustix::net::send(socket, what, SendFlags::NOSIGNAL);
}

/// Receives one byte from the other side; 0 if it is gone.
fn receive(socket: i32) -> u8 {
    // SAFETY: the pager's own socket, open until the fork is over.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let mut byte = [0u8; 1];
    loop {
        match rustix::net::recv(socket, &mut byte, RecvFlags::empty()) {
            Ok((_, 1)) => return byte[0],
            Err(rustix::io::Errno::INTR) => {}
            _ => return 0,
        }
    }
}

fn receive_fd(socket: i32) -> Option<i32> {
    // SAFETY: the pager's own socket, open until the fork is over.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
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
