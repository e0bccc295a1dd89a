//! Conversion of pointers from C. The C caller guarantees for all of them: they are null, or point
//! to what the header requires, which stays valid and unchanged (except by the call) until the call
//! returns.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use venice_client::Error;

fn invalid(what: &str) -> Error {
    Error::Invalid(format!("{what} is NULL"))
}

/// Returns the value behind a handle.
///
/// # Safety
/// The requirements of the module.
pub unsafe fn handle<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(what))
}

/// Returns the destination of a result.
///
/// # Safety
/// The requirements of the module; nothing else uses it meanwhile.
pub unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Error> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_mut() }.ok_or_else(|| invalid(what))
}

/// Stores a new handle at its destination.
///
/// # Safety
/// The requirements of the module.
pub unsafe fn give<T>(
    to: *mut *mut T,
    made: impl FnOnce() -> Result<T, Error>,
) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    let to = unsafe { place(to, "the place for the handle") }?;
    *to = std::ptr::null_mut();
    *to = Box::into_raw(Box::new(made()?));
    Ok(())
}

/// Takes back a handle made by [`give`]; null is ignored.
///
/// # Safety
/// It has not been taken back before, and is not in use.
pub unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: guaranteed by the caller.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// Returns items to read; an empty range may be at null.
///
/// # Safety
/// The requirements of the module.
pub unsafe fn items<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Error> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid(what)),
        // SAFETY: guaranteed by the caller.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// Returns bytes to fill; an empty range may be at null.
///
/// # Safety
/// The requirements of the module; nothing else uses them meanwhile.
pub unsafe fn room<'a>(pointer: *mut u8, len: usize, what: &str) -> Result<&'a mut [u8], Error> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(invalid(what)),
        // SAFETY: guaranteed by the caller.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) }),
    }
}

/// Converts the longest wait of a call in milliseconds; −1: without limit.
pub fn timeout(timeout_ms: i64) -> Result<Option<Duration>, Error> {
    match timeout_ms {
        -1 => Ok(None),
        _ => u64::try_from(timeout_ms).map(|ms| Some(Duration::from_millis(ms))).map_err(|_| {
            Error::Invalid(format!("invalid time-out {timeout_ms}: -1, without limit, or more"))
        }),
    }
}

/// Returns a text; `None` for null.
///
/// # Safety
/// The requirements of the module.
pub unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Error> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map(Some).map_err(|_| Error::Invalid(format!("{what} is not UTF-8")))
}
