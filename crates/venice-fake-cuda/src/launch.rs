//! Launches, and how many blocks fit.

use std::ffi::{c_int, c_uint};

use crate::device::{current, current_device};
use crate::engine::enqueue;
use crate::kernel::{MAX_THREADS, collect};
use crate::module::{attribute, function};
use crate::*;

/// Threads, blocks and bytes of shared memory of a multiprocessor.
const THREADS: c_int = 2048;
const BLOCKS: c_int = 16;
const SHARED: usize = 64 << 10;
const MULTIPROCESSORS: c_int = 4;
/// Attributes of a launch that are known.
const ATTRIBUTES: std::ops::RangeInclusive<c_uint> = 0..=14;

/// `CUlaunchConfig`, as far as it is used.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: usize,
    attributes: *const Attribute,
    count: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    name: c_uint,
    value: [u64; 8],
}

/// Tells the dynamic shared memory of a block of so many threads.
type SharedOf = Option<unsafe extern "C" fn(c_int) -> usize>;

unsafe fn launch(
    id: usize,
    config: &Config,
    pointers: *mut *mut u8,
    extra: *mut *mut u8,
) -> Result<(), Code> {
    let device = current_device()?;
    let function = function(id)?;
    let product = |all: [c_uint; 3]| all.iter().map(|it| u64::from(*it)).product::<u64>();
    let (blocks, threads) = (product(config.grid), product(config.block));
    let most = attribute(8, id)?;
    if blocks == 0
        || threads == 0
        || threads > u64::from(MAX_THREADS)
        || config.shared > most.cast_unsigned()
    {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the program passes them.
    let parameters = unsafe { collect(function, pointers, extra) }?;
    enqueue(device, config.stream, move || function.run(&parameters, blocks * threads)).map(drop)
}

fn blocks(threads: c_int, shared: usize) -> c_int {
    let by_threads = (THREADS / threads.max(1)).min(BLOCKS);
    let by_shared = SHARED.checked_div(shared).map_or(BLOCKS, |it| it as c_int);
    by_threads.min(by_shared)
}

/// Returns blocks and threads that keep most of the device busy.
fn best(shared_of: SharedOf, shared: usize, limit: c_int) -> (c_int, c_int) {
    let most = MAX_THREADS as c_int;
    let limit = if limit > 0 { limit.min(most) } else { most };
    let (mut best, mut at) = ((0, 0), limit);
    while at > 0 {
        // SAFETY: the program passes the function for this.
        let shared = shared_of.map_or(shared, |of| unsafe { of(at) });
        let fit = blocks(at, shared);
        if fit * at > best.0 * best.1 {
            best = (fit, at);
        }
        at = if at % 32 == 0 { at - 32 } else { at - at % 32 };
    }
    (best.0 * MULTIPROCESSORS, best.1)
}

exported! {
    fn cuLaunchKernel(
        id: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: usize,
        pointers: *mut *mut u8,
        extra: *mut *mut u8,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let attributes = std::ptr::null();
        let config = Config { grid, block, shared, stream, attributes, count: 0 };
        // SAFETY: the program passes what the API asks for, here and below.
        unsafe { launch(id, &config, pointers, extra) }
    }

    fn cuLaunchKernelEx(
        config: *const Config,
        id: usize,
        pointers: *mut *mut u8,
        extra: *mut *mut u8,
    ) {
        if config.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above.
        let config = unsafe { *config };
        for at in 0..config.count as usize {
            // SAFETY: as many attributes are there.
            if !ATTRIBUTES.contains(&unsafe { *config.attributes.add(at) }.name) {
                return Err(INVALID_VALUE);
            }
        }
        // SAFETY: as above.
        unsafe { launch(id, &config, pointers, extra) }
    }

    fn cuLaunchCooperativeKernel(
        id: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: usize,
        pointers: *mut *mut u8,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let attributes = std::ptr::null();
        let config = Config { grid, block, shared, stream, attributes, count: 0 };
        // SAFETY: as above.
        unsafe { launch(id, &config, pointers, std::ptr::null_mut()) }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        at: *mut c_int,
        id: usize,
        threads: c_int,
        shared: usize,
    ) {
        current()?;
        function(id)?;
        // SAFETY: as in `put`, here and below.
        unsafe { put(at, blocks(threads, shared)) }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        at: *mut c_int,
        id: usize,
        threads: c_int,
        shared: usize,
        _flags: c_uint,
    ) {
        current()?;
        function(id)?;
        // SAFETY: as above.
        unsafe { put(at, blocks(threads, shared)) }
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        at: *mut usize,
        id: usize,
        count: c_int,
        threads: c_int,
    ) {
        current()?;
        function(id)?;
        if count <= 0 || blocks(threads, 0) < count {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { put(at, SHARED / count as usize) }
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int,
        block: *mut c_int,
        id: usize,
        shared_of: SharedOf,
        shared: usize,
        limit: c_int,
    ) {
        current()?;
        function(id)?;
        let (blocks, threads) = best(shared_of, shared, limit);
        // SAFETY: as above.
        unsafe { put(grid, blocks) }?;
        // SAFETY: as above.
        unsafe { put(block, threads) }
    }
}
