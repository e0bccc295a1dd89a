//! Kernels: their arguments are checked and kept here, and go out with the next launch.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use opencl_sys::*;
use venice_accel::opencl::library::number;
use venice_accel::opencl::wire::{
    Argument, ArgumentInfo, BuildResult, Command, CommandKind, KernelInfo,
};

use crate::call::{Done, Out, array, code, made, session_code, store, text};
use crate::context::Context;
use crate::device::Device;
use crate::event::plain;
use crate::memory::Memory;
use crate::object::{Object, Shared, bodies, new_id};
use crate::program::Program;
use crate::queue::{Enqueue, Queue};
use crate::sampler::Sampler;
use crate::transit::Access;

/// First version of OpenCL in which a launch may have no work-item.
const EMPTY_LAUNCHES: (u32, u32) = (2, 1);
/// Longest value of an argument in bytes: more than any device takes
/// (`CL_DEVICE_MAX_PARAMETER_SIZE`).
const MAX_VALUE_BYTES: usize = 1 << 20;

bodies! {
    Kernel: CL_INVALID_KERNEL;
}

/// A kernel.
pub struct Kernel {
    id: u64,
    context: Shared<Context>,
    program: Shared<Program>,
    /// The build that it is described by.
    built: Arc<BuildResult>,
    at: usize,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    arguments: Vec<Option<Set>>,
    /// Number of the latest change.
    changes: u64,
    /// Changes that each device with the kernel has.
    sent: HashMap<usize, u64>,
}

/// An argument that is set.
#[derive(Clone)]
struct Set {
    value: Value,
    change: u64,
}

#[derive(Clone)]
enum Value {
    Bytes(Vec<u8>),
    Memory(Option<(u64, Weak<Object<Memory>>)>),
    Sampler(Shared<Sampler>),
    Local(u64),
}

impl Kernel {
    fn new(program: &Shared<Program>, built: &Arc<BuildResult>, at: usize) -> Shared<Self> {
        let arguments = vec![None; built.kernels[at].argument_count as usize];
        program.note_kernels(1);
        Object::new(Self {
            id: new_id(),
            context: Shared::clone(&program.context),
            program: Shared::clone(program),
            built: Arc::clone(built),
            at,
            state: Mutex::new(State { arguments, ..State::default() }),
        })
    }

