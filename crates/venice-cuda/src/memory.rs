//! Memory of devices, pinned memory of the program, copies and fills.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use venice_accel::cuda::wire::{Allocated, Command, encode, opcode};

use crate::addresses;
use crate::call::*;
use crate::context::{Current, current};
use crate::device::{Device, devices, owner};
use crate::handle;
use crate::link::{Allocation, PIECE_BYTES};
use crate::names::{refuse, say};
use crate::stream::{id_of, id_on};

const PAGE_BYTES: usize = 4096;
/// Distance between rows of pitched memory: a multiple of this.
const PITCH: usize = 512;
/// Flag of pinned memory that kernels reach.
const DEVICE_MAP: c_uint = 2;
/// Allocations in vain whose addresses other memory of the program has.
const TRIES: usize = 8;
/// Attributes of pointers.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const DEVICE_POINTER: c_int = 3;
const HOST_POINTER: c_int = 4;
const SYNC_MEMOPS: c_int = 6;
const BUFFER_ID: c_int = 7;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const IS_IPC_CAPABLE: c_int = 10;
const RANGE_START: c_int = 11;
const RANGE_BYTES: c_int = 12;
const IS_MAPPED: c_int = 13;
const HANDLE_TYPES: c_int = 14;
const IS_RDMA_CAPABLE: c_int = 15;
const ACCESS_FLAGS: c_int = 16;
const POOL: c_int = 17;

/// Pinned memory, by its first byte.
static PINNED: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct Pinned {
    len: usize,
    flags: c_uint,
    /// True if it was allocated here.
    is_ours: bool,
}

fn pinned() -> MutexGuard<'static, BTreeMap<usize, Pinned>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn is_pinned(at: usize, len: usize) -> bool {
    let all = pinned();
    let last = all.range(..=at).next_back();
    last.is_some_and(|(start, it)| at.saturating_add(len) <= start + it.len)
}

/// A place in memory.
#[derive(Clone, Copy)]
pub enum Spot {
    Program(usize),
    Device(&'static Device, u64),
}

impl Spot {
    /// Returns a place of a device.
    ///
    /// # Errors
    /// No device has these bytes.
    pub fn on_device(address: u64, len: usize) -> Done<Self> {
        // Of the current device, mostly.
        let device = match current()? {
            it if it.link().memory_at(address, len as u64).is_some() => it.device,
            _ => owner(address, len as u64).ok_or(INVALID_VALUE)?,
        };
        Ok(Self::Device(device, address))
    }

    /// Returns a place of the program.
    ///
    /// # Errors
    /// It is null.
    pub fn of_program(at: usize) -> Done<Self> {
        if at == 0 { Err(INVALID_VALUE) } else { Ok(Self::Program(at)) }
    }

