//! The device, contexts, errors, and how functions are found.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::{DEVICE_BYTES, handle, synchronize};
use crate::kernel::MAX_THREADS;
use crate::*;

/// Handle of the primary context.
const PRIMARY: usize = 0x100;
const NAME: &str = "Venice Fake GPU";
/// Version of the API: 12.8.
const VERSION: c_int = 12080;

static IS_INITIALIZED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Fails before `cuInit`.
fn initialized() -> Result<(), Code> {
    IS_INITIALIZED.load(Ordering::Relaxed).then_some(()).ok_or(NOT_INITIALIZED)
}

/// Fails without a current context, and once a kernel has failed.
pub fn current() -> Result<usize, Code> {
    initialized()?;
    crate::engine::check()?;
    CURRENT.with_borrow(|all| all.last().copied()).filter(|it| *it != 0).ok_or(INVALID_CONTEXT)
}

fn device(number: c_int) -> Result<(), Code> {
    initialized()?;
    if number == 0 { Ok(()) } else { Err(INVALID_DEVICE) }
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
        NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        NOT_READY => c"CUDA_ERROR_NOT_READY",
        ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
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
        41 => 1,
        75 => 7,
        76 => 5,
        9..=150 => 0,
        _ => return None,
    })
}

exported! {
    fn cuInit(_flags: c_uint) {
        IS_INITIALIZED.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: as in `put`, here and below.
        unsafe { put(version, VERSION) }
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        initialized()?;
        // SAFETY: as above.
        unsafe { put(count, 1) }
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
        unsafe { put(uuid, *b"venice-fake-cuda") }
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
        device(number)?;
        // SAFETY: as above.
        unsafe { put(context, PRIMARY) }
    }

    fn cuDevicePrimaryCtxRelease_v2(number: c_int) {
        device(number)
    }

    fn cuDevicePrimaryCtxGetState(number: c_int, flags: *mut c_uint, active: *mut c_int) {
        device(number)?;
        // SAFETY: as above.
        unsafe { put(flags, 0) }?;
        // SAFETY: as above.
        unsafe { put(active, 1) }
    }

    fn cuCtxCreate_v2(context: *mut usize, _flags: c_uint, number: c_int) {
        device(number)?;
        let made = handle();
        CURRENT.with_borrow_mut(|all| all.push(made));
        // SAFETY: as above.
        unsafe { put(context, made) }
    }

    fn cuCtxDestroy_v2(context: usize) {
        initialized()?;
        CURRENT.with_borrow_mut(|all| all.retain(|it| *it != context));
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        initialized()?;
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
        current()?;
        // SAFETY: as above.
        unsafe { put(number, 0) }
    }

    fn cuCtxSynchronize() {
        current()?;
        synchronize()
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
