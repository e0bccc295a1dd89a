//! Memory of the device and pinned memory.

use std::ffi::{c_int, c_uint, c_void};

use crate::device::current;
use crate::engine::{Point, enqueue, state, synchronize};
use crate::*;

/// An address of the program that a stream uses later.
#[derive(Clone, Copy)]
struct Address(usize);

/// Copies to the device, from bytes that may change after the call unless they are pinned.
fn write(stream: usize, to: u64, from: usize, len: usize) -> Result<Point, Code> {
    current()?;
    let (spot, is_pinned) = {
        let state = state();
        (state.spot(to, len).ok_or(INVALID_VALUE)?, state.is_pinned(from, len))
    };
    let source = Address(from);
    // SAFETY: the program passes so many bytes.
    let bytes = || unsafe { std::slice::from_raw_parts(source.0 as *const u8, len) };
    let copied = (!is_pinned).then(|| bytes().to_vec());
    enqueue(stream, move || {
        let from = copied.as_ref().map_or(source.0 as *const u8, |it| it.as_ptr());
        // SAFETY: pinned bytes stay until the program has waited; copied ones are ours.
        unsafe { std::ptr::copy_nonoverlapping(from, spot.at(), len) };
        Ok(())
    })
}

/// Copies from the device. Bytes that are not pinned are there when it returns.
fn read(stream: usize, to: usize, from: u64, len: usize) -> Result<Point, Code> {
    current()?;
    let (spot, is_pinned) = {
        let state = state();
        (state.spot(from, len).ok_or(INVALID_VALUE)?, state.is_pinned(to, len))
    };
    let target = Address(to);
    let point = enqueue(stream, move || {
        let target = target;
        // SAFETY: the program keeps the bytes until it has waited.
        unsafe { std::ptr::copy_nonoverlapping(spot.at(), target.0 as *mut u8, len) };
        Ok(())
    })?;
    if !is_pinned {
        point.wait();
    }
    Ok(point)
}

fn copy(stream: usize, to: u64, from: u64, len: usize) -> Result<Point, Code> {
    current()?;
    let state = state();
    let to = state.spot(to, len).ok_or(INVALID_VALUE)?;
    let from = state.spot(from, len).ok_or(INVALID_VALUE)?;
    drop(state);
    enqueue(stream, move || {
        // SAFETY: both are as long; they may overlap.
        unsafe { std::ptr::copy(from.at(), to.at(), len) };
        Ok(())
    })
}

fn fill(stream: usize, to: u64, unit: &[u8], count: usize) -> Result<Point, Code> {
    current()?;
    let len = unit.len().checked_mul(count).ok_or(INVALID_VALUE)?;
    let spot = state().spot(to, len).ok_or(INVALID_VALUE)?;
    let bytes = unit.repeat(count);
    enqueue(stream, move || {
        // SAFETY: the place is as long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), spot.at(), len) };
        Ok(())
    })
}

fn finish(point: &Point) -> Result<(), Code> {
    point.wait();
    crate::engine::check()
}

fn pin(at: *mut *mut c_void, len: usize) -> Result<(), Code> {
    current()?;
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    let made = Box::into_raw(vec![0_u8; len].into_boxed_slice()).cast::<u8>();
    state().pinned.insert(made as usize, len);
    // SAFETY: as in `put`.
    unsafe { put(at, made.cast()) }
}

exported! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        current()?;
        let all = crate::engine::DEVICE_BYTES;
        // SAFETY: as in `put`, here and below.
        unsafe { put(free, (all - state().used_bytes) as usize) }?;
        // SAFETY: as above.
        unsafe { put(total, all as usize) }
    }

    fn cuMemAlloc_v2(at: *mut u64, len: usize) {
        current()?;
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let made = state().allocate(len).ok_or(OUT_OF_MEMORY)?;
        // SAFETY: as above.
        unsafe { put(at, made) }
    }

    fn cuMemFree_v2(address: u64) {
        current()?;
        synchronize()?;
        if address == 0 || state().free(address) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64) {
        current()?;
        let state = state();
        let (start, buffer) = state.memory.range(..=address).next_back().ok_or(NOT_FOUND)?;
        if address - start >= buffer.len as u64 {
            return Err(NOT_FOUND);
        }
        if !base.is_null() {
            // SAFETY: as above.
            unsafe { put(base, *start) }?;
        }
        if len.is_null() { Ok(()) } else {
            // SAFETY: as above.
            unsafe { put(len, buffer.len) }
        }
    }

    fn cuMemHostAlloc(at: *mut *mut c_void, len: usize, _flags: c_uint) {
        pin(at, len)
    }

    fn cuMemAllocHost_v2(at: *mut *mut c_void, len: usize) {
        pin(at, len)
    }

    fn cuMemFreeHost(at: *mut c_void) {
        synchronize()?;
        let len = state().pinned.remove(&(at as usize)).ok_or(INVALID_VALUE)?;
        // SAFETY: `pin` made it.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(at.cast::<u8>(), len)) });
        Ok(())
    }

    fn cuMemHostRegister_v2(at: *mut c_void, len: usize, _flags: c_uint) {
        current()?;
        state().pinned.insert(at as usize, len);
        Ok(())
    }

    fn cuMemHostUnregister(at: *mut c_void) {
        current()?;
        synchronize()?;
        state().pinned.remove(&(at as usize)).map(drop).ok_or(INVALID_VALUE)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: usize, len: usize) {
        finish(&write(0, to, from, len)?)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, len: usize, stream: usize) {
        write(stream, to, from, len).map(drop)
    }

    fn cuMemcpyDtoH_v2(to: usize, from: u64, len: usize) {
        finish(&read(0, to, from, len)?)
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, len: usize, stream: usize) {
        read(stream, to, from, len).map(drop)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) {
        copy(0, to, from, len).map(drop)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        copy(stream, to, from, len).map(drop)
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        fill(0, to, &[value], count).map(drop)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) {
        fill(stream, to, &[value], count).map(drop)
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        fill(0, to, &value.to_ne_bytes(), count).map(drop)
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: usize) {
        fill(stream, to, &value.to_ne_bytes(), count).map(drop)
    }

    fn cuPointerGetAttribute(value: *mut c_void, name: c_int, address: u64) {
        current()?;
        let on_device = state().spot(address, 1).is_some();
        match name {
            // Memory type: 1 is the host's, 2 the device's.
            // SAFETY: room for an int.
            2 if on_device => unsafe { put(value.cast::<c_uint>(), 2) },
            // SAFETY: as above.
            2 if state().is_pinned(address as usize, 1) => unsafe { put(value.cast::<c_uint>(), 1) },
            // SAFETY: as above.
            9 if on_device => unsafe { put(value.cast::<c_int>(), 0) },
            _ => Err(INVALID_VALUE),
        }
    }
}
