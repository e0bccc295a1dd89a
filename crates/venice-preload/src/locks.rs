//! Replacements of the C library's calls that lock memory (`mlock(2)`).
//!
//! Locked memory stays resident, so there may be no more of it than the budget allows: such a call
//! fails with `ENOMEM`, as it does above `RLIMIT_MEMLOCK`. The pager's own memory is no part of what
//! the program locks or unlocks.

use std::ffi::{c_int, c_uint, c_void};

use venice_memory::paged::sys::{self, Errno, SysResult, nr};
use venice_memory::paged::{Locking, Pager};

use crate::mappings::int_answer;
use crate::pager_instance::pager;
use crate::patch;

const MLOCK_ONFAULT: c_uint = 1;
const MCL_CURRENT: c_int = 1;
const MCL_FUTURE: c_int = 2;
const MCL_ONFAULT: c_int = 4;

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
        patch::replace(c"mlock", mlock as *const () as usize).map_err(|e| ("mlock", e))?;
        patch::replace(c"mlock2", mlock2 as *const () as usize).map_err(|e| ("mlock2", e))?;
        patch::replace(c"munlock", munlock as *const () as usize).map_err(|e| ("munlock", e))?;
        patch::replace(c"mlockall", mlockall as *const () as usize).map_err(|e| ("mlockall", e))?;
        patch::replace(c"munlockall", munlockall as *const () as usize)
            .map_err(|e| ("munlockall", e))
    }
}

pub extern "C" fn mlock(addr: *mut c_void, len_bytes: usize) -> c_int {
    mlock2(addr, len_bytes, 0)
}

pub extern "C" fn mlock2(addr: *mut c_void, len_bytes: usize, flags: c_uint) -> c_int {
    let addr = addr as usize;
    let locking = match flags {
        0 => Some(Locking::Populated),
        MLOCK_ONFAULT => Some(Locking::OnFault),
        _ => None,
    };
    let outcome = match (pager(), locking) {
        (Some(pager), Some(locking)) => pager.lock_range(addr, len_bytes, locking),
        _ => ask(nr::MLOCK2, [addr, len_bytes, flags as usize]),
    };
    int_answer(outcome.map(|()| 0))
}

pub extern "C" fn munlock(addr: *mut c_void, len_bytes: usize) -> c_int {
    let addr = addr as usize;
    let outcome = match pager() {
        Some(pager) => pager.unlock_range(addr, len_bytes),
        None => ask(nr::MUNLOCK, [addr, len_bytes, 0]),
    };
    int_answer(outcome.map(|()| 0))
}

pub extern "C" fn mlockall(flags: c_int) -> c_int {
    let is_known = flags & !(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0
        && flags & (MCL_CURRENT | MCL_FUTURE) != 0;
    let outcome = match pager().filter(|_| is_known) {
        Some(pager) => lock_all(pager, flags),
        None => ask(nr::MLOCKALL, [flags as usize, 0, 0]),
    };
    int_answer(outcome.map(|()| 0))
}

fn lock_all(pager: &'static Pager, flags: c_int) -> SysResult<()> {
    let locking = if flags & MCL_ONFAULT != 0 { Locking::OnFault } else { Locking::Populated };
    if flags & MCL_CURRENT != 0 {
        pager.lock_all(locking)?;
    }
    pager.lock_future((flags & MCL_FUTURE != 0).then_some(locking));
    Ok(())
}

pub extern "C" fn munlockall() -> c_int {
    let outcome = match pager() {
        Some(pager) => pager.unlock_all(),
        None => ask(nr::MUNLOCKALL, [0; 3]),
    };
    int_answer(outcome.map(|()| 0))
}

fn ask(number: usize, [first, second, third]: [usize; 3]) -> SysResult<()> {
    // SAFETY: what the program asked for; locking changes no contents.
    unsafe { sys::program_syscall(number, [first, second, third, 0, 0, 0]) }.map(drop)
}

/// Locks a fresh mapping of the program, if it asked for that (`MCL_FUTURE`).
///
/// # Errors
/// `EAGAIN`, as the kernel's: too much memory is locked. The mapping stays as it is.
pub fn lock_new(pager: &'static Pager, addr: usize, len_bytes: usize) -> SysResult<()> {
    let Some(locking) = pager.locks_future() else { return Ok(()) };
    pager.lock_range(addr, len_bytes, locking).map_err(|_| Errno::EAGAIN)
}
