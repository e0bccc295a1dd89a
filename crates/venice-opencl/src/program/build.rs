//! Builds: of source, by compilation and by linking, at each device.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use opencl_sys::*;
use venice_accel::opencl::session::{Session, SessionError};
use venice_accel::opencl::wire::{
    ANSWER_BYTES, Blob, BuildKind, BuildRequest, BuildResult, Header, decode, encode, opcode,
};

use super::{ARGUMENT_INFO, DeviceBuild, Program};
use crate::call::{Done, array, check_list, code, made, session_code, text};
use crate::context::Context;
use crate::device::Device;
use crate::gate;
use crate::object::{Object, Shared};
use crate::part::devices_at;
use crate::sources::Sources;
use crate::thread;

/// Rounds of a build in which files are added.
const MAX_ROUNDS: usize = 64;

type Notify = Option<unsafe extern "C" fn(cl_program, *mut c_void)>;

impl Program {
    /// Builds at one device, and keeps the result.
    pub(super) fn build_at(&self, device: &Shared<Device>, options: &str, step: &Step) -> Done {
        self.note_begin(device, options);
        let built = self.run_build(&device.session(), options, step).map_err(session_code);
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

    pub(super) fn note(
        &self,
        device: &Device,
        status: cl_build_status,
        options: &str,
        result: Arc<BuildResult>,
    ) {
        let mut state = self.state();
        state.changes += 1;
        // What a build makes takes the place of what the program was made of.
        if status == CL_BUILD_SUCCESS {
            state.binaries.remove(&device.index);
        }
        let (change, options) = (state.changes, options.to_owned());
        state.builds.insert(device.index, DeviceBuild { change, status, options, result });
    }

    /// Builds by a session, and adds files until nothing is missed.
    pub(super) fn run_build(
        &self,
        session: &Session,
        options: &str,
        step: &Step,
    ) -> Result<BuildResult, SessionError> {
        let mut sources = Sources::new(options, &session.description().files_dir);
        if matches!(step, Step::Link { .. }) {
            // A linker needs no directories. Without options the driver keeps descriptions.
            sources.options = options.trim().to_owned();
        }
        if let Some(source) = self.source() {
            sources.add_included(&String::from_utf8_lossy(source), None);
        }
        for round in 0.. {
            let mut result = self.try_build(session, &sources, step)?;
            let may_lack = result.status != CL_SUCCESS && round < MAX_ROUNDS;
            if !may_lack || !sources.add_missing(&result.log) {
                result.log.push_str(&sources.remarks());
                return Ok(result);
            }
        }
        unreachable!("the last round returns")
    }

    fn try_build(
        &self,
        session: &Session,
        sources: &Sources,
        step: &Step,
    ) -> Result<BuildResult, SessionError> {
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
}

/// Step of a build, with what it needs at each device.
pub(super) enum Step {
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

/// A build that a thread does. It has ended on drop.
struct Builder(Shared<Program>);

impl Builder {
    fn begin(program: &Shared<Program>) -> Self {
        let mut state = program.state();
        state.builders += 1;
        state.process = std::process::id();
        Self(Shared::clone(program))
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.0.state().builders -= 1;
        self.0.settled.notify_all();
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
            Step::Build | Step::Compile { .. } if self.program.source().is_some() => {
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

    /// Notes the failure of builds that could not begin.
    fn note_not_begun(&self, code: cl_int) {
        for device in &self.devices {
            let status = self.program.state().builds.get(&device.index).map(|build| build.status);
            if status == Some(CL_BUILD_IN_PROGRESS) {
                let result = Arc::new(BuildResult::without_program(code));
                self.program.note(device, CL_BUILD_ERROR, &self.options, result);
            }
        }
    }

    /// Builds now, or on a thread that calls back.
    fn start(self, notify: Notify, user: *mut c_void) -> Done {
        let Some(notify) = notify else { return self.run() };
        // The program may ask for the status before the thread has begun.
        for device in &self.devices {
            self.program.note_begin(device, &self.options);
        }
        let user = user as usize;
        let builder = Builder::begin(&self.program);
        let build = move || {
            let pass = gate::enter();
            // The outcome is in the program.
            if let Err(code) = self.run() {
                self.note_not_begun(code);
            }
            drop(pass);
            drop(builder);
            let handle = Object::handle(&self.program);
            // SAFETY: the program gave function and pointer for this call.
            unsafe { notify(handle, user as *mut c_void) };
        };
        thread::start("venice-build", build).map_err(|_| CL_OUT_OF_HOST_MEMORY)
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
        let program = Program::settled(program)?;
        if notify.is_none() && !user.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        let devices = build_devices(&program.devices, count, devices)?;
        check_unused(&program)?;
        program.state().has_no_options = options.is_null();
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
        let program = Program::settled(program)?;
        if notify.is_none() && !user.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        check_list(header_count, headers, CL_INVALID_VALUE)?;
        check_list(header_count, names, CL_INVALID_VALUE)?;
        if program.source().is_none() && program.il().is_empty() {
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
        program.state().has_no_options = options.is_null();
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
            let inputs = handles.iter().map(|handle| Program::settled(*handle));
            let inputs = inputs.collect::<Done<Vec<_>>>()?;
            let program = Program::new(&context, devices.clone(), super::Origin::Built);
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
