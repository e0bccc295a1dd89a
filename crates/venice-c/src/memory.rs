//! `venice_memory` and `venice_access`.

use venice_client::{Error, Memory, Pending, Rack};

use crate::arguments::{give, handle, items, room, take};
use crate::rack::{Options, options};
use crate::status::{Status, status_of};

/// An outstanding access. The thread that waits for a read copies its bytes to C's buffer.
#[derive(Debug)]
pub struct Access {
    pending: Pending,
    /// Null for a write.
    into: *mut u8,
    len_bytes: usize,
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_get_memory(
    rack: *const Rack,
    len_bytes: u64,
    wanted: *const Options,
    memory: *mut *mut Memory,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(memory, || handle(rack, "rack")?.get_memory(len_bytes, &options(wanted)?))
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_free_memory(memory: *mut Memory) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(memory) });
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_len_bytes(memory: *const Memory) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { memory.as_ref() }.map_or(0, Memory::len_bytes)
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_read(
    memory: *const Memory,
    offset: u64,
    buffer: *mut u8,
    len_bytes: usize,
) -> Status {
    // SAFETY: guaranteed by the caller.
    let read =
        || unsafe { handle(memory, "memory")?.read(offset, room(buffer, len_bytes, "buffer")?) };
    status_of(read())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_write(
    memory: *const Memory,
    offset: u64,
    buffer: *const u8,
    len_bytes: usize,
) -> Status {
    // SAFETY: guaranteed by the caller.
    let write =
        || unsafe { handle(memory, "memory")?.write(offset, items(buffer, len_bytes, "buffer")?) };
    status_of(write())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`]; `buffer` until the access was waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_read_async(
    memory: *const Memory,
    offset: u64,
    buffer: *mut u8,
    len_bytes: usize,
    access: *mut *mut Access,
) -> Status {
    let start = || {
        // SAFETY: guaranteed by the caller; the destination of the bytes is checked here and used
        // at the wait.
        let memory = unsafe {
            room(buffer, len_bytes, "buffer")?;
            handle(memory, "memory")?
        };
        let pending = memory.read_async(offset, vec![0; len_bytes])?;
        Ok(Access { pending, into: buffer, len_bytes })
    };
    // SAFETY: guaranteed by the caller.
    status_of(unsafe { give(access, start) })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_write_async(
    memory: *const Memory,
    offset: u64,
    buffer: *const u8,
    len_bytes: usize,
    access: *mut *mut Access,
) -> Status {
    let start = || {
        // SAFETY: guaranteed by the caller.
        let (memory, from) =
            unsafe { (handle(memory, "memory")?, items(buffer, len_bytes, "buffer")?) };
        let pending = memory.write_async(offset, from.to_vec())?;
        Ok(Access { pending, into: std::ptr::null_mut(), len_bytes: 0 })
    };
    // SAFETY: guaranteed by the caller.
    status_of(unsafe { give(access, start) })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_is_over(access: *const Access) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { access.as_ref() }.is_none_or(|access| access.pending.is_over())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`]; the buffer of a read still exists and is not in
/// use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_wait(access: *mut Access) -> Status {
    let wait = || {
        // SAFETY: guaranteed by the caller.
        let access = unsafe { take(access) };
        let access = access.ok_or_else(|| Error::Invalid("access is NULL".into()))?;
        let Access { pending, into, len_bytes } = *access;
        let came = pending.wait()?;
        if !into.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { room(into, len_bytes, "buffer")? }.copy_from_slice(&came);
        }
        Ok(())
    };
    status_of(wait())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_flush(memory: *const Memory) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe { handle(memory, "memory") }.map(Memory::flush))
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_fetch_add(
    memory: *const Memory,
    offset: u64,
    add: u64,
    old: *mut u64,
) -> Status {
    // SAFETY: guaranteed by the caller.
    let memory = unsafe { handle(memory, "memory") };
    // SAFETY: guaranteed by the caller.
    status_of(
        memory.and_then(|memory| memory.fetch_add(offset, add)).map(|was| unsafe { put(was, old) }),
    )
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_compare_swap(
    memory: *const Memory,
    offset: u64,
    expected: u64,
    new_value: u64,
    old: *mut u64,
) -> Status {
    // SAFETY: guaranteed by the caller.
    let memory = unsafe { handle(memory, "memory") };
    let swapped = memory.and_then(|memory| memory.compare_swap(offset, expected, new_value));
    // SAFETY: guaranteed by the caller.
    status_of(swapped.map(|was| unsafe { put(was, old) }))
}

/// Stores `value` at `to`, unless that is null.
///
/// # Safety
/// The requirements of [`crate::arguments`].
unsafe fn put(value: u64, to: *mut u64) {
    // SAFETY: guaranteed by the caller.
    if let Some(to) = unsafe { to.as_mut() } {
        *to = value;
    }
}
