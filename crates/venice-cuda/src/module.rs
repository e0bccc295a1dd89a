//! Modules, their functions, launches.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use venice_accel::cuda::wire::{
    Allocated, Blob, Command, FunctionInfo, GlobalRequest, LoadRequest, Loaded, decode, encode,
    opcode,
};

use crate::call::*;
use crate::context::current;
use crate::device::Device;
use crate::handle::{self, Object};
use crate::link::Allocation;
use crate::stream::id_of;

/// First bytes of a fat binary, and of the record that points to one.
const FAT_BINARY: u32 = 0xba55_ed50;
const FAT_WRAPPER: u32 = 0x4662_43b1;
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
/// Attributes of devices: most threads of a block, in all and in each dimension.
const MAX_THREADS: c_int = 1;
const MAX_BLOCK: [c_int; 3] = [2, 3, 4];
const MAX_GRID: [c_int; 3] = [5, 6, 7];
/// Attribute of functions: most threads of a block.
const FUNCTION_THREADS: c_int = 0;

/// A module.
pub struct Module {
    pub id: u64,
    pub context: usize,
    device: &'static Device,
    functions: Vec<(String, usize)>,
    /// Addresses of global variables that the program has asked for.
    globals: Mutex<Vec<u64>>,
}

/// A kernel.
pub struct Function {
    pub context: usize,
    device: &'static Device,
    info: FunctionInfo,
    name: CString,
    module: std::sync::OnceLock<usize>,
    /// Length of the parameters.
    bytes: usize,
}

impl Function {
    fn attribute(&self, name: c_int) -> Option<c_int> {
        self.info.attributes.iter().find(|it| it.name == name).map(|it| it.value)
    }
}

/// Returns the bytes of an image, whose length only its own headers tell.
///
/// # Safety
/// `image` is one of the images that the API knows.
unsafe fn image_bytes<'a>(image: *const u8) -> Done<&'a [u8]> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: each kind of image has at least its first bytes, up to the end of a text; a byte at a
    // time, since a text may be short.
    let first = |len: usize| unsafe {
        (0..len).map(|at| *image.add(at)).take_while(|byte| *byte != 0).count() == len
    };
    let magic = match first(4) {
        // SAFETY: four bytes are there.
        true => unsafe { image.cast::<u32>().read_unaligned() },
        false => 0,
    };
    // SAFETY: headers of the kinds that these magic numbers name.
    let (long, short) = (
        |at: usize| unsafe { image.add(at).cast::<u64>().read_unaligned() } as usize,
        |at: usize| usize::from(unsafe { image.add(at).cast::<u16>().read_unaligned() }),
    );
    let len = match magic {
        FAT_WRAPPER => {
            // SAFETY: the record points to the fat binary.
            return unsafe { image_bytes(long(8) as *const u8) };
        }
        // The length of the header, and that of what follows.
        FAT_BINARY => short(6).checked_add(long(8)),
        ELF => {
            // The tables of sections and of segments come last.
            let sections = long(40).checked_add(short(58) * short(60));
            let segments = long(32).checked_add(short(54) * short(56));
            sections.max(segments)
        }
        // SAFETY: anything else is a text.
        _ => Some(unsafe { std::ffi::CStr::from_ptr(image.cast()) }.to_bytes().len()),
    };
    let len = len.filter(|len| *len < isize::MAX as usize).ok_or(INVALID_IMAGE)?;
    // SAFETY: the image tells its length.
    Ok(unsafe { std::slice::from_raw_parts(image, len) })
}

