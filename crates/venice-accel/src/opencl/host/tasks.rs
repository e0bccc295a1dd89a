//! Tasks of mailboxes on the device: kernels in OpenCL C, in SPIR-V, or as binaries of its driver.

use std::collections::VecDeque;
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use opencl_sys::{
    CL_INVALID_KERNEL_NAME, CL_MEM_COPY_HOST_PTR, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR,
    CL_PROGRAM_BUILD_LOG, cl_device_id, cl_int, cl_kernel, cl_mem, cl_program, cl_uint,
};

use super::build::Handle;
use super::execute::{created, done};
use super::objects::{Kind, Owned};
use super::output::{Output, TaskOutput};
use super::programs::load;
use crate::mailbox::{
    Argument, Code, Executable, Executor, Outcome, ResultCode, Task, TaskBuffers, TaskError,
    WorkItems,
};
use crate::opencl::code::ErrorCode;
use crate::opencl::library::{Library, call, info};
use crate::opencl::wire::BinaryKind;

/// Built programs that are kept.
const MAX_PROGRAMS: usize = 16;
/// Alignment that kernels may count on: that of OpenCL's longest vector.
const ALIGN: usize = 128;

/// A program that was built, with what it was built from.
struct BuiltProgram {
    code: Code,
    options: String,
    program: Owned,
}

/// Memory of an argument, with its range of the output if the device has it elsewhere.
struct ArgumentMemory {
    memory: Owned,
    output: Option<(u64, u64)>,
}

/// Runs tasks in a context and a queue of its own, one at a time.
pub(super) struct TaskExecutor {
    library: &'static Library,
    device: Handle,
    context: Owned,
    queue: Owned,
    /// True if the device works on memory of the host in place.
    is_in_place: bool,
    /// The last used one last.
    programs: VecDeque<BuiltProgram>,
    output: Arc<Output>,
    task_output: Arc<TaskOutput>,
    /// What the last task has printed.
    printed: Vec<u8>,
}

impl TaskExecutor {
    /// Makes its context and queue.
    ///
    /// # Errors
    /// The errors of the driver.
    pub(super) fn new(
        library: &'static Library,
        device: cl_device_id,
        is_in_place: bool,
        (output, task_output): (Arc<Output>, Arc<TaskOutput>),
    ) -> Result<Self, String> {
        let named =
            |call: &'static str| move |code| format!("mailbox: {call}: {}", ErrorCode(code));
        let context = created(|code| {
            call!(library, clCreateContext(null(), 1, &raw const device, None, null_mut(), code))
        })
        .map_err(named("clCreateContext"))?;
        let context = Owned::new(library, Kind::Context, context);
        let queue =
            created(|code| call!(library, clCreateCommandQueue(context.raw(), device, 0, code)))
                .map_err(named("clCreateCommandQueue"))?;
        let queue = Owned::new(library, Kind::Queue, queue);
        let programs = VecDeque::new();
        Ok(Self {
            library,
            device: Handle(device),
            context,
            queue,
            is_in_place,
            programs,
            output,
            task_output,
            printed: Vec::new(),
        })
    }

    /// Returns a program that was built from the code, now or before.
    fn program(&mut self, executable: &Executable) -> Result<cl_program, TaskError> {
        let Executable { code, options, .. } = executable;
        let is_it = |it: &BuiltProgram| it.code == *code && it.options == *options;
        let built = match self.programs.iter().position(is_it) {
            Some(at) => self.programs.remove(at).expect("it was found there"),
            None => {
                let program = self.build(code, options)?;
                BuiltProgram { code: code.clone(), options: options.clone(), program }
            }
        };
        let raw = built.program.raw();
        self.programs.push_back(built);
        if self.programs.len() > MAX_PROGRAMS {
            self.programs.pop_front();
        }
        Ok(raw)
    }

    fn build(&self, code: &Code, options: &str) -> Result<Owned, TaskError> {
        let (library, device, context) = (self.library, self.device.0, self.context.raw());
        let (call, made) = match code {
            Code::BuiltIn => {
                let said = "an OpenCL device has no built-in functions: give it a kernel's source";
                return Err(TaskError::new(ResultCode::Unsupported, said));
            }
            Code::OpenClSource(source) => {
                let mut text = source.clone();
                let len = text.len();
                // Of length 0 drivers look for the terminating zero.
                text.push(0);
                let mut start = text.as_ptr().cast();
                let (start, len) = (&raw mut start, &raw const len);
                let made = created(|code| {
                    call!(library, clCreateProgramWithSource(context, 1, start, len, code))
                });
                ("clCreateProgramWithSource", made)
            }
            Code::SpirV(il) => {
                ("clCreateProgramWithIL", load(library, context, &BinaryKind::Il {}, il.to_vec()))
            }
            Code::DeviceBinary(binary) => {
                let made = load(library, context, &BinaryKind::Binary {}, binary.to_vec());
                ("clCreateProgramWithBinary", made)
            }
        };
        let program = made.map_err(|code| failed(ResultCode::Build, call, code))?;
        let program = Owned::new(library, Kind::Program, program);
        let options = CString::new(options)
            .map_err(|_| TaskError::new(ResultCode::Malformed, "options with a zero byte"))?;
        let built = done(call!(
            library,
            clBuildProgram(program.raw(), 1, &raw const device, options.as_ptr(), None, null_mut())
        ));
        match built {
            Ok(()) => Ok(program),
            Err(code) => match self.log(program.raw()) {
                log if log.is_empty() => Err(failed(ResultCode::Build, "clBuildProgram", code)),
                log => Err(TaskError::new(ResultCode::Build, log)),
            },
        }
    }

