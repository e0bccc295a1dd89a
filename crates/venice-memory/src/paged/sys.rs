//! Raw Linux system calls for the pager.
//!
//! The pager's threads have no C library under them (see `thread`), and its hooks replace the C
//! library's own `mmap` and friends. Both need the bare call: no `errno`, no cancellation point, no
//! lazy binding.

use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::AtomicU32;

pub use venice_ports::monotonic_ns;

pub use super::end::{die, die_with};
use super::own_locks::OwnLocks;
use super::rlimits;
pub use super::thread::{forget_own_threads, own_threads, program_threads};

/// A Linux error number, as the kernel returned it (positive).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Errno = Errno(1);
    /// Try again: for userfaultfd, the address space is changing under the call.
    pub const EAGAIN: Errno = Errno(11);
    /// Page pinned or shared.
    pub const EBUSY: Errno = Errno(16);
    /// Page present already.
    pub const EEXIST: Errno = Errno(17);
    /// Bad argument; for `UFFDIO_MOVE`, mappings whose protections differ.
    pub const EINVAL: Errno = Errno(22);
    /// Interrupted.
    pub const EINTR: Errno = Errno(4);
    /// No such entry, or no mapping.
    pub const ENOENT: Errno = Errno(2);
    /// Out of memory.
    pub const ENOMEM: Errno = Errno(12);
    /// Permission denied.
    pub const EACCES: Errno = Errno(13);
    /// Bad address.
    pub const EFAULT: Errno = Errno(14);
    /// No such process: its address space is gone.
    pub const ESRCH: Errno = Errno(3);
    /// No such system call.
    pub const ENOSYS: Errno = Errno(38);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

/// The result of a raw call.
pub type SysResult<T> = Result<T, Errno>;

/// System call numbers of x86-64 (`arch/x86/entry/syscalls/syscall_64.tbl`).
pub mod nr {
    #![allow(missing_docs)]
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const POLL: usize = 7;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const BRK: usize = 12;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const IOCTL: usize = 16;
    pub const PREAD64: usize = 17;
    pub const SCHED_YIELD: usize = 24;
    pub const MREMAP: usize = 25;
    pub const MADVISE: usize = 28;
    pub const GETPID: usize = 39;
    pub const GETTID: usize = 186;
    pub const GETPPID: usize = 110;
    pub const GETCPU: usize = 309;
    pub const EXECVE: usize = 59;
    pub const EXECVEAT: usize = 322;
    pub const EXIT: usize = 60;
    pub const KILL: usize = 62;
    pub const FCNTL: usize = 72;
    pub const CLONE: usize = 56;
    pub const SCHED_SETSCHEDULER: usize = 144;
    pub const SCHED_SETAFFINITY: usize = 203;
    pub const SCHED_GETAFFINITY: usize = 204;
    pub const FUTEX: usize = 202;
    pub const FSTATFS: usize = 138;
    pub const OPENAT: usize = 257;
    pub const NEWFSTATAT: usize = 262;
    pub const STATX: usize = 332;
    pub const READLINKAT: usize = 267;
    pub const GETDENTS64: usize = 217;
    pub const EVENTFD2: usize = 290;
    pub const USERFAULTFD: usize = 323;
    pub const MLOCK: usize = 149;
    pub const MLOCK2: usize = 325;
    pub const MUNLOCK: usize = 150;
    pub const MLOCKALL: usize = 151;
    pub const MUNLOCKALL: usize = 152;
    pub const PRCTL: usize = 157;
    pub const SECCOMP: usize = 317;
    pub const UNSHARE: usize = 272;
    pub const KCMP: usize = 312;
    pub const MINCORE: usize = 27;
    pub const CLOSE_RANGE: usize = 436;
    pub const DUP2: usize = 33;
    pub const DUP3: usize = 292;
    pub const EXIT_GROUP: usize = 231;
    pub const GETRUSAGE: usize = 98;
    pub const TGKILL: usize = 234;
    pub const SETNS: usize = 308;
    pub const FACCESSAT2: usize = 439;
    pub const GETRLIMIT: usize = 97;
    pub const SETRLIMIT: usize = 160;
    pub const PRLIMIT64: usize = 302;
    pub const UNLINKAT: usize = 263;
    pub const PROCESS_VM_READV: usize = 310;
    pub const PROCESS_VM_WRITEV: usize = 311;
    pub const MEMFD_CREATE: usize = 319;
}

