//! Threads of the pager, made by a bare `clone(2)`.
//!
//! `pthread_create` would take its tables from the program's own `malloc`, that is from memory that
//! this very thread is to page in. These threads use no memory of the C library: a small block
//! stands in for thread-local storage, and all signals stay blocked, so that the program's handlers
//! never run here.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::sys::{self, Errno, SysResult, nr};

/// Threads made by [`spawn`] that have not ended.
static OWN_THREADS: AtomicUsize = AtomicUsize::new(0);

const STACK_BYTES: usize = 512 * 1024;
/// Memory under the stack that may not be touched: a stack that is too short ends the process.
const GUARD_BYTES: usize = 4096;
/// Room under the thread pointer for initial-exec variables of the loaded libraries (`errno` among
/// them), in case one is written.
const TLS_BYTES: usize = 64 * 1024;
/// Length of a thread's memory: guard, stack, and thread-local storage.
const MEMORY_BYTES: usize = GUARD_BYTES + STACK_BYTES + TLS_BYTES;

/// A thread that was started.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    id: u32,
    /// Its guard, its stack and its thread-local storage.
    memory: usize,
}

impl Thread {
    /// Waits until the thread has ended and the kernel no longer counts it, and frees its memory.
    pub fn join(self) {
        const ESRCH: Errno = Errno(3);
        const LOOK_EVERY_NS: u64 = 50_000;
        let never = AtomicU32::new(0);
        let arguments = [sys::getpid() as usize, self.id as usize, 0, 0, 0, 0];
        // SAFETY: signal 0 checks if the thread is there.
        while unsafe { sys::syscall(nr::TGKILL, arguments) } != Err(ESRCH) {
            sys::futex_wait(&never, 0, Some(LOOK_EVERY_NS), false);
        }
        // SAFETY: the thread that used it has ended.
        unsafe { sys::unmap(self.memory as *mut _, MEMORY_BYTES) };
    }
}

/// Starts a thread that runs `body(argument)` and never returns. `argument` is a plain number:
/// usually the address of something that lives as long as the process.
///
/// # Errors
/// The kernel's: out of memory, too many threads; `EINVAL` after `unshare(CLONE_NEWPID)`, when only
/// children can be made.
pub fn spawn(body: extern "C" fn(usize) -> !, argument: usize) -> SysResult<Thread> {
    spawn_in(map_memory()?, body, argument)
}

/// Maps the memory of a thread that is to start later, at a time when the program may be about to
/// map at a fixed address that is free now.
///
/// # Errors
/// `ENOMEM`.
pub fn map_memory() -> SysResult<usize> {
    let memory = sys::map_private(MEMORY_BYTES)? as usize;
    sys::forbid(memory, GUARD_BYTES);
    Ok(memory)
}

/// Starts a thread as [`spawn`] does, in memory of [`map_memory`], which it frees where it fails.
///
/// # Errors
/// The errors of [`spawn`].
pub fn spawn_in(
    memory: usize,
    body: extern "C" fn(usize) -> !,
    argument: usize,
) -> SysResult<Thread> {
    // Not FS: `setns(2)` refuses another mount namespace to a program that shares its root and
    // working directory, and these threads keep their /proc when the program changes its root.
    const CLONE_FLAGS: usize = 0x100 // VM
        | 0x400 // FILES
        | 0x800 // SIGHAND
        | 0x10000 // THREAD
        | 0x40000 // SYSVSEM
        | 0x80000; // SETTLS
    let tls = memory + MEMORY_BYTES - 4096;
    // SAFETY: the thread pointer's block lies within the fresh mapping: its first word (and, for
    // the C library, its third) points to itself, as the x86-64 ABI has it.
    unsafe {
        *(tls as *mut usize) = tls;
        *((tls + 16) as *mut usize) = tls;
    }
    let stack_top = memory + GUARD_BYTES + STACK_BYTES - 64;
    // SAFETY: the stack lies within the fresh mapping; the child takes both words off it.
    unsafe {
        *(stack_top as *mut usize) = argument;
        *((stack_top + 8) as *mut usize) = body as usize;
    }
    let mask = sys::block_signals();
    let ret: isize;
    // SAFETY: the child starts on its own stack, calls `body`, which never returns; the parent
    // goes on with the result in rax.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rdi",
            "pop rax",
            "and rsp, -16",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") nr::CLONE as isize => ret,
            in("rdi") CLONE_FLAGS, in("rsi") stack_top, in("rdx") 0, in("r10") 0,
            in("r8") tls,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    sys::set_signal_mask(mask);
    if ret < 0 {
        // SAFETY: mapped above, and no thread has it as its stack.
        unsafe { sys::unmap(memory as *mut _, MEMORY_BYTES) };
        return Err(Errno(-ret as i32));
    }
    // Counted last: a thread too many must not make the program's look ended.
    OWN_THREADS.fetch_add(1, Ordering::Relaxed);
    Ok(Thread { id: ret as u32, memory })
}