    /// Returns what the compiler said.
    fn log(&self, program: cl_program) -> String {
        let log = info("clGetProgramBuildInfo", |bytes, value, needed| {
            call!(
                self.library,
                clGetProgramBuildInfo(
                    program,
                    self.device.0,
                    CL_PROGRAM_BUILD_LOG,
                    bytes,
                    value,
                    needed
                )
            )
        });
        crate::opencl::library::text(&log.unwrap_or_default())
    }

    fn kernel(&self, program: cl_program, name: &str) -> Result<Owned, TaskError> {
        let none = || TaskError::new(ResultCode::Unsupported, format!("no kernel '{name}'"));
        let text = CString::new(name).map_err(|_| none())?;
        let made =
            created(|code| call!(self.library, clCreateKernel(program, text.as_ptr(), code)));
        match made {
            Ok(kernel) => Ok(Owned::new(self.library, Kind::Kernel, kernel)),
            Err(CL_INVALID_KERNEL_NAME) => Err(none()),
            Err(code) => Err(failed(ResultCode::Failed, "clCreateKernel", code)),
        }
    }

    /// Sets the arguments of a kernel; returns their memory, which lives until it has ended.
    fn set_arguments(
        &self,
        kernel: cl_kernel,
        arguments: &[Argument],
        buffers: &TaskBuffers<'_>,
    ) -> Result<Vec<ArgumentMemory>, TaskError> {
        let mut all = Vec::new();
        for (index, argument) in arguments.iter().enumerate() {
            let set = |bytes: usize, value: *const c_void| {
                let set =
                    call!(self.library, clSetKernelArg(kernel, index as cl_uint, bytes, value));
                done(set).map_err(|code| {
                    let said = format!("argument {index} of the kernel: {}", ErrorCode(code));
                    TaskError::new(ResultCode::Malformed, said)
                })
            };
            let memory = match argument {
                Argument::Value(value) => {
                    set(value.len(), value.as_ptr().cast())?;
                    continue;
                }
                Argument::Local(bytes) => {
                    set(usize::try_from(*bytes).unwrap_or(usize::MAX), null())?;
                    continue;
                }
                Argument::Input { offset, bytes } => {
                    let bytes = (*bytes).min(buffers.input_bytes() - offset);
                    self.input(buffers, *offset, bytes, index)?
                }
                Argument::Output { offset, bytes } => {
                    let bytes = (*bytes).min(buffers.output_bytes() - offset);
                    self.output(buffers, *offset, bytes, index)?
                }
            };
            let raw: cl_mem = memory.memory.raw();
            set(size_of::<cl_mem>(), (&raw const raw).cast())?;
            all.push(memory);
        }
        Ok(all)
    }

    fn input(
        &self,
        buffers: &TaskBuffers<'_>,
        offset: u64,
        bytes: u64,
        index: usize,
    ) -> Result<ArgumentMemory, TaskError> {
        let len = check_len(bytes, index)?;
        let at = buffers.addresses().map(|(input, _)| input.wrapping_add(offset as usize));
        if let Some(memory) = self.in_place(at.map(<*const u8>::cast_mut), len)? {
            return Ok(memory);
        }
        let mut copied = Vec::new();
        let at = match at {
            // The driver copies; whatever the recipient writes meanwhile, any bytes will do.
            Some(at) => at.cast_mut(),
            None => {
                copied.resize(len, 0);
                buffers.read_input(offset, &mut copied)?;
                copied.as_mut_ptr()
            }
        };
        let memory = self.buffer(CL_MEM_COPY_HOST_PTR, len, at.cast())?;
        Ok(ArgumentMemory { memory, output: None })
    }

    fn output(
        &self,
        buffers: &TaskBuffers<'_>,
        offset: u64,
        bytes: u64,
        index: usize,
    ) -> Result<ArgumentMemory, TaskError> {
        let len = check_len(bytes, index)?;
        let at = buffers.addresses().map(|(_, output)| output.wrapping_add(offset as usize));
        if let Some(memory) = self.in_place(at, len)? {
            return Ok(memory);
        }
        // A kernel need not fill it: nothing of an earlier use of the device must show.
        let mut zeros = vec![0_u8; len];
        let memory = self.buffer(CL_MEM_COPY_HOST_PTR, len, zeros.as_mut_ptr().cast())?;
        Ok(ArgumentMemory { memory, output: Some((offset, bytes)) })
    }