    fn info(&self) -> &KernelInfo {
        &self.built.kernels[self.at]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if no call is at work with it.
    pub fn is_free(&self) -> bool {
        self.state.try_lock().is_ok()
    }

    /// Makes it anew at a device that has moved, with the next launch.
    pub fn forget_device(&self, device: &Device) {
        self.state().sent.remove(&device.index);
    }

    /// Returns its description at a device.
    ///
    /// # Errors
    /// [`CL_INVALID_PROGRAM_EXECUTABLE`] if its program was not built there.
    fn built_at(&self, device: &Device) -> Done<Arc<BuildResult>> {
        self.program.executable(device).ok_or(CL_INVALID_PROGRAM_EXECUTABLE)
    }

    /// Returns a number that the driver tells of it at a device.
    fn work_group_at(&self, device: &Device, name: cl_kernel_work_group_info) -> Done<Vec<u8>> {
        let built = self.built_at(device)?;
        let kernel = built.kernels.iter().find(|kernel| kernel.name == self.info().name);
        let kernel = kernel.ok_or(CL_INVALID_KERNEL)?;
        let parameter = kernel.work_group.iter().find(|parameter| parameter.name == name);
        parameter.map(|parameter| parameter.value.clone()).ok_or(CL_INVALID_VALUE)
    }

    fn set(&self, index: cl_uint, bytes: usize, value: *const c_void) -> Done {
        let info = self.info();
        if index >= info.argument_count {
            return Err(CL_INVALID_ARG_INDEX);
        }
        // Without a value it is the size of local memory.
        if !value.is_null() && !(1..=MAX_VALUE_BYTES).contains(&bytes) {
            return Err(CL_INVALID_ARG_SIZE);
        }
        // SAFETY: the program passes so many bytes, or null.
        let given = unsafe { array(value.cast::<u8>(), bytes) };
        let value = match info.arguments.get(index as usize) {
            Some(argument) => checked_value(argument, bytes, value.is_null(), given)?,
            None => guessed_value(bytes, value.is_null(), given),
        };
        let mut state = self.state();
        state.changes += 1;
        let change = state.changes;
        state.arguments[index as usize] = Some(Set { value, change });
        Ok(())
    }

    /// Returns the local memory of the arguments that are set.
    fn local_argument_bytes(&self) -> u64 {
        let state = self.state();
        let bytes = state.arguments.iter().flatten().map(|set| match set.value {
            Value::Local(bytes) => bytes,
            Value::Bytes(_) | Value::Memory(_) | Value::Sampler(_) => 0,
        });
        bytes.sum()
    }

    /// Makes the memory objects of the arguments ready for a launch.
    fn prepare(&self, arguments: &[Option<Set>], call: &mut Enqueue) -> Done {
        for (index, argument) in arguments.iter().enumerate() {
            let set = argument.as_ref().ok_or(CL_INVALID_KERNEL_ARGS)?;
            if let Value::Memory(Some((_, memory))) = &set.value {
                let memory = memory.upgrade().ok_or(CL_INVALID_KERNEL_ARGS)?;
                if !Shared::ptr_eq(&memory.context, &self.context) {
                    return Err(CL_INVALID_CONTEXT);
                }
                let info = self.info().arguments.get(index);
                memory.prepare(call, Access::storing(may_write(info, &memory)))?;
            }
        }
        Ok(())
    }

    /// Returns the commands that bring a device the arguments it lacks.
    fn updates<'a>(&self, state: &'a State, device: &Device) -> Vec<Command<'a>> {
        let sent = state.sent.get(&device.index).copied().unwrap_or(0);
        let changed = state.arguments.iter().enumerate().filter_map(|(index, argument)| {
            let set = argument.as_ref().filter(|set| set.change > sent)?;
            let value = match &set.value {
                Value::Bytes(bytes) => Argument::Value { bytes },
                Value::Memory(memory) => {
                    Argument::Memory { id: memory.as_ref().map_or(0, |(id, _)| *id) }
                }
                Value::Sampler(sampler) => Argument::Sampler { id: sampler.id },
                Value::Local(bytes) => Argument::Local { bytes: *bytes },
            };
            let (kernel, index) = (self.id, index as u32);
            Some(plain(CommandKind::SetArgument { kernel, index, value }))
        });
        changed.collect()
    }

    /// Returns a kernel of its own with the arguments as they are now.
    fn snapshot(&self) -> Shared<Self> {
        let clone = Self::new(&self.program, &self.built, self.at);
        *clone.state() = State { sent: HashMap::new(), ..self.state().clone() };
        clone
    }

    /// Makes it at a device, with its arguments, for launches that are sent without them.
    ///
    /// # Errors
    /// The code of a lost session.
    pub fn send_to(&self, device: &Shared<Device>) -> Done {
        let mut state = self.state();
        let sent = device.session().submit_all(&self.news(&state, device));
        sent.map_err(session_code)?;
        let changes = state.changes;
        state.sent.insert(device.index, changes);
        Ok(())
    }

    /// Returns the commands that make it at a device, as far as that lacks something.
    fn news<'a>(&'a self, state: &'a State, device: &Device) -> Vec<Command<'a>> {
        let mut news = Vec::new();
        let (id, program, name) = (self.id, self.program.id, &*self.info().name);
        if !state.sent.contains_key(&device.index) {
            news.push(plain(CommandKind::CreateKernel { id, program, name }));
        }
        news.extend(self.updates(state, device));
        news
    }
}

