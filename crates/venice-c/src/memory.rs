//! `venice_memory` and `venice_access`.

use venice_client::{Error, Memory, Pending, Rack};

use crate::arguments::{bytes, give, handle, room, take};
use crate::rack::{Options, options};
use crate::status::{Status, told};

/// An access under way. The bytes of a read go to C's buffer when C waits for them, by the thread
/// that waits.
#[derive(Debug)]
pub struct Access {
    pending: Pending,
    /// Null: a write.
    into: *mut u8,
    len_bytes: usize,
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_get_memory(
    rack: *const Rack,
    len_bytes: u64,
    wanted: *const Options,
    memory: *mut *mut Memory,
) -> Status {
    // SAFETY: promised.
    told(unsafe { give(memory, || handle(rack, "rack")?.get_memory(len_bytes, &options(wanted)?)) })
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_free_memory(memory: *mut Memory) {
    // SAFETY: promised.
    drop(unsafe { take(memory) });
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_len_bytes(memory: *const Memory) -> u64 {
    // SAFETY: promised.
    unsafe { memory.as_ref() }.map_or(0, Memory::len_bytes)
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_read(
    memory: *const Memory,
    offset: u64,
    buffer: *mut u8,
    len_bytes: usize,
) -> Status {
    // SAFETY: promised.
    let read =
        || unsafe { handle(memory, "memory")?.read(offset, room(buffer, len_bytes, "buffer")?) };
    told(read())
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_write(
    memory: *const Memory,
    offset: u64,
    buffer: *const u8,
    len_bytes: usize,
) -> Status {
    // SAFETY: promised.
    let write =
        || unsafe { handle(memory, "memory")?.write(offset, bytes(buffer, len_bytes, "buffer")?) };
    told(write())
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`]; `buffer` until the access was waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_read_async(
    memory: *const Memory,
    offset: u64,
    buffer: *mut u8,
    len_bytes: usize,
    access: *mut *mut Access,
) -> Status {
    let start = || {
        // SAFETY: promised; where the bytes go is checked here and used when it is waited for.
        let memory = unsafe {
            room(buffer, len_bytes, "buffer")?;
            handle(memory, "memory")?
        };
        let pending = memory.read_async(offset, vec![0; len_bytes])?;
        Ok(Access { pending, into: buffer, len_bytes })
    };
    // SAFETY: promised.
    told(unsafe { give(access, start) })
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_write_async(
    memory: *const Memory,
    offset: u64,
    buffer: *const u8,
    len_bytes: usize,
    access: *mut *mut Access,
) -> Status {
    let start = || {
        // SAFETY: promised.
        let (memory, from) =
            unsafe { (handle(memory, "memory")?, bytes(buffer, len_bytes, "buffer")?) };
        let pending = memory.write_async(offset, from.to_vec())?;
        Ok(Access { pending, into: std::ptr::null_mut(), len_bytes: 0 })
    };
    // SAFETY: promised.
    told(unsafe { give(access, start) })
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_is_over(access: *const Access) -> bool {
    // SAFETY: promised.
    unsafe { access.as_ref() }.is_none_or(|access| access.pending.is_over())
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments::take`]; the buffer of a read is still there, and nobody uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_wait(access: *mut Access) -> Status {
    let wait = || {
        // SAFETY: promised.
        let access = unsafe { take(access) };
        let access = access.ok_or_else(|| Error::Invalid("access is NULL".into()))?;
        let Access { pending, into, len_bytes } = *access;
        let came = pending.wait()?;
        if !into.is_null() {
            // SAFETY: promised.
            unsafe { room(into, len_bytes, "buffer")? }.copy_from_slice(&came);
        }
        Ok(())
    };
    told(wait())
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_flush(memory: *const Memory) -> Status {
    // SAFETY: promised.
    told(unsafe { handle(memory, "memory") }.map(Memory::flush))
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_fetch_add(
    memory: *const Memory,
    offset: u64,
    add: u64,
    old: *mut u64,
) -> Status {
    // SAFETY: promised.
    let memory = unsafe { handle(memory, "memory") };
    // SAFETY: promised.
    told(
        memory.and_then(|memory| memory.fetch_add(offset, add)).map(|was| unsafe { put(was, old) }),
    )
}

/// See the header.
///
/// # Safety
/// As in [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_compare_swap(
    memory: *const Memory,
    offset: u64,
    expected: u64,
    new_value: u64,
    old: *mut u64,
) -> Status {
    // SAFETY: promised.
    let memory = unsafe { handle(memory, "memory") };
    let swapped = memory.and_then(|memory| memory.compare_swap(offset, expected, new_value));
    // SAFETY: promised.
    told(swapped.map(|was| unsafe { put(was, old) }))
}

/// # Safety
/// As in [`crate::arguments`].
unsafe fn put(value: u64, to: *mut u64) {
    // SAFETY: promised.
    if let Some(to) = unsafe { to.as_mut() } {
        *to = value;
    }
}
