//! The device, contexts, errors, and how functions are found.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::{DEVICE_BYTES, DEVICES, handle, reset, state, synchronize};
use crate::kernel::MAX_THREADS;
use crate::*;

/// Handle of the first device's primary context; those of the others follow.
const PRIMARY: usize = 0x100;
const NAME: &str = "Venice Fake GPU";
/// Version of the API: 12.8.
const VERSION: c_int = 12080;

/// Process that has called `cuInit`: its children have no device.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Fails before `cuInit`.
fn initialized() -> Result<(), Code> {
    (PROCESS.load(Ordering::Relaxed) == std::process::id()).then_some(()).ok_or(NOT_INITIALIZED)
}

/// Returns the device of a context.
pub fn device_of(context: usize) -> Result<usize, Code> {
    match context.checked_sub(PRIMARY) {
        Some(device) if device < DEVICES => Ok(device),
        Some(_) | None => state().contexts.get(&context).copied().ok_or(INVALID_CONTEXT),
    }
}

/// Returns the current context. Fails without one, and once a kernel of its device has failed.
pub fn current() -> Result<usize, Code> {
    let context = context()?;
    crate::engine::check(device_of(context)?)?;
    Ok(context)
}

fn context() -> Result<usize, Code> {
    initialized()?;
    CURRENT.with_borrow(|all| all.last().copied()).filter(|it| *it != 0).ok_or(INVALID_CONTEXT)
}

/// Returns the device of the current context.
pub fn current_device() -> Result<usize, Code> {
    device_of(current()?)
}

fn device(number: c_int) -> Result<usize, Code> {
    initialized()?;
    usize::try_from(number).ok().filter(|it| *it < DEVICES).ok_or(INVALID_DEVICE)
}

/// Stores a text with its end, as far as there is room.
unsafe fn text(value: &str, at: *mut c_char, room: c_int) -> Result<(), Code> {
    let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(INVALID_VALUE)?;
    let len = value.len().min(room - 1);
    // SAFETY: the caller has that much room.
    unsafe {
        at.cast::<u8>().copy_from(value.as_ptr(), len);
        at.add(len).write(0);
    }
    Ok(())
}

fn error_name(code: Code) -> Option<&'static std::ffi::CStr> {
    Some(match code {
        SUCCESS => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NOT_INITIALIZED => c"CUDA_ERROR_NOT_INITIALIZED",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_IMAGE => c"CUDA_ERROR_INVALID_IMAGE",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        INVALID_PTX => c"CUDA_ERROR_INVALID_PTX",
        UNSUPPORTED_LIMIT => c"CUDA_ERROR_UNSUPPORTED_LIMIT",
        PEER_ACCESS_UNSUPPORTED => c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        NOT_READY => c"CUDA_ERROR_NOT_READY",
        ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        _ => return None,
    })
}

/// Limits of stack, output and heap.
fn default_limit(limit: c_int) -> Option<usize> {
    Some(match limit {
        0 => 1024,
        1 => 1 << 20,
        2 => 8 << 20,
        _ => return None,
    })
}

fn attribute(name: c_int) -> Option<c_int> {
    Some(match name {
        1..=3 => MAX_THREADS as c_int,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65535,
        8 => 48 << 10,
        10 => 32,
        13 => 1_500_000,
        16 => 4,
        31 | 41 | 95 | 115 => 1,
        39 => 2048,
        81 | 97 => 64 << 10,
        75 => 7,
        76 => 5,
        9..=150 => 0,
        _ => return None,
    })
}

