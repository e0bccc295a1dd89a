//! Memory of devices, and pinned memory of the program.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use venice_accel::cuda::wire::{Allocated, Command, encode, opcode};

use crate::call::*;
use crate::context::{Current, current};
use crate::device::devices;
use crate::link::Allocation;
use crate::stream::id_of;

const PAGE_BYTES: usize = 4096;
/// Flag of pinned memory that kernels reach.
const DEVICE_MAP: c_uint = 2;
/// Attributes of pointers.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const DEVICE_POINTER: c_int = 3;
const HOST_POINTER: c_int = 4;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;

/// Pinned memory, by its first byte.
static PINNED: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct Pinned {
    len: usize,
    /// True if it was allocated here.
    is_ours: bool,
}

fn pinned() -> MutexGuard<'static, BTreeMap<usize, Pinned>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_pinned(at: usize, len: usize) -> bool {
    let all = pinned();
    let last = all.range(..=at).next_back();
    last.is_some_and(|(start, it)| at.saturating_add(len) <= start + it.len)
}

/// Fails if bytes are not memory of the device.
fn check_device(current: &Current, address: u64, bytes: usize) -> Done {
    if bytes == 0 || current.link().memory_at(address, bytes as u64).is_some() {
        return Ok(());
    }
    Err(INVALID_VALUE)
}

fn write(to: u64, from: *const u8, len: usize, stream: usize, ends: bool) -> Done {
    let current = current()?;
    check_device(&current, to, len)?;
    if from.is_null() && len > 0 {
        return Err(INVALID_VALUE);
    }
    let stream = id_of(&current, stream)?;
    // SAFETY: the program passes so many bytes.
    unsafe { current.link().write(stream, to, from, len, ends) }
}

fn read(into: *mut u8, from: u64, len: usize, stream: usize, ends: bool) -> Done {
    let current = current()?;
    check_device(&current, from, len)?;
    if into.is_null() && len > 0 {
        return Err(INVALID_VALUE);
    }
    let stream = id_of(&current, stream)?;
    let ends = ends || !is_pinned(into as usize, len);
    // SAFETY: the program passes so many bytes, and keeps pinned ones until it has waited.
    unsafe { current.link().read(stream, into, from, len, ends) }
}

fn copy(to: u64, from: u64, len: usize, stream: usize) -> Done {
    let current = current()?;
    check_device(&current, to, len)?;
    check_device(&current, from, len)?;
    let stream = id_of(&current, stream)?;
    current.link().submit(&Command::Copy { stream, to, from, bytes: len as u64 })
}

fn fill(to: u64, (width, value): (u32, u32), count: usize, stream: usize) -> Done {
    let current = current()?;
    let bytes = count.checked_mul(width as usize).ok_or(INVALID_VALUE)?;
    if !to.is_multiple_of(u64::from(width)) {
        return Err(INVALID_VALUE);
    }
    check_device(&current, to, bytes)?;
    let stream = id_of(&current, stream)?;
    let count = count as u64;
    current.link().submit(&Command::Fill { stream, to, width, value, count })
}

fn host_alloc(at: *mut *mut c_void, len: usize, flags: c_uint) -> Done {
    current()?;
    if flags & DEVICE_MAP != 0 {
        return Err(NOT_SUPPORTED);
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
    pinned().insert(made as usize, Pinned { len, is_ours: true });
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
        let current = current()?;
        if at.is_null() || len == 0 {
            return Err(INVALID_VALUE);
        }
        let bytes = len as u64;
        let made: Allocated = current.link().call(opcode::ALLOCATE, &encode(&bytes))?;
        if made.status != SUCCESS {
            return Err(made.status);
        }
        current.link().add_memory(made.address, Allocation { bytes, context: current.handle });
        // SAFETY: as above.
        unsafe { put(at, made.address) }
    }

    fn cuMemFree_v2(address: u64) {
        let current = current()?;
        if address == 0 {
            return Ok(());
        }
        let is_allocated = |(start, it): &(u64, Allocation)| *start == address && it.context != 0;
        if current.link().memory_at(address, 0).filter(is_allocated).is_none()
            || !current.link().remove_memory(address)
        {
            return Err(INVALID_VALUE);
        }
        current.link().submit(&Command::Free { address })
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64) {
        let (start, allocation) = current()?.link().memory_at(address, 0).ok_or(NOT_FOUND)?;
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
            return Err(NOT_SUPPORTED);
        }
        pinned().insert(at as usize, Pinned { len, is_ours: false });
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

    fn cuMemcpyHtoD_v2(to: u64, from: *const u8, len: usize) {
        write(to, from, len, 0, true)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, len: usize, stream: usize) {
        write(to, from, len, stream, false)
    }

    fn cuMemcpyDtoH_v2(into: *mut u8, from: u64, len: usize) {
        read(into, from, len, 0, true)
    }

    fn cuMemcpyDtoHAsync_v2(into: *mut u8, from: u64, len: usize, stream: usize) {
        read(into, from, len, stream, false)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) {
        copy(to, from, len, 0)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        copy(to, from, len, stream)
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        fill(to, (1, value.into()), count, 0)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) {
        fill(to, (1, value.into()), count, stream)
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        fill(to, (4, value), count, 0)
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: usize) {
        fill(to, (4, value), count, stream)
    }

    fn cuPointerGetAttribute(value: *mut c_void, name: c_int, address: u64) {
        let current = current()?;
        let on_device = current.link().memory_at(address, 0);
        let is_host = is_pinned(address as usize, 1);
        match (name, on_device) {
            // SAFETY: room for a handle.
            (CONTEXT, Some((_, it))) => unsafe { put(value.cast::<usize>(), it.context) },
            // SAFETY: room for an int, here and below.
            (MEMORY_TYPE, Some(_)) => unsafe { put(value.cast::<c_uint>(), 2) },
            // SAFETY: as above.
            (MEMORY_TYPE, None) if is_host => unsafe { put(value.cast::<c_uint>(), 1) },
            // SAFETY: room for an address.
            (DEVICE_POINTER, Some(_)) => unsafe { put(value.cast::<u64>(), address) },
            // SAFETY: as above.
            (HOST_POINTER, None) if is_host => unsafe { put(value.cast::<u64>(), address) },
            // SAFETY: as above.
            (IS_MANAGED, _) if on_device.is_some() || is_host => unsafe {
                put(value.cast::<c_uint>(), 0)
            },
            // SAFETY: as above.
            (DEVICE_ORDINAL, Some(_)) => unsafe {
                put(value.cast::<c_int>(), current.device.number)
            },
            (_, Some(_)) => Err(NOT_SUPPORTED),
            (_, None) => Err(INVALID_VALUE),
        }
    }
}
