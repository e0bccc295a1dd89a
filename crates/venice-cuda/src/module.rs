//! Modules and their functions.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use venice_accel::cuda::wire::{
    Allocated, Attribute, Blob, Command, CompilerOptions, FunctionInfo, GlobalRequest, LoadRequest,
    Loaded, Place, decode, encode, opcode,
};

use crate::call::*;
use crate::context::current;
use crate::device::Device;
use crate::handle::{self, Object};
use crate::link::Allocation;
use crate::link_images::CompilerCall;

/// First bytes of a fat binary, and of the record that points to one.
const FAT_BINARY: u32 = 0xba55_ed50;
const FAT_WRAPPER: u32 = 0x4662_43b1;
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
/// Attribute of devices: most bytes of shared memory of a block.
const MOST_SHARED: c_int = 97;
/// Attributes of functions: bytes of shared memory that it has, and may get; those from the latter on
/// can be set.
const SHARED: c_int = 1;
const MOST_DYNAMIC: c_int = 8;
const SETTABLE: std::ops::RangeInclusive<c_int> = MOST_DYNAMIC..=14;

/// Longest parameters of a kernel in bytes, whatever a donor says.
const MAX_PARAMETER_BYTES: u64 = 64 << 10;

/// A module.
pub struct Module {
    pub id: u64,
    /// 0: that of a library.
    pub context: usize,
    device: &'static Device,
    functions: Vec<(String, usize)>,
    /// Addresses of global variables that the program has asked for.
    globals: Mutex<Vec<u64>>,
}

impl Module {
    /// Returns the function of a name.
    pub fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().find(|(own, _)| own == name).map(|it| it.1)
    }

    /// Returns the names of its functions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|it| it.0.as_str())
    }

    /// Returns address and length of a global variable.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn global(&self, name: &str) -> Done<(u64, u64)> {
        let link = &self.device.link;
        let request = GlobalRequest { module: self.id, name };
        let found: Allocated = link.call(opcode::GLOBAL, &encode(&request))?;
        if found.status != SUCCESS {
            return Err(found.status);
        }
        let Allocated { address, bytes, .. } = found;
        // Copies to it are checked like those to other memory.
        link.add_memory(address, Allocation { bytes, context: 0, pool: 0 });
        self.globals.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        Ok((address, bytes))
    }
}

/// Blocks that fit, by threads, shared memory and flags.
pub type Occupancy = HashMap<(c_int, u64, c_uint), c_int>;

/// A kernel.
pub struct Function {
    pub context: usize,
    pub device: &'static Device,
    pub number: u64,
    pub parameters: Vec<Place>,
    attributes: Mutex<Vec<Attribute>>,
    occupancy: Mutex<Occupancy>,
    name: CString,
    module: OnceLock<usize>,
    /// Length of the parameters.
    pub bytes: usize,
}

