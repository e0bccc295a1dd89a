//! Replacement of a function of the C library by one of the shim's.
//!
//! The library calls its own `mmap`, `munmap` and `brk` from `malloc` and `pthread_create` without
//! going through any table that a preloaded library could change. So the first bytes of the
//! function itself become a jump. The old function no longer runs, so no instruction has to be
//! moved.

use std::ffi::CStr;

use venice_memory::paged::sys::{self, nr};

use crate::c;

/// `movabs r11, address; jmp r11`: r11 is free at a function's entry (x86-64 ABI, 3.2.1).
const JUMP_BYTES: usize = 13;

/// The reason why a function could not be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchError {
    /// The C library has no such function.
    Missing,
    /// It is too short for a jump.
    TooShort,
    /// Its code cannot be made writable.
    Protected,
}

/// Makes every call of the C library's `name` a call of `replacement`.
///
/// # Errors
/// [`PatchError`]; the function is unchanged then.
///
/// # Safety
/// `replacement` must take and return the same as `name`, and no other thread may be running.
pub unsafe fn replace(name: &CStr, replacement: usize) -> Result<(), PatchError> {
    let symbol = c::libc_symbol(name).ok_or(PatchError::Missing)?;
    if symbol.len_bytes < JUMP_BYTES {
        return Err(PatchError::TooShort);
    }
    const READ_WRITE_EXEC: usize = 7;
    const READ_EXEC: usize = 5;
    let first = symbol.address & !(venice_memory::paged::PAGE - 1);
    let len = symbol.address + JUMP_BYTES - first;
    let protect = |protection| {
        // SAFETY: the range is the library's code; its protection is restored below.
        unsafe { sys::syscall(nr::MPROTECT, [first, len, protection, 0, 0, 0]) }
    };
    protect(READ_WRITE_EXEC).map_err(|_| PatchError::Protected)?;
    let mut jump = [0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3];
    jump[2..10].copy_from_slice(&replacement.to_le_bytes());
    // SAFETY: the function is at least that long, writable now, and no thread runs it.
    unsafe { std::ptr::copy_nonoverlapping(jump.as_ptr(), symbol.address as *mut u8, JUMP_BYTES) };
    protect(READ_EXEC).map_err(|_| PatchError::Protected)?;
    Ok(())
}