/// Gives the calling thread a descriptor table of its own that holds only `fd`: the program cannot
/// close it there.
///
/// # Errors
/// The kernel's: no memory.
pub fn keep_only(fd: i32) -> SysResult<()> {
    const CLOSE_RANGE_UNSHARE: usize = 2;
    let (fd, most) = (fd as usize, u32::MAX as usize);
    // SAFETY: the table is a copy from here on, used by this thread alone.
    unsafe {
        sys::syscall(nr::CLOSE_RANGE, [fd + 1, most, CLOSE_RANGE_UNSHARE, 0, 0, 0])?;
        if fd > 0 {
            sys::syscall(nr::CLOSE_RANGE, [0, fd - 1, 0, 0, 0, 0])?;
        }
    }
    Ok(())
}

/// Ends the calling thread, which [`spawn`] made; its stack stays.
pub fn exit() -> ! {
    OWN_THREADS.fetch_sub(1, Ordering::Relaxed);
    loop {
        // SAFETY: other threads use nothing of it but its stack.
        let _ = unsafe { sys::syscall(nr::EXIT, [0; 6]) };
    }
}

/// Forgets the threads of the parent, in the child of a fork.
pub fn forget_own_threads() {
    OWN_THREADS.store(0, Ordering::Relaxed);
}

/// Returns the number of the pager's threads in this process.
pub fn own_threads() -> usize {
    OWN_THREADS.load(Ordering::Relaxed)
}

/// Returns the number of threads that are the program's, one that has ended as the first of its
/// process included. `None`: `/proc` is not there.
pub fn program_threads() -> Option<usize> {
    let fd = sys::open_readonly(PROCESS_STAT).ok()?;
    let threads = ThreadCount::read(fd);
    sys::close(fd);
    Some(threads?.program)
}

/// The path of the process's `stat` (`proc_pid_stat(5)`).
pub const PROCESS_STAT: &[u8] = b"/proc/self/stat\0";

/// The threads of the process that are the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadCount {
    /// Their number.
    pub program: usize,
    /// The exit code of the first thread of the process, if it has ended; it counts as a thread
    /// until the last one ends.
    pub first_ended: Option<usize>,
}

impl ThreadCount {
    /// Reads it from an open [`PROCESS_STAT`].
    pub fn read(fd: i32) -> Option<ThreadCount> {
        let mut text = [0u8; 1024];
        let len = sys::pread(fd, 0, &mut text).ok()?;
        // The threads of a child without a pager of its own are not counted.
        ThreadCount::of(&text[..len], own_threads())
    }

    /// The exit code of the program, if none of its threads is left.
    pub fn exit_code(self) -> Option<usize> {
        self.first_ended.filter(|_| self.program == 1)
    }

