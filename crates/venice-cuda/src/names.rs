//! Names of functions and errors.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::call::*;

use crate::functions::TABLE;

/// Functions that were refused: each is told once.
static REFUSED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Refuses a function.
pub fn refuse(name: &'static str) -> Code {
    if REFUSED.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        eprintln!("venice: {name} is not supported on CUDA devices of other nodes");
    }
    NOT_SUPPORTED
}

/// Returns the address of a function by its name in the API, without the version. What the program
/// was built for decides where there are several.
fn find(name: &str, version: c_int) -> Option<usize> {
    let named = |name: &str| {
        let at = TABLE.binary_search_by_key(&name, |it| it.0).ok()?;
        Some(TABLE[at])
    };
    // These changed their arguments late: older programs mean the older one.
    let newest = match name {
        "cuCtxCreate" if version >= 13000 => 4,
        "cuGetProcAddress" if version < 12000 => 1,
        "cuEventElapsedTime" if version < 12080 => 1,
        _ => 2,
    };
    let suffixes = (2..=newest).rev().map(|it| format!("{name}_v{it}"));
    let found = suffixes.chain([name.to_owned()]).find_map(|it| named(&it));
    found.map(|(_, _, address)| address)
}

/// Stores the address of a function.
///
/// # Safety
/// The arguments of `cuGetProcAddress`.
unsafe fn address(name: *const c_char, at: *mut *mut c_void, version: c_int) -> Done {
    // SAFETY: promised by the caller.
    let name = unsafe { text(name) }?;
    let found = find(name, version);
    // SAFETY: as above.
    unsafe { put(at, std::ptr::with_exposed_provenance_mut(found.unwrap_or(0))) }?;
    found.map(drop).ok_or(NOT_FOUND)
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
        INVALID_HANDLE => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        NOT_FOUND => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        NOT_READY => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        701 => (c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
        702 => (c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
        710 => (c"CUDA_ERROR_ASSERT", c"device-side assert triggered"),
        715 => (c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"an illegal instruction was encountered"),
        716 => (c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
        719 => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
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
        unsafe { address(name, at, version) }
    }

    fn cuGetProcAddress_v2(
        name: *const c_char,
        at: *mut *mut c_void,
        version: c_int,
        _flags: u64,
        status: *mut c_int,
    ) {
        // SAFETY: as above.
        let found = unsafe { address(name, at, version) };
        // SAFETY: as above; 1 is "symbol not found".
        unsafe { put_if(status, c_int::from(found.is_err())) };
        found
    }

    fn cuGetExportTable(table: *mut *const c_void, _id: *const [u8; 16]) {
        // SAFETY: as above.
        unsafe { put_if(table, std::ptr::null()) };
        Err(refuse("cuGetExportTable"))
    }
}
