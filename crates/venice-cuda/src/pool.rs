//! Memory that is allocated and freed in the order of streams. What a stream has freed serves its next
//! allocation of the same length without a word to the donor; at waits the rest goes back, as far as
//! the pool is not to keep it.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use venice_accel::cuda::wire::{Allocated, Command, OrderedRequest, encode, opcode};

use crate::addresses;
use crate::call::*;
use crate::context::current;
use crate::device::{self, Device, devices};
use crate::handle::{self, Object};
use crate::link::Allocation;
use crate::memory::allocate;
use crate::stream::id_of;

/// `CUmemPool_attribute`s: rules of reuse, bytes to keep, bytes that are reserved and used, now and at
/// most.
const RULES: std::ops::RangeInclusive<c_int> = 1..=3;
const THRESHOLD: c_int = 4;
const RESERVED: c_int = 5;
const MOST_RESERVED: c_int = 6;
const USED: c_int = 7;
const MOST_USED: c_int = 8;

/// Memory that a stream has freed.
struct Freed {
    stream: u64,
    address: u64,
    bytes: u64,
}

#[derive(Default)]
struct State {
    freed: VecDeque<Freed>,
    rules: [Option<c_int>; 3],
    threshold: u64,
    /// Bytes that are freed, and used.
    freed_bytes: u64,
    used_bytes: u64,
    most_reserved: u64,
    most_used: u64,
}

/// A pool.
pub struct Pool {
    device: &'static Device,
    is_default: bool,
    state: Mutex<State>,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives freed memory back until so many bytes are left; true if there was any.
    pub fn trim(&self, keep_bytes: u64) -> bool {
        let mut given = Vec::new();
        let mut state = self.lock();
        while state.freed_bytes > keep_bytes
            && let Some(freed) = state.freed.pop_front()
        {
            state.freed_bytes -= freed.bytes;
            given.push(freed);
        }
        self.give_back(&given, &state);
        !given.is_empty()
    }

    /// Gives back what is not to be kept.
    pub fn trim_to_threshold(&self) {
        let threshold = self.lock().threshold;
        self.trim(threshold);
    }

    /// Gives back what a stream has freed, while it is there.
    fn trim_stream(&self, stream: u64) {
        let mut state = self.lock();
        let (its, others): (VecDeque<Freed>, VecDeque<Freed>) =
            state.freed.drain(..).partition(|it| it.stream == stream);
        state.freed = others;
        state.freed_bytes -= its.iter().map(|it| it.bytes).sum::<u64>();
        self.give_back(&Vec::from(its), &state);
    }

    /// Gives memory back. The lock is held meanwhile: a stream that ends would end before its memory is
    /// freed into it.
    fn give_back(&self, given: &[Freed], _locked: &MutexGuard<'_, State>) {
        for Freed { stream, address, bytes } in given {
            addresses::release(*address, *bytes);
            let (stream, address) = (*stream, *address);
            let _ = self.device.link.submit(&Command::FreeOrdered { stream, address });
        }
    }

    /// Takes memory that a stream has freed.
    fn reuse(&self, stream: u64, bytes: u64) -> Option<u64> {
        let mut state = self.lock();
        let fits = |it: &Freed| it.stream == stream && it.bytes == bytes;
        let place = state.freed.iter().position(fits)?;
        let freed = state.freed.remove(place)?;
        state.freed_bytes -= bytes;
        Some(freed.address)
    }

    fn note_used(&self, bytes: u64) {
        let mut state = self.lock();
        state.used_bytes += bytes;
        state.most_used = state.most_used.max(state.used_bytes);
        state.most_reserved = state.most_reserved.max(state.used_bytes + state.freed_bytes);
    }

    /// Takes note of memory that was freed otherwise.
    pub fn note_freed(&self, bytes: u64) {
        let mut state = self.lock();
        state.used_bytes = state.used_bytes.saturating_sub(bytes);
    }
}

/// Gives back what a stream has freed: it ends.
pub fn trim_stream(device: &Device, stream: u64) {
    device.link.pools().iter().for_each(|pool| pool.trim_stream(stream));
}