    fn of(stat: &[u8], own_threads: usize) -> Option<ThreadCount> {
        let fields = || fields_of(stat);
        let threads = number(fields()?.nth(17)?)?;
        let has_ended = fields()?.next()? == b"Z";
        let status = number(fields()?.nth(49)?.trim_ascii_end())?;
        let first_ended = has_ended.then_some(status >> 8 & 0xff);
        Some(ThreadCount { program: threads.checked_sub(own_threads)?, first_ended })
    }
}

/// The fields of a `stat` after the name, from the third on.
fn fields_of(stat: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let after_name = stat.iter().rposition(|&b| b == b')')? + 2;
    Some(stat.get(after_name..)?.split(|&b| b == b' '))
}

fn number(field: &[u8]) -> Option<usize> {
    field.iter().try_fold(0usize, |value, &digit| {
        digit.is_ascii_digit().then(|| value * 10 + (digit - b'0') as usize)
    })
}

/// Returns a number of the calling thread that no other thread of the process has at the same time:
/// its thread pointer, folded. It is not the thread id, which costs a system call.
pub fn this_one() -> u32 {
    let pointer: usize;
    // SAFETY: the thread pointer's first word points to itself (x86-64 ABI).
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    // Each thread owns at least 64 bytes.
    (pointer >> 6) as u32
}

/// Returns the processor that `thread` last ran on: the 39th field of its `stat` (`proc(5)`).
pub fn processor_of(thread: u32) -> Option<usize> {
    let mut path = *b"/proc/self/task/0000000000/stat\0";
    let mut rest = thread;
    for digit in path[16..26].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let first = path[16..26].iter().position(|&b| b != b'0')?;
    path.copy_within(16 + first.., 16);
    let end = path.iter().position(|&b| b == 0)?;
    let fd = sys::open_readonly(&path[..=end]).ok()?;
    let mut text = [0u8; 512];
    let len = sys::pread(fd, 0, &mut text);
    sys::close(fd);
    number(fields_of(&text[..len.ok()?])?.nth(36)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn raise(word: usize) -> ! {
        // SAFETY: the test passes the address of a static word.
        let word = unsafe { &*(word as *const AtomicU32) };
        word.store(7, Ordering::Release);
        sys::futex_wake(word, 1, false);
        loop {
            sys::futex_wait(word, 7, None, false);
        }
    }

    #[test]
    fn spawned_thread_shares_memory() {
        static WORD: AtomicU32 = AtomicU32::new(0);
        spawn(raise, &raw const WORD as usize).unwrap();
        for _ in 0..1000 {
            sys::futex_wait(&WORD, 0, Some(10_000_000), false);
            if WORD.load(Ordering::Acquire) == 7 {
                return;
            }
        }
        panic!("the thread never ran");
    }

    extern "C" fn end(_: usize) -> ! {
        exit()
    }

    #[test]
    fn joined_thread_is_gone() {
        let thread = spawn(end, 0).unwrap();
        thread.join();
        let task = format!("/proc/self/task/{}", thread.id);
        assert!(!std::path::Path::new(&task).exists());
    }

    #[test]
    fn ended_first_thread_is_seen() {
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        let zeros = "0 ".repeat(31);
        let stat = format!("77 (a) b) Z {rest} 3 {zeros}1792\n");
        let count = ThreadCount::of(stat.as_bytes(), 2);
        assert_eq!(count.and_then(ThreadCount::exit_code), Some(7));
        let running = stat.replace(") Z ", ") S ");
        let count = ThreadCount::of(running.as_bytes(), 1);
        assert_eq!(count, Some(ThreadCount { program: 2, first_ended: None }));
        let with_another = ThreadCount { program: 2, first_ended: Some(7) };
        assert_eq!(with_another.exit_code(), None);
    }

    #[test]
    fn processor_is_read_from_proc() {
        let cpu = processor_of(sys::getpid()).expect("the main thread is there");
        assert!(cpu < 4096);
    }
}
