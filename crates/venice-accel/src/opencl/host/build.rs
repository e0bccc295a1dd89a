//! Builds of programs, on a thread of their own: a compiler takes seconds.

use std::ffi::{CString, c_void};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use opencl_sys::{
    CL_INVALID_OPERATION, CL_INVALID_VALUE, CL_KERNEL_ARG_ACCESS_QUALIFIER,
    CL_KERNEL_ARG_ADDRESS_QUALIFIER, CL_KERNEL_ARG_NAME, CL_KERNEL_ARG_TYPE_NAME,
    CL_KERNEL_ARG_TYPE_QUALIFIER, CL_KERNEL_ATTRIBUTES, CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
    CL_KERNEL_FUNCTION_NAME, CL_KERNEL_LOCAL_MEM_SIZE, CL_KERNEL_NUM_ARGS,
    CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, CL_KERNEL_PRIVATE_MEM_SIZE,
    CL_KERNEL_WORK_GROUP_SIZE, CL_PROGRAM_BINARIES, CL_PROGRAM_BINARY_SIZES,
    CL_PROGRAM_BINARY_TYPE, CL_PROGRAM_BINARY_TYPE_EXECUTABLE,
    CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE, CL_PROGRAM_BUILD_LOG, CL_PROGRAM_NUM_DEVICES,
    cl_device_id, cl_int, cl_kernel, cl_program, cl_program_build_info, cl_uint,
};
use venice_service::ConnectionId;

use super::execute::{created, done};
use super::objects::{Kind, Owned};
use super::watch::{Brought, Inbox};
use crate::opencl::library::{Library, OpenClError, call, info, number, text};
use crate::opencl::wire::{ArgumentInfo, BuildResult, KernelInfo, Parameter};

/// Builds that wait for the thread; more are refused.
const MAX_WAITING: usize = 256;
/// Most kernels of a program that are described.
const MAX_KERNELS: usize = 4096;
/// Longest time in which a driver holds kernels of commands that have ended.
const HELD: Duration = Duration::from_secs(1);
/// Sleep before the next look.
const LOOK: Duration = Duration::from_millis(1);
/// Parameters of a kernel that depend on the device.
const WORK_GROUP: [cl_uint; 5] = [
    CL_KERNEL_WORK_GROUP_SIZE,
    CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
    CL_KERNEL_LOCAL_MEM_SIZE,
    CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
    CL_KERNEL_PRIVATE_MEM_SIZE,
];

/// A build to be done.
#[derive(Debug)]
pub(super) struct Build {
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    /// Id of the program that a link makes.
    pub(super) id: u64,
    pub(super) step: Step,
    pub(super) options: String,
    /// Files that programs include, by their absolute paths at the recipient.
    pub(super) files: Vec<(String, Vec<u8>)>,
}

/// Work of a build; each value holds references of its own.
#[derive(Debug)]
pub(super) enum Step {
    Build(Owned),
    Compile {
        program: Owned,
        headers: Vec<(String, Owned)>,
    },
    Link {
        context: Handle,
        inputs: Vec<Owned>,
    },
    /// The binary of a program.
    Binary(Owned),
}

/// A handle that its connection keeps alive.
#[derive(Debug)]
pub(super) struct Handle(pub(super) *mut c_void);

// SAFETY: objects of OpenCL may be used from any thread (specification, Appendix A.2).
unsafe impl Send for Handle {}

/// A build that has ended.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    /// A build, and the program with its id that a link has made.
    Program(BuildResult, Option<(u64, Owned)>),
    Binary(Result<Vec<u8>, cl_int>),
}

/// The thread that builds.
#[derive(Debug)]
pub(super) struct Builder {
    builds: SyncSender<Build>,
}