impl Function {
    fn attributes(&self) -> MutexGuard<'_, Vec<Attribute>> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an attribute.
    pub fn attribute(&self, name: c_int) -> Option<c_int> {
        self.attributes().iter().find(|it| it.name == name).map(|it| it.value)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// It cannot be set, or not to this value.
    pub fn set_attribute(&self, name: c_int, value: c_int) -> Done {
        if !SETTABLE.contains(&name) {
            return Err(INVALID_VALUE);
        }
        if name == MOST_DYNAMIC {
            let own = self.attribute(SHARED).unwrap_or(0);
            let most = self.device.attribute(MOST_SHARED).unwrap_or(c_int::MAX);
            if value < 0 || value.saturating_add(own) > most {
                return Err(INVALID_VALUE);
            }
        }
        self.device.link.submit(&Command::SetAttribute { function: self.number, name, value })?;
        let mut all = self.attributes();
        all.retain(|it| it.name != name);
        all.push(Attribute { name, value });
        drop(all);
        self.occupancy().clear();
        Ok(())
    }

    /// Returns what is known of the blocks that fit.
    pub fn occupancy(&self) -> MutexGuard<'_, Occupancy> {
        self.occupancy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the function of a handle, which may be that of a library's kernel, on a device.
///
/// # Errors
/// There is none, or the device is another one.
pub fn function_on(handle: usize, device: &'static Device) -> Done<Arc<Function>> {
    let found = match handle::get(handle) {
        Some(Object::Function(function)) => function,
        Some(Object::Kernel(kernel)) => kernel.function_on(device)?,
        _ => return Err(INVALID_HANDLE),
    };
    if found.device.number == device.number { Ok(found) } else { Err(INVALID_HANDLE) }
}

/// Returns the bytes of an image, whose length only its own headers tell.
///
/// # Safety
/// `image` is one of the images that the API knows.
pub unsafe fn image_bytes<'a>(image: *const u8) -> Done<&'a [u8]> {
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

/// Loads an image for a context, or for a library; returns the module's handle.
///
/// # Errors
/// The driver's; the compiler's texts have been stored.
pub fn load_image(
    device: &'static Device,
    context: usize,
    image: &[u8],
    options: &CompilerOptions,
    call: Option<&CompilerCall>,
) -> Done<usize> {
    let link = &device.link;
    link.check()?;
    let id = link.new_id();
    let options = options.clone();
    let answer = link
        .stream
        .with_blob(image, |image: Blob<'_>| {
            link.stream.call_long(opcode::LOAD, &encode(&LoadRequest { id, options, image }))
        })
        .map_err(|error| link.failed(error))?;
    let loaded: Loaded = decode(&answer).map_err(|_| UNKNOWN)?;
    if let Some(call) = call {
        call.store(&loaded.logs);
    }
    if loaded.status != SUCCESS {
        return Err(loaded.status);
    }
    let (mut functions, mut made) = (Vec::new(), Vec::new());
    for FunctionInfo { name, number, parameters, attributes } in loaded.functions {
        let end = |it: &Place| it.offset.saturating_add(it.bytes);
        let bytes = parameters.iter().map(end).max().unwrap_or(0);
        if bytes > MAX_PARAMETER_BYTES {
            return Err(UNKNOWN);
        }
        let bytes = bytes as usize;
        let function = Arc::new(Function {
            context,
            device,
            number,
            parameters,
            attributes: Mutex::new(attributes),
            occupancy: Mutex::default(),
            name: CString::new(name.as_str()).map_err(|_| UNKNOWN)?,
            module: OnceLock::new(),
            bytes,
        });
        functions.push((name, handle::add(Object::Function(Arc::clone(&function)))));
        made.push(function);
    }
    let globals = Mutex::default();
    let module = Module { id, context, device, functions, globals };
    let new = handle::add(Object::Module(Arc::new(module)));
    for function in made {
        let _ = function.module.set(new);
    }
    Ok(new)
}

/// Unloads a module.
///
/// # Errors
/// There is no such module.
pub fn unload(module: usize) -> Done {
    let its = handle::module(module)?;
    let link = &its.device.link;
    for address in its.globals.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        link.take_memory(address);
    }
    its.functions.iter().for_each(|(_, function)| handle::remove(*function));
    handle::remove(module);
    link.stream.release(its.id);
    Ok(())
}

/// Loads a module into the current context.
///
/// # Safety
/// The arguments of `cuModuleLoadDataEx`.
unsafe fn load(
    module: *mut usize,
    image: *const u8,
    count: c_uint,
    options: *const c_int,
    values: *mut *mut c_void,
) -> Done {
    let current = current()?;
    // SAFETY: promised by the caller, here and below.
    let image = unsafe { image_bytes(image) }?;
    // SAFETY: as above.
    let (options, call) = unsafe { CompilerCall::of(count, options, values) }?;
    let made = load_image(current.device, current.handle, image, &options, Some(&call))?;
    // SAFETY: the program passes room for a handle.
    unsafe { put(module, made) }
}

exported! {
    fn cuModuleLoad(module: *mut usize, path: *const c_char) {
        // SAFETY: the program passes what the API asks for, here and below.
        let image = unsafe { file(path) }?;
        // SAFETY: as above; the file ends with a zero.
        unsafe { load(module, image.as_ptr(), 0, std::ptr::null(), std::ptr::null_mut()) }
    }

    fn cuModuleLoadData(module: *mut usize, image: *const u8) {
        // SAFETY: as above.
        unsafe { load(module, image, 0, std::ptr::null(), std::ptr::null_mut()) }
    }

    fn cuModuleLoadDataEx(
        module: *mut usize,
        image: *const u8,
        count: c_uint,
        options: *mut c_int,
        values: *mut *mut c_void,
    ) {
        // SAFETY: as above.
        unsafe { load(module, image, count, options, values) }
    }

    fn cuModuleLoadFatBinary(module: *mut usize, image: *const u8) {
        // SAFETY: as above.
        unsafe { load(module, image, 0, std::ptr::null(), std::ptr::null_mut()) }
    }

    fn cuModuleUnload(module: usize) {
        unload(module)
    }

    fn cuModuleGetFunction(at: *mut usize, module: usize, name: *const c_char) {
        current()?;
        // SAFETY: as above.
        let name = unsafe { text(name) }?;
        let its = handle::module(module)?;
        let found = its.function(name).ok_or(NOT_FOUND)?;
        // SAFETY: as above.
        unsafe { put(at, found) }
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
        // SAFETY: as above.
        let (address, bytes) = its.global(unsafe { text(name) }?)?;
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
        let function = function_on(function, current()?.device)?;
        // The string lives as long as the function's handle.
        // SAFETY: as above.
        unsafe { put(at, function.name.as_ptr()) }
    }

    fn cuFuncGetModule(at: *mut usize, function: usize) {
        let function = function_on(function, current()?.device)?;
        // SAFETY: as above.
        unsafe { put(at, function.module.get().copied().unwrap_or(0)) }
    }

    fn cuFuncGetAttribute(value: *mut c_int, name: c_int, function: usize) {
        let function = function_on(function, current()?.device)?;
        // SAFETY: as above.
        unsafe { put(value, function.attribute(name).ok_or(INVALID_VALUE)?) }
    }

    fn cuFuncSetAttribute(function: usize, name: c_int, value: c_int) {
        function_on(function, current()?.device)?.set_attribute(name, value)
    }

    // Preferences: they change no result.
    fn cuFuncSetCacheConfig(function: usize, _config: c_int) {
        function_on(function, current()?.device).map(drop)
    }

    fn cuFuncSetSharedMemConfig(function: usize, _config: c_int) {
        function_on(function, current()?.device).map(drop)
    }

    fn cuFuncGetParamInfo(function: usize, number: usize, offset: *mut usize, len: *mut usize) {
        let function = function_on(function, current()?.device)?;
        // SAFETY: as above.
        unsafe { put_parameter(&function, number, offset, len) }
    }

    fn cuFuncGetParamCount(function: usize, count: *mut usize) {
        let function = function_on(function, current()?.device)?;
        // SAFETY: as above.
        unsafe { put(count, function.parameters.len()) }
    }

    fn cuFuncIsLoaded(state: *mut c_int, function: usize) {
        function_on(function, current()?.device)?;
        // SAFETY: as above.
        unsafe { put(state, 1) }
    }

    fn cuFuncLoad(function: usize) {
        function_on(function, current()?.device).map(drop)
    }
}

/// Stores offset and length of a parameter.
///
/// # Safety
/// `offset` and `len` have room, or are null.
pub unsafe fn put_parameter(
    function: &Function,
    number: usize,
    offset: *mut usize,
    len: *mut usize,
) -> Done {
    let place = function.parameters.get(number).ok_or(INVALID_VALUE)?;
    // SAFETY: promised by the caller, here and below.
    unsafe { put(offset, place.offset as usize) }?;
    // SAFETY: as above.
    unsafe { put_if(len, place.bytes as usize) };
    Ok(())
}

/// Reads a file of the program, with a zero behind it.
///
/// # Safety
/// `path` is null or a terminated string.
pub unsafe fn file(path: *const c_char) -> Done<Vec<u8>> {
    // SAFETY: promised by the caller.
    let path = unsafe { text(path) }.map_err(|_| FILE_NOT_FOUND)?;
    let mut bytes = std::fs::read(path).map_err(|_| FILE_NOT_FOUND)?;
    bytes.push(0);
    Ok(bytes)
}
