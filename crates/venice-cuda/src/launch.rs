//! Launches.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use venice_accel::cuda::wire::{CARRIED_ATTRIBUTES, Command, IGNORED_ATTRIBUTE, LaunchAttribute};

use crate::call::*;
use crate::context::current;
use crate::module::{Function, function_on};
use crate::names::refuse;
use crate::stream::id_of;

/// Attributes of devices: most threads of a block, in all and in each dimension.
const MAX_THREADS: c_int = 1;
const MAX_BLOCK: [c_int; 3] = [2, 3, 4];
const MAX_GRID: [c_int; 3] = [5, 6, 7];
/// Attributes of functions: most threads of a block, most dynamic shared memory.
const FUNCTION_THREADS: c_int = 0;
const FUNCTION_SHARED: c_int = 8;
/// Launch attribute: all blocks run together.
const COOPERATIVE: u32 = 2;

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    name: c_uint,
    pad: u32,
    value: [u8; 64],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub stream: usize,
    attributes: *const Attribute,
    count: c_uint,
}

impl Config {
    /// Returns one without attributes.
    pub fn new(grid: [c_uint; 3], block: [c_uint; 3], shared: c_uint, stream: usize) -> Self {
        Self { grid, block, shared, stream, attributes: std::ptr::null(), count: 0 }
    }
}

/// A launch that has been checked.
#[derive(Clone)]
pub struct Launch {
    function: Arc<Function>,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    attributes: Vec<LaunchAttribute>,
    parameters: Vec<u8>,
}

impl Launch {
    /// Returns the command, for a stream.
    pub fn command(&self, stream: u64) -> Command<'_> {
        let &Self { grid, block, shared, .. } = self;
        let (function, parameters) = (self.function.number, &self.parameters[..]);
        if self.attributes.is_empty() {
            return Command::Launch { function, grid, block, shared, stream, parameters };
        }
        let attributes = self.attributes.clone();
        Command::LaunchWith { function, grid, block, shared, stream, attributes, parameters }
    }
}

/// Collects parameters at their offsets, from pointers to them or from the buffer of `extra`.
///
/// # Safety
/// The arguments of `cuLaunchKernel`.
unsafe fn collect(
    function: &Function,
    pointers: *mut *mut u8,
    extra: *mut *mut c_void,
) -> Done<Vec<u8>> {
    let mut all = vec![0; function.bytes];
    if !pointers.is_null() {
        for (number, place) in function.parameters.iter().enumerate() {
            let (at, len) = (place.offset as usize, place.bytes as usize);
            // SAFETY: a pointer to each parameter.
            let pointer = unsafe { *pointers.add(number) };
            if pointer.is_null() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: as above.
            all[at..at + len].copy_from_slice(unsafe { std::slice::from_raw_parts(pointer, len) });
        }
        return Ok(all);
    }
    if extra.is_null() {
        return if function.bytes == 0 { Ok(all) } else { Err(INVALID_VALUE) };
    }
    let (mut buffer, mut len) = (std::ptr::null::<u8>(), 0_usize);
    for pair in 0.. {
        // SAFETY: pairs of a name and a value, ended by the name 0.
        match unsafe { *extra.add(2 * pair) } as usize {
            0 => break,
            // SAFETY: as above.
            1 => buffer = unsafe { *extra.add(2 * pair + 1) }.cast(),
            // SAFETY: as above; the value points to the length.
            2 => len = unsafe { *(*extra.add(2 * pair + 1)).cast::<usize>() },
            _ => return Err(INVALID_VALUE),
        }
    }
    if buffer.is_null() || len < all.len() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: so many bytes are there.
    all.copy_from_slice(unsafe { std::slice::from_raw_parts(buffer, function.bytes) });
    Ok(all)
}

