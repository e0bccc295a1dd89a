//! Memory in the order of streams: it is there at once, and freed when the stream gets to that.

use std::ffi::{c_int, c_void};

use crate::device::current_device;
use crate::engine::{DEVICES, enqueue, state};
use crate::*;

/// Handle of the first device's pool; those of the others follow.
const POOL: usize = 0x200;
/// Attributes: bytes that are kept, bytes in use now and at most.
const THRESHOLD: c_int = 4;
const USED: c_int = 7;
const MOST_USED: c_int = 8;

fn check_pool(pool: usize) -> Result<usize, Code> {
    pool.checked_sub(POOL).filter(|it| *it < DEVICES).ok_or(INVALID_VALUE)
}

fn allocate(at: *mut u64, len: usize, stream: usize) -> Result<(), Code> {
    let device = current_device()?;
    let mut state = state();
    if stream > 2 && !state.lanes.contains_key(&stream) {
        return Err(INVALID_HANDLE);
    }
    let made = state.allocate(device, len).ok_or(OUT_OF_MEMORY)?;
    state.pool.used.insert(made, len as u64);
    let used = state.pool.used.values().sum();
    state.pool.most = state.pool.most.max(used);
    // SAFETY: as in `put`.
    unsafe { put(at, made) }
}

fn pool_of(at: *mut usize, number: c_int) -> Result<(), Code> {
    let device = usize::try_from(number).ok().filter(|it| *it < DEVICES).ok_or(INVALID_DEVICE)?;
    // SAFETY: as in `put`.
    unsafe { put(at, POOL + device) }
}

exported! {
    fn cuMemAllocAsync(at: *mut u64, len: usize, stream: usize) {
        allocate(at, len, stream)
    }

    fn cuMemAllocFromPoolAsync(at: *mut u64, len: usize, pool: usize, stream: usize) {
        check_pool(pool)?;
        allocate(at, len, stream)
    }

    fn cuMemFreeAsync(address: u64, stream: usize) {
        let device = current_device()?;
        if state().pool.used.remove(&address).is_none() {
            return Err(INVALID_VALUE);
        }
        let free = move || {
            state().free(address);
            Ok(())
        };
        enqueue(device, stream, free).map(drop)
    }

    fn cuDeviceGetDefaultMemPool(at: *mut usize, number: c_int) {
        pool_of(at, number)
    }

    fn cuDeviceGetMemPool(at: *mut usize, number: c_int) {
        pool_of(at, number)
    }

    fn cuMemPoolSetAttribute(pool: usize, name: c_int, value: *const c_void) {
        check_pool(pool)?;
        // SAFETY: the program passes a number of that length.
        let value = unsafe {
            if name < THRESHOLD { u64::from(*value.cast::<u32>()) } else { *value.cast::<u64>() }
        };
        state().pool.attributes.insert(name, value);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: usize, name: c_int, value: *mut c_void) {
        check_pool(pool)?;
        let state = state();
        let told = match name {
            USED => state.pool.used.values().sum(),
            MOST_USED => state.pool.most,
            1..=3 => state.pool.attributes.get(&name).copied().unwrap_or(1),
            _ => state.pool.attributes.get(&name).copied().unwrap_or(0),
        };
        if name < THRESHOLD {
            // SAFETY: room for a number of that length.
            return unsafe { put(value.cast::<u32>(), told as u32) };
        }
        // SAFETY: as above.
        unsafe { put(value.cast::<u64>(), told) }
    }

    fn cuMemPoolTrimTo(pool: usize, _keep: usize) {
        check_pool(pool).map(drop)
    }
}