fn make(device: &'static Device, is_default: bool) -> usize {
    let pool = Arc::new(Pool { device, is_default, state: Mutex::default() });
    device.link.add_pool(&pool);
    handle::add(Object::Pool(pool))
}

/// Returns the default pool of a device.
fn default_of(device: &'static Device) -> usize {
    static ALL: OnceLock<Vec<OnceLock<usize>>> = OnceLock::new();
    let all = ALL.get_or_init(|| devices().iter().map(|_| OnceLock::new()).collect());
    *all[device.number as usize].get_or_init(|| make(device, true))
}

/// Pools that programs have chosen for devices.
static CHOSEN: Mutex<Vec<(c_int, usize)>> = Mutex::new(Vec::new());

fn chosen() -> MutexGuard<'static, Vec<(c_int, usize)>> {
    CHOSEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pool_of(device: &'static Device) -> usize {
    let found = chosen().iter().find(|it| it.0 == device.number).map(|it| it.1);
    found.filter(|it| handle::pool(*it).is_ok()).unwrap_or_else(|| default_of(device))
}

fn has_pools(device: &Device) -> Done {
    match device.attribute(115) {
        Some(1) => Ok(()),
        Some(_) | None => Err(NOT_SUPPORTED),
    }
}

fn allocate_ordered(at: *mut u64, len: usize, pool: Option<usize>, stream: usize) -> Done {
    let current = current()?;
    has_pools(current.device)?;
    if at.is_null() || len == 0 {
        return Err(INVALID_VALUE);
    }
    let stream = id_of(&current, stream)?;
    let number = pool.unwrap_or_else(|| pool_of(current.device));
    let pool = handle::pool(number)?;
    if pool.device.number != current.device.number {
        return Err(INVALID_VALUE);
    }
    let (link, bytes) = (current.link(), len as u64);
    let address = match pool.reuse(stream, bytes) {
        Some(address) => {
            let allocation = Allocation { bytes, context: current.handle, pool: number };
            link.add_memory(address, allocation);
            address
        }
        None => allocate(&current, bytes, number, |bytes| {
            let request = encode(&OrderedRequest { bytes, stream });
            let asked: Allocated = link.call(opcode::ALLOCATE_ORDERED, &request)?;
            if asked.status != OUT_OF_MEMORY || !link.pools().iter().any(|it| it.trim(0)) {
                return Ok(asked);
            }
            link.call(opcode::ALLOCATE_ORDERED, &request)
        })?,
    };
    pool.note_used(bytes);
    // SAFETY: the program passes room for an address.
    unsafe { put(at, address) }
}

/// Location of memory: kind, and number of the device.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    number: c_int,
}

/// First fields of `CUmemPoolProps`.
#[repr(C)]
struct Properties {
    allocation: c_int,
    handles: c_int,
    location: Location,
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: c_int,
}

/// Kind of a location on a device.
const ON_DEVICE: c_int = 1;
const READ_WRITE: c_int = 3;

