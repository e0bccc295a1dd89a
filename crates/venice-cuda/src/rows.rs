//! Copies of rows, in two and three dimensions.

use std::ffi::c_uint;

use venice_accel::cuda::wire::{Command, Rows};

use crate::call::*;
use crate::context::current;
use crate::handle;
use crate::link::{PIECE_BYTES, Target};
use crate::memory::{Spot, finish_elsewhere, is_pinned, put_in_order, transfer};
use crate::names::refuse;
use crate::stream::id_of;

/// `CUmemorytype`s.
const PROGRAM: c_uint = 1;
const DEVICE: c_uint = 2;
const UNIFIED: c_uint = 4;

/// Side of `CUDA_MEMCPY2D`.
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

/// Side of `CUDA_MEMCPY3D`, and of `CUDA_MEMCPY3D_PEER`.
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
    /// 0, or the context.
    context: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`, and `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy3 {
    from: Side3,
    to: Side3,
    width: usize,
    height: usize,
    depth: usize,
}

/// Rows of a copy: a first byte, the distance of rows, and that of layers.
#[derive(Clone, Copy)]
struct Side {
    spot: Spot,
    pitch: usize,
    layer: usize,
}

/// Bytes of a row, rows of a layer, and layers.
#[derive(Clone, Copy)]
struct Shape {
    width: usize,
    height: usize,
    depth: usize,
}

impl Shape {
    fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }
}

impl Side {
    /// Reads a side.
    ///
    /// # Errors
    /// Arrays are refused; memory of a device has to hold all rows.
    fn of(it: &Side3, shape: Shape) -> Done<Self> {
        let rows = shape.depth > 1 || shape.height > 1;
        let pitch = if it.pitch == 0 && !rows { shape.width } else { it.pitch };
        let height = if it.height == 0 { shape.height } else { it.height };
        let layer = pitch.checked_mul(height).ok_or(INVALID_VALUE)?;
        if rows && pitch < shape.width || shape.depth > 1 && height < shape.height {
            return Err(INVALID_VALUE);
        }
        let place = |it: &Side3| {
            let row = it.z.checked_mul(height)?.checked_add(it.y)?;
            row.checked_mul(pitch)?.checked_add(it.x)
        };
        let span = || {
            let layers = layer.checked_mul(shape.depth - 1)?;
            let rows = pitch.checked_mul(shape.height - 1)?;
            layers.checked_add(rows)?.checked_add(shape.width)
        };
        let (start, span) = (place(it).ok_or(INVALID_VALUE)?, span().ok_or(INVALID_VALUE)?);
        let of_device = |base: u64| {
            let at = base.checked_add(start as u64).ok_or(INVALID_VALUE)?;
            Spot::on_device(at, span)
        };
        let of_program = |base: usize| {
            Spot::of_program(base)
                .and_then(|_| Spot::of_program(base.checked_add(start).ok_or(INVALID_VALUE)?))
        };
        let spot = match it.kind {
            PROGRAM => of_program(it.host)?,
            DEVICE => of_device(it.device)?,
            UNIFIED => match Spot::of_either(it.device, 0)? {
                Spot::Device(..) => of_device(it.device)?,
                Spot::Program(base) => of_program(base)?,
            },
            _ => return Err(refuse("a copy of an array")),
        };
        if it.context != 0 {
            handle::context(it.context)?;
        }
        Ok(Self { spot, pitch, layer })
    }

    /// Returns the place of a row.
    fn row(&self, layer: usize, row: usize) -> Spot {
        let at = layer * self.layer + row * self.pitch;
        match self.spot {
            Spot::Program(base) => Spot::Program(base + at),
            Spot::Device(device, base) => Spot::Device(device, base + at as u64),
        }
    }
}

/// Copies rows of a layer. Whether they have been copied when it returns is as for [`transfer`].
fn copy_layer(
    to: &Side,
    from: &Side,
    (layer, width, height): (usize, usize, usize),
    stream: usize,
    ends: bool,
) -> Done {
    let current = current()?;
    let id = id_of(&current, stream)?;
    let most = (PIECE_BYTES / width).max(1);
    for row in (0..height).step_by(most) {
        let rows = most.min(height - row);
        match (to.row(layer, row), from.row(layer, row)) {
            (Spot::Device(device, at), Spot::Program(source)) => {
                let span = from.pitch * (rows - 1) + width;
                device.link.wait_for_reads_into(source, span)?;
                if is_pinned(source, span) {
                    device.link.wait_for_gates()?;
                }
                let id = put_in_order(&current, id, device)?;
                let mut all = Vec::with_capacity(width * rows);
                for row in 0..rows {
                    let at = (source + row * from.pitch) as *const u8;
                    // SAFETY: the program passes the rows.
                    all.extend_from_slice(unsafe { std::slice::from_raw_parts(at, width) });
                }
                let to = Rows { at, pitch: to.pitch as u64 };
                device.link.write_rows(id, to, width, &all)?;
                finish_elsewhere(&current, device)?;
            }
            (Spot::Program(at), Spot::Device(device, source)) => {
                let id = put_in_order(&current, id, device)?;
                let target = Target { at, pitch: to.pitch, width, rows };
                let ends = ends
                    || !is_pinned(at, to.pitch * (rows - 1) + width)
                    || device.number != current.device.number;
                let from = Rows { at: source, pitch: from.pitch as u64 };
                device.link.read_rows(id, target, from, ends)?;
            }
            (Spot::Device(target, at), Spot::Device(source, address))
                if target.number == source.number =>
            {
                let id = put_in_order(&current, id, target)?;
                target.link.submit(&Command::CopyRows {
                    stream: id,
                    to: Rows { at, pitch: to.pitch as u64 },
                    from: Rows { at: address, pitch: from.pitch as u64 },
                    width: width as u64,
                    rows: rows as u64,
                })?;
                finish_elsewhere(&current, target)?;
            }
            (Spot::Device(target, at), Spot::Device(source, address)) => {
                let of = put_in_order(&current, id, source)?;
                let into = put_in_order(&current, id, target)?;
                let mut all = vec![0_u8; width * rows];
                let buffer = Target { at: all.as_mut_ptr() as usize, pitch: width, width, rows };
                let from = Rows { at: address, pitch: from.pitch as u64 };
                source.link.read_rows(of, buffer, from, true)?;
                let to = Rows { at, pitch: to.pitch as u64 };
                target.link.write_rows(into, to, width, &all)?;
                finish_elsewhere(&current, target)?;
            }
            (Spot::Program(at), Spot::Program(source)) => {
                current.link().wait_for_stream(id)?;
                for row in 0..rows {
                    let (at, source) = (at + row * to.pitch, source + row * from.pitch);
                    // SAFETY: the program passes the rows.
                    unsafe { std::ptr::copy(source as *const u8, at as *mut u8, width) };
                }
            }
        }
    }
    Ok(())
}

