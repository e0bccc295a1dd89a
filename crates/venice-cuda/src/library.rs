//! Libraries: images that are loaded for each device when it needs them.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use venice_accel::cuda::wire::CompilerOptions;

use crate::call::*;
use crate::context::{current, current_of_any_state};
use crate::device::{self, Device, devices};
use crate::handle::{self, Object};
use crate::link_images::CompilerCall;
use crate::module::{self, Function, file, function_on, image_bytes, load_image, put_parameter};
use crate::names::refuse;

/// A library.
pub struct Library {
    image: Vec<u8>,
    options: CompilerOptions,
    /// Modules by the number of the device.
    modules: Mutex<BTreeMap<c_int, usize>>,
    /// Handles of kernels by their names.
    kernels: Mutex<BTreeMap<String, usize>>,
}

/// A kernel of a library.
pub struct Kernel {
    library: usize,
    name: CString,
    /// Its functions by the number of the device.
    functions: Vec<OnceLock<Arc<Function>>>,
}

impl Library {
    fn kernels(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn modules(&self) -> MutexGuard<'_, BTreeMap<c_int, usize>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the handle of the module on a device.
    fn module_on(&self, device: &'static Device, call: Option<&CompilerCall>) -> Done<usize> {
        let mut modules = self.modules();
        if let Some(loaded) = modules.get(&device.number) {
            return Ok(*loaded);
        }
        let loaded = load_image(device, 0, &self.image, &self.options, call)?;
        modules.insert(device.number, loaded);
        Ok(loaded)
    }
}

impl Kernel {
    /// Returns its function on a device.
    ///
    /// # Errors
    /// The library is gone, or cannot be loaded there.
    pub fn function_on(&self, device: &'static Device) -> Done<Arc<Function>> {
        let place = self.functions.get(device.number as usize).ok_or(INVALID_DEVICE)?;
        if let Some(known) = place.get() {
            return Ok(Arc::clone(known));
        }
        let library = handle::library(self.library)?;
        let module = handle::module(library.module_on(device, None)?)?;
        let name = self.name.to_str().map_err(|_| NOT_FOUND)?;
        let found = function_on(module.function(name).ok_or(NOT_FOUND)?, device)?;
        Ok(Arc::clone(place.get_or_init(|| found)))
    }
}

/// Returns the device of the current context, or the first one.
fn any_device() -> Done<&'static Device> {
    device::initialized()?;
    match current_of_any_state() {
        Ok(current) => Ok(current.device),
        Err(INVALID_CONTEXT) => device::device(0),
        Err(code) => Err(code),
    }
}

/// Loads a library: on one device at once, so that the program is told what is wrong with it.
///
/// # Safety
/// The arguments of `cuLibraryLoadData`.
unsafe fn load(
    library: *mut usize,
    image: *const u8,
    (options, values, count): (*const c_int, *mut *mut c_void, c_uint),
) -> Done {
    let device = any_device()?;
    // SAFETY: promised by the caller, here and below.
    let mut image = unsafe { image_bytes(image) }?.to_vec();
    image.push(0);
    // SAFETY: as above.
    let (options, call) = unsafe { CompilerCall::of(count, options, values) }?;
    let (modules, kernels) = (Mutex::default(), Mutex::default());
    let made = Library { image, options, modules, kernels };
    made.module_on(device, Some(&call))?;
    // SAFETY: as above.
    unsafe { put(library, handle::add(Object::Library(Arc::new(made)))) }
}

/// Returns the handle of a kernel.
fn kernel_of(library: usize, name: &str) -> Done<usize> {
    let its = handle::library(library)?;
    let module = handle::module(its.module_on(any_device()?, None)?)?;
    module.function(name).ok_or(NOT_FOUND)?;
    if let Some(made) = its.kernels().get(name) {
        return Ok(*made);
    }
    let functions = devices().iter().map(|_| OnceLock::new()).collect();
    let name = name.to_owned();
    let c_name = CString::new(name.as_str()).map_err(|_| NOT_FOUND)?;
    let kernel = Kernel { library, name: c_name, functions };
    let new = || handle::add(Object::Kernel(Arc::new(kernel)));
    Ok(*its.kernels().entry(name).or_insert_with(new))
}

fn kernels_of(library: usize) -> Done<Vec<String>> {
    let its = handle::library(library)?;
    let module = handle::module(its.module_on(any_device()?, None)?)?;
    Ok(module.names().map(str::to_owned).collect())
}