impl Builder {
    /// Starts it. Files are stored below `files_dir`.
    pub(super) fn start(
        library: &'static Library,
        device: cl_device_id,
        files_dir: PathBuf,
        inbox: Arc<Inbox>,
    ) -> std::io::Result<Self> {
        let (builds, waiting) = sync_channel(MAX_WAITING);
        let device = Handle(device);
        std::thread::Builder::new().name("venice-build".into()).spawn(move || {
            Worker { library, device: { device }.0, files_dir, inbox }.run(&waiting);
        })?;
        Ok(Self { builds })
    }

    /// Takes a build; gives it back if too many wait.
    pub(super) fn put(&self, build: Build) -> Result<(), Build> {
        self.builds.try_send(build).map_err(|error| match error {
            std::sync::mpsc::TrySendError::Full(build)
            | std::sync::mpsc::TrySendError::Disconnected(build) => build,
        })
    }
}

struct Worker {
    library: &'static Library,
    device: cl_device_id,
    files_dir: PathBuf,
    inbox: Arc<Inbox>,
}

impl Worker {
    fn run(&self, builds: &Receiver<Build>) {
        for build in builds {
            let (connection, request) = (build.connection, build.request);
            let outcome = self.build(build);
            self.inbox.put(Brought::Built(Built { connection, request, outcome }));
        }
    }

    fn build(&self, build: Build) -> Outcome {
        let stored = self.store(&build.files);
        let options = CString::new(build.options).map_err(|_| CL_INVALID_VALUE);
        let (status, program) = match (&build.step, stored.and(options)) {
            (Step::Binary(program), _) => return Outcome::Binary(self.binary(program.raw())),
            (Step::Build(program) | Step::Compile { program, .. }, Err(code)) => {
                (code, Some(program.raw()))
            }
            (Step::Link { .. }, Err(code)) => (code, None),
            (Step::Build(program), Ok(options)) => {
                let raw = program.raw();
                let status = unless_held(|| {
                    done(call!(
                        self.library,
                        clBuildProgram(raw, 0, null(), options.as_ptr(), None, null_mut())
                    ))
                });
                (status.err().unwrap_or(0), Some(raw))
            }
            (Step::Compile { program, headers }, Ok(options)) => {
                (self.compile(program.raw(), headers, &options), Some(program.raw()))
            }
            (Step::Link { context, inputs }, Ok(options)) => {
                match self.link(context.0, inputs, &options) {
                    Ok(program) => (0, Some(program)),
                    Err(code) => (code, None),
                }
            }
        };
        let result = self.result(status, program);
        let linked = match (&build.step, program) {
            (Step::Link { .. }, Some(program)) => {
                Some((build.id, Owned::new(self.library, Kind::Program, program)))
            }
            _ => None,
        };
        Outcome::Program(result, linked)
    }

    /// Stores the recipient's files where the compiler finds them.
    fn store(&self, files: &[(String, Vec<u8>)]) -> Result<(), cl_int> {
        for (path, text) in files {
            let path = below(&self.files_dir, path).ok_or(CL_INVALID_VALUE)?;
            let stored = path
                .parent()
                .map_or(Ok(()), fs::create_dir_all)
                .and_then(|()| fs::write(&path, text));
            if let Err(error) = stored {
                eprintln!("opencl: storing an included file: {error}");
                return Err(CL_INVALID_VALUE);
            }
        }
        Ok(())
    }

    fn compile(
        &self,
        program: cl_program,
        headers: &[(String, Owned)],
        options: &CString,
    ) -> cl_int {
        let names = headers.iter().map(|(name, _)| CString::new(name.as_str()));
        let Ok(names) = names.collect::<Result<Vec<_>, _>>() else { return CL_INVALID_VALUE };
        let mut names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let mut programs: Vec<_> = headers.iter().map(|(_, program)| program.raw()).collect();
        let count = programs.len() as cl_uint;
        let (programs, names) = match count {
            0 => (null_mut(), null_mut()),
            _ => (programs.as_mut_ptr(), names.as_mut_ptr()),
        };
        let options = options.as_ptr();
        let status = unless_held(|| {
            done(call!(
                self.library,
                clCompileProgram(
                    program,
                    0,
                    null(),
                    options,
                    count,
                    programs,
                    names.cast(),
                    None,
                    null_mut()
                )
            ))
        });
        status.err().unwrap_or(0)
    }