exported! {
    fn cuInit(_flags: c_uint) {
        let _ = PROCESS.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
        initialized()
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: as in `put`, here and below.
        unsafe { put(version, VERSION) }
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        initialized()?;
        // SAFETY: as above.
        unsafe { put(count, DEVICES as c_int) }
    }

    fn cuDeviceGet(at: *mut c_int, number: c_int) {
        device(number)?;
        // SAFETY: as above.
        unsafe { put(at, number) }
    }

    fn cuDeviceGetName(name: *mut c_char, room: c_int, number: c_int) {
        device(number)?;
        // SAFETY: the caller has the room that it names.
        unsafe { text(NAME, name, room) }
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], number: c_int) {
        device(number)?;
        // SAFETY: as above.
        unsafe { put(uuid, if number == 0 { *b"venice-fake-cuda" } else { *b"venice-fake-two!" }) }
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, number: c_int) {
        device(number)?;
        // SAFETY: as above.
        unsafe { put(bytes, DEVICE_BYTES as usize) }
    }

    fn cuDeviceGetAttribute(value: *mut c_int, name: c_int, number: c_int) {
        device(number)?;
        // SAFETY: as above.
        unsafe { put(value, attribute(name).ok_or(INVALID_VALUE)?) }
    }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, number: c_int) {
        let device = device(number)?;
        // SAFETY: as above.
        unsafe { put(context, PRIMARY + device) }
    }

    fn cuDevicePrimaryCtxRelease_v2(number: c_int) {
        device(number).map(drop)
    }

    fn cuDevicePrimaryCtxReset_v2(number: c_int) {
        reset(device(number)?);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(number: c_int, flags: *mut c_uint, active: *mut c_int) {
        device(number)?;
        // SAFETY: as above.
        unsafe { put(flags, 0) }?;
        // SAFETY: as above.
        unsafe { put(active, 1) }
    }

    fn cuCtxCreate_v2(context: *mut usize, _flags: c_uint, number: c_int) {
        let device = device(number)?;
        let made = handle();
        state().contexts.insert(made, device);
        CURRENT.with_borrow_mut(|all| all.push(made));
        // SAFETY: as above.
        unsafe { put(context, made) }
    }

    fn cuCtxDestroy_v2(context: usize) {
        initialized()?;
        state().contexts.remove(&context).ok_or(INVALID_CONTEXT)?;
        CURRENT.with_borrow_mut(|all| all.retain(|it| *it != context));
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        initialized()?;
        device_of(context)?;
        CURRENT.with_borrow_mut(|all| all.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut usize) {
        let popped = CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { put(context, popped) }
    }

    fn cuCtxSetCurrent(context: usize) {
        initialized()?;
        if context != 0 {
            device_of(context)?;
        }
        CURRENT.with_borrow_mut(|all| {
            all.pop();
            all.push(context);
        });
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut usize) {
        initialized()?;
        // SAFETY: as above.
        unsafe { put(context, CURRENT.with_borrow(|all| all.last().copied().unwrap_or(0))) }
    }

    fn cuCtxGetDevice(number: *mut c_int) {
        let device = device_of(context()?)?;
        // SAFETY: as above.
        unsafe { put(number, device as c_int) }
    }

    fn cuCtxSynchronize() {
        synchronize(current_device()?)
    }

    fn cuCtxGetLimit(value: *mut usize, limit: c_int) {
        current()?;
        let set = state().limits.get(&limit).copied();
        // SAFETY: as above.
        unsafe { put(value, set.or(default_limit(limit)).ok_or(UNSUPPORTED_LIMIT)?) }
    }

    fn cuCtxSetLimit(limit: c_int, value: usize) {
        current()?;
        default_limit(limit).ok_or(UNSUPPORTED_LIMIT)?;
        state().limits.insert(limit, value);
        Ok(())
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, number: c_int, peer: c_int) {
        device(number)?;
        device(peer)?;
        // SAFETY: as above.
        unsafe { put(can, 0) }
    }

    fn cuCtxEnablePeerAccess(context: usize, _flags: c_uint) {
        current()?;
        device_of(context)?;
        Err(PEER_ACCESS_UNSUPPORTED)
    }

    fn cuGetErrorName(error: Code, name: *mut *const c_char) {
        let found = error_name(error);
        // SAFETY: as above.
        unsafe { put(name, found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr)) }?;
        found.map(drop).ok_or(INVALID_VALUE)
    }

    fn cuGetErrorString(error: Code, name: *mut *const c_char) {
        let found = error_name(error);
        // SAFETY: as above.
        unsafe { put(name, found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr)) }?;
        found.map(drop).ok_or(INVALID_VALUE)
    }

    fn cuGetProcAddress(name: *const c_char, at: *mut *mut c_void, _version: c_int, _flags: u64) {
        // SAFETY: the caller passes what the API asks for.
        unsafe { find(name, at) }
    }

    fn cuGetProcAddress_v2(
        name: *const c_char,
        at: *mut *mut c_void,
        _version: c_int,
        _flags: u64,
        status: *mut c_int,
    ) {
        // SAFETY: as above.
        let found = unsafe { find(name, at) };
        if !status.is_null() {
            // SAFETY: not null.
            unsafe { status.write(c_int::from(found.is_err())) };
        }
        found
    }
}
