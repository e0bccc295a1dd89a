//! Memory of the device and pinned memory.

use std::ffi::{c_int, c_uint, c_void};

use crate::device::{current, current_device, device_of};
use crate::engine::{DEVICES, Point, check, enqueue, state, synchronize};
use crate::*;

/// An address of the program that a stream uses later.
#[derive(Clone, Copy)]
pub struct Address(pub usize);

/// Copies to the device, from bytes that may change after the call unless they are pinned.
fn write(stream: usize, to: u64, from: usize, len: usize) -> Result<Point, Code> {
    let device = current_device()?;
    let (spot, is_pinned) = {
        let state = state();
        (state.spot(to, len).ok_or(INVALID_VALUE)?, state.is_pinned(from, len))
    };
    let source = Address(from);
    // SAFETY: the program passes so many bytes.
    let bytes = || unsafe { std::slice::from_raw_parts(source.0 as *const u8, len) };
    let copied = (!is_pinned).then(|| bytes().to_vec());
    enqueue(device, stream, move || {
        let from = copied.as_ref().map_or(source.0 as *const u8, |it| it.as_ptr());
        // SAFETY: pinned bytes stay until the program has waited; copied ones are ours.
        unsafe { std::ptr::copy_nonoverlapping(from, spot.at(), len) };
        Ok(())
    })
}

