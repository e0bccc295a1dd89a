//! Blocks of a kernel that fit on a multiprocessor.

use std::ffi::{c_int, c_uint};

use venice_accel::cuda::wire::{OccupancyRequest, Told, encode, opcode};

use crate::call::*;
use crate::context::current;
use crate::module::{Function, function_on};

/// Attributes of devices: most threads of a block, multiprocessors.
const MAX_THREADS: c_int = 1;
const MULTIPROCESSORS: c_int = 16;
/// Attribute of functions: most threads of a block.
const FUNCTION_THREADS: c_int = 0;
/// Threads that run together.
const WARP: c_int = 32;

/// Tells the dynamic shared memory of a block of so many threads.
type SharedOf = Option<unsafe extern "C" fn(c_int) -> usize>;

fn blocks(function: &Function, threads: c_int, shared: u64, flags: c_uint) -> Done<c_int> {
    let key = (threads, shared, flags);
    if let Some(known) = function.occupancy().get(&key) {
        return Ok(*known);
    }
    let request = OccupancyRequest::Blocks { function: function.number, threads, shared, flags };
    let blocks = ask(function, &request)? as c_int;
    function.occupancy().insert(key, blocks);
    Ok(blocks)
}

fn ask(function: &Function, request: &OccupancyRequest) -> Done<u64> {
    let told: Told = function.device.link.call(opcode::OCCUPANCY, &encode(request))?;
    if told.status == SUCCESS { Ok(told.value) } else { Err(told.status) }
}

/// Returns the blocks of a grid and the threads of a block that keep most of the device busy: of equal
/// ones the longest block, as the vendor's function does.
fn best(
    function: &Function,
    shared_of: SharedOf,
    shared: usize,
    limit: c_int,
    flags: c_uint,
) -> Done<(c_int, c_int)> {
    let device = function.device;
    let own = function.attribute(FUNCTION_THREADS).or(device.attribute(MAX_THREADS));
    let most = own.unwrap_or(WARP);
    let limit = if limit > 0 { limit.min(most) } else { most };
    let (mut best, mut at) = ((0, 0), limit);
    while at > 0 {
        // SAFETY: the program passes the function for this.
        let shared = shared_of.map_or(shared, |of| unsafe { of(at) });
        let fit = blocks(function, at, shared as u64, flags)?;
        if fit * at > best.0 * best.1 {
            best = (fit, at);
        }
        at = if at % WARP == 0 { at - WARP } else { at - at % WARP };
    }
    Ok((best.0 * device.attribute(MULTIPROCESSORS).unwrap_or(1), best.1))
}

exported! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        at: *mut c_int,
        function: usize,
        threads: c_int,
        shared: usize,
    ) {
        let function = function_on(function, current()?.device)?;
        // SAFETY: the program passes room for a result, here and below.
        unsafe { put(at, blocks(&function, threads, shared as u64, 0)?) }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        at: *mut c_int,
        function: usize,
        threads: c_int,
        shared: usize,
        flags: c_uint,
    ) {
        let function = function_on(function, current()?.device)?;
        // SAFETY: as above.
        unsafe { put(at, blocks(&function, threads, shared as u64, flags)?) }
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        at: *mut usize,
        function: usize,
        blocks: c_int,
        threads: c_int,
    ) {
        let function = function_on(function, current()?.device)?;
        let request = OccupancyRequest::Shared { function: function.number, blocks, threads };
        // SAFETY: as above.
        unsafe { put(at, ask(&function, &request)? as usize) }
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int,
        block: *mut c_int,
        function: usize,
        shared_of: SharedOf,
        shared: usize,
        limit: c_int,
    ) {
        let function = function_on(function, current()?.device)?;
        let (blocks, threads) = best(&function, shared_of, shared, limit, 0)?;
        // SAFETY: as above.
        unsafe { put(grid, blocks) }?;
        // SAFETY: as above.
        unsafe { put(block, threads) }
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: *mut c_int,
        block: *mut c_int,
        function: usize,
        shared_of: SharedOf,
        shared: usize,
        limit: c_int,
        flags: c_uint,
    ) {
        let function = function_on(function, current()?.device)?;
        let (blocks, threads) = best(&function, shared_of, shared, limit, flags)?;
        // SAFETY: as above.
        unsafe { put(grid, blocks) }?;
        // SAFETY: as above.
        unsafe { put(block, threads) }
    }
}
