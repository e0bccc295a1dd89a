//! Replacements of the C library's calls that tell a program how many threads it has: the links of
//! `/proc/self/task`, less the pager's threads.
//!
//! The sandboxes of browsers count them there, and end the process before a fork, a namespace or a
//! filter of system calls if it has more than one.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use venice_memory::paged::sys::{self, nr};

use crate::mappings::int_answer;
use crate::patch;

const AT_FDCWD: c_int = -100;

/// Installs the functions of this file. `stat` and `lstat` end in the C library's `fstatat`; those
/// with underscores are for programs that were built before version 2.33 of it.
///
/// # Errors
/// The name of the one that could not be replaced, and the reason.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install() -> Result<(), (&'static str, patch::PatchError)> {
    let if_any = |outcome| match outcome {
        Err(patch::PatchError::Missing) => Ok(()),
        outcome => outcome,
    };
    // SAFETY: each takes and returns the same as the function that it replaces.
    unsafe {
        if_any(patch::replace(c"fstatat", fstatat as *const () as usize))
            .map_err(|e| ("fstatat", e))?;
        if_any(patch::replace(c"statx", statx as *const () as usize)).map_err(|e| ("statx", e))?;
        if_any(patch::replace(c"__xstat", xstat as *const () as usize))
            .map_err(|e| ("__xstat", e))?;
        if_any(patch::replace(c"__fxstatat", fxstatat as *const () as usize))
            .map_err(|e| ("__fxstatat", e))
    }
}

/// `struct stat` of x86-64 (`stat(2)`), as far as it is used here.
#[repr(C)]
struct Stat {
    device: u64,
    inode: u64,
    links: u64,
    mode: u32,
}

/// `struct statx` (`statx(2)`), as far as it is used here.
#[repr(C)]
struct Statx {
    mask: u32,
    block_bytes: u32,
    attributes: u64,
    links: u32,
    user: u32,
    group: u32,
    mode: u16,
}

extern "C" fn fstatat(dir: c_int, path: *const c_char, stat: *mut c_void, flags: c_int) -> c_int {
    let arguments = [dir as isize as usize, path as usize, stat as usize, flags as usize, 0, 0];
    // SAFETY: what the program asked for.
    let outcome = unsafe { sys::program_syscall(nr::NEWFSTATAT, arguments) };
    if outcome.is_ok() {
        // SAFETY: the kernel has filled in the structure; other threads do not know it yet.
        let stat = unsafe { &mut *stat.cast::<Stat>() };
        let links = is_directory(stat.mode).then_some(stat.links as usize);
        if let Some(links) = links.and_then(|links| links_of_program(dir, path, links)) {
            stat.links = links as u64;
        }
    }
    int_answer(outcome)
}

extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    stat: *mut c_void,
) -> c_int {
    let (first, flags) = (dir as isize as usize, flags as usize);
    let arguments = [first, path as usize, flags, mask as usize, stat as usize, 0];
    // SAFETY: what the program asked for.
    let outcome = unsafe { sys::program_syscall(nr::STATX, arguments) };
    if outcome.is_ok() {
        // SAFETY: as in `fstatat`.
        let stat = unsafe { &mut *stat.cast::<Statx>() };
        let links = is_directory(stat.mode.into()).then_some(stat.links as usize);
        if let Some(links) = links.and_then(|links| links_of_program(dir, path, links)) {
            stat.links = links as u32;
        }
    }
    int_answer(outcome)
}

/// Its first argument is the version of the structure, of which x86-64 has only one layout.
extern "C" fn xstat(_: c_int, path: *const c_char, stat: *mut c_void) -> c_int {
    fstatat(AT_FDCWD, path, stat, 0)
}

extern "C" fn fxstatat(
    _: c_int,
    dir: c_int,
    path: *const c_char,
    stat: *mut c_void,
    flags: c_int,
) -> c_int {
    fstatat(dir, path, stat, flags)
}

fn is_directory(mode: u32) -> bool {
    mode & 0o170_000 == 0o040_000
}

/// Returns the links without those of the pager's threads, if the directory at `path` has a link
/// for each thread of this process.
fn links_of_program(dir: c_int, path: *const c_char, links: usize) -> Option<usize> {
    /// Links of `/proc/self/task` beside those of its threads.
    const OTHERS: usize = 2;
    if path.is_null() || links <= OTHERS + 1 {
        return None;
    }
    // SAFETY: the kernel has just found a directory by this path.
    let name = unsafe { CStr::from_ptr(path) };
    if !names_own_threads(name.to_bytes(), sys::getpid()) || !is_in_proc(dir, name) {
        return None;
    }
    Some(links.saturating_sub(sys::own_threads()).max(OTHERS + 1))
}

/// True if the path ends with `self/task` or `PID/task`.
fn names_own_threads(path: &[u8], pid: u32) -> bool {
    let mut parts = path.rsplit(|&byte| byte == b'/').filter(|part| !part.is_empty());
    if parts.next() != Some(b"task") {
        return false;
    }
    parts.next().is_some_and(|process| {
        let number = str::from_utf8(process).ok().and_then(|text| text.parse::<u32>().ok());
        process == b"self" || number == Some(pid)
    })
}

fn is_in_proc(dir: c_int, path: &CStr) -> bool {
    const O_PATH_CLOEXEC: usize = 0o10_000_000 | 0o2_000_000;
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    /// `struct statfs` (`statfs(2)`): 120 bytes, of which the first word is the type.
    type StatFs = [u64; 15];
    let mut about = StatFs::default();
    let arguments = [dir as isize as usize, path.as_ptr() as usize, O_PATH_CLOEXEC, 0, 0, 0];
    // SAFETY: a path that ends with NUL.
    let Ok(fd) = (unsafe { sys::syscall(nr::OPENAT, arguments) }) else { return false };
    // SAFETY: the structure has the size that the kernel fills in.
    let known =
        unsafe { sys::syscall(nr::FSTATFS, [fd, about.as_mut_ptr() as usize, 0, 0, 0, 0]) }.is_ok();
    sys::close(fd as i32);
    known && about[0] == PROC_SUPER_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_threads_have_two_names() {
        for path in ["/proc/self/task", "self/task/", "/proc/12/task", "//proc//12//task//"] {
            assert!(names_own_threads(path.as_bytes(), 12), "{path}");
        }
        for path in ["/proc/13/task", "task", "", "/", "/proc/self/task/12", "/proc/self/tasks"] {
            assert!(!names_own_threads(path.as_bytes(), 12), "{path}");
        }
    }
}
