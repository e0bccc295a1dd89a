//! Copies and fills of rows.

use std::ffi::c_uint;

use crate::device::current_device;
use crate::engine::{Spot, enqueue, state};
use crate::memory::{Address, fill};
use crate::*;

/// Side of a copy in two dimensions.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side2 {
    x: usize,
    y: usize,
    kind: c_uint,
    host: usize,
    device: u64,
    array: usize,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy2 {
    from: Side2,
    to: Side2,
    width: usize,
    height: usize,
}

/// Side of a copy in three dimensions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Side3 {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: usize,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy3 {
    from: Side3,
    to: Side3,
    width: usize,
    height: usize,
    depth: usize,
}

/// A row.
enum Row {
    Host(Address),
    Device(Spot),
}

impl Row {
    fn at(&self) -> *mut u8 {
        match self {
            Self::Host(address) => address.0 as *mut u8,
            Self::Device(spot) => spot.at(),
        }
    }
}

/// Finds a row of so many bytes.
fn row(kind: c_uint, host: usize, device: u64, at: usize, len: usize) -> Result<Row, Code> {
    let state = state();
    match kind {
        1 => Ok(Row::Host(Address(host + at))),
        2 => Ok(Row::Device(state.spot(device + at as u64, len).ok_or(INVALID_VALUE)?)),
        // Unified: the address tells.
        4 => Ok(match state.spot(device + at as u64, len) {
            Some(spot) => Row::Device(spot),
            None => Row::Host(Address(device as usize + at)),
        }),
        _ => Err(INVALID_VALUE),
    }
}

fn run(stream: usize, rows: Vec<(Row, Row)>, len: usize) -> Result<(), Code> {
    let device = current_device()?;
    let point = enqueue(device, stream, move || {
        for (to, from) in &rows {
            // SAFETY: both are as long.
            unsafe { std::ptr::copy(from.at(), to.at(), len) };
        }
        Ok(())
    })?;
    // Bytes of the program need not stay.
    point.wait();
    crate::engine::check(device)
}

fn copy2(copy: *const Copy2, stream: usize) -> Result<(), Code> {
    if copy.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the program passes it.
    let copy = unsafe { *copy };
    let side = |it: &Side2, at: usize| {
        let place = (it.y + at) * it.pitch + it.x;
        row(it.kind, it.host, it.device, place, copy.width)
    };
    let pair = |at| Ok((side(&copy.to, at)?, side(&copy.from, at)?));
    run(stream, (0..copy.height).map(pair).collect::<Result<_, Code>>()?, copy.width)
}

pub fn copy3(copy: *const Copy3, stream: usize) -> Result<(), Code> {
    if copy.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as above.
    let copy = unsafe { *copy };
    let side = |it: &Side3, y: usize, z: usize| {
        let place = ((it.z + z) * it.height + it.y + y) * it.pitch + it.x;
        row(it.kind, it.host, it.device, place, copy.width)
    };
    let places = (0..copy.depth).flat_map(|z| (0..copy.height).map(move |y| (y, z)));
    let pair = |(y, z)| Ok((side(&copy.to, y, z)?, side(&copy.from, y, z)?));
    run(stream, places.map(pair).collect::<Result<_, Code>>()?, copy.width)
}

pub fn fill_rows(
    stream: usize,
    (to, pitch): (u64, usize),
    unit: &[u8],
    (width, height): (usize, usize),
) -> Result<(), Code> {
    (0..height).try_for_each(|at| fill(stream, to + (at * pitch) as u64, unit, width).map(drop))
}

exported! {
    fn cuMemcpy2D_v2(copy: *const Copy2) {
        copy2(copy, 0)
    }

    fn cuMemcpy2DUnaligned_v2(copy: *const Copy2) {
        copy2(copy, 0)
    }

    fn cuMemcpy2DAsync_v2(copy: *const Copy2, stream: usize) {
        copy2(copy, stream)
    }

    fn cuMemcpy3D_v2(copy: *const Copy3) {
        copy3(copy, 0)
    }

    fn cuMemcpy3DAsync_v2(copy: *const Copy3, stream: usize) {
        copy3(copy, stream)
    }

    fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill_rows(0, (to, pitch), &[value], (width, height))
    }

    fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: c_uint, width: usize, height: usize) {
        fill_rows(0, (to, pitch), &value.to_ne_bytes(), (width, height))
    }

    fn cuMemsetD2D32Async(
        to: u64,
        pitch: usize,
        value: c_uint,
        width: usize,
        height: usize,
        stream: usize,
    ) {
        fill_rows(stream, (to, pitch), &value.to_ne_bytes(), (width, height))
    }

    fn cuMemAllocPitch_v2(at: *mut u64, pitch: *mut usize, width: usize, height: usize, _unit: c_uint) {
        let device = current_device()?;
        let row = width.next_multiple_of(512);
        if row * height == 0 {
            return Err(INVALID_VALUE);
        }
        let made = state().allocate(device, row * height).ok_or(OUT_OF_MEMORY)?;
        // SAFETY: as in `put`, here and below.
        unsafe { put(at, made) }?;
        // SAFETY: as above.
        unsafe { put(pitch, row) }
    }
}
