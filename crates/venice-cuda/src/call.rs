//! Codes of the driver API, and how functions are exported.

use venice_accel::stream::SessionError;

/// Result of a call, as C has it.
pub type Code = i32;
/// Result of a call.
pub type Done<T = ()> = Result<T, Code>;

pub const SUCCESS: Code = 0;
pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const NOT_INITIALIZED: Code = 3;
pub const DEVICE_UNAVAILABLE: Code = 46;
pub const NO_DEVICE: Code = 100;
pub const INVALID_DEVICE: Code = 101;
pub const INVALID_IMAGE: Code = 200;
pub const INVALID_CONTEXT: Code = 201;
pub const UNSUPPORTED_LIMIT: Code = 215;
pub const PEER_ACCESS_UNSUPPORTED: Code = 217;
pub const FILE_NOT_FOUND: Code = 301;
pub const INVALID_HANDLE: Code = 400;
pub const NOT_FOUND: Code = 500;
pub const NOT_READY: Code = 600;
pub const PEER_ACCESS_NOT_ENABLED: Code = 705;
pub const NOT_PERMITTED: Code = 800;
pub const NOT_SUPPORTED: Code = 801;
pub const UNKNOWN: Code = 999;

/// True for errors that all later calls return: the kernels of the context have failed.
pub fn is_sticky(code: Code) -> bool {
    matches!(code, DEVICE_UNAVAILABLE | 700 | 702 | 710..=719)
}

/// Returns the code for an error of a session.
pub fn session_code(error: SessionError) -> Code {
    match error {
        SessionError::Lost(_) => DEVICE_UNAVAILABLE,
        SessionError::Refused(_) => UNKNOWN,
        SessionError::NoRoom { .. } => OUT_OF_MEMORY,
        SessionError::Forked => NOT_INITIALIZED,
    }
}

/// Returns a code as C has it. No panic of ours passes the border: it becomes an unknown error.
pub fn guard(body: impl FnOnce() -> Done) -> Code {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    done.unwrap_or(Err(UNKNOWN)).err().unwrap_or(SUCCESS)
}

/// Stores a result where the program wants it.
///
/// # Errors
/// [`INVALID_VALUE`] for a null pointer.
///
/// # Safety
/// `at` is null or has room for a value.
pub unsafe fn put<T>(at: *mut T, value: T) -> Done {
    if at.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: promised by the caller.
    unsafe { at.write(value) };
    Ok(())
}

/// Stores a result if the program wants it.
///
/// # Safety
/// Same as [`put`].
pub unsafe fn put_if<T>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: promised by the caller.
        unsafe { at.write(value) };
    }
}

/// Returns a text that the program passes.
///
/// # Safety
/// `text` is null or a terminated string that stays.
pub unsafe fn text<'a>(text: *const std::ffi::c_char) -> Done<&'a str> {
    if text.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: promised by the caller.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_str().map_err(|_| NOT_FOUND)
}

/// Stores a text with its end in `room` bytes, as far as they reach.
///
/// # Safety
/// `at` has the room.
pub unsafe fn put_text(value: &str, at: *mut std::ffi::c_char, room: usize) -> Done {
    if at.is_null() || room == 0 {
        return Err(INVALID_VALUE);
    }
    let len = value.len().min(room - 1);
    // SAFETY: promised by the caller.
    unsafe {
        at.cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), len);
        at.add(len).write(0);
    }
    Ok(())
}

/// Declares exported functions of the driver API.
macro_rules! exported {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $crate::call::Code {
                $crate::call::guard(|| $body)
            }
        )*
    };
}
pub(crate) use exported;