impl Object<Kernel> {
    fn launch(self: &Arc<Self>, call: &mut Enqueue, kind: CommandKind<'_>) -> Done {
        let device = Shared::clone(&call.queue.device);
        if !Shared::ptr_eq(&self.context, &call.queue.context) {
            return Err(CL_INVALID_CONTEXT);
        }
        let mut state = self.state();
        self.prepare(&state.arguments, call)?;
        if let Some(recording) = &mut call.recording {
            recording.kernels.push(Shared::clone(self));
            return call.send(Vec::new(), kind);
        }
        call.send(self.news(&state, &device), kind)?;
        let changes = state.changes;
        state.sent.insert(device.index, changes);
        Ok(())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.program.forget_kernel();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for device in &self.context.devices {
            if state.sent.contains_key(&device.index) {
                device.session().release(self.id);
            }
        }
    }
}

/// True if a kernel may store something in a memory object.
fn may_write(info: Option<&ArgumentInfo>, memory: &Memory) -> bool {
    let is_const = info.is_some_and(|info| {
        info.address == CL_KERNEL_ARG_ADDRESS_CONSTANT
            || info.type_qualifier & u64::from(CL_KERNEL_ARG_TYPE_CONST) != 0
            || info.access == CL_KERNEL_ARG_ACCESS_READ_ONLY
    });
    !is_const && memory.flags & CL_MEM_READ_ONLY == 0
}

/// Returns the value of an argument that the driver describes.
fn checked_value(info: &ArgumentInfo, bytes: usize, is_null: bool, given: &[u8]) -> Done<Value> {
    let is_image = info.type_name.starts_with("image");
    match info.address {
        CL_KERNEL_ARG_ADDRESS_LOCAL => match (is_null, bytes) {
            (true, 0) => Err(CL_INVALID_ARG_SIZE),
            (true, bytes) => Ok(Value::Local(bytes as u64)),
            (false, _) => Err(CL_INVALID_ARG_VALUE),
        },
        CL_KERNEL_ARG_ADDRESS_GLOBAL | CL_KERNEL_ARG_ADDRESS_CONSTANT => {
            memory_value(bytes, is_null, given)
        }
        _ if is_image => memory_value(bytes, is_null, given),
        _ if info.type_name == "sampler_t" => {
            if bytes != size_of::<cl_sampler>() {
                return Err(CL_INVALID_ARG_SIZE);
            }
            let sampler = Object::<Sampler>::get(handle_in(given).ok_or(CL_INVALID_SAMPLER)?)?;
            Ok(Value::Sampler(sampler))
        }
        _ if is_null => Err(CL_INVALID_ARG_VALUE),
        _ => match type_bytes(&info.type_name) {
            Some(known) => {
                // Drivers take three elements without the fourth that pads them.
                let is_unpadded = info.type_name.ends_with('3') && bytes == known / 4 * 3;
                if bytes != known && !is_unpadded {
                    return Err(CL_INVALID_ARG_SIZE);
                }
                let mut value = given.to_vec();
                value.resize(known, 0);
                Ok(Value::Bytes(value))
            }
            None => Ok(Value::Bytes(given.to_vec())),
        },
    }
}

fn memory_value(bytes: usize, is_null: bool, given: &[u8]) -> Done<Value> {
    if bytes != size_of::<cl_mem>() {
        return Err(CL_INVALID_ARG_SIZE);
    }
    let handle = handle_in(given).filter(|handle| !is_null && !handle.is_null());
    let Some(handle) = handle else { return Ok(Value::Memory(None)) };
    let memory = Object::<Memory>::get(handle)?;
    Ok(Value::Memory(Some((memory.id, Arc::downgrade(&memory)))))
}

/// Returns the value of an argument that the driver does not describe: a handle is recognised.
fn guessed_value(bytes: usize, is_null: bool, given: &[u8]) -> Value {
    if is_null {
        return if bytes == size_of::<cl_mem>() {
            Value::Memory(None)
        } else {
            Value::Local(bytes as u64)
        };
    }
    if let Some(handle) = handle_in(given) {
        if let Ok(memory) = Object::<Memory>::get(handle) {
            return Value::Memory(Some((memory.id, Arc::downgrade(&memory))));
        }
        if let Ok(sampler) = Object::<Sampler>::get(handle) {
            return Value::Sampler(sampler);
        }
    }
    Value::Bytes(given.to_vec())
}

