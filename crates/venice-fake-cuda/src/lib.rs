//! A stand-in for `libcuda.so.1`, for tests on machines without a GPU. It has the functions of the
//! driver API that a program of several streams needs, and runs three kernels on the processor:
//! `vector_add`, `saxpy` and `spin`. A module has those that its text names.
//!
//! Streams are threads, so that commands in different streams run in any order. The names and
//! numbers are those of the CUDA driver API's documentation.
//!
//! | word in a module's text | effect |
//! |---|---|
//! | `syntax error` | it is not loaded, and the compiler's log says so |
//! | `slow` | its loading takes 400 ms |
#![allow(non_snake_case, reason = "names of the CUDA driver API")]

mod device;
mod engine;
mod graph;
mod kernel;
mod launch;
mod library;
mod memory;
mod module;
mod pool;
mod rows;
mod stream;

use std::ffi::{c_char, c_int, c_void};

/// Result of a call.
type Code = c_int;

const SUCCESS: Code = 0;
const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
const NOT_INITIALIZED: Code = 3;
const INVALID_DEVICE: Code = 101;
const INVALID_IMAGE: Code = 200;
const INVALID_CONTEXT: Code = 201;
const INVALID_HANDLE: Code = 400;
const NOT_FOUND: Code = 500;
const NOT_READY: Code = 600;
const UNSUPPORTED_LIMIT: Code = 215;
const PEER_ACCESS_UNSUPPORTED: Code = 217;
const INVALID_PTX: Code = 218;
const ILLEGAL_ADDRESS: Code = 700;
const NOT_SUPPORTED: Code = 801;

/// Returns the code of a call.
fn code(body: impl FnOnce() -> Result<(), Code>) -> Code {
    body().err().unwrap_or(SUCCESS)
}

/// Stores a result where the caller wants it.
///
/// # Errors
/// [`INVALID_VALUE`] for a null pointer.
unsafe fn put<T>(at: *mut T, value: T) -> Result<(), Code> {
    if at.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the function passes room for a value.
    unsafe { at.write(value) };
    Ok(())
}

/// Declares exported functions whose body is a `Result<(), Code>`.
macro_rules! exported {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $crate::Code {
                $crate::code(|| $body)
            }
        )*
        /// Returns the functions of this module, by their names.
        pub(crate) fn functions() -> &'static [(&'static str, usize)] {
            static ALL: std::sync::LazyLock<Vec<(&'static str, usize)>> = std::sync::LazyLock::new(|| {
                vec![$((stringify!($name), $name as *const () as usize)),*]
            });
            &ALL
        }
    };
}
use exported;

/// Finds a function by its name without or with its version.
unsafe fn find(name: *const c_char, into: *mut *mut c_void) -> Result<(), Code> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller passes a terminated string.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?;
    let lists = [
        device::functions(),
        graph::functions(),
        launch::functions(),
        library::functions(),
        memory::functions(),
        module::functions(),
        pool::functions(),
        rows::functions(),
        stream::functions(),
    ];
    let versions = [format!("{name}_v2"), name.to_owned()];
    let all = || lists.iter().flat_map(|list| list.iter());
    let found = versions.iter().find_map(|it| all().find(|(own, _)| own == it));
    // SAFETY: as in `put`.
    unsafe { put(into, found.map_or(std::ptr::null_mut(), |it| it.1 as *mut c_void)) }?;
    found.map(drop).ok_or(NOT_FOUND)
}
