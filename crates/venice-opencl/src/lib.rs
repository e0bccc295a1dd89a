//! The OpenCL client driver: granted accelerators of other nodes as devices of an unchanged program.
//!
//! Loaders find it by its `.icd` file, and reach everything through the dispatch table of its
//! handles. Programs see one platform with one device for each grant.
//!
//! | file | contents |
//! |---|---|
//! | `call`, `object`, `dispatch` | the border to C: codes, handles, the table of functions |
//! | `device`, `part`, `seat`, `link`, `context`, `queue`, `event` | what commands go through |
//! | `command_buffer` | commands that are recorded, and run together |
//! | `memory`, `transfer`, `rows`, `map`, `image`, `image_commands`, `sampler`, `coherence`, `transit` | memory objects and their contents |
//! | `program`, `sources`, `kernel` | programs, their files, their kernels |
//! | `control`, `gate`, `moving` | what moves a device to another donor |

mod call;
mod coherence;
mod command_buffer;
mod context;
mod control;
mod device;
mod dispatch;
mod event;
mod followers;
mod gate;
mod image;
mod image_commands;
mod kernel;
mod link;
mod map;
mod memory;
mod moving;
mod object;
mod output;
mod part;
mod program;
mod queue;
mod rows;
mod sampler;
mod seat;
mod sources;
mod thread;
mod time;
mod transfer;
mod transit;

use std::ffi::{c_char, c_void};

use opencl_sys::{cl_int, cl_platform_id, cl_uint};

/// Returns an extension function, by `cl_khr_icd`: the loader's way in.
///
/// # Safety
/// `name` is null or a terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetExtensionFunctionAddress(name: *const c_char) -> *mut c_void {
    // SAFETY: promised by the caller.
    unsafe { dispatch::extension(name) }
}

/// Lists the platform, by `cl_khr_icd`.
///
/// # Safety
/// Same as `clGetPlatformIDs`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clIcdGetPlatformIDsKHR(
    room: cl_uint,
    platforms: *mut cl_platform_id,
    count: *mut cl_uint,
) -> cl_int {
    // SAFETY: promised by the caller.
    unsafe { device::icd_platform_ids(room, platforms, count) }
}

/// Returns information on the platform: some loaders look for this symbol.
///
/// # Safety
/// Same as `clGetPlatformInfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetPlatformInfo(
    platform: cl_platform_id,
    name: cl_uint,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    // SAFETY: promised by the caller.
    unsafe { device::platform_info(platform, name, room, value, needed) }
}

unsafe extern "C" fn extension_for_platform(
    _platform: cl_platform_id,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: the program passes a string.
    unsafe { dispatch::extension(name) }
}