fn handle_in(given: &[u8]) -> Option<*mut c_void> {
    let bytes = given.try_into().ok()?;
    Some(std::ptr::with_exposed_provenance_mut(usize::from_ne_bytes(bytes)))
}

/// Returns the length of a value of OpenCL C's own types; `None` for any other type.
fn type_bytes(name: &str) -> Option<usize> {
    let digits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let base = &name[..name.len() - digits.len()];
    let one = match base {
        "char" | "uchar" => 1,
        "short" | "ushort" | "half" => 2,
        "int" | "uint" | "float" => 4,
        "long" | "ulong" | "double" => 8,
        _ => return None,
    };
    match digits {
        "" => Some(one),
        "3" => Some(4 * one),
        "2" | "4" | "8" | "16" => Some(one * digits.parse::<usize>().ok()?),
        _ => None,
    }
}

pub unsafe extern "C" fn create_kernel(
    program: cl_program,
    name: *const c_char,
    stored: *mut cl_int,
) -> cl_kernel {
    // SAFETY: the program passes a string, and null or a valid place.
    unsafe {
        made(stored, || {
            let program = Program::settled(program)?;
            if name.is_null() {
                return Err(CL_INVALID_VALUE);
            }
            let (name, built) = (text(name), program.any_executable()?);
            let at = built.kernels.iter().position(|kernel| kernel.name == name);
            let at = at.ok_or(CL_INVALID_KERNEL_NAME)?;
            Ok(Object::hand_out(Kernel::new(&program, &built, at)))
        })
    }
}

pub unsafe extern "C" fn create_kernels_in_program(
    program: cl_program,
    room: cl_uint,
    kernels: *mut cl_kernel,
    count: *mut cl_uint,
) -> cl_int {
    code(|| {
        let program = Program::settled(program)?;
        let built = program.any_executable()?;
        let all = built.kernels.len();
        if !kernels.is_null() && (room as usize) < all {
            return Err(CL_INVALID_VALUE);
        }
        // SAFETY: the program passes null, or room for so many.
        unsafe {
            store(count, all as cl_uint);
            if !kernels.is_null() {
                for at in 0..all {
                    let kernel = Kernel::new(&program, &built, at);
                    kernels.add(at).write(Object::hand_out(kernel));
                }
            }
        }
        Ok(())
    })
}

pub unsafe extern "C" fn clone_kernel(source: cl_kernel, stored: *mut cl_int) -> cl_kernel {
    // SAFETY: the program passes null or a valid place.
    unsafe { made(stored, || Ok(Object::hand_out(Object::<Kernel>::get(source)?.snapshot()))) }
}

pub unsafe extern "C" fn retain_kernel(handle: cl_kernel) -> cl_int {
    code(|| Object::<Kernel>::get(handle).map(|kernel| kernel.retain()))
}

pub unsafe extern "C" fn release_kernel(handle: cl_kernel) -> cl_int {
    code(|| Object::<Kernel>::get(handle)?.release())
}

pub unsafe extern "C" fn set_kernel_arg(
    kernel: cl_kernel,
    index: cl_uint,
    bytes: usize,
    value: *const c_void,
) -> cl_int {
    code(|| Object::<Kernel>::get(kernel)?.set(index, bytes, value))
}