    fn link(
        &self,
        context: *mut c_void,
        inputs: &[Owned],
        options: &CString,
    ) -> Result<*mut c_void, cl_int> {
        let inputs: Vec<_> = inputs.iter().map(Owned::raw).collect();
        let (count, first) = (inputs.len() as cl_uint, inputs.as_ptr());
        // Given options, PoCL forgets what compilation was to keep for descriptions of arguments.
        let options = if options.is_empty() { null() } else { options.as_ptr() };
        created(|code| {
            call!(
                self.library,
                clLinkProgram(context, 0, null(), options, count, first, None, null_mut(), code)
            )
        })
    }

    fn result(&self, status: cl_int, program: Option<cl_program>) -> BuildResult {
        let value = |parameter| program.and_then(|program| self.build_info(program, parameter));
        let binary_type = value(CL_PROGRAM_BINARY_TYPE).map_or(0, |it| number(&it) as u32);
        let is_executable = status == 0 && binary_type == CL_PROGRAM_BINARY_TYPE_EXECUTABLE;
        let kernels = program.filter(|_| is_executable).map(|program| self.kernels(program));
        BuildResult {
            status,
            log: value(CL_PROGRAM_BUILD_LOG).map(|it| untrimmed(&it)).unwrap_or_default(),
            binary_type,
            global_bytes: value(CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE)
                .map_or(0, |it| number(&it)),
            kernels: kernels.unwrap_or_default(),
        }
    }

    fn build_info(&self, program: cl_program, parameter: cl_program_build_info) -> Option<Vec<u8>> {
        let device = self.device;
        let value = info("clGetProgramBuildInfo", |bytes, value, needed| {
            call!(
                self.library,
                clGetProgramBuildInfo(program, device, parameter, bytes, value, needed)
            )
        });
        value.ok()
    }

    fn kernels(&self, program: cl_program) -> Vec<KernelInfo> {
        let mut count: cl_uint = 0;
        let asked =
            call!(self.library, clCreateKernelsInProgram(program, 0, null_mut(), &raw mut count));
        if done(asked).is_err() || count as usize > MAX_KERNELS {
            return Vec::new();
        }
        let mut kernels: Vec<cl_kernel> = vec![null_mut(); count as usize];
        let made = call!(
            self.library,
            clCreateKernelsInProgram(program, count, kernels.as_mut_ptr(), null_mut())
        );
        if done(made).is_err() {
            return Vec::new();
        }
        let owned = kernels.into_iter().map(|raw| Owned::new(self.library, Kind::Kernel, raw));
        owned.map(|kernel| describe_kernel(self.library, self.device, kernel.raw())).collect()
    }

    fn binary(&self, program: cl_program) -> Result<Vec<u8>, cl_int> {
        let get = |parameter, bytes: usize, value: *mut c_void| {
            let asked =
                call!(self.library, clGetProgramInfo(program, parameter, bytes, value, null_mut()));
            done(asked)
        };
        let mut count: cl_uint = 0;
        get(CL_PROGRAM_NUM_DEVICES, size_of::<cl_uint>(), (&raw mut count).cast())?;
        // The first device is the whole one; its parts have the same binary.
        let mut lens = vec![0_usize; count.max(1) as usize];
        get(CL_PROGRAM_BINARY_SIZES, size_of_val(&lens[..]), lens.as_mut_ptr().cast())?;
        let mut binary = vec![0_u8; lens[0]];
        let mut places = vec![null_mut::<u8>(); lens.len()];
        places[0] = binary.as_mut_ptr();
        if !binary.is_empty() {
            get(CL_PROGRAM_BINARIES, size_of_val(&places[..]), places.as_mut_ptr().cast())?;
        }
        Ok(binary)
    }
}