    /// Makes memory of bytes at an address; `None` if the device may not work there.
    fn in_place(
        &self,
        at: Option<*mut u8>,
        len: usize,
    ) -> Result<Option<ArgumentMemory>, TaskError> {
        let is_usable = |at: &*mut u8| self.is_in_place && at.addr().is_multiple_of(ALIGN);
        let Some(at) = at.filter(is_usable) else { return Ok(None) };
        let memory = self.buffer(CL_MEM_USE_HOST_PTR, len, at.cast())?;
        Ok(Some(ArgumentMemory { memory, output: None }))
    }

    fn buffer(&self, flags: u64, len: usize, at: *mut c_void) -> Result<Owned, TaskError> {
        let (library, context) = (self.library, self.context.raw());
        let flags = flags | CL_MEM_READ_WRITE;
        let made = created(|code| call!(library, clCreateBuffer(context, flags, len, at, code)));
        let raw = made.map_err(|code| failed(ResultCode::Failed, "clCreateBuffer", code))?;
        Ok(Owned::new(library, Kind::Memory, raw))
    }

    fn launch(&self, kernel: cl_kernel, items: &WorkItems) -> Result<(), TaskError> {
        let sizes = |sizes: [u64; 3]| sizes.map(|it| it as usize);
        let (global, local) = (sizes(items.global), items.local.map(sizes));
        let local = local.as_ref().map_or(null(), |it| it.as_ptr());
        let launched = call!(
            self.library,
            clEnqueueNDRangeKernel(
                self.queue.raw(),
                kernel,
                items.dimensions,
                null(),
                global.as_ptr(),
                local,
                0,
                null(),
                null_mut()
            )
        );
        done(launched)
            .map_err(|code| failed(ResultCode::Failed, "clEnqueueNDRangeKernel", code))?;
        let finished = call!(self.library, clFinish(self.queue.raw()));
        done(finished).map_err(|code| failed(ResultCode::Failed, "the kernel", code))
    }

    /// Brings output from the device.
    fn fetch(
        &self,
        memory: &ArgumentMemory,
        buffers: &mut TaskBuffers<'_>,
    ) -> Result<(), TaskError> {
        let Some((offset, bytes)) = memory.output else { return Ok(()) };
        let (len, mut copied) = (bytes as usize, Vec::new());
        let at = match buffers.addresses() {
            Some((_, output)) => output.wrapping_add(offset as usize),
            None => {
                copied.resize(len, 0);
                copied.as_mut_ptr()
            }
        };
        let (queue, memory) = (self.queue.raw(), memory.memory.raw());
        let read = call!(
            self.library,
            clEnqueueReadBuffer(queue, memory, 1, 0, len, at.cast(), 0, null(), null_mut())
        );
        done(read).map_err(|code| failed(ResultCode::Failed, "clEnqueueReadBuffer", code))?;
        if copied.is_empty() { Ok(()) } else { buffers.write_output(offset, &copied) }
    }
}

impl TaskExecutor {
    fn run_task(&mut self, task: &Task, buffers: &mut TaskBuffers<'_>) -> Outcome {
        let executable = &task.executable;
        let items = executable.work_items(task.input_bytes)?;
        let program = self.program(executable)?;
        let kernel = self.kernel(program, &executable.name)?;
        let Some(items) = items else { return Ok(0) };
        let memory = self.set_arguments(kernel.raw(), &executable.arguments, buffers)?;
        self.launch(kernel.raw(), &items)?;
        memory.iter().try_for_each(|memory| self.fetch(memory, buffers))?;
        Ok(executable.output_bytes(task.input_bytes).min(task.output_bytes))
    }
}

impl Executor for TaskExecutor {
    fn run(&mut self, task: &Task, buffers: &mut TaskBuffers<'_>) -> Outcome {
        self.task_output.begin();
        let outcome = self.run_task(task, buffers);
        self.printed.extend(self.task_output.end(&self.output));
        outcome
    }

    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.printed)
    }

    fn functions(&self) -> Vec<String> {
        Vec::new()
    }
}

fn check_len(bytes: u64, index: usize) -> Result<usize, TaskError> {
    match usize::try_from(bytes) {
        Ok(len) if len > 0 => Ok(len),
        Ok(_) | Err(_) => {
            let said = format!("argument {index} of the kernel: a range of {bytes} bytes");
            Err(TaskError::new(ResultCode::Malformed, said))
        }
    }
}

fn failed(kind: ResultCode, call: &str, code: cl_int) -> TaskError {
    TaskError::new(kind, format!("{call}: {}", ErrorCode(code)))
}
