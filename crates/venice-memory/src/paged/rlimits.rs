//! Limits on the resources of this process (`getrlimit(2)`).

use super::PAGE;
use super::sys::{Errno, SysResult, close, nr, open_readonly, read, syscall};

/// Soft and hard limit on a resource (`getrlimit(2)`).
pub type Limits = [u64; 2];
/// No limit (`RLIM_INFINITY`).
pub const NO_LIMIT: u64 = u64::MAX;
/// Limits on memory, in bytes: of all addresses (`RLIMIT_AS`), and of private writable memory
/// (`RLIMIT_DATA`).
pub const MEMORY_LIMITS: [usize; 2] = [9, 2];
const RLIMIT_NOFILE: usize = 7;

/// Returns the limits of this process on `resource`; no limit if there is no such resource.
pub fn get(resource: usize) -> Limits {
    let mut limits = [NO_LIMIT; 2];
    // SAFETY: the kernel writes two words.
    let _ = unsafe { syscall(nr::PRLIMIT64, [0, resource, 0, limits.as_mut_ptr() as usize, 0, 0]) };
    limits
}

/// Sets the limits of this process on `resource`.
///
/// # Errors
/// `EPERM` where the hard limit would be raised without the privilege to do so.
pub fn set(resource: usize, limits: Limits) -> SysResult<()> {
    // SAFETY: the kernel reads two words.
    unsafe { syscall(nr::PRLIMIT64, [0, resource, limits.as_ptr() as usize, 0, 0, 0]) }.map(drop)
}

/// Soft and hard limit on descriptors (`RLIMIT_NOFILE`).
pub fn descriptors() -> Limits {
    get(RLIMIT_NOFILE)
}

/// Sets the soft limit on descriptors, at most to the hard one.
pub fn set_descriptors(soft: u64) {
    let [_, hard] = descriptors();
    let _ = set(RLIMIT_NOFILE, [soft.min(hard), hard]);
}

/// Lifts the [`MEMORY_LIMITS`] as far as this process may. Returns the former ones.
pub fn lift_memory() -> [Limits; 2] {
    MEMORY_LIMITS.map(|resource| {
        let before = get(resource);
        if before[0] != NO_LIMIT && set(resource, [NO_LIMIT; 2]).is_err() {
            let _ = set(resource, [before[1]; 2]);
        }
        before
    })
}

/// Calls `work`; where it fails for want of memory, again with the [`MEMORY_LIMITS`] lifted: they
/// are for the program.
pub(super) fn beyond<T>(work: impl Fn() -> SysResult<T>) -> SysResult<T> {
    let outcome = work();
    if !matches!(outcome, Err(Errno::ENOMEM)) {
        return outcome;
    }
    let before = lift_memory();
    let outcome = work();
    for (resource, before) in MEMORY_LIMITS.into_iter().zip(before) {
        let _ = set(resource, before);
    }
    outcome
}

/// Bytes that this process has of what each of [`MEMORY_LIMITS`] counts.
pub type MemoryUse = [u64; 2];

/// Returns this process's memory (`/proc/self/statm`, `proc_pid_statm(5)`); zeros without `/proc`.
pub fn memory_use() -> MemoryUse {
    let mut text = [0u8; 128];
    let Ok(fd) = open_readonly(b"/proc/self/statm\0") else { return [0; 2] };
    let len = read(fd, &mut text).unwrap_or(0);
    close(fd);
    let pages = |field: &[u8]| {
        let digits = field.iter().filter(|byte| byte.is_ascii_digit());
        digits.fold(0u64, |value, digit| value * 10 + u64::from(digit - b'0'))
    };
    let field = |at: usize| text[..len].split(|&b| b == b' ').nth(at).map_or(0, pages);
    [field(0), field(5)].map(|pages| pages * PAGE as u64)
}