/// Builds a program, of which the recipient has no kernels. A driver may hold some of them until it
/// has cleared away commands that have ended, and refuses the build meanwhile.
fn unless_held(build: impl Fn() -> Result<(), cl_int>) -> Result<(), cl_int> {
    let until = Instant::now() + HELD;
    loop {
        let built = build();
        if built != Err(CL_INVALID_OPERATION) || Instant::now() >= until {
            return built;
        }
        std::thread::sleep(LOOK);
    }
}

/// Describes a kernel as far as the driver tells.
fn describe_kernel(library: &Library, device: cl_device_id, kernel: cl_kernel) -> KernelInfo {
    let value = |parameter| {
        let value = info("clGetKernelInfo", |bytes, value, needed| {
            call!(library, clGetKernelInfo(kernel, parameter, bytes, value, needed))
        });
        value.unwrap_or_default()
    };
    let argument_count = number(&value(CL_KERNEL_NUM_ARGS)) as u32;
    let arguments = (0..argument_count).map(|index| describe_argument(library, kernel, index));
    let work_group = WORK_GROUP.iter().filter_map(|parameter| {
        let value = info("clGetKernelWorkGroupInfo", |bytes, value, needed| {
            call!(
                library,
                clGetKernelWorkGroupInfo(kernel, device, *parameter, bytes, value, needed)
            )
        });
        Some(Parameter { name: *parameter, value: value.ok()? })
    });
    KernelInfo {
        name: text(&value(CL_KERNEL_FUNCTION_NAME)),
        argument_count,
        arguments: arguments.collect::<Result<_, _>>().unwrap_or_default(),
        attributes: text(&value(CL_KERNEL_ATTRIBUTES)),
        work_group: work_group.collect(),
    }
}

fn describe_argument(
    library: &Library,
    kernel: cl_kernel,
    index: cl_uint,
) -> Result<ArgumentInfo, OpenClError> {
    let value = |parameter| {
        info("clGetKernelArgInfo", |bytes, value, needed| {
            call!(library, clGetKernelArgInfo(kernel, index, parameter, bytes, value, needed))
        })
    };
    Ok(ArgumentInfo {
        address: number(&value(CL_KERNEL_ARG_ADDRESS_QUALIFIER)?) as u32,
        access: number(&value(CL_KERNEL_ARG_ACCESS_QUALIFIER)?) as u32,
        type_name: text(&value(CL_KERNEL_ARG_TYPE_NAME)?),
        type_qualifier: number(&value(CL_KERNEL_ARG_TYPE_QUALIFIER)?),
        name: text(&value(CL_KERNEL_ARG_NAME)?),
    })
}

/// Returns a log without its terminating zero, and with its line ends.
fn untrimmed(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// Returns the place of a recipient's file; `None` for a path that is not absolute and plain.
fn below(dir: &Path, path: &str) -> Option<PathBuf> {
    let mut parts = Path::new(path).components();
    let is_absolute = parts.next() == Some(Component::RootDir);
    let is_plain = parts.clone().all(|part| matches!(part, Component::Normal(_)));
    (is_absolute && is_plain).then(|| dir.join(parts.as_path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_waits_for_held_kernels() {
        let left = std::cell::Cell::new(3);
        let build = || {
            left.set(left.get() - 1);
            if left.get() > 0 { Err(CL_INVALID_OPERATION) } else { Ok(()) }
        };
        assert_eq!(unless_held(build), Ok(()));
        assert_eq!(left.get(), 0);
        assert_eq!(unless_held(|| Err(CL_INVALID_VALUE)), Err(CL_INVALID_VALUE));
    }

    #[test]
    fn files_stay_below_directory() {
        let dir = Path::new("/tmp/files");
        assert_eq!(below(dir, "/usr/x.h"), Some(PathBuf::from("/tmp/files/usr/x.h")));
        for path in ["x.h", "/a/../../x.h", "../x.h", ""] {
            assert_eq!(below(dir, path), None, "{path}");
        }
    }
}
