//! Replacements of the C library's calls that close descriptors: the pager's stay open.
//!
//! Daemons close every descriptor they do not know. A program that closed the pager's userfaultfd
//! would lose its memory; the replaced calls return `EBADF` for it.

use std::ffi::{c_int, c_uint};

use venice_memory::paged::sys::{self, Errno, nr};
use venice_memory::paged::{Descriptors, Pager, Tether};

use crate::mappings::int_answer;
use crate::pager_instance::{pager, started};
use crate::patch;
use crate::window_calls::tether;

/// Installs the functions of this file.
///
/// # Errors
/// The name of the one that could not be replaced, and the reason.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install() -> Result<(), (&'static str, patch::PatchError)> {
    // SAFETY: each takes and returns the same as the function that it replaces.
    unsafe {
        patch::replace(c"close", close as *const () as usize).map_err(|e| ("close", e))?;
        patch::replace(c"dup2", dup2 as *const () as usize).map_err(|e| ("dup2", e))?;
        patch::replace(c"dup3", dup3 as *const () as usize).map_err(|e| ("dup3", e))?;
        patch::replace(c"close_range", close_range as *const () as usize)
            .map_err(|e| ("close_range", e))
    }
}

/// Returns the descriptors of the pager, or of the tether of a window. A process made by a bare
/// `clone` keeps them too: the program that it starts attaches by the inherited socket.
fn ours() -> Option<&'static Descriptors> {
    started().map(Pager::descriptors).or_else(|| tether().map(Tether::descriptors))
}

fn is_ours(fd: c_int) -> bool {
    ours().is_some_and(|ours| ours.contains(fd))
}

pub extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        return int_answer(Err(EBADF));
    }
    // SAFETY: what the program asked for.
    int_answer(unsafe { sys::program_syscall(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) })
}

pub extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if is_ours(new) || is_ours(old) {
        return int_answer(Err(EBADF));
    }
    // SAFETY: what the program asked for.
    int_answer(unsafe { sys::program_syscall(nr::DUP2, [old as usize, new as usize, 0, 0, 0, 0]) })
}

pub extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if is_ours(new) || is_ours(old) {
        return int_answer(Err(EBADF));
    }
    let arguments = [old as usize, new as usize, flags as usize, 0, 0, 0];
    // SAFETY: what the program asked for.
    int_answer(unsafe { sys::program_syscall(nr::DUP3, arguments) })
}

pub extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOSE_RANGE_UNSHARE: c_int = 2;
    let flags = if is_alone() { flags & !CLOSE_RANGE_UNSHARE } else { flags };
    let call = |first: c_uint, last: c_uint| {
        let arguments = [first as usize, last as usize, flags as usize, 0, 0, 0];
        // SAFETY: what the program asked for.
        unsafe { sys::program_syscall(nr::CLOSE_RANGE, arguments) }
    };
    let Some(all_ours) = ours() else { return int_answer(call(first, last)) };
    let mut from = first;
    // Between the pager's own, stretch by stretch.
    while let Some(ours) = all_ours.first_within(from, last) {
        if ours > from
            && let Err(errno) = call(from, ours - 1)
        {
            return int_answer(Err(errno));
        }
        from = ours + 1;
    }
    if from > last && from > first { 0 } else { int_answer(call(from, last)) }
}

/// Returns the flags of an `unshare(2)` without CLONE_FILES where it would do nothing for the
/// program: a table of descriptors that no other thread of the program shares stays that of the
/// pager's threads too. A fork hands descriptors from one to the other.
pub fn keep_shared_with_pager(flags: c_int) -> c_int {
    const CLONE_FILES: c_int = 0x400;
    if is_alone() { flags & !CLONE_FILES } else { flags }
}

/// True if the calling thread is the program's only one.
fn is_alone() -> bool {
    pager().is_some() && sys::program_threads() == Some(1)
}

const EBADF: Errno = Errno(9);
