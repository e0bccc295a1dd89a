//! Replacements of the C library's calls that change signal actions and masks, where faults are
//! served in the thread that touches the page (`venice run --faults in-thread`).
//!
//! The pager's is the only handler of `SIGBUS`, and no thread may block that signal: the kernel
//! kills a thread that touches a far page while it does. The program keeps its own settings: its
//! own handler gets every `SIGBUS` that is not the pager's, and it reads its own action back.

use std::ffi::{c_int, c_void};

use venice_memory::paged::signal::{Action, SIGBUS, SIGBUS_BIT, set_action, set_program_action};
use venice_memory::paged::sys::{self, Errno, SysResult, nr};

use crate::mappings::int_answer;
use crate::patch;

/// The C library's own signals, which no thread may block.
const LIBRARY_BITS: u64 = 1 << 31 | 1 << 32;
const SIG_BLOCK: c_int = 0;
const SIG_SETMASK: c_int = 2;
const EINVAL: Errno = Errno(22);

/// `struct sigaction` of the C library.
#[repr(C)]
struct LibraryAction {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

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
        patch::replace(c"sigaction", sigaction as *const () as usize)
            .map_err(|e| ("sigaction", e))?;
        patch::replace(c"pthread_sigmask", pthread_sigmask as *const () as usize)
            .map_err(|e| ("pthread_sigmask", e))?;
        patch::replace(c"sigprocmask", sigprocmask as *const () as usize)
            .map_err(|e| ("sigprocmask", e))
    }
}

/// `signal(3)` and similar functions come here too: the C library implements them by this one.
extern "C" fn sigaction(
    signal: c_int,
    new: Option<&LibraryAction>,
    old: Option<&mut LibraryAction>,
) -> c_int {
    let is_the_librarys = LIBRARY_BITS >> (signal.clamp(1, 64) - 1) & 1 != 0;
    if !(1..=64).contains(&signal) || is_the_librarys {
        return int_answer(Err(EINVAL));
    }
    let new = new.map(|new| Action {
        handler: new.handler,
        flags: new.flags as u32 as u64,
        restorer: 0,
        mask: new.mask[0],
    });
    let outcome = if signal == SIGBUS {
        set_program_action(new.as_ref())
    } else {
        let new = new.map(|new| Action { mask: new.mask & !SIGBUS_BIT, ..new });
        set_action(signal, new.as_ref())
    };
    if let (Ok(before), Some(old)) = (&outcome, old) {
        old.handler = before.handler;
        old.mask = [0; 16];
        old.mask[0] = before.mask;
        old.flags = before.flags as c_int;
        old.restorer = before.restorer;
    }
    int_answer(outcome.map(|_| 0))
}

extern "C" fn pthread_sigmask(how: c_int, new: Option<&u64>, old: Option<&mut u64>) -> c_int {
    change_mask(how, new, old).map_or_else(|Errno(number)| number, |()| 0)
}

extern "C" fn sigprocmask(how: c_int, new: Option<&u64>, old: Option<&mut u64>) -> c_int {
    int_answer(change_mask(how, new, old).map(|()| 0))
}

/// Changes the signal mask. The program's own masks may be far: the kernel is given copies.
fn change_mask(how: c_int, new: Option<&u64>, old: Option<&mut u64>) -> SysResult<()> {
    let keeps_open = LIBRARY_BITS | SIGBUS_BIT;
    let new = new.map(|&mask| match how {
        SIG_BLOCK | SIG_SETMASK => mask & !keeps_open,
        _ => mask,
    });
    let mut before = 0u64;
    let pointer = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let arguments =
        [how as usize, pointer.cast::<c_void>() as usize, &raw mut before as usize, 8, 0, 0];
    // SAFETY: both masks are eight bytes, as the kernel expects them.
    unsafe { sys::syscall(nr::RT_SIGPROCMASK, arguments)? };
    if let Some(old) = old {
        *old = before;
    }
    Ok(())
}