/// Copies from the device. Bytes that are not pinned are there when it returns.
fn read(stream: usize, to: usize, from: u64, len: usize) -> Result<Point, Code> {
    let device = current_device()?;
    let (spot, is_pinned) = {
        let state = state();
        (state.spot(from, len).ok_or(INVALID_VALUE)?, state.is_pinned(to, len))
    };
    let target = Address(to);
    let point = enqueue(device, stream, move || {
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
    let device = current_device()?;
    let state = state();
    let to = state.spot(to, len).ok_or(INVALID_VALUE)?;
    let from = state.spot(from, len).ok_or(INVALID_VALUE)?;
    drop(state);
    enqueue(device, stream, move || {
        // SAFETY: both are as long; they may overlap.
        unsafe { std::ptr::copy(from.at(), to.at(), len) };
        Ok(())
    })
}

pub fn fill(stream: usize, to: u64, unit: &[u8], count: usize) -> Result<Point, Code> {
    let device = current_device()?;
    let len = unit.len().checked_mul(count).ok_or(INVALID_VALUE)?;
    let spot = state().spot(to, len).ok_or(INVALID_VALUE)?;
    let bytes = unit.repeat(count);
    enqueue(device, stream, move || {
        // SAFETY: the place is as long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), spot.at(), len) };
        Ok(())
    })
}

fn finish(point: &Point) -> Result<(), Code> {
    point.wait();
    check(current_device()?)
}

/// Copies between any two places.
fn copy_any(stream: usize, to: u64, from: u64, len: usize) -> Result<Point, Code> {
    let is_device = |at: u64| state().spot(at, 1).is_some();
    match (is_device(to), is_device(from)) {
        (true, true) => copy(stream, to, from, len),
        (true, false) => write(stream, to, from as usize, len),
        (false, true) => read(stream, to as usize, from, len),
        (false, false) => {
            let (from, to) = (Address(from as usize), Address(to as usize));
            enqueue(current_device()?, stream, move || {
                let (from, to) = (from, to);
                // SAFETY: the program passes so many bytes.
                unsafe { std::ptr::copy(from.0 as *const u8, to.0 as *mut u8, len) };
                Ok(())
            })
        }
    }
}

/// Copies between contexts, behind all that both devices have to do.
fn copy_peer(
    stream: usize,
    (to, into): (u64, usize),
    (from, of): (u64, usize),
    len: usize,
) -> Result<Point, Code> {
    synchronize(device_of(into)?)?;
    synchronize(device_of(of)?)?;
    copy(stream, to, from, len)
}

fn synchronize_all() {
    for device in 0..DEVICES {
        let _ = synchronize(device);
    }
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
        let device = current_device()?;
        let all = crate::engine::DEVICE_BYTES;
        // SAFETY: as in `put`, here and below.
        unsafe { put(free, (all - state().used_bytes[device]) as usize) }?;
        // SAFETY: as above.
        unsafe { put(total, all as usize) }
    }

    fn cuMemAlloc_v2(at: *mut u64, len: usize) {
        let device = current_device()?;
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let made = state().allocate(device, len).ok_or(OUT_OF_MEMORY)?;
        // SAFETY: as above.
        unsafe { put(at, made) }
    }

    fn cuMemFree_v2(address: u64) {
        synchronize(current_device()?)?;
        state().pool.used.remove(&address);
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
        synchronize_all();
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
        synchronize_all();
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

    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        fill(0, to, &value.to_ne_bytes(), count).map(drop)
    }

    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) {
        fill(stream, to, &value.to_ne_bytes(), count).map(drop)
    }

    fn cuMemcpy(to: u64, from: u64, len: usize) {
        finish(&copy_any(0, to, from, len)?)
    }

    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: usize) {
        copy_any(stream, to, from, len).map(drop)
    }

    fn cuMemcpyPeer(to: u64, into: usize, from: u64, of: usize, len: usize) {
        finish(&copy_peer(0, (to, into), (from, of), len)?)
    }

    fn cuMemcpyPeerAsync(to: u64, into: usize, from: u64, of: usize, len: usize, stream: usize) {
        copy_peer(stream, (to, into), (from, of), len).map(drop)
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        fill(0, to, &value.to_ne_bytes(), count).map(drop)
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: usize) {
        fill(stream, to, &value.to_ne_bytes(), count).map(drop)
    }

    fn cuPointerGetAttribute(value: *mut c_void, name: c_int, address: u64) {
        current()?;
        // SAFETY: room for the attribute.
        unsafe { attribute(value, name, address) }
    }

    fn cuPointerGetAttributes(
        count: c_uint,
        names: *const c_int,
        values: *const *mut c_void,
        address: u64,
    ) {
        current()?;
        for at in 0..count as usize {
            // SAFETY: as many names and places.
            let (name, value) = unsafe { (*names.add(at), *values.add(at)) };
            // SAFETY: as above; an unknown address has zeros.
            if unsafe { attribute(value, name, address) }.is_err() {
                let len = if matches!(name, 2 | 8 | 9 | 13) { 4 } else { 8 };
                // SAFETY: as above.
                unsafe { value.cast::<u8>().write_bytes(0, len) };
            }
        }
        Ok(())
    }
}

/// Stores an attribute of an address.
unsafe fn attribute(value: *mut c_void, name: c_int, address: u64) -> Result<(), Code> {
    let state = state();
    let found = state.memory.range(..=address).next_back();
    let found = found.filter(|(start, buffer)| address - *start < buffer.len as u64);
    match (name, found) {
        // Memory type: 1 is the host's, 2 the device's.
        // SAFETY: room for an int.
        (2, Some(_)) => unsafe { put(value.cast::<c_uint>(), 2) },
        // SAFETY: as above.
        (2, None) if state.is_pinned(address as usize, 1) => unsafe {
            put(value.cast::<c_uint>(), 1)
        },
        // SAFETY: as above.
        (8, Some(_)) => unsafe { put(value.cast::<c_uint>(), 0) },
        // SAFETY: as above.
        (9, Some((_, buffer))) => unsafe { put(value.cast::<c_int>(), buffer.device as c_int) },
        // SAFETY: room for an address, here and below.
        (11, Some((start, _))) => unsafe { put(value.cast::<u64>(), *start) },
        // SAFETY: as above.
        (12, Some((_, buffer))) => unsafe { put(value.cast::<usize>(), buffer.len) },
        _ => Err(INVALID_VALUE),
    }
}
