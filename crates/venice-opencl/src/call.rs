//! The border to C: results become codes, values go where the program wants them.

use std::ffi::{CStr, c_char, c_void};

use opencl_sys::{CL_INVALID_VALUE, CL_SUCCESS, cl_int, cl_uint};
use venice_accel::opencl::session::SessionError;

use crate::gate;

/// Outcome of a call: nothing, or an error code of `cl.h`.
pub type Done<T = ()> = Result<T, cl_int>;

/// Returns the code of a call.
pub fn code(call: impl FnOnce() -> Done) -> cl_int {
    let _pass = gate::enter();
    call().err().unwrap_or(CL_SUCCESS)
}

/// Returns the object of a call, and stores its code.
///
/// # Safety
/// `stored` is null or valid for a write.
pub unsafe fn made(stored: *mut cl_int, make: impl FnOnce() -> Done<*mut c_void>) -> *mut c_void {
    let _pass = gate::enter();
    let (object, code) = match make() {
        Ok(object) => (object, CL_SUCCESS),
        Err(code) => (std::ptr::null_mut(), code),
    };
    if !stored.is_null() {
        // SAFETY: promised by the caller.
        unsafe { stored.write(code) };
    }
    object
}

/// Destination of a value: room, place, and place of the needed length.
#[derive(Clone, Copy)]
pub struct Out {
    pub room: usize,
    pub value: *mut c_void,
    pub needed: *mut usize,
}

impl Out {
    /// Stores a value.
    ///
    /// # Safety
    /// The places are null or valid for as much as the specification says.
    pub unsafe fn put(self, bytes: &[u8]) -> Done {
        if !self.value.is_null() {
            if self.room < bytes.len() {
                return Err(CL_INVALID_VALUE);
            }
            // SAFETY: promised by the caller; the length is checked.
            unsafe {
                self.value.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
        }
        if !self.needed.is_null() {
            // SAFETY: promised by the caller.
            unsafe { self.needed.write(bytes.len()) };
        }
        Ok(())
    }

    /// Stores a text with its terminating zero.
    ///
    /// # Safety
    /// Same as [`Out::put`].
    pub unsafe fn put_text(self, text: &str) -> Done {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        // SAFETY: promised by the caller.
        unsafe { self.put(&bytes) }
    }

    /// Stores a number, a handle, or an array of them.
    ///
    /// # Safety
    /// Same as [`Out::put`]; `T` has no padding.
    pub unsafe fn put_plain<T: Copy>(self, value: &[T]) -> Done {
        // SAFETY: plain values without padding may be seen as bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts(value.as_ptr().cast::<u8>(), std::mem::size_of_val(value))
        };
        // SAFETY: promised by the caller.
        unsafe { self.put(bytes) }
    }
}

/// Stores a value if there is a place for it.
///
/// # Safety
/// `place` is null or valid for a write.
pub unsafe fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: promised by the caller.
        unsafe { place.write(value) };
    }
}

/// Returns an array of the program; empty for length 0.
///
/// # Safety
/// `first` is null or points to so many values, valid as long as the result is used.
pub unsafe fn array<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if count == 0 || first.is_null() {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// Returns the three numbers of an origin or a region.
///
/// # Safety
/// `first` is null or points to three values.
pub unsafe fn three(first: *const usize) -> Done<[u64; 3]> {
    // SAFETY: promised by the caller.
    match unsafe { array(first, if first.is_null() { 0 } else { 3 }) } {
        [x, y, z] => Ok([*x as u64, *y as u64, *z as u64]),
        _ => Err(CL_INVALID_VALUE),
    }
}

/// Returns a list of properties as it stands, with the 0 that ends it; empty for null. `take` checks
/// each name and value, and ends the reading by an error.
///
/// # Errors
/// The first error of `take`.
///
/// # Safety
/// `list` is null, or names with a value each, and a 0 behind them.
pub unsafe fn properties<T: Copy + Default + PartialEq>(
    list: *const T,
    mut take: impl FnMut(T, T) -> Done,
) -> Done<Vec<T>> {
    let mut properties = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: not beyond the 0 that ends the list.
        let name = unsafe { at.read() };
        properties.push(name);
        if name == T::default() {
            break;
        }
        // SAFETY: each name has a value.
        let value = unsafe { at.add(1).read() };
        properties.push(value);
        take(name, value)?;
        // SAFETY: behind the value the list goes on.
        at = unsafe { at.add(2) };
    }
    Ok(properties)
}

/// Returns a text of the program; empty for null.
///
/// # Safety
/// `text` is null or a terminated string.
pub unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Checks a list and its length: both or none.
pub fn check_list<T>(count: cl_uint, first: *const T, wrong: cl_int) -> Done {
    if (count == 0) == first.is_null() { Ok(()) } else { Err(wrong) }
}

/// Returns the code of a session's error.
pub fn session_code(error: SessionError) -> cl_int {
    match error {
        SessionError::Lost(_) => opencl_sys::CL_DEVICE_NOT_AVAILABLE,
        SessionError::Refused(_) => opencl_sys::CL_OUT_OF_RESOURCES,
        SessionError::NoRoom { .. } => opencl_sys::CL_MEM_OBJECT_ALLOCATION_FAILURE,
        SessionError::Forked => opencl_sys::CL_INVALID_OPERATION,
    }
}
