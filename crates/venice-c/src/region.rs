//! `venice_lent` and `venice_remote`.

use std::ffi::{CString, c_char};
use std::sync::Mutex;

use venice_client::Error;
use venice_client::channel::{self, LentRegion, Process, RemoteRegion};

use crate::arguments::{give, handle, items, place, room, take};
use crate::channel::{Options, address, options};
use crate::status::{Status, status_of};

/// Lent memory, and its address for C.
#[derive(Debug)]
pub struct LentHandle {
    region: LentRegion,
    address: CString,
}

/// Memory of another program; one thread at a time.
#[derive(Debug)]
pub struct RemoteHandle {
    region: Mutex<RemoteRegion>,
    process: Process,
}

impl RemoteHandle {
    fn call<T>(
        &self,
        call: impl FnOnce(&mut RemoteRegion) -> Result<T, channel::Error>,
    ) -> Result<T, Error> {
        // First: in a forked child, a thread that the child does not have may hold the lock.
        if !self.process.is_current() {
            return Err(channel::Error::Forked.into());
        }
        Ok(call(&mut self.region.lock().expect("a panic ends the process"))?)
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_lend(
    at: *const c_char,
    len_bytes: u64,
    options_pointer: *const Options,
    lent: *mut *mut LentHandle,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(lent, || {
            let region = LentRegion::bind(&address(at)?, len_bytes, &options(options_pointer)?)?;
            let address = CString::new(region.address().to_string()).unwrap_or_default();
            Ok(LentHandle { region, address })
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_lent_address(lent: *const LentHandle) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { lent.as_ref() }.map_or(c"".as_ptr(), |lent| lent.address.as_ptr())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_lent_read(
    lent: *const LentHandle,
    offset: u64,
    buffer: *mut u8,
    len_bytes: usize,
) -> Status {
    let read = || {
        // SAFETY: guaranteed by the caller.
        let (lent, into) = unsafe { (handle(lent, "lent")?, room(buffer, len_bytes, "buffer")?) };
        Ok(lent.region.read(offset, into)?)
    };
    status_of(read())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_lent_write(
    lent: *const LentHandle,
    offset: u64,
    from: *const u8,
    len_bytes: usize,
) -> Status {
    let write = || {
        // SAFETY: guaranteed by the caller.
        let (lent, from) = unsafe { (handle(lent, "lent")?, items(from, len_bytes, "bytes")?) };
        Ok(lent.region.write(offset, from)?)
    };
    status_of(write())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_lent_fetch_add(
    lent: *const LentHandle,
    offset: u64,
    add: u64,
    old: *mut u64,
) -> Status {
    let change = || {
        // SAFETY: guaranteed by the caller.
        let (lent, old) = unsafe { (handle(lent, "lent")?, place(old, "old")?) };
        *old = lent.region.fetch_add(offset, add)?;
        Ok(())
    };
    status_of(change())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_lent_compare_swap(
    lent: *const LentHandle,
    offset: u64,
    expected: u64,
    new_value: u64,
    old: *mut u64,
) -> Status {
    let change = || {
        // SAFETY: guaranteed by the caller.
        let (lent, old) = unsafe { (handle(lent, "lent")?, place(old, "old")?) };
        *old = lent.region.compare_swap(offset, expected, new_value)?;
        Ok(())
    };
    status_of(change())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_end_lent(lent: *mut LentHandle) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(lent) });
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_connect_remote(
    at: *const c_char,
    len_bytes: u64,
    options_pointer: *const Options,
    remote: *mut *mut RemoteHandle,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(remote, || {
            let options = options(options_pointer)?;
            let region = RemoteRegion::connect(&address(at)?, len_bytes, &options)?;
            let process = Process::current().map_err(|error| {
                channel::Error::System(format!("marking the process failed: {error}"))
            })?;
            Ok(RemoteHandle { region: Mutex::new(region), process })
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_remote_read(
    remote: *mut RemoteHandle,
    offset: u64,
    buffer: *mut u8,
    len_bytes: usize,
) -> Status {
    let read = || {
        // SAFETY: guaranteed by the caller.
        let (remote, into) =
            unsafe { (handle(remote, "remote")?, room(buffer, len_bytes, "buffer")?) };
        remote.call(|region| region.read(offset, into))
    };
    status_of(read())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_remote_write(
    remote: *mut RemoteHandle,
    offset: u64,
    from: *const u8,
    len_bytes: usize,
) -> Status {
    let write = || {
        // SAFETY: guaranteed by the caller.
        let (remote, from) =
            unsafe { (handle(remote, "remote")?, items(from, len_bytes, "bytes")?) };
        remote.call(|region| region.write(offset, from))
    };
    status_of(write())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_remote_fetch_add(
    remote: *mut RemoteHandle,
    offset: u64,
    add: u64,
    old: *mut u64,
) -> Status {
    let change = || {
        // SAFETY: guaranteed by the caller.
        let (remote, old) = unsafe { (handle(remote, "remote")?, place(old, "old")?) };
        *old = remote.call(|region| region.fetch_add(offset, add))?;
        Ok(())
    };
    status_of(change())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_remote_compare_swap(
    remote: *mut RemoteHandle,
    offset: u64,
    expected: u64,
    new_value: u64,
    old: *mut u64,
) -> Status {
    let change = || {
        // SAFETY: guaranteed by the caller.
        let (remote, old) = unsafe { (handle(remote, "remote")?, place(old, "old")?) };
        *old = remote.call(|region| region.compare_swap(offset, expected, new_value))?;
        Ok(())
    };
    status_of(change())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_disconnect_remote(remote: *mut RemoteHandle) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(remote) });
}
