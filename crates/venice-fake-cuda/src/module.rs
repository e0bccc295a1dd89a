//! Modules, and launches of their kernels.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::device::current;
use crate::engine::{enqueue, handle, state};
use crate::kernel::{ALL, Function, MAX_THREADS, collect};
use crate::*;

/// Name of the one global variable, of four bytes, in modules that name it.
const GLOBAL: &str = "bias";

fn load(module: *mut usize, image: *const c_char) -> Result<(), Code> {
    current()?;
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a text ends; nothing else is taken.
    let text = unsafe { CStr::from_ptr(image) }.to_str().map_err(|_| INVALID_IMAGE)?;
    if !text.trim_start().starts_with(".version") {
        return Err(INVALID_IMAGE);
    }
    let mut state = state();
    let made = handle();
    let mut its = Vec::new();
    for function in ALL.into_iter().filter(|it| text.contains(it.name())) {
        let id = handle();
        state.functions.insert(id, function);
        its.push(id);
    }
    if text.contains(GLOBAL) {
        let address = state.allocate(4).ok_or(OUT_OF_MEMORY)?;
        state.globals.insert((made, GLOBAL.to_owned()), address);
    }
    state.modules.insert(made, its);
    drop(state);
    // SAFETY: as in `put`.
    unsafe { put(module, made) }
}

fn function(id: usize) -> Result<Function, Code> {
    state().functions.get(&id).copied().ok_or(INVALID_HANDLE)
}

/// Returns a name that the program passes.
unsafe fn name_of<'a>(name: *const c_char) -> Result<&'a str, Code> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a terminated string.
    unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)
}

exported! {
    fn cuModuleLoadData(module: *mut usize, image: *const c_char) {
        load(module, image)
    }

    fn cuModuleLoadDataEx(
        module: *mut usize,
        image: *const c_char,
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        load(module, image)
    }

    fn cuModuleUnload(module: usize) {
        current()?;
        let mut state = state();
        let its = state.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        state.functions.retain(|id, _| !its.contains(id));
        if let Some(address) = state.globals.remove(&(module, GLOBAL.to_owned())) {
            state.free(address);
        }
        Ok(())
    }

    fn cuModuleGetFunction(at: *mut usize, module: usize, name: *const c_char) {
        current()?;
        // SAFETY: the program passes a string.
        let name = unsafe { name_of(name) }?;
        let state = state();
        let its = state.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let found = its.iter().find(|id| state.functions[*id].name() == name).ok_or(NOT_FOUND)?;
        // SAFETY: as in `put`, here and below.
        unsafe { put(at, *found) }
    }

    fn cuModuleGetFunctionCount(count: *mut c_uint, module: usize) {
        current()?;
        let state = state();
        let its = state.modules.get(&module).ok_or(INVALID_HANDLE)?;
        // SAFETY: as above.
        unsafe { put(count, its.len() as c_uint) }
    }

    fn cuModuleEnumerateFunctions(at: *mut usize, room: c_uint, module: usize) {
        current()?;
        let state = state();
        let its = state.modules.get(&module).ok_or(INVALID_HANDLE)?;
        for (place, id) in its.iter().take(room as usize).enumerate() {
            // SAFETY: the caller has that much room.
            unsafe { at.add(place).write(*id) };
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(at: *mut u64, len: *mut usize, module: usize, name: *const c_char) {
        current()?;
        // SAFETY: the program passes a string.
        let key = (module, unsafe { name_of(name) }?.to_owned());
        let address = state().globals.get(&key).copied().ok_or(NOT_FOUND)?;
        if !at.is_null() {
            // SAFETY: as above.
            unsafe { put(at, address) }?;
        }
        if len.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { put(len, 4) }
    }

    fn cuFuncGetName(at: *mut *const c_char, id: usize) {
        let name = match function(id)? {
            Function::VectorAdd => c"vector_add",
            Function::Saxpy => c"saxpy",
            Function::Spin => c"spin",
        };
        // SAFETY: as above.
        unsafe { put(at, name.as_ptr()) }
    }

    fn cuFuncGetAttribute(value: *mut c_int, name: c_int, id: usize) {
        current()?;
        function(id)?;
        let told = match name {
            0 => MAX_THREADS as c_int,
            1..=3 => 0,
            4 => 16,
            5 | 6 => 75,
            7..=15 => 0,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: as above.
        unsafe { put(value, told) }
    }

    fn cuFuncGetParamInfo(id: usize, place: usize, offset: *mut usize, len: *mut usize) {
        let (at, bytes) = *function(id)?.parameters().get(place).ok_or(INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { put(offset, at) }?;
        if len.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { put(len, bytes) }
    }

    fn cuLaunchKernel(
        id: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        _shared: c_uint,
        stream: usize,
        pointers: *mut *mut u8,
        extra: *mut *mut u8,
    ) {
        current()?;
        let function = function(id)?;
        let product = |all: [c_uint; 3]| all.iter().map(|it| u64::from(*it)).product::<u64>();
        let (blocks, threads) =
            (product([grid_x, grid_y, grid_z]), product([block_x, block_y, block_z]));
        if blocks == 0 || threads == 0 || threads > u64::from(MAX_THREADS) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program passes them.
        let parameters = unsafe { collect(function, pointers, extra) }?;
        enqueue(stream, move || function.run(&parameters, blocks * threads)).map(drop)
    }
}
