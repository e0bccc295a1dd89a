//! Modules, and launches of their kernels.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::device::{current, current_device};
use crate::engine::{handle, state};
use crate::kernel::{ALL, Function, MAX_THREADS};
use crate::*;

/// Name of the one global variable, of four bytes, in modules that name it.
const GLOBAL: &str = "bias";

/// Options of the compiler that are served: texts, and their lengths.
const TEXTS: [(c_int, c_int); 2] = [(3, 4), (5, 6)];

/// Says something in the log of a kind, if the program wants it.
unsafe fn log(
    (info, errors): (&str, &str),
    count: c_uint,
    options: *const c_int,
    values: *mut *mut c_void,
) {
    for (text, (buffer, len)) in [info, errors].into_iter().zip(TEXTS) {
        // SAFETY: the program passes so many options and values.
        let place = |name| (0..count as usize).find(|at| unsafe { *options.add(*at) } == name);
        let (Some(buffer), Some(len)) = (place(buffer), place(len)) else { continue };
        // SAFETY: as above.
        let (at, room) = unsafe { (*values.add(buffer), *values.add(len) as usize) };
        if at.is_null() || room == 0 {
            continue;
        }
        let bytes = text.len().min(room - 1);
        // SAFETY: the buffer has that much room.
        unsafe {
            at.cast::<u8>().copy_from(text.as_ptr(), bytes);
            at.cast::<u8>().add(bytes).write(0);
            *values.add(len) = bytes as *mut c_void;
        }
    }
}

/// Returns the text of an image.
///
/// # Safety
/// `image` is null or a terminated string.
pub unsafe fn text_of<'a>(image: *const c_char) -> Result<&'a str, Code> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a text ends; nothing else is taken.
    let text = unsafe { CStr::from_ptr(image) }.to_str().map_err(|_| INVALID_IMAGE)?;
    if text.trim_start().starts_with(".version") { Ok(text) } else { Err(INVALID_IMAGE) }
}

/// Compiles a text: says what is wrong, or what there is.
pub unsafe fn compile(
    text: &str,
    count: c_uint,
    options: *const c_int,
    values: *mut *mut c_void,
) -> Result<(), Code> {
    if text.contains("slow") {
        std::thread::sleep(std::time::Duration::from_millis(400));
    }
    let is_wrong = text.contains("syntax error");
    let kernels = ALL.into_iter().filter(|it| text.contains(it.name())).count();
    let info = format!("info    : {kernels} kernels");
    let error = if is_wrong { "ptxas fatal   : syntax error" } else { "" };
    // SAFETY: the program passes them.
    unsafe { log((&info, error), count, options, values) };
    if is_wrong { Err(INVALID_PTX) } else { Ok(()) }
}

/// Loads a module; returns its handle.
pub fn load(text: &str) -> Result<usize, Code> {
    let device = current_device()?;
    let mut state = state();
    let made = handle();
    let mut its = Vec::new();
    for function in ALL.into_iter().filter(|it| text.contains(it.name())) {
        let id = handle();
        state.functions.insert(id, function);
        its.push(id);
    }
    if text.contains(GLOBAL) {
        let address = state.allocate(device, 4).ok_or(OUT_OF_MEMORY)?;
        state.globals.insert((made, GLOBAL.to_owned()), address);
    }
    state.modules.insert(made, its);
    Ok(made)
}

/// Finds a function of a module by its name.
pub fn find_function(module: usize, name: &str) -> Result<usize, Code> {
    let state = state();
    let its = state.modules.get(&module).ok_or(INVALID_HANDLE)?;
    its.iter().copied().find(|id| state.functions[id].name() == name).ok_or(NOT_FOUND)
}

/// Finds a global variable of a module by its name.
pub fn find_global(module: usize, name: &str) -> Result<u64, Code> {
    state().globals.get(&(module, name.to_owned())).copied().ok_or(NOT_FOUND)
}

