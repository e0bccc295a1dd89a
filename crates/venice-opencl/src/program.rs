//! Programs, built at each device.

use std::collections::HashMap;
use std::ffi::{c_char, c_uchar, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opencl_sys::*;
use venice_accel::opencl::session::SessionError;
use venice_accel::opencl::wire::{
    ANSWER_BYTES, BinaryKind, BinaryRequest, Blob, BuildKind, BuildRequest, BuildResult,
    CommandKind, Header, Loaded, decode, encode, opcode,
};

use crate::call::{Done, Out, array, check_list, code, made, session_code, store, text};
use crate::context::Context;
use crate::device::Device;
use crate::event::plain;
use crate::object::{Object, Shared, bodies, new_id};
use crate::part::devices_at;
use crate::sources::{Sources, moved};

bodies! {
    Program: CL_INVALID_PROGRAM;
}

/// Rounds of a build in which files are added.
const MAX_ROUNDS: usize = 64;
/// Option by which kernels can be described.
const ARGUMENT_INFO: &str = "-cl-kernel-arg-info";

/// A program.
pub struct Program {
    pub id: u64,
    pub context: Shared<Context>,
    pub devices: Vec<Shared<Device>>,
    source: Option<String>,
    il: Vec<u8>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Devices at which it exists.
    made_at: u64,
    builds: HashMap<usize, DeviceBuild>,
    /// Kernels of it that exist: then it cannot be built again.
    kernels: usize,
}

/// A build at one device.
#[derive(Clone)]
struct DeviceBuild {
    status: cl_build_status,
    options: String,
    result: Arc<BuildResult>,
}

type Notify = Option<unsafe extern "C" fn(cl_program, *mut c_void)>;

impl Program {
    fn new(
        context: &Shared<Context>,
        devices: Vec<Shared<Device>>,
        source: Option<String>,
        il: Vec<u8>,
    ) -> Shared<Self> {
        let (context, state) = (Shared::clone(context), Mutex::default());
        Object::new(Self { id: new_id(), context, devices, source, il, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a program of source text at a device, if it is not there.
    fn make_at(&self, device: &Shared<Device>) -> Done {
        let mut state = self.state();
        if state.made_at & device.bit() != 0 {
            return Ok(());
        }
        let (id, context) = (self.id, self.context.id_at(device)?);
        let session = &device.session;
        let source = self.source.as_deref().unwrap_or_default();
        let source = moved(source, &session.description().files_dir);
        let source = source.as_bytes();
        let sent = session.submit_with_blob(source, |source| {
            plain(CommandKind::CreateProgram { id, context, source })
        });
        sent.map_err(session_code)?;
        state.made_at |= device.bit();
        Ok(())
    }

    /// Loads a program that is no source text at a device, if it is not there.
    fn load_at(&self, device: &Shared<Device>, kind: &BinaryKind, binary: &[u8]) -> Done {
        if self.state().made_at & device.bit() != 0 {
            return Ok(());
        }
        let (id, context) = (self.id, self.context.id_at(device)?);
        let answer = device.session.with_blob(binary, |binary| {
            let request = BinaryRequest { id, context, kind: kind.clone(), binary };
            device.session.call(opcode::CREATE_PROGRAM, &encode(&request))
        });
        let answer = answer.map_err(session_code)?;
        let loaded = decode::<Loaded>(&answer).map_err(|_| CL_INVALID_BINARY)?;
        self.state().made_at |= device.bit();
        if loaded.status != CL_SUCCESS {
            return Err(loaded.status);
        }
        let result = BuildResult {
            binary_type: loaded.binary_type,
            ..BuildResult::without_program(CL_SUCCESS)
        };
        self.note(device, CL_BUILD_NONE, "", Arc::new(result));
        Ok(())
    }

    /// Returns the result of the build at a device, if it made an executable.
    pub fn executable(&self, device: &Device) -> Option<Arc<BuildResult>> {
        let build = self.state().builds.get(&device.index).cloned()?;
        let is_done = build.status == CL_BUILD_SUCCESS
            && build.result.binary_type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE;
        is_done.then_some(build.result)
    }

    /// Returns the result at the first device that has an executable.
    ///
    /// # Errors
    /// [`CL_INVALID_PROGRAM_EXECUTABLE`].
    pub fn any_executable(&self) -> Done<Arc<BuildResult>> {
        let mut found = self.devices.iter().filter_map(|device| self.executable(device));
        found.next().ok_or(CL_INVALID_PROGRAM_EXECUTABLE)
    }

    /// True if the program was built so that its kernels may be described to the program.
    pub fn describes_arguments(&self) -> bool {
        let state = self.state();
        self.source.is_none()
            || state.builds.values().any(|build| build.options.contains(ARGUMENT_INFO))
    }

    pub fn note_kernels(&self, count: usize) {
        self.state().kernels += count;
    }

    pub fn forget_kernel(&self) {
        self.state().kernels -= 1;
    }

    /// Builds at one device, and keeps the result.
    fn build_at(&self, device: &Shared<Device>, options: &str, step: &Step) -> Done {
        self.note_begin(device, options);
        let built = self.run_build(device, options, step).map_err(session_code);
        let (status, result) = match built {
            Ok(result) => (result.status, result),
            Err(code) => (code, BuildResult::without_program(code)),
        };
        let state = if status == CL_SUCCESS { CL_BUILD_SUCCESS } else { CL_BUILD_ERROR };
        self.note(device, state, options, Arc::new(result));
        if status == CL_SUCCESS { Ok(()) } else { Err(status) }
    }

    fn note_begin(&self, device: &Device, options: &str) {
        let none = Arc::new(BuildResult::without_program(CL_BUILD_NONE));
        self.note(device, CL_BUILD_IN_PROGRESS, options, none);
    }

    fn note(
        &self,
        device: &Device,
        status: cl_build_status,
        options: &str,
        result: Arc<BuildResult>,
    ) {
        let build = DeviceBuild { status, options: options.to_owned(), result };
        self.state().builds.insert(device.index, build);
    }

    fn run_build(
        &self,
        device: &Shared<Device>,
        options: &str,
        step: &Step,
    ) -> Result<BuildResult, SessionError> {
        let session = &device.session;
        let mut sources = Sources::new(options, &session.description().files_dir);
        if let Some(source) = &self.source {
            sources.add_included(source, None);
        }
        for round in 0.. {
            let result = self.try_build(device, &sources, step)?;
            let may_lack = result.status != CL_SUCCESS && round < MAX_ROUNDS;
            if !may_lack || !sources.add_missing(&result.log) {
                return Ok(result);
            }
        }
        unreachable!("the last round returns")
    }

    fn try_build(
        &self,
        device: &Device,
        sources: &Sources,
        step: &Step,
    ) -> Result<BuildResult, SessionError> {
        let session = &device.session;
        let mut staged = Vec::new();
        let mut files = Vec::new();
        // Long files go through the region, so that the request fits a message.
        let is_long = sources.files.values().map(Vec::len).sum::<usize>() > ANSWER_BYTES / 2;
        for (name, contents) in &sources.files {
            let text = if is_long && !contents.is_empty() {
                let place = session.stage(contents)?;
                staged.push(place.offset);
                Blob::Region { place }
            } else {
                Blob::Inline { bytes: contents }
            };
            files.push(Header { name, text });
        }
        let (kind, headers, names) = step.parts();
        let options = match step {
            Step::Link { .. } => sources.options.clone(),
            Step::Build | Step::Compile { .. } if sources.options.contains(ARGUMENT_INFO) => {
                sources.options.clone()
            }
            Step::Build | Step::Compile { .. } => format!("{} {ARGUMENT_INFO}", sources.options),
        };
        let options = options.trim();
        let request = BuildRequest { id: self.id, kind, options, headers, names, files };
        let answer = session.call_long(opcode::BUILD, &encode(&request));
        staged.into_iter().for_each(|offset| session.free(offset));
        let answer = answer?;
        decode(&answer).map_err(|_| SessionError::Lost("malformed result of a build".into()))
    }

    /// Returns the binary at a device.
    fn binary_at(&self, device: &Device) -> Done<Vec<u8>> {
        if self.state().made_at & device.bit() == 0 {
            return Ok(Vec::new());
        }
        let answer = device.session.call_long(opcode::BINARY, &encode(&self.id));
        let answer = answer.map_err(session_code)?;
        let binary = decode::<Option<&[u8]>>(&answer).map_err(|_| CL_OUT_OF_RESOURCES)?;
        Ok(binary.unwrap_or_default().to_vec())
    }
}

/// Step of a build, with what it needs at each device.
enum Step {
    Build,
    Compile { headers: Vec<(String, Shared<Program>)> },
    Link { context: u64, inputs: Vec<Shared<Program>> },
}

impl Step {
    fn parts(&self) -> (BuildKind, Vec<u64>, Vec<String>) {
        match self {
            Self::Build => (BuildKind::Build {}, Vec::new(), Vec::new()),
            Self::Compile { headers } => {
                let ids = headers.iter().map(|(_, program)| program.id).collect();
                let names = headers.iter().map(|(name, _)| name.clone()).collect();
                (BuildKind::Compile {}, ids, names)
            }
            Self::Link { context, inputs } => {
                let inputs = inputs.iter().map(|program| program.id).collect();
                (BuildKind::Link { context: *context, inputs }, Vec::new(), Vec::new())
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let made_at = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).made_at;
        for device in &self.context.devices {
            if made_at & device.bit() != 0 {
                device.session.release(self.id);
            }
        }
    }
}

pub unsafe extern "C" fn create_program_with_source(
    context: cl_context,
    count: cl_uint,
    strings: *mut *const c_char,
    lengths: *const usize,
    stored: *mut cl_int,
) -> cl_program {
    // SAFETY: the program passes so many strings, and null or a valid place.
    unsafe {
        made(stored, || {
            let context = Object::<Context>::get(context)?;
            if count == 0 || strings.is_null() {
                return Err(CL_INVALID_VALUE);
            }
            let lengths = array(lengths, if lengths.is_null() { 0 } else { count as usize });
            let mut source = Vec::new();
            for (at, string) in array(strings, count as usize).iter().enumerate() {
                if string.is_null() {
                    return Err(CL_INVALID_VALUE);
                }
                match lengths.get(at) {
                    None | Some(0) => {
                        source.extend_from_slice(std::ffi::CStr::from_ptr(*string).to_bytes())
                    }
                    Some(len) => source.extend_from_slice(array(string.cast::<u8>(), *len)),
                }
            }
            let source = String::from_utf8_lossy(&source).trim_end_matches('\0').to_owned();
            let devices = context.listed.clone();
            Ok(Object::hand_out(Program::new(&context, devices, Some(source), Vec::new())))
        })
    }
}

pub unsafe extern "C" fn create_program_with_binary(
    context: cl_context,
    count: cl_uint,
    devices: *const cl_device_id,
    lengths: *const usize,
    binaries: *mut *const c_uchar,
    statuses: *mut cl_int,
    stored: *mut cl_int,
) -> cl_program {
    // SAFETY: the program passes so many devices and binaries, and null or valid places.
    unsafe {
        made(stored, || {
            let context = Object::<Context>::get(context)?;
            if count == 0 || devices.is_null() || lengths.is_null() || binaries.is_null() {
                return Err(CL_INVALID_VALUE);
            }
            let devices = devices_at(devices, count)?;
            for device in &devices {
                context.device(Object::handle(device))?;
            }
            let program = Program::new(&context, devices.clone(), None, Vec::new());
            let lengths = array(lengths, count as usize);
            let binaries = array(binaries, count as usize);
            let mut outcome = Ok(());
            for (at, device) in devices.iter().enumerate() {
                let loaded = if lengths[at] == 0 || binaries[at].is_null() {
                    Err(CL_INVALID_VALUE)
                } else {
                    program.load_at(
                        device,
                        &BinaryKind::Binary {},
                        array(binaries[at], lengths[at]),
                    )
                };
                if !statuses.is_null() {
                    statuses.add(at).write(loaded.err().unwrap_or(CL_SUCCESS));
                }
                outcome = outcome.and(loaded);
            }
            outcome.map(|()| Object::hand_out(program))
        })
    }
}

pub unsafe extern "C" fn create_program_with_il(
    context: cl_context,
    il: *const c_void,
    len: usize,
    stored: *mut cl_int,
) -> cl_program {
    // SAFETY: the program passes so many bytes, and null or a valid place.
    unsafe {
        made(stored, || {
            let context = Object::<Context>::get(context)?;
            if il.is_null() || len == 0 {
                return Err(CL_INVALID_VALUE);
            }
            let has_il = |device: &Shared<Device>| {
                device.parameter(CL_DEVICE_IL_VERSION).is_some_and(|it| it.len() > 1)
            };
            if !context.devices.iter().any(has_il) {
                return Err(CL_INVALID_OPERATION);
            }
            let il = array(il.cast::<u8>(), len).to_vec();
            let program = Program::new(&context, context.listed.clone(), None, il);
            for device in &context.devices {
                program.load_at(device, &BinaryKind::Il {}, &program.il)?;
            }
            Ok(Object::hand_out(program))
        })
    }
}

pub unsafe extern "C" fn create_program_with_built_in_kernels(
    context: cl_context,
    count: cl_uint,
    devices: *const cl_device_id,
    names: *const c_char,
    stored: *mut cl_int,
) -> cl_program {
    // SAFETY: the program passes so many devices, a string, and null or a valid place.
    unsafe {
        made(stored, || {
            let context = Object::<Context>::get(context)?;
            if count == 0 || devices.is_null() || names.is_null() {
                return Err(CL_INVALID_VALUE);
            }
            let (devices, names) = (devices_at(devices, count)?, text(names));
            for device in &devices {
                context.device(Object::handle(device))?;
                let known = device.parameter(CL_DEVICE_BUILT_IN_KERNELS).unwrap_or_default();
                let known = venice_accel::opencl::library::text(known);
                if !names.split(';').all(|name| known.split(';').any(|it| it == name)) {
                    return Err(CL_INVALID_VALUE);
                }
            }
            let program = Program::new(&context, devices, None, Vec::new());
            for device in &program.devices {
                program.load_at(device, &BinaryKind::BuiltIn {}, names.as_bytes())?;
                // Its kernels can be made without a build by the program: this one describes them. A
                // driver that cannot build them makes none.
                let _ = program.build_at(device, "", &Step::Build);
            }
            Ok(Object::hand_out(program))
        })
    }
}

/// Request of a build, of all three functions.
struct BuildCall {
    program: Shared<Program>,
    devices: Vec<Shared<Device>>,
    options: String,
    step: Step,
}

impl BuildCall {
    /// Builds at all devices at once.
    fn run(&self) -> Done {
        // One build does for all parts of a device.
        let mut devices: Vec<&Shared<Device>> = Vec::new();
        for device in &self.devices {
            if !devices.iter().any(|known| known.index == device.index) {
                self.prepare(device)?;
                devices.push(device);
            }
        }
        if let [device] = &devices[..] {
            return self.program.build_at(device, &self.options, &self.step);
        }
        let outcomes: Vec<Done> = std::thread::scope(|scope| {
            let builds: Vec<_> = devices
                .iter()
                .map(|device| {
                    scope.spawn(|| self.program.build_at(device, &self.options, &self.step))
                })
                .collect();
            builds
                .into_iter()
                .map(|build| build.join().unwrap_or(Err(CL_OUT_OF_RESOURCES)))
                .collect()
        });
        outcomes.into_iter().collect()
    }

    fn prepare(&self, device: &Shared<Device>) -> Done {
        match &self.step {
            Step::Build | Step::Compile { .. } if self.program.source.is_some() => {
                self.program.make_at(device)?;
            }
            Step::Build | Step::Compile { .. } => {}
            Step::Link { .. } => self.program.state().made_at |= device.bit(),
        }
        if let Step::Compile { headers } = &self.step {
            headers.iter().try_for_each(|(_, header)| header.make_at(device))?;
        }
        Ok(())
    }

    /// Builds now, or on a thread that calls back.
    fn start(self, notify: Notify, user: *mut c_void) -> Done {
        let Some(notify) = notify else { return self.run() };
        // The program may ask for the status before the thread has begun.
        for device in &self.devices {
            self.program.note_begin(device, &self.options);
        }
        let user = user as usize;
        let build = move || {
            // The outcome is in the program.
            let _ = self.run();
            let handle = Object::handle(&self.program);
            // SAFETY: the program gave function and pointer for this call.
            unsafe { notify(handle, user as *mut c_void) };
        };
        let started = std::thread::Builder::new().name("venice-build".into()).spawn(build);
        started.map(drop).map_err(|_| CL_OUT_OF_HOST_MEMORY)
    }
}

/// Returns the devices of a build: those of the list, or all of the program.
unsafe fn build_devices(
    all: &[Shared<Device>],
    count: cl_uint,
    list: *const cl_device_id,
) -> Done<Vec<Shared<Device>>> {
    check_list(count, list, CL_INVALID_VALUE)?;
    if list.is_null() {
        return Ok(all.to_vec());
    }
    // SAFETY: the caller passes so many devices.
    let devices = unsafe { devices_at(list, count)? };
    let is_known = |device: &Shared<Device>| all.iter().any(|it| Shared::ptr_eq(it, device));
    if devices.iter().all(is_known) { Ok(devices) } else { Err(CL_INVALID_DEVICE) }
}

fn check_unused(program: &Program) -> Done {
    if program.state().kernels > 0 { Err(CL_INVALID_OPERATION) } else { Ok(()) }
}

pub unsafe extern "C" fn build_program(
    program: cl_program,
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    notify: Notify,
    user: *mut c_void,
) -> cl_int {
    // SAFETY: the program passes valid lists and strings.
    code(|| unsafe {
        let program = Object::<Program>::get(program)?;
        if notify.is_none() && !user.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        let devices = build_devices(&program.devices, count, devices)?;
        check_unused(&program)?;
        let options = text(options);
        BuildCall { program, devices, options, step: Step::Build }.start(notify, user)
    })
}

pub unsafe extern "C" fn compile_program(
    program: cl_program,
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    header_count: cl_uint,
    headers: *const cl_program,
    names: *mut *const c_char,
    notify: Notify,
    user: *mut c_void,
) -> cl_int {
    // SAFETY: the program passes valid lists and strings.
    code(|| unsafe {
        let program = Object::<Program>::get(program)?;
        if notify.is_none() && !user.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        check_list(header_count, headers, CL_INVALID_VALUE)?;
        check_list(header_count, names, CL_INVALID_VALUE)?;
        if program.source.is_none() && program.il.is_empty() {
            return Err(CL_INVALID_OPERATION);
        }
        let devices = build_devices(&program.devices, count, devices)?;
        check_unused(&program)?;
        let handles = array(headers, header_count as usize);
        let names = array(names, header_count as usize);
        let headers = handles
            .iter()
            .zip(names)
            .map(|(handle, name)| Ok((text(*name), Object::<Program>::get(*handle)?)));
        let step = Step::Compile { headers: headers.collect::<Done<_>>()? };
        let options = text(options);
        let built = BuildCall { program, devices, options, step }.start(notify, user);
        built.map_err(|code| match code {
            CL_BUILD_PROGRAM_FAILURE => CL_COMPILE_PROGRAM_FAILURE,
            code => code,
        })
    })
}

pub unsafe extern "C" fn link_program(
    context: cl_context,
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    input_count: cl_uint,
    inputs: *const cl_program,
    notify: Notify,
    user: *mut c_void,
    stored: *mut cl_int,
) -> cl_program {
    // SAFETY: the program passes valid lists and strings, and null or a valid place.
    unsafe {
        let mut linked = std::ptr::null_mut();
        let result = made(stored, || {
            let context = Object::<Context>::get(context)?;
            if input_count == 0 || inputs.is_null() || (notify.is_none() && !user.is_null()) {
                return Err(CL_INVALID_VALUE);
            }
            let devices = build_devices(&context.listed, count, devices)?;
            let handles = array(inputs, input_count as usize);
            let inputs = handles.iter().map(|handle| Object::<Program>::get(*handle));
            let inputs = inputs.collect::<Done<Vec<_>>>()?;
            let program = Program::new(&context, devices.clone(), None, Vec::new());
            let options = text(options);
            let step = Step::Link { context: context.id, inputs };
            linked = Object::hand_out(Shared::clone(&program));
            let done = BuildCall { program, devices, options, step }.start(notify, user);
            done.map(|()| linked).map_err(|code| match code {
                CL_BUILD_PROGRAM_FAILURE => CL_LINK_PROGRAM_FAILURE,
                code => code,
            })
        });
        // A failed link still has a log, in the program it returns.
        if result.is_null() && !stored.is_null() && *stored == CL_LINK_PROGRAM_FAILURE {
            return linked;
        }
        result
    }
}

pub unsafe extern "C" fn retain_program(handle: cl_program) -> cl_int {
    code(|| Object::<Program>::get(handle).map(|program| program.retain()))
}

pub unsafe extern "C" fn release_program(handle: cl_program) -> cl_int {
    code(|| Object::<Program>::get(handle)?.release())
}

pub unsafe extern "C" fn unload_compiler() -> cl_int {
    CL_SUCCESS
}

pub unsafe extern "C" fn unload_platform_compiler(platform: cl_platform_id) -> cl_int {
    code(|| Object::<crate::device::Platform>::get(platform).map(drop))
}

pub unsafe extern "C" fn program_info(
    handle: cl_program,
    name: cl_program_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    // SAFETY: the program passes null or valid places.
    code(|| unsafe {
        let program = Object::<Program>::get(handle)?;
        let out = Out { room, value, needed };
        match name {
            CL_PROGRAM_REFERENCE_COUNT => out.put_plain(&[program.references()]),
            CL_PROGRAM_CONTEXT => out.put_plain(&[Object::handle(&program.context)]),
            CL_PROGRAM_NUM_DEVICES => out.put_plain(&[program.devices.len() as cl_uint]),
            CL_PROGRAM_DEVICES => {
                let handles: Vec<_> = program.devices.iter().map(Object::handle).collect();
                out.put_plain(&handles)
            }
            CL_PROGRAM_SOURCE => out.put_text(program.source.as_deref().unwrap_or_default()),
            CL_PROGRAM_IL => out.put(&program.il),
            CL_PROGRAM_BINARY_SIZES => {
                let binaries = program.devices.iter().map(|device| program.binary_at(device));
                let sizes = binaries.map(|it| it.map(|it| it.len())).collect::<Done<Vec<_>>>()?;
                out.put_plain(&sizes)
            }
            CL_PROGRAM_BINARIES => put_binaries(&program, out),
            CL_PROGRAM_NUM_KERNELS => out.put_plain(&[program.any_executable()?.kernels.len()]),
            CL_PROGRAM_KERNEL_NAMES => {
                let built = program.any_executable()?;
                let names: Vec<_> = built.kernels.iter().map(|it| it.name.as_str()).collect();
                out.put_text(&names.join(";"))
            }
            CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT | CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT => {
                out.put_plain(&[CL_FALSE])
            }
            _ => Err(CL_INVALID_VALUE),
        }
    })
}

/// Stores the binaries where the program's list of places says.
unsafe fn put_binaries(program: &Program, out: Out) -> Done {
    let count = program.devices.len();
    let bytes = count * size_of::<*mut u8>();
    // SAFETY: the program passes null or a valid place.
    unsafe { store(out.needed, bytes) };
    if out.value.is_null() {
        return Ok(());
    }
    if out.room < bytes {
        return Err(CL_INVALID_VALUE);
    }
    // SAFETY: the program passes so many places, each null or long enough for its binary.
    let places = unsafe { array(out.value.cast::<*mut u8>(), count) };
    for (place, device) in places.iter().zip(&program.devices) {
        if !place.is_null() {
            let binary = program.binary_at(device)?;
            // SAFETY: as above.
            unsafe { place.copy_from_nonoverlapping(binary.as_ptr(), binary.len()) };
        }
    }
    Ok(())
}

pub unsafe extern "C" fn program_build_info(
    handle: cl_program,
    device: cl_device_id,
    name: cl_program_build_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    // SAFETY: the program passes null or valid places.
    code(|| unsafe {
        let program = Object::<Program>::get(handle)?;
        let device = Object::<Device>::get(device)?;
        if !program.devices.iter().any(|it| Shared::ptr_eq(it, &device)) {
            return Err(CL_INVALID_DEVICE);
        }
        let build = program.state().builds.get(&device.index).cloned();
        let build = build.unwrap_or_else(|| DeviceBuild {
            status: CL_BUILD_NONE,
            options: String::new(),
            result: Arc::new(BuildResult::without_program(CL_BUILD_NONE)),
        });
        let out = Out { room, value, needed };
        match name {
            CL_PROGRAM_BUILD_STATUS => out.put_plain(&[build.status]),
            CL_PROGRAM_BUILD_OPTIONS => out.put_text(&build.options),
            CL_PROGRAM_BUILD_LOG => out.put_text(&build.result.log),
            CL_PROGRAM_BINARY_TYPE => out.put_plain(&[build.result.binary_type]),
            CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE => {
                out.put_plain(&[build.result.global_bytes as usize])
            }
            _ => Err(CL_INVALID_VALUE),
        }
    })
}