/// Calls the kernel.
///
/// # Safety
/// The arguments must be right for system call `number`; the memory that it may touch must be
/// valid.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> SysResult<usize> {
    let ret: isize;
    // SAFETY: the Linux x86-64 calling convention: rcx and r11 are clobbered, nothing else.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => ret,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as usize) }
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl venice_program_call",
    ".hidden venice_program_call",
    ".type venice_program_call, @function",
    "venice_program_call:",
    "mov rax, rdi",
    "mov r11, rsi",
    "mov rdi, [r11]",
    "mov rsi, [r11 + 8]",
    "mov rdx, [r11 + 16]",
    "mov r10, [r11 + 24]",
    "mov r8, [r11 + 32]",
    "mov r9, [r11 + 40]",
    "syscall",
    ".globl venice_program_call_site",
    ".hidden venice_program_call_site",
    "venice_program_call_site:",
    "ret",
    ".size venice_program_call, . - venice_program_call",
);

unsafe extern "C" {
    fn venice_program_call(number: usize, args: &[usize; 6]) -> isize;
    fn venice_program_call_site();
}

/// Does the same as [`syscall`] for a call that the program asked for: a filter that the program
/// installs (`seccomp(2)`) judges these and no others.
///
/// # Safety
/// The duties of [`syscall`].
pub unsafe fn program_syscall(number: usize, args: [usize; 6]) -> SysResult<usize> {
    // SAFETY: forwarded to the caller.
    let ret = unsafe { venice_program_call(number, &args) };
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as usize) }
}

/// What the program asks of `mremap(2)`.
#[derive(Clone, Copy, Debug)]
pub struct Remap {
    /// Address of the mapping.
    pub old: usize,
    /// Its length, bytes; 0: make one more mapping of the same.
    pub old_len: usize,
    /// The length that it gets, bytes.
    pub new_len: usize,
    /// `MREMAP_*`.
    pub flags: usize,
    /// The address that it gets, with `MREMAP_FIXED`.
    pub new_addr: usize,
}

impl Remap {
    /// Calls the kernel.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// The program must have asked for it.
    pub unsafe fn call(&self) -> SysResult<usize> {
        let &Remap { old, old_len, new_len, flags, new_addr } = self;
        // SAFETY: forwarded to the caller.
        unsafe { program_syscall(nr::MREMAP, [old, old_len, new_len, flags, new_addr, 0]) }
    }
}

/// The address that the kernel sees in [`program_syscall`].
pub fn program_call_site() -> usize {
    venice_program_call_site as *const () as usize
}

/// Returns the status flags of a descriptor (`F_GETFL`).
///
/// # Errors
/// `EBADF`.
pub fn descriptor_flags(fd: i32) -> SysResult<usize> {
    const F_GETFL: usize = 3;
    // SAFETY: touches no memory.
    unsafe { syscall(nr::FCNTL, [fd as usize, F_GETFL, 0, 0, 0, 0]) }
}

/// Calls `ioctl(2)` on a structure.
///
/// # Safety
/// `arg` must be the structure that `request` expects.
pub unsafe fn ioctl<T>(fd: i32, request: usize, arg: &mut T) -> SysResult<usize> {
    // SAFETY: forwarded to the caller.
    unsafe { syscall(nr::IOCTL, [fd as usize, request, arg as *mut T as usize, 0, 0, 0]) }
}

/// Calls `read(2)` into `buf`.
pub fn read(fd: i32, buf: &mut [u8]) -> SysResult<usize> {
    // SAFETY: the buffer is valid for its length.
    unsafe { syscall(nr::READ, [fd as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0]) }
}

/// Calls `pread(2)` into `buf` at `offset`.
pub fn pread(fd: i32, offset: u64, buf: &mut [u8]) -> SysResult<usize> {
    let arguments = [fd as usize, buf.as_mut_ptr() as usize, buf.len(), offset as usize, 0, 0];
    // SAFETY: the buffer is valid for its length.
    unsafe { syscall(nr::PREAD64, arguments) }
}