/// Returns the commands of a copy within a device; `None`: the program has a part in it.
///
/// # Errors
/// The errors of [`copy`].
pub fn commands_within(copy: &Copy3) -> Done<Option<Vec<Command<'static>>>> {
    let shape = Shape { width: copy.width, height: copy.height, depth: copy.depth };
    if shape.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let (to, from) = (Side::of(&copy.to, shape)?, Side::of(&copy.from, shape)?);
    let layer = |layer: usize| match (to.row(layer, 0), from.row(layer, 0)) {
        (Spot::Device(target, at), Spot::Device(source, address))
            if target.number == source.number =>
        {
            Some(Command::CopyRows {
                stream: 0,
                to: Rows { at, pitch: to.pitch as u64 },
                from: Rows { at: address, pitch: from.pitch as u64 },
                width: copy.width as u64,
                rows: copy.height as u64,
            })
        }
        _ => None,
    };
    Ok((0..copy.depth).map(layer).collect())
}

/// Copies rows. Whether they have been copied when it returns is as for [`transfer`].
///
/// # Errors
/// Arrays are refused; memory of a device has to hold all rows.
pub fn copy(copy: &Copy3, stream: usize, ends: bool) -> Done {
    let shape = Shape { width: copy.width, height: copy.height, depth: copy.depth };
    current()?;
    if shape.is_empty() {
        return Ok(());
    }
    let (to, from) = (Side::of(&copy.to, shape)?, Side::of(&copy.from, shape)?);
    let Shape { width, height, depth } = shape;
    let is_dense = |side: &Side| {
        (height == 1 || side.pitch == width) && (depth == 1 || side.layer == width * height)
    };
    if is_dense(&to) && is_dense(&from) {
        return transfer(to.spot, from.spot, width * height * depth, stream, ends);
    }
    for layer in 0..depth {
        if width > PIECE_BYTES {
            for row in 0..height {
                transfer(to.row(layer, row), from.row(layer, row), width, stream, ends)?;
            }
            continue;
        }
        copy_layer(&to, &from, (layer, width, height), stream, ends)?;
    }
    match (ends, to.spot) {
        (true, Spot::Device(device, _)) => device.link.end_write(0),
        _ => Ok(()),
    }
}

unsafe fn copy2(it: *const Copy2, stream: usize, ends: bool) -> Done {
    // SAFETY: promised by the caller.
    let it = unsafe { it.as_ref() }.ok_or(INVALID_VALUE)?;
    let side = |it: &Side2| Side3 {
        x: it.x,
        y: it.y,
        z: 0,
        level: 0,
        kind: it.kind,
        host: it.host,
        device: it.device,
        array: it.array,
        context: 0,
        pitch: it.pitch,
        height: 0,
    };
    let (from, to) = (side(&it.from), side(&it.to));
    copy(&Copy3 { from, to, width: it.width, height: it.height, depth: 1 }, stream, ends)
}

unsafe fn copy3(it: *const Copy3, stream: usize, ends: bool) -> Done {
    // SAFETY: promised by the caller.
    copy(unsafe { it.as_ref() }.ok_or(INVALID_VALUE)?, stream, ends)
}

exported! {
    fn cuMemcpy2D_v2(it: *const Copy2) {
        // SAFETY: the program passes a description, here and below.
        unsafe { copy2(it, 0, true) }
    }

    fn cuMemcpy2DUnaligned_v2(it: *const Copy2) {
        // SAFETY: as above.
        unsafe { copy2(it, 0, true) }
    }

    fn cuMemcpy2DAsync_v2(it: *const Copy2, stream: usize) {
        // SAFETY: as above.
        unsafe { copy2(it, stream, false) }
    }

    fn cuMemcpy3D_v2(it: *const Copy3) {
        // SAFETY: as above.
        unsafe { copy3(it, 0, true) }
    }

    fn cuMemcpy3DAsync_v2(it: *const Copy3, stream: usize) {
        // SAFETY: as above.
        unsafe { copy3(it, stream, false) }
    }

    fn cuMemcpy3DPeer(it: *const Copy3) {
        // SAFETY: as above.
        unsafe { copy3(it, 0, true) }
    }

    fn cuMemcpy3DPeerAsync(it: *const Copy3, stream: usize) {
        // SAFETY: as above.
        unsafe { copy3(it, stream, false) }
    }
}
