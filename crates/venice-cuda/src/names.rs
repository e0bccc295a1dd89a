//! Names of functions and errors.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::call::*;

use crate::functions::TABLE;

/// Functions that were refused: each is told once.
static REFUSED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Says that something is not supported.
pub fn say(what: &str) {
    eprintln!("venice: {what} is not supported on CUDA devices of other nodes");
}

/// Refuses a function, or a part of one.
pub fn refuse(name: &'static str) -> Code {
    if REFUSED.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        say(name);
    }
    NOT_SUPPORTED
}

/// Outcome of a search: numbers of `CUdriverProcAddressQueryResult`.
const UNKNOWN_NAME: c_int = 1;
const TOO_OLD: c_int = 2;

/// Returns the address of a function by its name without version: the newest form that a program of
/// this version of the API knows.
fn find(name: &str, version: c_int) -> Result<usize, c_int> {
    let first = TABLE.partition_point(|it| it.0 < name);
    let forms = TABLE[first..].iter().take_while(|it| it.0 == name);
    match forms.clone().filter(|it| it.1 <= version).last() {
        Some(form) => Ok(form.2),
        None => Err(if forms.count() > 0 { TOO_OLD } else { UNKNOWN_NAME }),
    }
}

/// Stores the address of a function. The forms for the default stream of a thread are the same
/// functions.
///
/// # Safety
/// The arguments of `cuGetProcAddress`.
unsafe fn address(
    name: *const c_char,
    at: *mut *mut c_void,
    version: c_int,
    status: *mut c_int,
) -> Done {
    // SAFETY: promised by the caller.
    let name = unsafe { text(name) }?;
    let found = find(name, version);
    // SAFETY: as above.
    unsafe { put_if(status, found.err().unwrap_or(0)) };
    // SAFETY: as above.
    unsafe { put(at, std::ptr::with_exposed_provenance_mut(found.unwrap_or(0))) }?;
    found.map(drop).map_err(|_| NOT_FOUND)
}

/// Returns name and description of an error.
fn error_text(code: Code) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        SUCCESS => (c"CUDA_SUCCESS", c"no error"),
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        NOT_INITIALIZED => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        4 => (c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
        DEVICE_UNAVAILABLE => {
            (c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"the device of another node is lost")
        }
        NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        INVALID_IMAGE => (c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
        INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        209 => (c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image for this device"),
        218 => (c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
        UNSUPPORTED_LIMIT => (c"CUDA_ERROR_UNSUPPORTED_LIMIT", c"limit is not supported"),
        PEER_ACCESS_UNSUPPORTED => (
            c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
            c"peer access is not supported between these two devices",
        ),
        220 => (c"CUDA_ERROR_NVLINK_UNCORRECTABLE", c"uncorrectable NVLink error"),
        221 => (c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", c"the PTX JIT compiler is not found"),
        222 => (c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", c"the PTX version is not supported"),
        300 => (c"CUDA_ERROR_INVALID_SOURCE", c"invalid kernel source"),
        FILE_NOT_FOUND => (c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found"),
        304 => (c"CUDA_ERROR_OPERATING_SYSTEM", c"an operating system call failed"),
        INVALID_HANDLE => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        NOT_FOUND => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        NOT_READY => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        701 => (c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
        702 => (c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
        PEER_ACCESS_NOT_ENABLED => {
            (c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access is not enabled")
        }
        709 => (c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"the context is destroyed"),
        710 => (c"CUDA_ERROR_ASSERT", c"device-side assert triggered"),
        715 => (c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"an illegal instruction was encountered"),
        716 => (c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
        719 => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        720 => {
            (c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", c"too many blocks in a cooperative launch")
        }
        NOT_PERMITTED => (c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
        900 => (
            c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            c"operation not permitted when the stream is capturing",
        ),
        NOT_SUPPORTED => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        UNKNOWN => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => return None,
    })
}

exported! {
    fn cuGetErrorName(code: Code, name: *mut *const c_char) {
        let found = error_text(code);
        // SAFETY: the program passes room for a result, here and below.
        unsafe { put(name, found.map_or(std::ptr::null(), |it| it.0.as_ptr())) }?;
        found.map(drop).ok_or(INVALID_VALUE)
    }

    fn cuGetErrorString(code: Code, text: *mut *const c_char) {
        let found = error_text(code);
        // SAFETY: as above.
        unsafe { put(text, found.map_or(std::ptr::null(), |it| it.1.as_ptr())) }?;
        found.map(drop).ok_or(INVALID_VALUE)
    }

    fn cuGetProcAddress(name: *const c_char, at: *mut *mut c_void, version: c_int, _flags: u64) {
        // SAFETY: as above.
        unsafe { address(name, at, version, std::ptr::null_mut()) }
    }

    fn cuGetProcAddress_v2(
        name: *const c_char,
        at: *mut *mut c_void,
        version: c_int,
        _flags: u64,
        status: *mut c_int,
    ) {
        // SAFETY: as above.
        unsafe { address(name, at, version, status) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_gets_form_it_knows() {
        assert!(TABLE.is_sorted());
        let at = |name, version| find(name, version).unwrap();
        assert_ne!(at("cuCtxCreate", 11000), at("cuCtxCreate", 11040));
        assert_eq!(at("cuCtxCreate", 12050), at("cuCtxCreate", 13000));
        assert_ne!(at("cuStreamGetCaptureInfo", 10010), at("cuStreamGetCaptureInfo", 11030));
        assert_eq!(find("cuLibraryLoadData", 11080), Err(TOO_OLD));
        assert_eq!(find("cuMakeTea", 13000), Err(UNKNOWN_NAME));
    }
}