/// Calls `write(2)` of `buf`.
pub fn write(fd: i32, buf: &[u8]) -> SysResult<usize> {
    // SAFETY: the buffer is valid for its length.
    unsafe { syscall(nr::WRITE, [fd as usize, buf.as_ptr() as usize, buf.len(), 0, 0, 0]) }
}

/// Part of a buffer, as `readv(2)` takes it (`struct iovec`).
#[repr(C)]
struct Part {
    start: usize,
    len: usize,
}

/// Copies memory of this process at `from` by a system call, which fails where a plain access would
/// be a signal. Returns the bytes copied.
///
/// # Errors
/// `EFAULT`.
pub fn copy_from(from: usize, into: &mut [u8]) -> SysResult<usize> {
    // SAFETY: it writes to the buffer alone.
    unsafe { copy_within(nr::PROCESS_VM_READV, into.as_mut_ptr() as usize, from, into.len()) }
}

/// Copies to memory of this process at `to`, as [`copy_from`] does from there.
///
/// # Safety
/// Nothing else may rely on the bytes there.
///
/// # Errors
/// `EFAULT`.
pub unsafe fn copy_to(to: usize, bytes: &[u8]) -> SysResult<usize> {
    // SAFETY: forwarded to the caller.
    unsafe { copy_within(nr::PROCESS_VM_WRITEV, bytes.as_ptr() as usize, to, bytes.len()) }
}

unsafe fn copy_within(number: usize, buffer: usize, there: usize, len: usize) -> SysResult<usize> {
    let (buffer, there) = (Part { start: buffer, len }, Part { start: there, len });
    let (buffer, there) = (&raw const buffer as usize, &raw const there as usize);
    // SAFETY: forwarded to the caller; both parts are on this stack.
    unsafe { syscall(number, [getpid() as usize, buffer, 1, there, 1, 0]) }
}