pub unsafe extern "C" fn kernel_info(
    handle: cl_kernel,
    name: cl_kernel_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    // SAFETY: the program passes null or valid places.
    code(|| unsafe {
        let kernel = Object::<Kernel>::get(handle)?;
        let out = Out { room, value, needed };
        match name {
            CL_KERNEL_FUNCTION_NAME => out.put_text(&kernel.info().name),
            CL_KERNEL_NUM_ARGS => out.put_plain(&[kernel.info().argument_count]),
            CL_KERNEL_REFERENCE_COUNT => out.put_plain(&[kernel.references()]),
            CL_KERNEL_CONTEXT => out.put_plain(&[Object::handle(&kernel.context)]),
            CL_KERNEL_PROGRAM => out.put_plain(&[Object::handle(&kernel.program)]),
            CL_KERNEL_ATTRIBUTES => out.put_text(&kernel.info().attributes),
            _ => Err(CL_INVALID_VALUE),
        }
    })
}

pub unsafe extern "C" fn kernel_arg_info(
    handle: cl_kernel,
    index: cl_uint,
    name: cl_kernel_arg_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    // SAFETY: the program passes null or valid places.
    code(|| unsafe {
        let kernel = Object::<Kernel>::get(handle)?;
        if index >= kernel.info().argument_count {
            return Err(CL_INVALID_ARG_INDEX);
        }
        let argument = kernel.info().arguments.get(index as usize);
        let argument = argument.filter(|_| kernel.program.describes_arguments());
        let argument = argument.ok_or(CL_KERNEL_ARG_INFO_NOT_AVAILABLE)?;
        let out = Out { room, value, needed };
        match name {
            CL_KERNEL_ARG_ADDRESS_QUALIFIER => out.put_plain(&[argument.address]),
            CL_KERNEL_ARG_ACCESS_QUALIFIER => out.put_plain(&[argument.access]),
            CL_KERNEL_ARG_TYPE_NAME => out.put_text(&argument.type_name),
            CL_KERNEL_ARG_TYPE_QUALIFIER => out.put_plain(&[argument.type_qualifier]),
            CL_KERNEL_ARG_NAME => out.put_text(&argument.name),
            _ => Err(CL_INVALID_VALUE),
        }
    })
}

pub unsafe extern "C" fn kernel_work_group_info(
    handle: cl_kernel,
    device: cl_device_id,
    name: cl_kernel_work_group_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    // SAFETY: the program passes null or valid places.
    code(|| unsafe {
        let kernel = Object::<Kernel>::get(handle)?;
        let device = match (device.is_null(), &kernel.program.devices[..]) {
            (true, [only]) => Shared::clone(only),
            (true, _) => return Err(CL_INVALID_DEVICE),
            (false, devices) => {
                let device = Object::<Device>::get(device)?;
                if !devices.iter().any(|it| Shared::ptr_eq(it, &device)) {
                    return Err(CL_INVALID_DEVICE);
                }
                device
            }
        };
        let mut told = kernel.work_group_at(&device, name)?;
        if name == CL_KERNEL_LOCAL_MEM_SIZE {
            // The donor tells it of a kernel without arguments.
            told = (number(&told) + kernel.local_argument_bytes()).to_ne_bytes().to_vec();
        }
        Out { room, value, needed }.put(&told)
    })
}

/// Returns the work-group size that a kernel requires, if it does. Not every driver takes it by
/// itself for a launch that names none.
fn required_group(kernel: &Kernel, device: &Device) -> Done<Option<[u64; 3]>> {
    let told = kernel.work_group_at(device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE)?;
    let mut required = [1; 3];
    told.chunks_exact(8).map(number).zip(&mut required).for_each(|(size, at)| *at = size);
    Ok(Some(required).filter(|_| !told.is_empty() && !required.contains(&0)))
}