/// Takes a module away.
pub fn unload(module: usize) -> Result<(), Code> {
    let mut state = state();
    let its = state.modules.remove(&module).ok_or(INVALID_HANDLE)?;
    state.functions.retain(|id, _| !its.contains(id));
    state.attributes.retain(|(id, _), _| !its.contains(id));
    if let Some(address) = state.globals.remove(&(module, GLOBAL.to_owned())) {
        state.free(address);
    }
    Ok(())
}

/// Returns an attribute of a function.
pub fn attribute(name: c_int, id: usize) -> Result<c_int, Code> {
    function(id)?;
    let set = state().attributes.get(&(id, name)).copied();
    Ok(match name {
        0 => MAX_THREADS as c_int,
        1..=3 => 0,
        4 => 16,
        5 | 6 => 75,
        8 => set.unwrap_or(48 << 10),
        7..=15 => set.unwrap_or(0),
        _ => return Err(INVALID_VALUE),
    })
}

pub fn function(id: usize) -> Result<Function, Code> {
    state().functions.get(&id).copied().ok_or(INVALID_HANDLE)
}

/// Returns a name that the program passes.
pub unsafe fn name_of<'a>(name: *const c_char) -> Result<&'a str, Code> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a terminated string.
    unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)
}

exported! {
    fn cuModuleLoadData(module: *mut usize, image: *const c_char) {
        current()?;
        // SAFETY: the program passes an image, here and below.
        let text = unsafe { text_of(image) }?;
        // SAFETY: no options.
        unsafe { compile(text, 0, std::ptr::null(), std::ptr::null_mut()) }?;
        // SAFETY: as in `put`.
        unsafe { put(module, load(text)?) }
    }

    fn cuModuleLoadDataEx(
        module: *mut usize,
        image: *const c_char,
        count: c_uint,
        options: *mut c_int,
        values: *mut *mut c_void,
    ) {
        current()?;
        // SAFETY: as above.
        let text = unsafe { text_of(image) }?;
        // SAFETY: the program passes them.
        unsafe { compile(text, count, options, values) }?;
        // SAFETY: as in `put`.
        unsafe { put(module, load(text)?) }
    }

    fn cuLinkCreate_v2(
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
        state_at: *mut usize,
    ) {
        current()?;
        let made = handle();
        state().linkers.insert(made, Vec::new());
        // SAFETY: as in `put`.
        unsafe { put(state_at, made) }
    }

    fn cuLinkAddData_v2(
        linker: usize,
        _kind: c_int,
        data: *const u8,
        len: usize,
        _name: *const c_char,
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        current()?;
        // SAFETY: the program passes so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(data, len) };
        let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        if bytes.windows(12).any(|it| it == b"syntax error") {
            return Err(INVALID_PTX);
        }
        state().linkers.get_mut(&linker).ok_or(INVALID_HANDLE)?.extend_from_slice(bytes);
        Ok(())
    }

    fn cuLinkComplete(linker: usize, cubin: *mut *const u8, len: *mut usize) {
        current()?;
        let mut state = state();
        let bytes = state.linkers.get_mut(&linker).ok_or(INVALID_HANDLE)?;
        bytes.push(0);
        // SAFETY: as in `put`, here and below.
        unsafe { put(cubin, bytes.as_ptr()) }?;
        if len.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { put(len, bytes.len()) }
    }

    fn cuLinkDestroy(linker: usize) {
        state().linkers.remove(&linker).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuModuleUnload(module: usize) {
        current()?;
        unload(module)
    }

    fn cuModuleGetFunction(at: *mut usize, module: usize, name: *const c_char) {
        current()?;
        // SAFETY: the program passes a string.
        let name = unsafe { name_of(name) }?;
        // SAFETY: as in `put`, here and below.
        unsafe { put(at, find_function(module, name)?) }
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
        let address = find_global(module, unsafe { name_of(name) }?)?;
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
        // SAFETY: as above.
        unsafe { put(value, attribute(name, id)?) }
    }

    fn cuFuncSetAttribute(id: usize, name: c_int, value: c_int) {
        current()?;
        function(id)?;
        if !(8..=14).contains(&name) || (name == 8 && value > 64 << 10) {
            return Err(INVALID_VALUE);
        }
        state().attributes.insert((id, name), value);
        Ok(())
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
}