/// Calls `close(2)`. Errors are ignored: nothing can be done about them.
pub fn close(fd: i32) {
    // SAFETY: closing a descriptor touches no memory.
    let _ = unsafe { syscall(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Opens a NUL-terminated path read-only.
///
/// # Panics
/// If the path does not end in NUL.
pub fn open_readonly(path: &[u8]) -> SysResult<i32> {
    assert!(path.last() == Some(&0), "the path must end in NUL");
    const AT_FDCWD: isize = -100;
    const O_CLOEXEC: usize = 0o2000000;
    // SAFETY: the path is NUL-terminated.
    unsafe {
        syscall(nr::OPENAT, [AT_FDCWD as usize, path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0])
            .map(|fd| fd as i32)
    }
}

/// Moves `fd` to the lowest free number at or above `lowest`, close-on-exec, and closes `fd`.
pub fn move_fd(fd: i32, lowest: i32) -> SysResult<i32> {
    const F_DUPFD_CLOEXEC: usize = 1030;
    // SAFETY: duplicating a descriptor touches no memory.
    let moved =
        unsafe { syscall(nr::FCNTL, [fd as usize, F_DUPFD_CLOEXEC, lowest as usize, 0, 0, 0])? };
    close(fd);
    Ok(moved as i32)
}

/// Sets or clears `O_NONBLOCK`.
pub fn set_nonblocking(fd: i32, on: bool) -> SysResult<()> {
    const F_SETFL: usize = 4;
    const O_NONBLOCK: usize = 0o4000;
    let flags = if on { O_NONBLOCK } else { 0 };
    // SAFETY: changing file flags touches no memory.
    unsafe { syscall(nr::FCNTL, [fd as usize, F_SETFL, flags, 0, 0, 0]).map(drop) }
}

/// One entry of `poll(2)`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PollFd {
    /// Descriptor; negative entries are skipped.
    pub fd: i32,
    /// Events to wait for.
    pub events: i16,
    /// Events that occurred.
    pub revents: i16,
}

/// There is data to read.
pub const POLLIN: i16 = 1;

/// Calls `poll(2)`; a negative time-out waits for ever. `EINTR` counts as nothing ready. Returns
/// the number of ready entries.
pub fn poll(fds: &mut [PollFd], timeout_ms: i32) -> usize {
    // SAFETY: the slice is valid for its length.
    let ready = unsafe {
        syscall(
            nr::POLL,
            [fds.as_mut_ptr() as usize, fds.len(), timeout_ms as isize as usize, 0, 0, 0],
        )
    };
    ready.unwrap_or(0)
}

/// Maps anonymous private memory of the pager's own: never managed, locked as it is touched.
///
/// `MAP_NORESERVE`, so that sparse tables cost only the pages used.
///
/// # Errors
/// The kernel's, when the address space is used up.
pub fn map_private(len_bytes: usize) -> SysResult<*mut u8> {
    const MAP_PRIVATE_NORESERVE: usize = 0x02 | 0x4000;
    let addr = map_anonymous(len_bytes, MAP_PRIVATE_NORESERVE)?;
    lock_on_fault(addr, len_bytes);
    mark_own(addr, len_bytes);
    Ok(addr as *mut u8)
}

/// Maps memory as [`map_private`] does, but included in core dumps: tables that tell where the
/// program's pages are ([`image`](super::image)).
///
/// # Errors
/// The errors of [`map_private`].
pub fn map_dumped(len_bytes: usize) -> SysResult<*mut u8> {
    let addr = map_private(len_bytes)?;
    for advice in [MADV_NOHUGEPAGE, MADV_DODUMP] {
        // SAFETY: advice that changes no contents.
        let _ = unsafe { madvise(addr as usize, len_bytes, advice) };
    }
    Ok(addr)
}

/// Marks memory of the pager's own, for the supervisor, which reads it in `/proc/PID/smaps`: advice
/// that no program gives together on anonymous memory, where the first means nothing. Memory that
/// belongs into core dumps has MADV_NOHUGEPAGE as its second. Neither locks nor forks change it.
pub fn mark_own(addr: usize, len_bytes: usize) {
    for advice in [MADV_RANDOM, MADV_DONTDUMP] {
        // SAFETY: advice that changes no contents.
        let _ = unsafe { madvise(addr, len_bytes, advice) };
    }
}

/// Takes the mark of [`mark_own`] back, for memory that is given to the program.
fn unmark_own(addr: usize, len_bytes: usize) {
    for advice in [MADV_NORMAL, MADV_DODUMP] {
        // SAFETY: advice that changes no contents.
        let _ = unsafe { madvise(addr, len_bytes, advice) };
    }
}

/// Leaves memory of the pager's own out of core dumps, which is no anonymous private memory.
pub fn leave_out_of_dumps(addr: usize, len_bytes: usize) {
    // SAFETY: this advice changes no contents. Refused, a core dump is only larger.
    let _ = unsafe { madvise(addr, len_bytes, MADV_DONTDUMP) };
}

/// Maps anonymous memory of the pager's own that children share.
///
/// # Errors
/// The errors of [`map_private`].
pub fn map_shared(len_bytes: usize) -> SysResult<*mut u8> {
    const MAP_SHARED: usize = 0x01;
    let addr = map_anonymous(len_bytes, MAP_SHARED)?;
    leave_out_of_dumps(addr, len_bytes);
    Ok(addr as *mut u8)
}

fn map_anonymous(len_bytes: usize, flags: usize) -> SysResult<usize> {
    const PROT_READ_WRITE: usize = 3;
    const MAP_ANONYMOUS: usize = 0x20;
    let flags = flags | MAP_ANONYMOUS;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
    rlimits::beyond(|| unsafe {
        syscall(nr::MMAP, [0, len_bytes, PROT_READ_WRITE, flags, usize::MAX, 0])
    })
}

/// Maps anonymous private memory, not locked, at a multiple of `align_bytes` (of pages). Pages are
/// moved to and from it, which needs both sides unlocked.
///
/// # Errors
/// The errors of [`map_private`].
pub fn map_aligned(len_bytes: usize, align_bytes: usize) -> SysResult<usize> {
    let base = map_private(len_bytes + align_bytes)? as usize;
    unlock(base, len_bytes + align_bytes);
    unmark_own(base, len_bytes + align_bytes);
    let start = base.next_multiple_of(align_bytes);
    let (before, after) = (start - base, align_bytes - (start - base));
    for (addr, len_bytes) in [(base, before), (start + len_bytes, after)] {
        if len_bytes > 0 {
            // SAFETY: the ends of the fresh mapping, which are not used.
            unsafe { unmap(addr as *mut c_void, len_bytes) };
        }
    }
    Ok(start)
}

/// Reserves a private mapping without access, at `addr` if that is free, at an address of the
/// kernel's choice if `addr` is 0.
///
/// # Errors
/// The kernel's.
pub fn reserve(addr: usize, len_bytes: usize) -> SysResult<usize> {
    const PROT_NONE: usize = 0;
    const MAP_PRIVATE_ANON_NORESERVE: usize = 0x02 | 0x20 | 0x4000;
    const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
    let flags = MAP_PRIVATE_ANON_NORESERVE | if addr == 0 { 0 } else { MAP_FIXED_NOREPLACE };
    // SAFETY: a fresh mapping where nothing is disturbs nothing.
    unsafe { syscall(nr::MMAP, [addr, len_bytes, PROT_NONE, flags, usize::MAX, 0]) }
}

/// Forbids every access to a range of the pager's own memory.
pub fn forbid(addr: usize, len_bytes: usize) {
    const PROT_NONE: usize = 0;
    // SAFETY: no contents are changed.
    let _ = unsafe { syscall(nr::MPROTECT, [addr, len_bytes, PROT_NONE, 0, 0, 0]) };
}

/// Locks a range of the pager's own page by page as it is touched. A refusal (`RLIMIT_MEMLOCK`) is
/// left to `venice doctor` to explain: without swap on the host it does no harm.
pub fn lock_on_fault(addr: usize, len_bytes: usize) {
    const MLOCK_ONFAULT: usize = 1;
    // SAFETY: locking changes no contents.
    let _ = unsafe { syscall(nr::MLOCK2, [addr, len_bytes, MLOCK_ONFAULT, 0, 0, 0]) };
    OWN_LOCKS.add(addr, len_bytes);
}

static OWN_LOCKS: OwnLocks = OwnLocks::new();

/// Locks the pager's own memory again, once the program has unlocked everything.
pub fn lock_own_again() {
    for (addr, len_bytes) in OWN_LOCKS.all() {
        lock_on_fault(addr, len_bytes);
    }
}

/// Undoes [`lock_on_fault`].
pub fn unlock(addr: usize, len_bytes: usize) {
    OWN_LOCKS.remove(addr);
    // SAFETY: unlocking changes no contents.
    let _ = unsafe { syscall(nr::MUNLOCK, [addr, len_bytes, 0, 0, 0, 0]) };
}

/// Unmaps the pager's own memory (`munmap(2)`).
///
/// # Safety
/// The range must not be used any more.
pub unsafe fn unmap(addr: *mut c_void, len_bytes: usize) {
    OWN_LOCKS.remove(addr as usize);
    // SAFETY: forwarded to the caller.
    let _ = unsafe { syscall(nr::MUNMAP, [addr as usize, len_bytes, 0, 0, 0, 0]) };
}

/// Calls `madvise(2)`.
///
/// # Safety
/// The range's contents may be lost, depending on `advice`.
pub unsafe fn madvise(addr: usize, len_bytes: usize, advice: usize) -> SysResult<()> {
    // SAFETY: forwarded to the caller.
    unsafe { syscall(nr::MADVISE, [addr, len_bytes, advice, 0, 0, 0]).map(drop) }
}

/// `MADV_NORMAL`.
const MADV_NORMAL: usize = 0;
/// `MADV_RANDOM`.
const MADV_RANDOM: usize = 1;
/// `MADV_DONTDUMP`.
const MADV_DONTDUMP: usize = 16;
/// `MADV_DODUMP`.
const MADV_DODUMP: usize = 17;

/// Calls `madvise(2)` as the program asked for it.
///
/// # Safety
/// The duties of [`madvise`].
pub unsafe fn program_madvise(addr: usize, len_bytes: usize, advice: usize) -> SysResult<()> {
    // SAFETY: forwarded to the caller.
    unsafe { program_syscall(nr::MADVISE, [addr, len_bytes, advice, 0, 0, 0]).map(drop) }
}

/// `MADV_REMOVE`.
pub const MADV_REMOVE: usize = 9;
/// `MADV_DONTFORK`.
pub const MADV_DONTFORK: usize = 10;
/// `MADV_DOFORK`.
pub const MADV_DOFORK: usize = 11;
/// `MADV_DONTNEED_LOCKED` (Linux 5.18).
pub const MADV_DONTNEED_LOCKED: usize = 24;
/// `MADV_GUARD_INSTALL` (Linux 6.13).
pub const MADV_GUARD_INSTALL: usize = 102;
/// `MADV_DONTNEED`.
pub const MADV_DONTNEED: usize = 4;
/// `MADV_FREE`.
pub const MADV_FREE: usize = 8;
/// `MADV_HUGEPAGE`.
pub const MADV_HUGEPAGE: usize = 14;
/// `MADV_NOHUGEPAGE`.
pub const MADV_NOHUGEPAGE: usize = 15;
/// `MADV_WIPEONFORK`.
pub const MADV_WIPEONFORK: usize = 18;
/// `MADV_COLD`.
pub const MADV_COLD: usize = 20;
/// `MADV_PAGEOUT`.
pub const MADV_PAGEOUT: usize = 21;
/// `MADV_POPULATE_READ` (Linux 5.14).
pub const MADV_POPULATE_READ: usize = 22;
/// `MADV_POPULATE_WRITE` (Linux 5.14).
pub const MADV_POPULATE_WRITE: usize = 23;
/// `MADV_COLLAPSE`.
pub const MADV_COLLAPSE: usize = 25;

/// Sleeps until `word` is woken, unless it is no longer `expected`; at most `timeout_ns`. `shared`
/// words live in memory that several processes map.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>, shared: bool) {
    const FUTEX_WAIT: usize = 0;
    const FUTEX_PRIVATE: usize = 128;
    let spec = timeout_ns.map(|ns| [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64]);
    let op = if shared { FUTEX_WAIT } else { FUTEX_WAIT | FUTEX_PRIVATE };
    let spec_ptr = spec.as_ref().map_or(0, |s| s.as_ptr() as usize);
    // SAFETY: the word and the time outlive the call; any outcome is a reason to look again.
    let _ = unsafe {
        syscall(nr::FUTEX, [word.as_ptr() as usize, op, expected as usize, spec_ptr, 0, 0])
    };
}

/// Wakes up to `count` sleepers on `word`.
pub fn futex_wake(word: &AtomicU32, count: u32, shared: bool) {
    const FUTEX_WAKE: usize = 1;
    const FUTEX_PRIVATE: usize = 128;
    let op = if shared { FUTEX_WAKE } else { FUTEX_WAKE | FUTEX_PRIVATE };
    // SAFETY: the word outlives the call.
    let _ = unsafe { syscall(nr::FUTEX, [word.as_ptr() as usize, op, count as usize, 0, 0, 0]) };
}

/// Reports which pages from `addr` on are in memory: bit 0 of each byte (`mincore(2)`).
///
/// # Errors
/// `ENOMEM` where a page is not mapped.
pub fn mincore(addr: usize, pages: &mut [u8]) -> SysResult<()> {
    let arguments = [addr, pages.len() * super::PAGE, pages.as_mut_ptr() as usize, 0, 0, 0];
    loop {
        // SAFETY: a byte for each page, as the call wants.
        match unsafe { syscall(nr::MINCORE, arguments) } {
            // The kernel lacks a page to work with.
            Err(Errno::EAGAIN) => yield_now(),
            outcome => return outcome.map(drop),
        }
    }
}

/// Minor faults of this process so far, all its threads together (`getrusage(2)`); 0 if the kernel
/// does not report them.
pub fn minor_faults() -> u64 {
    const RUSAGE_SELF: usize = 0;
    // `struct rusage`: two times of two words each, and fourteen counts.
    const WORDS: usize = 18;
    const MINFLT: usize = 8;
    let mut usage = [0u64; WORDS];
    // SAFETY: the kernel fills in the structure.
    let _ =
        unsafe { syscall(nr::GETRUSAGE, [RUSAGE_SELF, usage.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    usage[MINFLT]
}

/// Yields the processor.
pub fn yield_now() {
    // SAFETY: touches no memory.
    let _ = unsafe { syscall(nr::SCHED_YIELD, [0; 6]) };
}

/// This process's id.
pub fn getpid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall(nr::GETPID, [0; 6]) }.unwrap_or(0) as u32
}

/// The id of this process's parent; 0 if the parent is in a PID namespace out of sight.
pub fn getppid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall(nr::GETPPID, [0; 6]) }.unwrap_or(0) as u32
}

