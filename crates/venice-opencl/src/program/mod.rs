//! Programs, built at each device.

mod build;

pub use self::build::{build_program, compile_program, link_program};

use std::collections::HashMap;
use std::ffi::{c_char, c_uchar, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opencl_sys::*;
use venice_accel::opencl::session::Session;
use venice_accel::opencl::wire::{
    BinaryKind, BinaryRequest, BuildResult, CommandKind, Loaded, decode, encode, opcode,
};

use crate::call::{Done, Out, array, code, made, session_code, store, text};
use crate::context::Context;
use crate::device::Device;
use crate::event::plain;
use crate::gate;
use crate::link::Link;
use crate::object::{Object, Shared, bodies, new_id};
use crate::part::devices_at;
use crate::sources::moved;

bodies! {
    Program: CL_INVALID_PROGRAM;
}

/// Option by which kernels can be described.
const ARGUMENT_INFO: &str = "-cl-kernel-arg-info";
/// Sleep before another look whether this process is a child, in which no thread builds.
const LOOK: Duration = Duration::from_millis(100);

/// A program.
pub struct Program {
    pub id: u64,
    pub context: Shared<Context>,
    pub devices: Vec<Shared<Device>>,
    origin: Origin,
    state: Mutex<State>,
    /// Notified when a thread has ended a build.
    settled: Condvar,
}

/// Origin of a program.
enum Origin {
    /// Text in any encoding.
    Source(Vec<u8>),
    /// SPIR-V.
    Il(Vec<u8>),
    /// Names of built-in kernels.
    BuiltIn(String),
    /// Binaries of its devices, or linked programs.
    Built,
}

#[derive(Default)]
struct State {
    /// Devices at which it exists.
    made_at: u64,
    /// Number of changes of builds.
    changes: u64,
    /// Binaries that it was made of, by device.
    binaries: HashMap<usize, Arc<[u8]>>,
    builds: HashMap<usize, DeviceBuild>,
    /// Kernels of it that exist: then it cannot be built again.
    kernels: usize,
    /// The latest build was given null as its options.
    has_no_options: bool,
    /// Threads that build it, and their process.
    builders: usize,
    process: u32,
}

/// A build at one device.
#[derive(Clone)]
struct DeviceBuild {
    /// Number of the change that made it.
    change: u64,
    status: cl_build_status,
    options: String,
    result: Arc<BuildResult>,
}

impl Program {
    fn new(
        context: &Shared<Context>,
        devices: Vec<Shared<Device>>,
        origin: Origin,
    ) -> Shared<Self> {
        let (context, state, settled) = (Shared::clone(context), Mutex::default(), Condvar::new());
        Object::new(Self { id: new_id(), context, devices, origin, state, settled })
    }

    /// Returns its source, if it is made of one.
    fn source(&self) -> Option<&[u8]> {
        match &self.origin {
            Origin::Source(source) => Some(source),
            Origin::Il(_) | Origin::BuiltIn(_) | Origin::Built => None,
        }
    }

    /// Returns its SPIR-V; empty if it is made of something else.
    fn il(&self) -> &[u8] {
        match &self.origin {
            Origin::Il(il) => il,
            Origin::Source(_) | Origin::BuiltIn(_) | Origin::Built => &[],
        }
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
        self.context.id_at(device)?;
        self.create_by(&device.session(), self.source().unwrap_or_default())?;
        state.made_at |= device.bit();
        Ok(())
    }

    fn create_by(&self, session: &Session, source: &[u8]) -> Done {
        let (id, context) = (self.id, self.context.id);
        let source = moved(source, &session.description().files_dir);
        let sent = session.submit_with_blob(&source, |source| {
            plain(CommandKind::CreateProgram { id, context, source })
        });
        sent.map_err(session_code)
    }

    /// Loads a program that is no source text at a device, if it is not there.
    fn load_at(&self, device: &Shared<Device>, kind: &BinaryKind, binary: &[u8]) -> Done {
        if self.state().made_at & device.bit() != 0 {
            return Ok(());
        }
        self.context.id_at(device)?;
        let loaded = self.load_by(&device.session(), kind, binary)?;
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

    fn load_by(&self, session: &Session, kind: &BinaryKind, binary: &[u8]) -> Done<Loaded> {
        let (id, context) = (self.id, self.context.id);
        let answer = session.with_blob(binary, |binary| {
            let request = BinaryRequest { id, context, kind: kind.clone(), binary };
            session.call(opcode::CREATE_PROGRAM, &encode(&request))
        });
        decode(&answer.map_err(session_code)?).map_err(|_| CL_INVALID_BINARY)
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

    /// True if the program was built so that its kernels may be described to the program: with the
    /// option for it, or with no options at all, where drivers describe them by themselves.
    pub fn describes_arguments(&self) -> bool {
        let state = self.state();
        self.source().is_none()
            || state.has_no_options
            || state.builds.values().any(|build| build.options.contains(ARGUMENT_INFO))
    }

    /// Returns the program of a handle, once no thread builds it. Drivers that build in the call have
    /// the outcome then, and programs use it without waiting for their callback.
    ///
    /// # Errors
    /// [`CL_INVALID_PROGRAM`].
    pub fn settled(handle: cl_program) -> Done<Shared<Self>> {
        let program = Object::<Self>::get(handle)?;
        if program.state().builders > 0 {
            gate::outside(|| program.wait_for_builders());
        }
        Ok(program)
    }

    fn wait_for_builders(&self) {
        let mut state = self.state();
        while state.builders > 0 && state.process == std::process::id() {
            let woken = self.settled.wait_timeout(state, LOOK);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn note_kernels(&self, count: usize) {
        self.state().kernels += count;
    }

    pub fn forget_kernel(&self) {
        self.state().kernels -= 1;
    }

    /// Returns the binary at a device.
    fn binary_at(&self, device: &Device) -> Done<Vec<u8>> {
        if self.state().made_at & device.bit() == 0 {
            return Ok(Vec::new());
        }
        self.binary_by(&device.session())
    }

    fn binary_by(&self, session: &Session) -> Done<Vec<u8>> {
        let answer = session.call_long(opcode::BINARY, &encode(&self.id));
        let answer = answer.map_err(session_code)?;
        let binary = decode::<Option<&[u8]>>(&answer).map_err(|_| CL_OUT_OF_RESOURCES)?;
        Ok(binary.unwrap_or_default().to_vec())
    }

    /// Makes it at the other donor that its device moves to, where the device is the same: of its
    /// source, or else of its binary.
    ///
    /// # Errors
    /// The code of a lost session; that of a program that cannot be made there.
    pub fn carry(&self, device: &Device, from: &Link, to: &Link) -> Done {
        let Some(build) = self.build_to_carry(device) else { return Ok(()) };
        let built = build.filter(|build| build.status == CL_BUILD_SUCCESS);
        let is_executable =
            |built: &DeviceBuild| built.result.binary_type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE;
        let (kind, bytes) = match (&self.origin, &built) {
            (Origin::Source(source), None) => return self.create_by(&to.session, source),
            // Quicker than to have the donor's driver make a binary.
            (Origin::Source(source), Some(built)) if is_executable(built) => {
                self.create_by(&to.session, source)?;
                return self.build_again(to, built);
            }
            (Origin::Il(il), None) => (BinaryKind::Il {}, il.clone()),
            (Origin::BuiltIn(names), _) => (BinaryKind::BuiltIn {}, names.clone().into_bytes()),
            (Origin::Built, None) | (_, Some(_)) => {
                (BinaryKind::Binary {}, self.binary_to_carry(device, from)?)
            }
        };
        // What a failed link left has neither binary nor use.
        if bytes.is_empty() && built.is_none() {
            return Ok(());
        }
        let loaded = self.load_by(&to.session, &kind, &bytes)?;
        if loaded.status != CL_SUCCESS {
            return Err(loaded.status);
        }
        match built.filter(is_executable) {
            Some(built) => self.build_again(to, &built),
            None => Ok(()),
        }
    }

    /// Returns the binary that it was made of, or that the driver has made. The driver of another
    /// donor may have none of a program that it did not build itself.
    fn binary_to_carry(&self, device: &Device, from: &Link) -> Done<Vec<u8>> {
        let kept = self.state().binaries.get(&device.index).cloned();
        if let Some(kept) = kept {
            return Ok(kept.to_vec());
        }
        let binary = self.binary_by(&from.session)?;
        if !binary.is_empty() {
            self.keep_binary(device, &binary);
        }
        Ok(binary)
    }

    fn keep_binary(&self, device: &Device, binary: &[u8]) {
        self.state().binaries.insert(device.index, binary.into());
    }

    /// Returns the number of its build at a device, which grows with each build; `None`: it is not
    /// there.
    pub fn mark_at(&self, device: &Device) -> Option<u64> {
        let build = self.build_to_carry(device)?;
        Some(build.map_or(0, |build| build.change))
    }

    /// Returns its build at a device where it is.
    fn build_to_carry(&self, device: &Device) -> Option<Option<DeviceBuild>> {
        let state = self.state();
        (state.made_at & device.bit() != 0).then(|| state.builds.get(&device.index).cloned())
    }

    fn build_again(&self, link: &Link, built: &DeviceBuild) -> Done {
        let result = self.run_build(&link.session, &built.options, &build::Step::Build);
        let status = result.map_err(session_code)?.status;
        if status == CL_SUCCESS { Ok(()) } else { Err(status) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let made_at = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).made_at;
        for device in &self.context.devices {
            if made_at & device.bit() != 0 {
                device.session().release(self.id);
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
            let end = source.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            source.truncate(end);
            let devices = context.listed.clone();
            Ok(Object::hand_out(Program::new(&context, devices, Origin::Source(source))))
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
            for (at, device) in devices.iter().enumerate() {
                context.device(Object::handle(device))?;
                if devices[..at].iter().any(|earlier| Shared::ptr_eq(earlier, device)) {
                    return Err(CL_INVALID_DEVICE);
                }
            }
            let program = Program::new(&context, devices.clone(), Origin::Built);
            let lengths = array(lengths, count as usize);
            let binaries = array(binaries, count as usize);
            let mut outcome = Ok(());
            for (at, device) in devices.iter().enumerate() {
                let loaded = if lengths[at] == 0 || binaries[at].is_null() {
                    Err(CL_INVALID_VALUE)
                } else {
                    let binary = array(binaries[at], lengths[at]);
                    let loaded = program.load_at(device, &BinaryKind::Binary {}, binary);
                    loaded.inspect(|()| program.keep_binary(device, binary))
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
            let program = Program::new(&context, context.listed.clone(), Origin::Il(il));
            for device in &context.devices {
                program.load_at(device, &BinaryKind::Il {}, program.il())?;
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
            let program = Program::new(&context, devices, Origin::BuiltIn(names.clone()));
            for device in &program.devices {
                program.load_at(device, &BinaryKind::BuiltIn {}, names.as_bytes())?;
                // Its kernels can be made without a build by the program: this one describes them. A
                // driver that cannot build them makes none.
                let _ = program.build_at(device, "", &build::Step::Build);
            }
            Ok(Object::hand_out(program))
        })
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
        let program = Program::settled(handle)?;
        let out = Out { room, value, needed };
        match name {
            CL_PROGRAM_REFERENCE_COUNT => out.put_plain(&[program.references()]),
            CL_PROGRAM_CONTEXT => out.put_plain(&[Object::handle(&program.context)]),
            CL_PROGRAM_NUM_DEVICES => out.put_plain(&[program.devices.len() as cl_uint]),
            CL_PROGRAM_DEVICES => {
                let handles: Vec<_> = program.devices.iter().map(Object::handle).collect();
                out.put_plain(&handles)
            }
            CL_PROGRAM_SOURCE => out.put(&[program.source().unwrap_or_default(), &[0]].concat()),
            CL_PROGRAM_IL => out.put(program.il()),
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
        let program = Program::settled(handle)?;
        let device = Object::<Device>::get(device)?;
        if !program.devices.iter().any(|it| Shared::ptr_eq(it, &device)) {
            return Err(CL_INVALID_DEVICE);
        }
        let build = program.state().builds.get(&device.index).cloned();
        let build = build.unwrap_or_else(|| DeviceBuild {
            change: 0,
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