/// Loads a module.
///
/// # Safety
/// The arguments of `cuModuleLoadData`.
unsafe fn load(module: *mut usize, image: *const u8) -> Done {
    let current = current()?;
    // SAFETY: promised by the caller.
    let image = unsafe { image_bytes(image) }?;
    let link = current.link();
    let id = link.new_id();
    let answer = link
        .stream
        .with_blob(image, |image: Blob<'_>| {
            link.stream.call_long(opcode::LOAD, &encode(&LoadRequest { id, image }))
        })
        .map_err(session_code)?;
    let loaded: Loaded = decode(&answer).map_err(|_| UNKNOWN)?;
    if loaded.status != SUCCESS {
        return Err(loaded.status);
    }
    let (context, device) = (current.handle, current.device);
    let (mut functions, mut made) = (Vec::new(), Vec::new());
    for info in loaded.functions {
        let end = |it: &venice_accel::cuda::wire::Place| (it.offset + it.bytes) as usize;
        let bytes = info.parameters.iter().map(end).max().unwrap_or(0);
        let name = info.name.clone();
        let c_name = CString::new(name.as_str()).map_err(|_| UNKNOWN)?;
        let module = std::sync::OnceLock::new();
        let function = Arc::new(Function { context, device, info, name: c_name, module, bytes });
        functions.push((name, handle::add(Object::Function(Arc::clone(&function)))));
        made.push(function);
    }
    let new = handle::add(Object::Module(Arc::new(Module {
        id,
        context,
        device,
        functions,
        globals: Mutex::default(),
    })));
    for function in made {
        let _ = function.module.set(new);
    }
    // SAFETY: the program passes room for a handle.
    unsafe { put(module, new) }
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
        for (number, place) in function.info.parameters.iter().enumerate() {
            let (at, len) = (place.offset as usize, place.bytes as usize);
            // SAFETY: a pointer to each parameter.
            let value = unsafe { std::slice::from_raw_parts(*pointers.add(number), len) };
            all[at..at + len].copy_from_slice(value);
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

exported! {
    fn cuModuleLoadData(module: *mut usize, image: *const u8) {
        // SAFETY: the program passes what the API asks for, here and below.
        unsafe { load(module, image) }
    }

    fn cuModuleLoadDataEx(
        module: *mut usize,
        image: *const u8,
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        // SAFETY: as above.
        unsafe { load(module, image) }
    }

    fn cuModuleLoadFatBinary(module: *mut usize, image: *const u8) {
        // SAFETY: as above.
        unsafe { load(module, image) }
    }

    fn cuModuleUnload(module: usize) {
        let its = handle::module(module)?;
        let link = &its.device.link;
        for address in its.globals.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            link.remove_memory(address);
        }
        its.functions.iter().for_each(|(_, function)| handle::remove(*function));
        handle::remove(module);
        link.stream.release(its.id);
        Ok(())
    }

    fn cuModuleGetFunction(at: *mut usize, module: usize, name: *const c_char) {
        current()?;
        // SAFETY: as above.
        let name = unsafe { text(name) }?;
        let its = handle::module(module)?;
        let (_, found) = its.functions.iter().find(|(own, _)| own == name).ok_or(NOT_FOUND)?;
        // SAFETY: as above.
        unsafe { put(at, *found) }
    }

    fn cuModuleGetFunctionCount(count: *mut c_uint, module: usize) {
        let its = handle::module(module)?;
        // SAFETY: as above.
        unsafe { put(count, its.functions.len() as c_uint) }
    }

    fn cuModuleEnumerateFunctions(at: *mut usize, room: c_uint, module: usize) {
        let its = handle::module(module)?;
        for (place, (_, function)) in its.functions.iter().take(room as usize).enumerate() {
            // SAFETY: the program has that much room.
            unsafe { put(at.wrapping_add(place), *function) }?;
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(at: *mut u64, len: *mut usize, module: usize, name: *const c_char) {
        let its = handle::module(module)?;
        let link = &its.device.link;
        // SAFETY: as above.
        let name = unsafe { text(name) }?;
        let request = GlobalRequest { module: its.id, name };
        let found: Allocated = link.call(opcode::GLOBAL, &encode(&request))?;
        if found.status != SUCCESS {
            return Err(found.status);
        }
        let Allocated { address, bytes, .. } = found;
        // Copies to it are checked like those to other memory.
        link.add_memory(address, Allocation { bytes, context: 0 });
        its.globals.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        // SAFETY: as above.
        unsafe { put_if(at, address) };
        // SAFETY: as above.
        unsafe { put_if(len, bytes as usize) };
        Ok(())
    }

    fn cuModuleGetLoadingMode(mode: *mut c_int) {
        // Eager.
        // SAFETY: as above.
        unsafe { put(mode, 1) }
    }

    fn cuFuncGetName(at: *mut *const c_char, function: usize) {
        let function = handle::function(function)?;
        // The string lives as long as the function's handle.
        // SAFETY: as above.
        unsafe { put(at, function.name.as_ptr()) }
    }

    fn cuFuncGetModule(at: *mut usize, function: usize) {
        let function = handle::function(function)?;
        // SAFETY: as above.
        unsafe { put(at, function.module.get().copied().unwrap_or(0)) }
    }

    fn cuFuncGetAttribute(value: *mut c_int, name: c_int, function: usize) {
        current()?;
        let told = handle::function(function)?.attribute(name).ok_or(INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { put(value, told) }
    }

    fn cuFuncGetParamInfo(function: usize, number: usize, offset: *mut usize, len: *mut usize) {
        let function = handle::function(function)?;
        let place = function.info.parameters.get(number).ok_or(INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { put(offset, place.offset as usize) }?;
        // SAFETY: as above.
        unsafe { put_if(len, place.bytes as usize) };
        Ok(())
    }

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
        let current = current()?;
        let function = handle::function(function)?;
        if function.device.number != current.device.number {
            return Err(INVALID_HANDLE);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let is_within = |all: [c_uint; 3], limits: [c_int; 3]| {
            all.iter().zip(limits).all(|(size, limit)| {
                let limit = current.device.attribute(limit).unwrap_or(c_int::MAX);
                *size > 0 && i64::from(*size) <= i64::from(limit)
            })
        };
        let threads: u64 = block.iter().map(|it| u64::from(*it)).product();
        let most = function.attribute(FUNCTION_THREADS).or(current.device.attribute(MAX_THREADS));
        if !is_within(grid, MAX_GRID)
            || !is_within(block, MAX_BLOCK)
            || threads > most.and_then(|it| u64::try_from(it).ok()).unwrap_or(u64::MAX)
        {
            return Err(INVALID_VALUE);
        }
        let stream = id_of(&current, stream)?;
        // SAFETY: as above.
        let parameters = unsafe { collect(&function, pointers, extra) }?;
        current.link().submit(&Command::Launch {
            function: function.info.number,
            grid,
            block,
            shared,
            stream,
            parameters: &parameters,
        })
    }
}