/// Checks a launch on the current device.
///
/// # Safety
/// The arguments of `cuLaunchKernelEx`.
pub unsafe fn prepare(
    function: usize,
    config: &Config,
    attributes: Vec<LaunchAttribute>,
    pointers: *mut *mut u8,
    extra: *mut *mut c_void,
) -> Done<Launch> {
    let device = current()?.device;
    let function = function_on(function, device)?;
    let &Config { grid, block, shared, .. } = config;
    let is_within = |all: [c_uint; 3], limits: [c_int; 3]| {
        all.iter().zip(limits).all(|(size, limit)| {
            let limit = device.attribute(limit).unwrap_or(c_int::MAX);
            *size > 0 && i64::from(*size) <= i64::from(limit)
        })
    };
    let threads: u64 = block.iter().map(|it| u64::from(*it)).product();
    let most = function.attribute(FUNCTION_THREADS).or(device.attribute(MAX_THREADS));
    let most_shared = function.attribute(FUNCTION_SHARED).unwrap_or(c_int::MAX);
    if !is_within(grid, MAX_GRID)
        || !is_within(block, MAX_BLOCK)
        || threads > most.and_then(|it| u64::try_from(it).ok()).unwrap_or(u64::MAX)
        || i64::from(shared) > i64::from(most_shared)
    {
        return Err(INVALID_VALUE);
    }
    // SAFETY: promised by the caller.
    let parameters = unsafe { collect(&function, pointers, extra) }?;
    Ok(Launch { function, grid, block, shared, attributes, parameters })
}

/// Launches a kernel.
///
/// # Safety
/// The arguments of `cuLaunchKernelEx`.
unsafe fn launch(
    function: usize,
    config: &Config,
    attributes: Vec<LaunchAttribute>,
    pointers: *mut *mut u8,
    extra: *mut *mut c_void,
) -> Done {
    let current = current()?;
    // SAFETY: promised by the caller.
    let launch = unsafe { prepare(function, config, attributes, pointers, extra) }?;
    let stream = id_of(&current, config.stream)?;
    current.link().submit(&launch.command(stream))
}

/// Returns the attributes of a launch that the donor is told.
///
/// # Safety
/// The configuration has as many as it says.
unsafe fn carried(config: &Config) -> Done<Vec<LaunchAttribute>> {
    let mut all = Vec::new();
    for at in 0..config.count as usize {
        if config.attributes.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: promised by the caller.
        let Attribute { name, value, .. } = unsafe { *config.attributes.add(at) };
        match name {
            IGNORED_ATTRIBUTE => {}
            _ if CARRIED_ATTRIBUTES.contains(&name) => all.push(LaunchAttribute { name, value }),
            7 => return Err(refuse("a launch attribute (programmatic event)")),
            12 => return Err(refuse("a launch attribute (launch completion event)")),
            13 => return Err(refuse("a launch attribute (device-updatable kernel node)")),
            _ => return Err(INVALID_VALUE),
        }
    }
    Ok(all)
}

exported! {
    fn cuLaunchKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: usize,
        pointers: *mut *mut u8,
        extra: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let config = Config::new(grid, block, shared, stream);
        // SAFETY: the program passes what the API asks for, here and below.
        unsafe { launch(function, &config, Vec::new(), pointers, extra) }
    }

    fn cuLaunchKernelEx(
        config: *const Config,
        function: usize,
        pointers: *mut *mut u8,
        extra: *mut *mut c_void,
    ) {
        // SAFETY: as above.
        let config = unsafe { config.as_ref() }.ok_or(INVALID_VALUE)?;
        // SAFETY: as above.
        let attributes = unsafe { carried(config) }?;
        // SAFETY: as above.
        unsafe { launch(function, config, attributes, pointers, extra) }
    }

    fn cuLaunchCooperativeKernel(
        function: usize,
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
        let config = Config::new(grid, block, shared, stream);
        let mut value = [0; 64];
        value[0] = 1;
        let attributes = vec![LaunchAttribute { name: COOPERATIVE, value }];
        // SAFETY: as above.
        unsafe { launch(function, &config, attributes, pointers, std::ptr::null_mut()) }
    }
}
