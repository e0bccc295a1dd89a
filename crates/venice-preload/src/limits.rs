//! Replacements of the calls that set and read limits on the program's memory (`RLIMIT_AS`,
//! `RLIMIT_DATA`).
//!
//! The kernel counts the pager's memory too, most of it addresses that are only reserved. So the
//! limits that the kernel gets are higher by as much as the pager took at its start, and the program
//! reads back its own. The processes of a run inherit such limits from the first one.

use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use venice_memory::paged::rlimits::{self, Limits, MEMORY_LIMITS, MemoryUse, NO_LIMIT};
use venice_memory::paged::run_block::RunBlock;
use venice_memory::paged::sys::{self, nr};

use crate::heap::HEAP_BYTES;
use crate::mappings::int_answer;
use crate::{patch, program_memory};

/// Bytes by which each of [`MEMORY_LIMITS`] is higher for the kernel.
static PADS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The state of the process before the pager starts.
pub struct Before {
    limits: [Limits; 2],
    used: MemoryUse,
}

/// Lifts the limits, as far as this process may, for the start of the pager.
pub fn lift() -> Before {
    Before { used: rlimits::memory_use(), limits: rlimits::lift_memory() }
}

impl Before {
    /// Sets the limits again, with room for the pager's memory.
    pub fn restore(self, block: &RunBlock) {
        let now = rlimits::memory_use();
        for (at, resource) in MEMORY_LIMITS.into_iter().enumerate() {
            // The shim's heap was there before.
            let own_bytes = (now[at] + HEAP_BYTES as u64).saturating_sub(self.used[at]);
            let first = block.limit_pads[at].compare_exchange(
                0,
                own_bytes,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            let pad_bytes = first.map_or_else(|others| others, |_| own_bytes);
            PADS[at].store(pad_bytes, Ordering::Relaxed);
            let limits = self.limits[at];
            let limits = if first.is_ok() { raised(limits, pad_bytes) } else { limits };
            // Without the privilege to raise the hard limit, the program gets what is left of it.
            let hard = rlimits::get(resource)[1];
            let _ = rlimits::set(resource, limits.map(|limit| limit.min(hard)));
        }
    }
}

/// Returns the text of an error of the start, with a remedy if the limit on addresses, which could
/// not be lifted, may be the cause.
pub fn with_remedy(error: impl std::fmt::Display) -> String {
    let [address_limit, _] = rlimits::get(MEMORY_LIMITS[0]);
    match address_limit {
        NO_LIMIT => error.to_string(),
        bytes => format!(
            "{error}: raise the hard limit on addresses (`ulimit -H -v`), {} KiB, or set it inside \
             the run",
            bytes >> 10
        ),
    }
}

/// Installs the functions of this file.
///
/// # Errors
/// The name of the one that could not be replaced, and the reason.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install() -> Result<(), (&'static str, patch::PatchError)> {
    // SAFETY: each takes and returns the same as the function that it replaces. The C library's
    // variants for 64 bits are the same functions.
    unsafe {
        patch::replace(c"setrlimit", setrlimit as *const () as usize)
            .map_err(|e| ("setrlimit", e))?;
        patch::replace(c"getrlimit", getrlimit as *const () as usize)
            .map_err(|e| ("getrlimit", e))?;
        patch::replace(c"prlimit", prlimit as *const () as usize).map_err(|e| ("prlimit", e))
    }
}

pub extern "C" fn setrlimit(resource: c_int, new: *const Limits) -> c_int {
    prlimit(0, resource, new, null_mut())
}

pub extern "C" fn getrlimit(resource: c_int, old: *mut Limits) -> c_int {
    prlimit(0, resource, null(), old)
}

/// The kernel writes the former limits to where the program wants them: browsers find out by its
/// EFAULT if memory is write-protected.
pub extern "C" fn prlimit(
    pid: c_int,
    resource: c_int,
    new: *const Limits,
    old: *mut Limits,
) -> c_int {
    let pad_bytes = pad_of(resource);
    let padded = match pad_bytes {
        0 => None,
        _ if new.is_null() => None,
        // SAFETY: limits are numbers.
        _ => match unsafe { program_memory::read(new) } {
            Ok(limits) => Some(raised(limits, pad_bytes)),
            Err(errno) => return int_answer(Err(errno)),
        },
    };
    let new = padded.as_ref().map_or(new, |padded| padded);
    let arguments = [pid as usize, resource as usize, new as usize, old as usize, 0, 0];
    // SAFETY: what the program asked for.
    let outcome = unsafe { sys::program_syscall(nr::PRLIMIT64, arguments) };
    if outcome.is_ok() && pad_bytes > 0 && !old.is_null() {
        // SAFETY: the kernel has just written there.
        let old = unsafe { &mut *old };
        *old = old.map(|limit| match limit {
            NO_LIMIT => NO_LIMIT,
            limit => limit.saturating_sub(pad_bytes),
        });
    }
    int_answer(outcome)
}

fn pad_of(resource: c_int) -> u64 {
    let at = MEMORY_LIMITS.iter().position(|it| *it == resource as usize);
    at.map_or(0, |at| PADS[at].load(Ordering::Relaxed))
}

/// Raises finite limits.
fn raised(limits: Limits, bytes: u64) -> Limits {
    limits.map(|limit| match limit {
        NO_LIMIT => NO_LIMIT,
        limit => limit.saturating_add(bytes).min(NO_LIMIT - 1),
    })
}
