//! Replacements of the C library's calls that move the process to other namespaces.
//!
//! The kernel lets only a process of one thread enter a user namespace (`EINVAL` else), so the
//! pager's threads pause meanwhile.

use std::ffi::c_int;

use venice_memory::paged::sys::{self, Errno, SysResult, nr};

use crate::mappings::int_answer;
use crate::pager_instance::pager;
use crate::{descriptors, patch};

const CLONE_VM: c_int = 0x100;
const CLONE_SIGHAND: c_int = 0x800;
const CLONE_THREAD: c_int = 0x1_0000;
const CLONE_NEWUSER: c_int = 0x1000_0000;
/// Flags that `unshare` grants to a process of one thread only.
const ALONE: c_int = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_NEWUSER;
const EINVAL: Errno = Errno::EINVAL;

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
        patch::replace(c"unshare", unshare as *const () as usize).map_err(|e| ("unshare", e))?;
        patch::replace(c"setns", setns as *const () as usize).map_err(|e| ("setns", e))
    }
}

/// `unshare(2)`.
pub extern "C" fn unshare(flags: c_int) -> c_int {
    int_answer(try_unshare(descriptors::keep_shared_with_pager(flags)))
}

/// `setns(2)`.
pub extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    int_answer(try_setns(fd, kind))
}

/// Unshares the user namespace first, which is the order of the kernel: a process that has unshared
/// its PID namespace can start no threads, the pager's included.
fn try_unshare(flags: c_int) -> SysResult<usize> {
    let call = |flags: c_int| {
        // SAFETY: changes no memory.
        unsafe { sys::program_syscall(nr::UNSHARE, [flags as usize, 0, 0, 0, 0, 0]) }
    };
    let Some(pager) = pager().filter(|_| flags & ALONE != 0) else { return call(flags) };
    pager.without_threads(|| call(flags & ALONE))??;
    match flags & !ALONE {
        0 => Ok(0),
        rest => call(rest),
    }
}

fn try_setns(fd: c_int, kind: c_int) -> SysResult<usize> {
    let call = || {
        // SAFETY: changes no memory.
        unsafe { sys::program_syscall(nr::SETNS, [fd as usize, kind as usize, 0, 0, 0, 0]) }
    };
    match (call(), pager()) {
        // The kernel's answer to several threads.
        (Err(EINVAL), Some(pager)) => pager.without_threads(call)?,
        (outcome, _) => outcome,
    }
}
