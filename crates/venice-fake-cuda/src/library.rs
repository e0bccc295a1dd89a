//! Libraries, whose kernels are functions of a module: contexts make no difference here.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::device::current;
use crate::engine::state;
use crate::module::{
    attribute, compile, find_function, find_global, load, name_of, text_of, unload,
};
use crate::*;

exported! {
    fn cuLibraryLoadData(
        library: *mut usize,
        image: *const c_char,
        options: *mut c_int,
        values: *mut *mut c_void,
        count: c_uint,
        _library_options: *mut c_int,
        _library_values: *mut *mut c_void,
        _library_count: c_uint,
    ) {
        // SAFETY: the program passes what the API asks for, here and below.
        let text = unsafe { text_of(image) }?;
        // SAFETY: as above.
        unsafe { compile(text, count, options, values) }?;
        // SAFETY: as above.
        unsafe { put(library, load(text)?) }
    }

    fn cuLibraryUnload(library: usize) {
        unload(library)
    }

    fn cuLibraryGetKernel(kernel: *mut usize, library: usize, name: *const c_char) {
        // SAFETY: as above.
        let found = find_function(library, unsafe { name_of(name) }?)?;
        // SAFETY: as above.
        unsafe { put(kernel, found) }
    }

    fn cuLibraryGetKernelCount(count: *mut c_uint, library: usize) {
        let state = state();
        let its = state.modules.get(&library).ok_or(INVALID_HANDLE)?;
        // SAFETY: as above.
        unsafe { put(count, its.len() as c_uint) }
    }

    fn cuLibraryGetModule(module: *mut usize, library: usize) {
        current()?;
        // SAFETY: as above.
        unsafe { put(module, library) }
    }

    fn cuLibraryGetGlobal(at: *mut u64, len: *mut usize, library: usize, name: *const c_char) {
        current()?;
        // SAFETY: as above.
        let address = find_global(library, unsafe { name_of(name) }?)?;
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

    fn cuKernelGetFunction(function: *mut usize, kernel: usize) {
        current()?;
        // SAFETY: as above.
        unsafe { put(function, kernel) }
    }

    fn cuKernelGetAttribute(value: *mut c_int, name: c_int, kernel: usize, _device: c_int) {
        // SAFETY: as above.
        unsafe { put(value, attribute(name, kernel)?) }
    }

    fn cuKernelSetAttribute(name: c_int, value: c_int, kernel: usize, _device: c_int) {
        state().attributes.insert((kernel, name), value);
        Ok(())
    }

    fn cuKernelGetParamInfo(kernel: usize, place: usize, offset: *mut usize, len: *mut usize) {
        let function = crate::module::function(kernel)?;
        let (at, bytes) = *function.parameters().get(place).ok_or(INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { put(offset, at) }?;
        if len.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { put(len, bytes) }
    }
}
