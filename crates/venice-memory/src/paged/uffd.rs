//! userfaultfd: the kernel interface by which page faults reach the pager.
//!
//! Sources: `userfaultfd(2)`, `ioctl_userfaultfd(2)` and, for features newer than distribution
//! headers (`UFFDIO_MOVE`, Linux 6.8; `UFFDIO_POISON`, Linux 6.6),
//! `include/uapi/linux/userfaultfd.h`.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::presence::{MOST_PAGES, look_once};
use super::sys::{self, Errno, SysResult, nr};
use super::{PAGE, attach};

/// An open userfaultfd. A plain number: its owner closes it, because a program that loses it loses
/// its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uffd {
    /// The descriptor.
    pub fd: i32,
}

/// The reason for which an access waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The page is not there.
    Missing,
    /// The page is in the page cache, and not mapped here (shared memory).
    Minor,
    /// The page is write-protected.
    Protected,
}

/// One message read from a [`Uffd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread waits for the page at `address`.
    Fault {
        /// Address of the page.
        address: usize,
        /// The access was a write.
        write: bool,
        /// Id of the waiting thread.
        thread: u32,
        /// The reason why it waits.
        kind: FaultKind,
    },
    /// A `fork` copied the address space; `child` serves the copy.
    Fork {
        /// The child's userfaultfd, a new descriptor of this process.
        child: Uffd,
    },
    /// An event that was not requested.
    Other,
}

const API: u64 = 0xAA;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
/// Linux 5.19.
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_EVENT_FORK: u64 = 1 << 1;
const FEATURE_SIGBUS: u64 = 1 << 7;
/// Linux 5.14.
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_POISON: u64 = 1 << 14;
const FEATURE_MOVE: u64 = 1 << 16;
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 1 << 1;
const MODE_MINOR: u64 = 1 << 2;
const MODE_WRITEPROTECT_WP: u64 = 1;
const MODE_DONTWAKE: u64 = 1;
const MOVE_ALLOW_SRC_HOLES: u64 = 2;