exported! {
    fn cuLibraryLoadData(
        library: *mut usize,
        image: *const u8,
        options: *mut c_int,
        values: *mut *mut c_void,
        count: c_uint,
        _library_options: *mut c_int,
        _library_values: *mut *mut c_void,
        _library_count: c_uint,
    ) {
        // SAFETY: the program passes what the API asks for, here and below.
        unsafe { load(library, image, (options, values, count)) }
    }

    fn cuLibraryLoadFromFile(
        library: *mut usize,
        path: *const c_char,
        options: *mut c_int,
        values: *mut *mut c_void,
        count: c_uint,
        _library_options: *mut c_int,
        _library_values: *mut *mut c_void,
        _library_count: c_uint,
    ) {
        // SAFETY: as above.
        let image = unsafe { file(path) }?;
        // SAFETY: as above.
        unsafe { load(library, image.as_ptr(), (options, values, count)) }
    }

    fn cuLibraryUnload(library: usize) {
        let its = handle::library(library)?;
        handle::remove(library);
        its.kernels().values().for_each(|kernel| handle::remove(*kernel));
        let modules = std::mem::take(&mut *its.modules());
        modules.into_values().try_for_each(module::unload)
    }

    fn cuLibraryGetKernel(kernel: *mut usize, library: usize, name: *const c_char) {
        // SAFETY: as above.
        let found = kernel_of(library, unsafe { text(name) }?)?;
        // SAFETY: as above.
        unsafe { put(kernel, found) }
    }

    fn cuLibraryGetKernelCount(count: *mut c_uint, library: usize) {
        // SAFETY: as above.
        unsafe { put(count, kernels_of(library)?.len() as c_uint) }
    }

    fn cuLibraryEnumerateKernels(kernels: *mut usize, room: c_uint, library: usize) {
        for (place, name) in kernels_of(library)?.iter().take(room as usize).enumerate() {
            // SAFETY: the program has that much room.
            unsafe { put(kernels.wrapping_add(place), kernel_of(library, name)?) }?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(module: *mut usize, library: usize) {
        let found = handle::library(library)?.module_on(current()?.device, None)?;
        // SAFETY: as above.
        unsafe { put(module, found) }
    }

    fn cuLibraryGetGlobal(at: *mut u64, len: *mut usize, library: usize, name: *const c_char) {
        let its = handle::library(library)?.module_on(current()?.device, None)?;
        // SAFETY: as above.
        let (address, bytes) = handle::module(its)?.global(unsafe { text(name) }?)?;
        // SAFETY: as above.
        unsafe { put_if(at, address) };
        // SAFETY: as above.
        unsafe { put_if(len, bytes as usize) };
        Ok(())
    }

    fn cuLibraryGetManaged(
        _at: *mut u64,
        _len: *mut usize,
        library: usize,
        _name: *const c_char,
    ) {
        handle::library(library)?;
        Err(refuse("managed memory"))
    }

    fn cuKernelGetFunction(function: *mut usize, kernel: usize) {
        let its = handle::kernel(kernel)?;
        let library = handle::library(its.library)?;
        let module = handle::module(library.module_on(current()?.device, None)?)?;
        let name = its.name.to_str().map_err(|_| NOT_FOUND)?;
        // SAFETY: as above.
        unsafe { put(function, module.function(name).ok_or(NOT_FOUND)?) }
    }

    fn cuKernelGetLibrary(library: *mut usize, kernel: usize) {
        // SAFETY: as above.
        unsafe { put(library, handle::kernel(kernel)?.library) }
    }

    fn cuKernelGetName(name: *mut *const c_char, kernel: usize) {
        // The string lives as long as the kernel's handle.
        // SAFETY: as above.
        unsafe { put(name, handle::kernel(kernel)?.name.as_ptr()) }
    }

    fn cuKernelGetAttribute(value: *mut c_int, name: c_int, kernel: usize, number: c_int) {
        let function = handle::kernel(kernel)?.function_on(device::device(number)?)?;
        // SAFETY: as above.
        unsafe { put(value, function.attribute(name).ok_or(INVALID_VALUE)?) }
    }

    fn cuKernelSetAttribute(name: c_int, value: c_int, kernel: usize, number: c_int) {
        let function = handle::kernel(kernel)?.function_on(device::device(number)?)?;
        function.set_attribute(name, value)
    }

    // A preference: it changes no result.
    fn cuKernelSetCacheConfig(kernel: usize, _config: c_int, number: c_int) {
        device::device(number)?;
        handle::kernel(kernel).map(drop)
    }

    fn cuKernelGetParamInfo(kernel: usize, number: usize, offset: *mut usize, len: *mut usize) {
        let function = handle::kernel(kernel)?.function_on(any_device()?)?;
        // SAFETY: as above.
        unsafe { put_parameter(&function, number, offset, len) }
    }

    fn cuKernelGetParamCount(kernel: usize, count: *mut usize) {
        let function = handle::kernel(kernel)?.function_on(any_device()?)?;
        // SAFETY: as above.
        unsafe { put(count, function.parameters.len()) }
    }
}