    /// Returns a place that its address tells.
    ///
    /// # Errors
    /// It is null, or a device has a part of the bytes.
    pub fn of_either(address: u64, len: usize) -> Done<Self> {
        match owner(address, 0) {
            Some(_) => Self::on_device(address, len),
            None => Self::of_program(address as usize),
        }
    }
}

/// Copies bytes. They have been copied when it returns if `ends` is true, else in the order of the
/// stream; bytes of the program that are not pinned always.
pub fn transfer(to: Spot, from: Spot, len: usize, stream: usize, ends: bool) -> Done {
    let current = current()?;
    let id = id_of(&current, stream)?;
    match (to, from) {
        _ if len == 0 => Ok(()),
        (Spot::Device(device, to), Spot::Program(from)) => {
            let id = put_in_order(&current, id, device)?;
            if is_pinned(from, len) {
                device.link.wait_for_gates()?;
            }
            // SAFETY: the program passes so many bytes.
            unsafe { device.link.write(id, to, from as *const u8, len, ends) }?;
            finish_elsewhere(&current, device)
        }
        (Spot::Program(into), Spot::Device(device, from)) => {
            let id = put_in_order(&current, id, device)?;
            let ends = ends || !is_pinned(into, len) || device.number != current.device.number;
            // SAFETY: the program passes so many bytes, and keeps pinned ones until it has waited.
            unsafe { device.link.read(id, into as *mut u8, from, len, ends) }
        }
        (Spot::Device(target, to), Spot::Device(source, from))
            if target.number == source.number =>
        {
            let id = put_in_order(&current, id, target)?;
            target.link.submit(&Command::Copy { stream: id, to, from, bytes: len as u64 })?;
            finish_elsewhere(&current, target)
        }
        (Spot::Device(target, to), Spot::Device(source, from)) => {
            let (into, of) =
                (put_in_order(&current, id, target)?, put_in_order(&current, id, source)?);
            let mut buffer = vec![0; PIECE_BYTES.min(len)];
            for at in (0..len).step_by(PIECE_BYTES) {
                let piece = &mut buffer[..PIECE_BYTES.min(len - at)];
                let (from, to) = (from + at as u64, to + at as u64);
                // SAFETY: the buffer has the bytes, here and below.
                unsafe { source.link.read(of, piece.as_mut_ptr(), from, piece.len(), true) }?;
                // SAFETY: as above.
                unsafe { target.link.write(into, to, piece.as_ptr(), piece.len(), ends) }?;
            }
            finish_elsewhere(&current, target)
        }
        (Spot::Program(into), Spot::Program(from)) => {
            current.link().wait_for_stream(id)?;
            // SAFETY: the program passes so many bytes.
            unsafe { std::ptr::copy(from as *const u8, into as *mut u8, len) };
            Ok(())
        }
    }
}

/// Returns the stream of a device for commands that belong into a stream of the current one. Other
/// devices know nothing of that: the program waits for it.
pub fn put_in_order(current: &Current, id: u64, device: &Device) -> Done<u64> {
    if device.number == current.device.number {
        return Ok(id);
    }
    current.link().wait_for_stream(id)?;
    Ok(0)
}

/// Waits for commands of a device that is not the current one.
pub fn finish_elsewhere(current: &Current, device: &Device) -> Done {
    if device.number == current.device.number {
        return Ok(());
    }
    device.link.wait_for_stream(0)
}

fn fill(to: u64, (width, value): (u32, u32), count: usize, stream: usize) -> Done {
    let current = current()?;
    let bytes = count.checked_mul(width as usize).ok_or(INVALID_VALUE)?;
    let id = id_of(&current, stream)?;
    if !to.is_multiple_of(u64::from(width)) {
        return Err(INVALID_VALUE);
    }
    if count == 0 {
        return Ok(());
    }
    let Spot::Device(device, to) = Spot::on_device(to, bytes)? else { return Err(INVALID_VALUE) };
    let stream = put_in_order(&current, id, device)?;
    let count = count as u64;
    device.link.submit(&Command::Fill { stream, to, width, value, count })?;
    finish_elsewhere(&current, device)
}

/// Fills rows: a command each.
fn fill_rows(
    to: u64,
    pitch: usize,
    unit: (u32, u32),
    (width, height): (usize, usize),
    stream: usize,
) -> Done {
    let bytes = width.checked_mul(unit.0 as usize).ok_or(INVALID_VALUE)?;
    if height > 1 && pitch < bytes {
        return Err(INVALID_VALUE);
    }
    if pitch == bytes {
        return fill(to, unit, width.checked_mul(height).ok_or(INVALID_VALUE)?, stream);
    }
    for row in 0..height {
        let at = row.checked_mul(pitch).and_then(|it| to.checked_add(it as u64));
        fill(at.ok_or(INVALID_VALUE)?, unit, width, stream)?;
    }
    Ok(())
}

/// Allocates memory by `ask`, at addresses that nothing else of the program has.
pub fn allocate(
    current: &Current,
    bytes: u64,
    pool: usize,
    mut ask: impl FnMut(u64) -> Done<Allocated>,
) -> Done<u64> {
    let (link, mut in_vain) = (current.link(), Vec::new());
    let made = loop {
        // Small allocations come from the same piece of addresses again and again.
        let asked = if in_vain.is_empty() { bytes } else { bytes.max(addresses::GRANULE) };
        let made = match ask(asked) {
            Ok(made) if made.status == SUCCESS => made.address,
            Ok(made) => break Err(made.status),
            Err(code) => break Err(code),
        };
        if link.reserve(made, bytes).is_ok() {
            break Ok(made);
        }
        in_vain.push(made);
        if in_vain.len() == TRIES {
            say("memory whose addresses the program uses otherwise");
            break Err(OUT_OF_MEMORY);
        }
    };
    for address in in_vain {
        link.submit(&Command::Free { address })?;
    }
    let address = made?;
    link.add_memory(address, Allocation { bytes, context: current.handle, pool });
    Ok(address)
}

fn allocate_now(len: usize) -> Done<u64> {
    let current = current()?;
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = len as u64;
    allocate(&current, bytes, 0, |bytes| {
        let asked: Allocated = current.link().call(opcode::ALLOCATE, &encode(&bytes))?;
        if asked.status != OUT_OF_MEMORY || !current.link().pools().iter().any(|it| it.trim(0)) {
            return Ok(asked);
        }
        current.link().call(opcode::ALLOCATE, &encode(&bytes))
    })
}

fn host_alloc(at: *mut *mut c_void, len: usize, flags: c_uint) -> Done {
    current()?;
    if flags & DEVICE_MAP != 0 {
        return Err(refuse("cuMemHostAlloc of memory that kernels reach"));
    }
    if at.is_null() || len == 0 {
        return Err(INVALID_VALUE);
    }
    let layout = layout(len)?;
    // SAFETY: the length is not zero.
    let made = unsafe { std::alloc::alloc_zeroed(layout) };
    if made.is_null() {
        return Err(OUT_OF_MEMORY);
    }
    pinned().insert(made as usize, Pinned { len, flags, is_ours: true });
    // SAFETY: the program passes room for a pointer.
    unsafe { put(at, made.cast()) }
}

fn layout(len: usize) -> Done<Layout> {
    Layout::from_size_align(len, PAGE_BYTES).map_err(|_| OUT_OF_MEMORY)
}

/// Waits until nothing uses pinned memory.
fn wait_for_all_devices() {
    for device in devices() {
        // A lost device uses nothing.
        let _ = device.link.wait_for_all();
    }
}

/// Length of an attribute of pointers in bytes.
fn attribute_bytes(name: c_int) -> usize {
    match name {
        MEMORY_TYPE | SYNC_MEMOPS | IS_MANAGED | DEVICE_ORDINAL | IS_IPC_CAPABLE | IS_MAPPED
        | IS_RDMA_CAPABLE | ACCESS_FLAGS => 4,
        _ => 8,
    }
}

/// Returns an attribute of a pointer.
fn attribute(name: c_int, address: u64) -> Done<u64> {
    if let Some(device) = owner(address, 0) {
        let (start, its) = device.link.memory_at(address, 0).ok_or(INVALID_VALUE)?;
        return match name {
            CONTEXT => Ok(its.context as u64),
            MEMORY_TYPE => Ok(2),
            DEVICE_POINTER => Ok(address),
            BUFFER_ID | RANGE_START => Ok(start),
            DEVICE_ORDINAL => Ok(device.number as u64),
            RANGE_BYTES => Ok(its.bytes),
            IS_MAPPED => Ok(1),
            // Read and write.
            ACCESS_FLAGS => Ok(3),
            POOL => Ok(its.pool as u64),
            SYNC_MEMOPS | IS_MANAGED | IS_IPC_CAPABLE | HANDLE_TYPES | IS_RDMA_CAPABLE => Ok(0),
            _ => Err(INVALID_VALUE),
        };
    }
    if !is_pinned(address as usize, 1) {
        return Err(INVALID_VALUE);
    }
    match name {
        MEMORY_TYPE => Ok(1),
        HOST_POINTER => Ok(address),
        IS_MANAGED | IS_IPC_CAPABLE | HANDLE_TYPES | IS_RDMA_CAPABLE => Ok(0),
        _ => Err(INVALID_VALUE),
    }
}

unsafe fn put_attribute(at: *mut c_void, name: c_int, value: u64) -> Done {
    match attribute_bytes(name) {
        // SAFETY: the program passes room for the attribute, here and below.
        4 => unsafe { put(at.cast::<u32>(), value as u32) },
        // SAFETY: as above.
        _ => unsafe { put(at.cast::<u64>(), value) },
    }
}

exported! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let current = current()?;
        let left: u64 = current.link().call(opcode::FREE_BYTES, &[])?;
        // SAFETY: the program passes room for a result, here and below.
        unsafe { put_if(free, left as usize) };
        // SAFETY: as above.
        unsafe { put_if(total, current.link().description.bytes as usize) };
        Ok(())
    }

    fn cuMemAlloc_v2(at: *mut u64, len: usize) {
        if at.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { put(at, allocate_now(len)?) }
    }

    fn cuMemAllocPitch_v2(
        at: *mut u64,
        pitch: *mut usize,
        width: usize,
        height: usize,
        _unit: c_uint,
    ) {
        if at.is_null() || pitch.is_null() {
            return Err(INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(INVALID_VALUE)?;
        let made = allocate_now(row.checked_mul(height).ok_or(INVALID_VALUE)?)?;
        // SAFETY: as above.
        unsafe { put(pitch, row) }?;
        // SAFETY: as above.
        unsafe { put(at, made) }
    }

    fn cuMemFree_v2(address: u64) {
        current()?;
        if address == 0 {
            return Ok(());
        }
        let device = owner(address, 0).ok_or(INVALID_VALUE)?;
        let (start, allocation) = device.link.memory_at(address, 0).ok_or(INVALID_VALUE)?;
        if start != address || allocation.context == 0 {
            return Err(INVALID_VALUE);
        }
        let allocation = device.link.take_memory(address).ok_or(INVALID_VALUE)?;
        if let Ok(pool) = handle::pool(allocation.pool) {
            pool.note_freed(allocation.bytes);
        }
        device.link.free_memory(address, &allocation)
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64) {
        current()?;
        let found = owner(address, 0).and_then(|it| it.link.memory_at(address, 0));
        let (start, allocation) = found.ok_or(NOT_FOUND)?;
        // SAFETY: as above.
        unsafe { put_if(base, start) };
        // SAFETY: as above.
        unsafe { put_if(len, allocation.bytes as usize) };
        Ok(())
    }

    fn cuMemHostAlloc(at: *mut *mut c_void, len: usize, flags: c_uint) {
        host_alloc(at, len, flags)
    }

    fn cuMemAllocHost_v2(at: *mut *mut c_void, len: usize) {
        host_alloc(at, len, 0)
    }

    fn cuMemFreeHost(at: *mut c_void) {
        let key = at as usize;
        if !pinned().get(&key).is_some_and(|it| it.is_ours) {
            return Err(INVALID_VALUE);
        }
        wait_for_all_devices();
        let Some(its) = pinned().remove(&key) else { return Err(INVALID_VALUE) };
        // SAFETY: `host_alloc` made it with this layout, and nothing uses it any more.
        unsafe { std::alloc::dealloc(at.cast(), layout(its.len)?) };
        Ok(())
    }

    fn cuMemHostRegister_v2(at: *mut c_void, len: usize, flags: c_uint) {
        current()?;
        if at.is_null() || len == 0 {
            return Err(INVALID_VALUE);
        }
        if flags & DEVICE_MAP != 0 {
            return Err(refuse("cuMemHostRegister of memory that kernels reach"));
        }
        pinned().insert(at as usize, Pinned { len, flags, is_ours: false });
        Ok(())
    }

    fn cuMemHostUnregister(at: *mut c_void) {
        let key = at as usize;
        if pinned().get(&key).is_none_or(|it| it.is_ours) {
            return Err(INVALID_VALUE);
        }
        wait_for_all_devices();
        pinned().remove(&key);
        Ok(())
    }

    fn cuMemHostGetFlags(flags: *mut c_uint, at: *mut c_void) {
        let found = pinned().range(..=at as usize).next_back().map(|(start, it)| (*start, *it));
        let its = found.filter(|(start, it)| (at as usize) < start + it.len).ok_or(INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { put(flags, its.1.flags) }
    }

    fn cuMemcpyHtoD_v2(to: u64, from: usize, len: usize) {
        transfer(Spot::on_device(to, len)?, Spot::of_program(from)?, len, 0, true)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, len: usize, stream: usize) {
        transfer(Spot::on_device(to, len)?, Spot::of_program(from)?, len, stream, false)
    }

    fn cuMemcpyDtoH_v2(into: usize, from: u64, len: usize) {
        transfer(Spot::of_program(into)?, Spot::on_device(from, len)?, len, 0, true)
    }

    fn cuMemcpyDtoHAsync_v2(into: usize, from: u64, len: usize, stream: usize) {
        transfer(Spot::of_program(into)?, Spot::on_device(from, len)?, len, stream, false)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) {
        transfer(Spot::on_device(to, len)?, Spot::on_device(from, len)?, len, 0, false)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        transfer(Spot::on_device(to, len)?, Spot::on_device(from, len)?, len, stream, false)
    }

    fn cuMemcpy(to: u64, from: u64, len: usize) {
        current()?;
        transfer(Spot::of_either(to, len)?, Spot::of_either(from, len)?, len, 0, true)
    }

    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: usize) {
        current()?;
        transfer(Spot::of_either(to, len)?, Spot::of_either(from, len)?, len, stream, false)
    }

    fn cuMemcpyPeer(to: u64, into: usize, from: u64, of: usize, len: usize) {
        peer(to, into, from, of, len)?;
        // It comes behind all commands of both devices.
        for context in [into, of] {
            handle::context(context)?.device.link.wait_for_stream(0)?;
        }
        transfer(Spot::on_device(to, len)?, Spot::on_device(from, len)?, len, 0, true)
    }

    fn cuMemcpyPeerAsync(to: u64, into: usize, from: u64, of: usize, len: usize, stream: usize) {
        peer(to, into, from, of, len)?;
        // The stream may belong to either device.
        let its = id_on(stream)?;
        let current = current()?;
        if its.0.number != current.device.number {
            its.0.link.wait_for_stream(its.1)?;
            return transfer(Spot::on_device(to, len)?, Spot::on_device(from, len)?, len, 0, true);
        }
        transfer(Spot::on_device(to, len)?, Spot::on_device(from, len)?, len, stream, false)
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        fill(to, (1, value.into()), count, 0)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) {
        fill(to, (1, value.into()), count, stream)
    }

    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        fill(to, (2, value.into()), count, 0)
    }

    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) {
        fill(to, (2, value.into()), count, stream)
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        fill(to, (4, value), count, 0)
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: usize) {
        fill(to, (4, value), count, stream)
    }

    fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill_rows(to, pitch, (1, value.into()), (width, height), 0)
    }

    fn cuMemsetD2D8Async(
        to: u64,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: usize,
    ) {
        fill_rows(to, pitch, (1, value.into()), (width, height), stream)
    }

    fn cuMemsetD2D16_v2(to: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill_rows(to, pitch, (2, value.into()), (width, height), 0)
    }

    fn cuMemsetD2D16Async(
        to: u64,
        pitch: usize,
        value: u16,
        width: usize,
        height: usize,
        stream: usize,
    ) {
        fill_rows(to, pitch, (2, value.into()), (width, height), stream)
    }

    fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: c_uint, width: usize, height: usize) {
        fill_rows(to, pitch, (4, value), (width, height), 0)
    }

    fn cuMemsetD2D32Async(
        to: u64,
        pitch: usize,
        value: c_uint,
        width: usize,
        height: usize,
        stream: usize,
    ) {
        fill_rows(to, pitch, (4, value), (width, height), stream)
    }

    fn cuPointerGetAttribute(value: *mut c_void, name: c_int, address: u64) {
        current()?;
        // SAFETY: as above.
        unsafe { put_attribute(value, name, attribute(name, address)?) }
    }

    fn cuPointerGetAttributes(
        count: c_uint,
        names: *const c_int,
        values: *const *mut c_void,
        address: u64,
    ) {
        current()?;
        if names.is_null() || values.is_null() {
            return Err(INVALID_VALUE);
        }
        for at in 0..count as usize {
            // SAFETY: so many names and places are there.
            let (name, value) = unsafe { (*names.add(at), *values.add(at)) };
            // Other addresses have zeros.
            // SAFETY: as above.
            unsafe { put_attribute(value, name, attribute(name, address).unwrap_or(0)) }?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(_value: *const c_void, name: c_int, address: u64) {
        current()?;
        owner(address, 0).ok_or(INVALID_VALUE)?;
        // Copies from and to the program have ended when they return, if they say so.
        if name == SYNC_MEMOPS { Ok(()) } else { Err(INVALID_VALUE) }
    }
}

/// Checks a copy between contexts.
fn peer(to: u64, into: usize, from: u64, of: usize, len: usize) -> Done {
    for (context, address) in [(into, to), (of, from)] {
        let device = handle::context(context)?.device;
        if len > 0 && device.link.memory_at(address, len as u64).is_none() {
            return Err(INVALID_VALUE);
        }
    }
    Ok(())
}
