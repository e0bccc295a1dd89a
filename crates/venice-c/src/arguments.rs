//! Pointers from C, taken over. What C promises for all of them: they are null, or point to what
//! the header says, which stays there and unchanged (but by the call) until the call returns.

use std::ffi::{CStr, c_char};

use venice_client::Error;

fn invalid(what: &str) -> Error {
    Error::Invalid(format!("{what} is NULL"))
}

/// A handle.
///
/// # Safety
/// See above.
pub unsafe fn handle<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: promised.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(what))
}

/// A place that a result goes to.
///
/// # Safety
/// See above; nobody else uses it meanwhile.
pub unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Error> {
    // SAFETY: promised.
    unsafe { pointer.as_mut() }.ok_or_else(|| invalid(what))
}

/// Puts a new handle where C wants it.
///
/// # Safety
/// See above.
pub unsafe fn give<T>(
    to: *mut *mut T,
    made: impl FnOnce() -> Result<T, Error>,
) -> Result<(), Error> {
    // SAFETY: promised.
    let to = unsafe { place(to, "the place for the handle") }?;
    *to = std::ptr::null_mut();
    *to = Box::into_raw(Box::new(made()?));
    Ok(())
}

/// Takes a handle back that [`give`] made; null is nothing.
///
/// # Safety
/// It has not been taken back before, and nobody uses it.
pub unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: promised.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// Bytes to be read; no bytes may be at null.
///
/// # Safety
/// See above.
pub unsafe fn bytes<'a>(pointer: *const u8, len: usize, what: &str) -> Result<&'a [u8], Error> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid(what)),
        // SAFETY: promised.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// Bytes to be filled; no bytes may be at null.
///
/// # Safety
/// See above; nobody else uses them meanwhile.
pub unsafe fn room<'a>(pointer: *mut u8, len: usize, what: &str) -> Result<&'a mut [u8], Error> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(invalid(what)),
        // SAFETY: promised.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) }),
    }
}

/// A text; `None` for null.
///
/// # Safety
/// See above.
pub unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Error> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: promised.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str();
    text.map(Some).map_err(|_| Error::Invalid(format!("{what} is not UTF-8")))
}
