//! Replacement of the C library's `_exit`, to which all its ends of a process come: the supervisor
//! looks at the process once more before it ends.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use venice_memory::paged::sys;

use crate::pager_instance::pager;
use crate::patch;

/// The id of this process: the child of a `vfork` runs in its parent's memory, with another.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Installs the function of this file.
///
/// # Errors
/// Its name, and the reason why it could not be replaced.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install() -> Result<(), (&'static str, patch::PatchError)> {
    remember_process();
    // SAFETY: it takes the same as the function that it replaces, and returns as little.
    unsafe { patch::replace(c"_exit", exit as *const () as usize).map_err(|e| ("_exit", e)) }
}

/// Remembers the id of this process: at the start, and in the child of a fork.
pub fn remember_process() {
    PROCESS.store(sys::getpid(), Ordering::Relaxed);
}

extern "C" fn exit(status: c_int) -> ! {
    if PROCESS.load(Ordering::Relaxed) == sys::getpid()
        && let Some(pager) = pager()
    {
        pager.wait_for_last_look();
    }
    sys::exit(status as usize)
}