/// Checks the sizes of a launch.
fn check_sizes(
    kernel: &Kernel,
    device: &Device,
    global: &[usize],
    local: Option<&[usize]>,
) -> Done {
    if global.contains(&0) && device.version() < EMPTY_LAUNCHES {
        return Err(CL_INVALID_GLOBAL_WORK_SIZE);
    }
    let required = required_group(kernel, device)?;
    let Some(local) = local else {
        return Ok(());
    };
    if local.contains(&0) {
        return Err(CL_INVALID_WORK_GROUP_SIZE);
    }
    let most = device.parameter(CL_DEVICE_MAX_WORK_ITEM_SIZES).unwrap_or_default();
    let most: Vec<u64> = most.chunks_exact(8).map(number).collect();
    if local.iter().zip(&most).any(|(size, most)| *size as u64 > *most) {
        return Err(CL_INVALID_WORK_ITEM_SIZE);
    }
    let items = local.iter().try_fold(1_u64, |all, size| all.checked_mul(*size as u64));
    let limit = number(&kernel.work_group_at(device, CL_KERNEL_WORK_GROUP_SIZE)?);
    if items.is_none_or(|items| items > limit) {
        return Err(CL_INVALID_WORK_GROUP_SIZE);
    }
    let is_other = |required: [u64; 3]| {
        local.iter().zip(required).any(|(size, needed)| *size as u64 != needed)
    };
    if required.is_some_and(is_other) {
        return Err(CL_INVALID_WORK_GROUP_SIZE);
    }
    let is_uniform = global.iter().zip(local).all(|(all, group)| all.is_multiple_of(*group));
    if !is_uniform && device.number(CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT) == 0 {
        return Err(CL_INVALID_WORK_GROUP_SIZE);
    }
    Ok(())
}

pub unsafe extern "C" fn enqueue_nd_range_kernel(
    queue: cl_command_queue,
    kernel: cl_kernel,
    dimensions: cl_uint,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_NDRANGE_KERNEL)?;
        launch(call, kernel, dimensions, [offset, global, local])
    })
}

/// Sends or records a launch.
///
/// # Safety
/// Pointers and lists of the program are valid.
pub unsafe fn launch(
    mut call: Enqueue,
    kernel: cl_kernel,
    dimensions: cl_uint,
    [offset, global, local]: [*const usize; 3],
) -> Done {
    let mut kernel = Object::<Kernel>::get(kernel)?;
    let device = &call.queue.device;
    kernel.built_at(device)?;
    if !(1..=3).contains(&dimensions) {
        return Err(CL_INVALID_WORK_DIMENSION);
    }
    let sizes = |first: *const usize| {
        // SAFETY: the caller passes null, or one size for each dimension.
        let given = unsafe { array(first, if first.is_null() { 0 } else { dimensions as usize }) };
        (!first.is_null()).then_some(given)
    };
    let (global, local) = (sizes(global).unwrap_or(&[0; 3][..dimensions as usize]), sizes(local));
    check_sizes(&kernel, device, global, local)?;
    let required = required_group(&kernel, device)?;
    let all = |given: &[usize], rest: u64| {
        let mut all = [rest; 3];
        given.iter().zip(&mut all).for_each(|(size, at)| *at = *size as u64);
        all
    };
    let offset = sizes(offset).map(|it| all(it, 0));
    let (global, local) = (all(global, 1), local.map(|it| all(it, 1)).or(required));
    if call.recording.is_some() {
        kernel = kernel.snapshot();
    }
    let id = kernel.id;
    kernel.launch(&mut call, CommandKind::Launch { kernel: id, dimensions, offset, global, local })
}

pub unsafe extern "C" fn enqueue_task(
    queue: cl_command_queue,
    kernel: cl_kernel,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    let (one, none) = ([1_usize], std::ptr::null());
    let sizes = [none, one.as_ptr(), one.as_ptr()];
    // SAFETY: the program passes valid lists.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_TASK)?;
        launch(call, kernel, 1, sizes)
    })
}

pub unsafe extern "C" fn enqueue_native_kernel(
    queue: cl_command_queue,
    _function: Option<unsafe extern "C" fn(*mut c_void)>,
    _arguments: *mut c_void,
    _bytes: usize,
    _objects: cl_uint,
    _list: *const cl_mem,
    _places: *mut *const c_void,
    _count: cl_uint,
    _waits: *const cl_event,
    _event: *mut cl_event,
) -> cl_int {
    code(|| Object::<Queue>::get(queue).and(Err(CL_INVALID_OPERATION)))
}