const UFFDIO_API: usize = ioc(3, 0x3F, 24);
const UFFDIO_REGISTER: usize = ioc(3, 0x00, 32);
const UFFDIO_UNREGISTER: usize = ioc(2, 0x01, 16);
const UFFDIO_WAKE: usize = ioc(2, 0x02, 16);
const UFFDIO_COPY: usize = ioc(3, 0x03, 40);
const UFFDIO_ZEROPAGE: usize = ioc(3, 0x04, 32);
const UFFDIO_MOVE: usize = ioc(3, 0x05, 40);
const UFFDIO_WRITEPROTECT: usize = ioc(3, 0x06, 24);
const UFFDIO_CONTINUE: usize = ioc(3, 0x07, 32);
const UFFDIO_POISON: usize = ioc(3, 0x08, 32);
/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd` (Linux 6.1).
const IOC_NEW: usize = 0xAA00;
const O_CLOEXEC_NONBLOCK: usize = 0o2000000 | 0o4000;

const fn ioc(direction: usize, number: usize, size: usize) -> usize {
    direction << 30 | size << 16 | 0xAA << 8 | number
}

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArg {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// `uffdio_copy` and `uffdio_move` have the same layout.
#[repr(C)]
struct TransferArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct WriteProtectArg {
    range: Range,
    mode: u64,
}

/// `uffdio_zeropage`, `uffdio_continue` and `uffdio_poison` have the same layout.
#[repr(C)]
struct FillArg {
    range: Range,
    mode: u64,
    done: i64,
}

impl Uffd {
    /// Opens a userfaultfd that serves the kernel's own accesses too; a process without
    /// `CAP_SYS_PTRACE` has its [helper](super::helper) help.
    ///
    /// # Errors
    /// `EPERM` without either; `EINVAL` on a kernel older than 6.8.
    pub fn open() -> SysResult<Uffd> {
        Uffd::open_helped(-1)
    }

    /// Opens one; a process without `CAP_SYS_PTRACE` has the supervisor at the other end of
    /// `supervisor` help. -1: there is none.
    ///
    /// # Errors
    /// `EPERM` where supervisor and process lack the privilege; those of [`Uffd::open`].
    pub fn open_helped(supervisor: i32) -> SysResult<Uffd> {
        Uffd::open_with(FEATURE_EVENT_FORK | FEATURE_THREAD_ID, supervisor)
    }

    /// Opens a userfaultfd whose missing pages raise `SIGBUS` in the thread that touches them; a
    /// system call that touches one fails with `EFAULT`. Only forks are read from it.
    ///
    /// # Errors
    /// The errors of [`Uffd::open_helped`].
    pub fn open_in_thread(supervisor: i32) -> SysResult<Uffd> {
        Uffd::open_with(FEATURE_EVENT_FORK | FEATURE_SIGBUS, supervisor)
    }

    /// Opens a userfaultfd for mappings of shared memory, which another process serves: missing
    /// pages, pages of the page cache, and write protection.
    ///
    /// # Errors
    /// The errors of [`Uffd::open_helped`].
    pub fn open_shared(supervisor: i32) -> SysResult<Uffd> {
        let of_memory =
            FEATURE_MINOR_SHMEM | FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM;
        Uffd::open_with(FEATURE_EVENT_FORK | FEATURE_THREAD_ID | of_memory, supervisor)
    }

    /// Opens a userfaultfd that blocks writes to shared memory, the kernel's own for the program
    /// too. It does not report forks.
    ///
    /// # Errors
    /// `EPERM` where this process may not; `EINVAL` where the kernel cannot write-protect shared
    /// memory.
    pub fn open_for_writes() -> SysResult<Uffd> {
        let fd = match new_descriptor() {
            Err(Errno::EPERM) => {
                let device = attach::device().ok_or(Errno::EPERM)?;
                new_of_device(device.as_raw_fd())?
            }
            fd => fd?,
        };
        Uffd { fd }.with(FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM)
    }

    fn open_with(features: u64, supervisor: i32) -> SysResult<Uffd> {
        let features = features | FEATURE_POISON | FEATURE_MOVE;
        match new_descriptor().and_then(|fd| Uffd { fd }.with(features)) {
            Err(Errno::EPERM) if supervisor >= 0 => attach::open_userfaultfd(supervisor, features),
            Err(Errno::EPERM) => attach::open_by_helper(features),
            opened => opened,
        }
    }

    /// Opens one as [`Uffd::open`] does, by the device alone.
    ///
    /// # Errors
    /// `EPERM` where this process may not open the device, or lacks `CAP_SYS_PTRACE`.
    pub(super) fn open_by_device() -> SysResult<Uffd> {
        let device = open_device().ok_or(Errno::EPERM)?;
        let fd = new_of_device(device.as_raw_fd())?;
        Uffd { fd }.with(FEATURE_EVENT_FORK | FEATURE_THREAD_ID | FEATURE_POISON | FEATURE_MOVE)
    }

    fn with(self, features: u64) -> SysResult<Uffd> {
        if let Err(errno) = self.negotiate(features) {
            sys::close(self.fd);
            return Err(errno);
        }
        Ok(self)
    }

    /// Negotiates the features. The caller needs the privileges for them, whoever opened it.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_PTRACE`; `EINVAL` for features that the kernel does not have.
    pub fn negotiate(self, features: u64) -> SysResult<()> {
        let mut arg = ApiArg { api: API, features, ioctls: 0 };
        // SAFETY: the structure is the one the request expects.
        unsafe { sys::ioctl(self.fd, UFFDIO_API, &mut arg) }.map(drop)
    }

    /// Registers a range: its missing pages are reported to this userfaultfd from now on.
    ///
    /// # Errors
    /// `EINVAL` where the range holds a mapping that cannot be served, `EBUSY` where another
    /// userfaultfd serves it.
    pub fn register(self, addr: usize, len_bytes: usize) -> SysResult<()> {
        self.register_for(MODE_MISSING, addr, len_bytes)
    }

    /// Blocks threads that write to the range, until it is unregistered or mapped anew, and they
    /// are woken.
    ///
    /// # Errors
    /// The errors of [`Uffd::register`]; `ENOMEM`. Then no thread is blocked.
    pub fn hold_writes(self, addr: usize, len_bytes: usize) -> SysResult<()> {
        self.register_for(MODE_WP, addr, len_bytes)?;
        loop {
            match self.protect(addr, len_bytes, true) {
                Ok(()) => return Ok(()),
                Err(Errno::EAGAIN | Errno::EINTR) => sys::yield_now(),
                Err(errno) => {
                    self.let_write(addr, len_bytes);
                    return Err(errno);
                }
            }
        }
    }

    /// Registers a mapping of shared memory for all that [`Uffd::open_shared`] serves.
    ///
    /// # Errors
    /// The errors of [`Uffd::register`].
    pub fn register_shared(self, addr: usize, len_bytes: usize) -> SysResult<()> {
        self.register_for(MODE_MISSING | MODE_MINOR | MODE_WP, addr, len_bytes)
    }

    /// Registers a private mapping of shared memory: it writes to its own copies, which nothing
    /// protects.
    ///
    /// # Errors
    /// The errors of [`Uffd::register`].
    pub fn register_private(self, addr: usize, len_bytes: usize) -> SysResult<()> {
        self.register_for(MODE_MISSING | MODE_MINOR, addr, len_bytes)
    }

    /// Write-protects a range, or ends that and wakes its threads.
    ///
    /// # Errors
    /// `EAGAIN` while the address space is changing, `ENOENT` where part of the range is not
    /// registered for it, `ESRCH` when the process is gone.
    pub fn protect(self, addr: usize, len_bytes: usize, is_protected: bool) -> SysResult<()> {
        let range = Range { start: addr as u64, len: len_bytes as u64 };
        let mode = if is_protected { MODE_WRITEPROTECT_WP } else { 0 };
        let mut arg = WriteProtectArg { range, mode };
        // SAFETY: the structure is the one the request expects.
        unsafe { sys::ioctl(self.fd, UFFDIO_WRITEPROTECT, &mut arg).map(drop) }
    }

    /// True if the process that it serves still has the address space that it serves.
    pub fn serves_a_process(self) -> bool {
        /// The last page of the address space, which is never mapped.
        const LAST: usize = (1 << 47) - 2 * PAGE;
        self.protect(LAST, PAGE, false) != Err(Errno::ESRCH)
    }

    /// Maps pages that are in the page cache, and wakes the waiting threads if `wake`. Returns the
    /// bytes done.
    ///
    /// # Errors
    /// `EEXIST` where the first page is mapped already, `EFAULT` where it is not in the page cache;
    /// `EAGAIN`, `ENOENT`, `ESRCH` as for [`Uffd::copy`].
    pub fn map_cached(self, addr: usize, len_bytes: usize, wake: bool) -> SysResult<usize> {
        self.fill(UFFDIO_CONTINUE, addr, len_bytes, wake)
    }

    /// Ends the blocking of writes to the range.
    pub fn let_write(self, addr: usize, len_bytes: usize) {
        let _ = self.unregister(addr, len_bytes);
        self.wake(addr, len_bytes);
    }

    fn register_for(self, mode: u64, addr: usize, len_bytes: usize) -> SysResult<()> {
        let range = Range { start: addr as u64, len: len_bytes as u64 };
        let mut arg = RegisterArg { range, mode, ioctls: 0 };
        // SAFETY: the structure is the one the request expects.
        unsafe { sys::ioctl(self.fd, UFFDIO_REGISTER, &mut arg).map(drop) }
    }

    /// Unregisters a range: the kernel serves it by itself again.
    ///
    /// # Errors
    /// The kernel's.
    pub fn unregister(self, addr: usize, len_bytes: usize) -> SysResult<()> {
        let mut arg = Range { start: addr as u64, len: len_bytes as u64 };
        // SAFETY: the structure is the one the request expects.
        unsafe { sys::ioctl(self.fd, UFFDIO_UNREGISTER, &mut arg).map(drop) }
    }

    /// Reads one message; `None` when there is none (or, blocking, after an interruption). A
    /// descriptor that is closed ends the process: far pages would read as zeros.
    pub fn read_event(self) -> Option<Event> {
        let mut message = [0u8; 32];
        match sys::read(self.fd, &mut message) {
            Ok(32) => Some(decode(&message)),
            Err(Errno::EAGAIN | Errno::EINTR) => None,
            _ => sys::die(
                "paging failed: the program closed the pager's userfaultfd by a bare system call",
            ),
        }
    }

    /// Installs copies of `len_bytes` from `src` at `dst`, and wakes the waiting threads if `wake`.
    /// Returns the bytes done.
    ///
    /// # Errors
    /// `EEXIST` where the first page is present already, `EAGAIN` while the address space is
    /// changing, `ENOENT` where nothing is mapped, `ESRCH` when the process is gone. A partial copy
    /// is reported as the bytes done.
    pub fn copy(self, dst: usize, src: usize, len_bytes: usize, wake: bool) -> SysResult<usize> {
        let mode = if wake { 0 } else { MODE_DONTWAKE };
        self.transfer(UFFDIO_COPY, dst, src, len_bytes, mode)
    }

    /// Moves the pages of `[src, src + len_bytes)` to `dst`, frames and all; holes stay holes.
    /// Returns the bytes done. A huge page of the kernel's stays one if it is moved whole to a
    /// multiple of 2 MiB where the kernel has no table of small pages. No thread is woken. Neither
    /// side may be changed by another thread meanwhile.
    ///
    /// Linux 6.18 moves pages and returns `EEXIST`: where a page table entry changes under a move,
    /// the kernel retries the page and moves it with those that follow, but keeps the first try's
    /// `EAGAIN`, so it retries once more and finds at `dst` the page that it has just moved
    /// (`move_pages` in `mm/userfaultfd.c`, until it cleared the error). A page that has left `src`
    /// and is at `dst` counts as moved, whatever the result.
    ///
    /// # Errors
    /// `EBUSY` for a page that is pinned or shared with another process, `EINVAL` where the two
    /// mappings' protections differ, `EEXIST`, `EAGAIN`, `ENOENT` as for [`Uffd::copy`].
    pub fn move_pages(self, dst: usize, src: usize, len_bytes: usize) -> SysResult<usize> {
        let mode = MODE_DONTWAKE | MOVE_ALLOW_SRC_HOLES;
        match self.transfer(UFFDIO_MOVE, dst, src, len_bytes, mode) {
            Err(Errno::EEXIST) => match moved_despite_eexist(dst, src, len_bytes) {
                0 => Err(Errno::EEXIST),
                moved_bytes => Ok(moved_bytes),
            },
            outcome => outcome,
        }
    }

    fn transfer(
        self,
        request: usize,
        dst: usize,
        src: usize,
        len_bytes: usize,
        mode: u64,
    ) -> SysResult<usize> {
        let mut arg =
            TransferArg { dst: dst as u64, src: src as u64, len: len_bytes as u64, mode, done: 0 };
        // SAFETY: the structure is the one the request expects; the pages that it installs lie in
        // ranges registered with this userfaultfd, nowhere else.
        match unsafe { sys::ioctl(self.fd, request, &mut arg) } {
            Ok(_) => Ok(len_bytes),
            Err(_) if arg.done > 0 => Ok(arg.done as usize),
            Err(errno) => Err(errno),
        }
    }

    /// Installs the zero page at `addr`, and wakes the waiting threads if `wake`.
    ///
    /// # Errors
    /// The errors of [`Uffd::copy`].
    pub fn zero(self, addr: usize, len_bytes: usize, wake: bool) -> SysResult<usize> {
        self.fill(UFFDIO_ZEROPAGE, addr, len_bytes, wake)
    }

    /// True while a `fork` copies the memory that this serves, or has done so and its message is
    /// not read. Nothing can be placed meanwhile.
    pub fn is_changing(self) -> bool {
        const NOWHERE: usize = 1;
        self.zero(NOWHERE, PAGE, false) == Err(Errno::EAGAIN)
    }

    /// Makes every access to the range fail with `SIGBUS` (or `EFAULT` inside a system call).
    ///
    /// # Errors
    /// The errors of [`Uffd::copy`].
    pub fn poison(self, addr: usize, len_bytes: usize) -> SysResult<usize> {
        self.fill(UFFDIO_POISON, addr, len_bytes, true)
    }

    fn fill(self, request: usize, addr: usize, len_bytes: usize, wake: bool) -> SysResult<usize> {
        let mut arg = FillArg {
            range: Range { start: addr as u64, len: len_bytes as u64 },
            mode: if wake { 0 } else { MODE_DONTWAKE },
            done: 0,
        };
        // SAFETY: the structure is the one the request expects.
        match unsafe { sys::ioctl(self.fd, request, &mut arg) } {
            Ok(_) => Ok(len_bytes),
            Err(_) if arg.done > 0 => Ok(arg.done as usize),
            Err(errno) => Err(errno),
        }
    }

    /// Wakes the threads that wait in the range; they retry.
    pub fn wake(self, addr: usize, len_bytes: usize) {
        let mut arg = Range { start: addr as u64, len: len_bytes as u64 };
        // SAFETY: the structure is the one the request expects.
        let _ = unsafe { sys::ioctl(self.fd, UFFDIO_WAKE, &mut arg) };
    }

    /// Converts the result of a placement: a page that is present already counts as placed, and its
    /// waiters are woken.
    ///
    /// # Errors
    /// All but `EEXIST`.
    pub fn settle(self, addr: usize, outcome: SysResult<usize>) -> SysResult<()> {
        match outcome {
            Ok(_) => Ok(()),
            Err(Errno::EEXIST) => {
                self.wake(addr, PAGE);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
}

fn new_descriptor() -> SysResult<i32> {
    // SAFETY: touches no memory of ours.
    let fd = unsafe { sys::syscall(nr::USERFAULTFD, [O_CLOEXEC_NONBLOCK, 0, 0, 0, 0, 0])? };
    Ok(fd as i32)
}

/// Opens the device that makes userfaultfds for those who may open it (Linux 6.1).
pub(super) fn open_device() -> Option<OwnedFd> {
    let fd = sys::open_readonly(b"/dev/userfaultfd\0").ok()?;
    // SAFETY: opened above, and owned by nothing else.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// True if the descriptor is a userfaultfd.
pub(super) fn is_one(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|name| name == std::path::Path::new("anon_inode:[userfaultfd]"))
}

/// Opens a userfaultfd of this process by the device.
///
/// # Errors
/// `EPERM` where that fails.
pub(super) fn new_of_device(device: i32) -> SysResult<i32> {
    // SAFETY: the request takes flags and touches no memory of ours.
    let fd =
        unsafe { sys::syscall(nr::IOCTL, [device as usize, IOC_NEW, O_CLOEXEC_NONBLOCK, 0, 0, 0]) };
    fd.map(|fd| fd as i32).map_err(|_| Errno::EPERM)
}

/// Returns the bytes from the start on that are at `dst` and no longer at `src`; at most
/// [`MOST_PAGES`] pages, 0 where one side is no longer mapped.
fn moved_despite_eexist(dst: usize, src: usize, len_bytes: usize) -> usize {
    let pages = (len_bytes / PAGE).min(MOST_PAGES);
    let (Ok(at_dst), Ok(at_src)) = (look_once(dst, pages), look_once(src, pages)) else { return 0 };
    (0..pages).take_while(|&page| at_dst[page] && !at_src[page]).count() * PAGE
}

fn decode(message: &[u8; 32]) -> Event {
    const EVENT_PAGEFAULT: u8 = 0x12;
    const EVENT_FORK: u8 = 0x13;
    const FLAG_WRITE: u64 = 1;
    const FLAG_WP: u64 = 1 << 1;
    const FLAG_MINOR: u64 = 1 << 2;
    let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("8 bytes"));
    let half = |at: usize| u32::from_ne_bytes(message[at..at + 4].try_into().expect("4 bytes"));
    match message[0] {
        EVENT_PAGEFAULT => Event::Fault {
            address: word(16) as usize & !(PAGE - 1),
            write: word(8) & FLAG_WRITE != 0,
            thread: half(24),
            kind: match word(8) {
                flags if flags & FLAG_WP != 0 => FaultKind::Protected,
                flags if flags & FLAG_MINOR != 0 => FaultKind::Minor,
                _ => FaultKind::Missing,
            },
        },
        EVENT_FORK => Event::Fork { child: Uffd { fd: half(8) as i32 } },
        _ => Event::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_match_kernel_header() {
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020_aa00);
        assert_eq!(UFFDIO_UNREGISTER, 0x8010_aa01);
        assert_eq!(UFFDIO_WAKE, 0x8010_aa02);
        assert_eq!(UFFDIO_COPY, 0xc028_aa03);
        assert_eq!(UFFDIO_MOVE, 0xc028_aa05);
        assert_eq!(UFFDIO_WRITEPROTECT, 0xc018_aa06);
        assert_eq!(UFFDIO_CONTINUE, 0xc020_aa07);
    }

    /// The kernel's second try leaves this state: `EEXIST` for pages that it has moved.
    #[test]
    fn moved_page_with_eexist_counts() {
        let uffd = match Uffd::open() {
            Ok(uffd) => uffd,
            Err(errno) => {
                eprintln!("SKIPPED moved_page_with_eexist_counts: no userfaultfd ({errno})");
                return;
            }
        };
        let pages = || {
            let memory = sys::map_private(4 * PAGE).expect("address space") as usize;
            sys::unlock(memory, 4 * PAGE);
            // Other tests fork, and nothing reads the event here.
            // SAFETY: advice about fresh memory.
            unsafe { sys::madvise(memory, 4 * PAGE, sys::MADV_DONTFORK).expect("fresh memory") };
            uffd.register(memory, 4 * PAGE).expect("plain memory");
            memory
        };
        let place = |addr| assert_eq!(uffd.zero(addr, PAGE, false), Ok(PAGE));
        let (src, dst) = (pages(), pages());
        place(dst);
        place(dst + PAGE);
        place(src + 2 * PAGE);
        assert_eq!(uffd.move_pages(dst, src, 4 * PAGE), Ok(2 * PAGE));
        assert_eq!(uffd.move_pages(dst + 2 * PAGE, src + 2 * PAGE, 2 * PAGE), Ok(2 * PAGE));
        place(src + 2 * PAGE);
        assert_eq!(uffd.move_pages(dst + 2 * PAGE, src + 2 * PAGE, PAGE), Err(Errno::EEXIST));
        sys::close(uffd.fd);
        for memory in [src, dst] {
            // SAFETY: mapped above, and used by nothing else.
            unsafe { sys::unmap(memory as *mut _, 4 * PAGE) };
        }
    }

    #[test]
    fn fault_message_is_decoded() {
        let mut message = [0u8; 32];
        message[0] = 0x12;
        message[8] = 1;
        message[16..24].copy_from_slice(&0x7f00_1234_5678u64.to_ne_bytes());
        message[24..28].copy_from_slice(&42u32.to_ne_bytes());
        let (address, thread) = (0x7f00_1234_5000, 42);
        let mut kind_of = |flags: u8| {
            message[8] = flags;
            let Event::Fault { address: at, write, thread: by, kind } = decode(&message) else {
                panic!("a fault");
            };
            assert_eq!((at, by), (address, thread));
            (write, kind)
        };
        assert_eq!(kind_of(1), (true, FaultKind::Missing));
        assert_eq!(kind_of(3), (true, FaultKind::Protected));
        assert_eq!(kind_of(4), (false, FaultKind::Minor));
    }
}