/// False if the calling thread has another table of descriptors than `thread`.
pub fn shares_descriptors_with(thread: u32) -> bool {
    const KCMP_FILES: usize = 2;
    let arguments = [gettid() as usize, thread as usize, KCMP_FILES, 0, 0, 0];
    // SAFETY: touches no memory.
    !matches!(unsafe { syscall(nr::KCMP, arguments) }, Ok(1..))
}

/// The calling thread's id.
pub fn gettid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall(nr::GETTID, [0; 6]) }.unwrap_or(0) as u32
}

/// Ends the process.
pub fn exit(code: usize) -> ! {
    loop {
        // SAFETY: ends this process; nothing after it matters.
        let _ = unsafe { syscall(nr::EXIT_GROUP, [code, 0, 0, 0, 0, 0]) };
    }
}

/// Pins the calling thread to one processor; a refusal (a cpuset) leaves it where it is.
pub fn pin_to_cpu(cpu: usize) {
    pin_thread_to_cpu(0, cpu);
}

/// Pins a thread, by its id; 0 is the calling one.
pub fn pin_thread_to_cpu(thread: u32, cpu: usize) {
    let mut mask = [0u64; 16];
    if cpu >= mask.len() * 64 {
        return;
    }
    mask[cpu / 64] = 1 << (cpu % 64);
    let arguments = [thread as usize, size_of_val(&mask), mask.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the mask is read only.
    let _ = unsafe { syscall(nr::SCHED_SETAFFINITY, arguments) };
}

/// True if a thread may run on more than one processor, or if the kernel does not report it.
pub fn may_move(thread: u32) -> bool {
    let mut mask = [0u64; 128];
    let arguments = [thread as usize, size_of_val(&mask), mask.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel fills in the mask.
    match unsafe { syscall(nr::SCHED_GETAFFINITY, arguments) } {
        Ok(_) => mask.iter().map(|word| word.count_ones()).sum::<u32>() > 1,
        Err(_) => true,
    }
}

/// Makes the calling thread run only where no other wants the processor (`SCHED_IDLE`, `sched(7)`).
///
/// # Errors
/// The kernel's, by a security policy.
pub fn run_when_idle() -> SysResult<()> {
    const SCHED_IDLE: usize = 5;
    let priority = 0i32;
    let arguments = [0, SCHED_IDLE, &raw const priority as usize, 0, 0, 0];
    // SAFETY: the kernel reads one number.
    unsafe { syscall(nr::SCHED_SETSCHEDULER, arguments) }.map(drop)
}

/// The processor that the calling thread is on.
pub fn current_cpu() -> Option<usize> {
    let mut cpu = 0u32;
    // SAFETY: the kernel writes one number.
    unsafe { syscall(nr::GETCPU, [&raw mut cpu as usize, 0, 0, 0, 0, 0]) }.ok()?;
    Some(cpu as usize)
}

/// Blocks every signal for this thread and returns the former mask.
pub fn block_signals() -> u64 {
    set_signal_mask(!0)
}

/// Sets the signal mask and returns the former one.
pub fn set_signal_mask(mask: u64) -> u64 {
    const SIG_SETMASK: usize = 2;
    let mut old = 0u64;
    // SAFETY: both masks are eight bytes, as the kernel wants them.
    let _ = unsafe {
        syscall(
            nr::RT_SIGPROCMASK,
            [SIG_SETMASK, &mask as *const u64 as usize, &mut old as *mut u64 as usize, 8, 0, 0],
        )
    };
    old
}