exported! {
    fn cuMemAllocAsync(at: *mut u64, len: usize, stream: usize) {
        allocate_ordered(at, len, None, stream)
    }

    fn cuMemAllocFromPoolAsync(at: *mut u64, len: usize, pool: usize, stream: usize) {
        allocate_ordered(at, len, Some(pool), stream)
    }

    fn cuMemFreeAsync(address: u64, stream: usize) {
        let current = current()?;
        let stream = id_of(&current, stream)?;
        let link = current.link();
        let (start, its) = link.memory_at(address, 0).ok_or(INVALID_VALUE)?;
        if start != address || its.pool == 0 {
            return Err(INVALID_VALUE);
        }
        let Allocation { bytes, pool, .. } = link.take_memory(address).ok_or(INVALID_VALUE)?;
        let Ok(pool) = handle::pool(pool) else {
            addresses::release(address, bytes);
            return link.submit(&Command::FreeOrdered { stream, address });
        };
        pool.note_freed(bytes);
        let mut state = pool.lock();
        state.freed.push_back(Freed { stream, address, bytes });
        state.freed_bytes += bytes;
        Ok(())
    }

    fn cuDeviceGetDefaultMemPool(pool: *mut usize, number: c_int) {
        let device = device::device(number)?;
        has_pools(device)?;
        // SAFETY: the program passes room for a result, here and below.
        unsafe { put(pool, default_of(device)) }
    }

    fn cuDeviceGetMemPool(pool: *mut usize, number: c_int) {
        let device = device::device(number)?;
        has_pools(device)?;
        // SAFETY: as above.
        unsafe { put(pool, pool_of(device)) }
    }

    fn cuDeviceSetMemPool(number: c_int, pool: usize) {
        let device = device::device(number)?;
        if handle::pool(pool)?.device.number != device.number {
            return Err(INVALID_VALUE);
        }
        let mut all = chosen();
        all.retain(|it| it.0 != number);
        all.push((number, pool));
        Ok(())
    }

    fn cuMemPoolCreate(pool: *mut usize, properties: *const Properties) {
        // SAFETY: the program passes properties.
        let its = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
        let device = device::device(its.location.number)?;
        has_pools(device)?;
        if its.handles != 0 || its.location.kind != ON_DEVICE {
            return Err(crate::names::refuse("cuMemPoolCreate for other processes or for the host"));
        }
        // SAFETY: as above.
        unsafe { put(pool, make(device, false)) }
    }

    fn cuMemPoolDestroy(pool: usize) {
        let its = handle::pool(pool)?;
        if its.is_default {
            return Err(INVALID_VALUE);
        }
        its.trim(0);
        chosen().retain(|it| it.1 != pool);
        handle::remove(pool);
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: usize, keep: usize) {
        let its = handle::pool(pool)?;
        let used = its.lock().used_bytes;
        its.trim((keep as u64).saturating_sub(used));
        Ok(())
    }

    fn cuMemPoolSetAttribute(pool: usize, name: c_int, value: *const c_void) {
        let its = handle::pool(pool)?;
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut state = its.lock();
        match name {
            // SAFETY: the program passes a number of the attribute's length, here and below.
            it if RULES.contains(&it) => unsafe {
                state.rules[it as usize - 1] = Some(*value.cast::<c_int>());
            },
            // SAFETY: as above.
            THRESHOLD => state.threshold = unsafe { *value.cast::<u64>() },
            MOST_RESERVED => state.most_reserved = state.used_bytes + state.freed_bytes,
            MOST_USED => state.most_used = state.used_bytes,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: usize, name: c_int, value: *mut c_void) {
        let its = handle::pool(pool)?;
        let state = its.lock();
        let told = match name {
            it if RULES.contains(&it) => {
                // SAFETY: as above.
                return unsafe { put(value.cast(), state.rules[it as usize - 1].unwrap_or(1)) };
            }
            THRESHOLD => state.threshold,
            RESERVED => state.used_bytes + state.freed_bytes,
            MOST_RESERVED => state.most_reserved,
            USED => state.used_bytes,
            MOST_USED => state.most_used,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: as above.
        unsafe { put(value.cast::<u64>(), told) }
    }

    fn cuMemPoolSetAccess(pool: usize, accesses: *const Access, count: usize) {
        let its = handle::pool(pool)?;
        for at in 0..count {
            // SAFETY: so many are there.
            let Access { location, flags } = unsafe { &*accesses.wrapping_add(at) };
            let is_own = location.kind == ON_DEVICE && location.number == its.device.number;
            if !is_own || *flags != READ_WRITE {
                return Err(INVALID_DEVICE);
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: *mut c_int, pool: usize, location: *const Location) {
        let its = handle::pool(pool)?;
        // SAFETY: the program passes a location.
        let location = unsafe { location.as_ref() }.ok_or(INVALID_VALUE)?;
        let is_own = location.kind == ON_DEVICE && location.number == its.device.number;
        // SAFETY: as above.
        unsafe { put(flags, if is_own { READ_WRITE } else { 0 }) }
    }
}
