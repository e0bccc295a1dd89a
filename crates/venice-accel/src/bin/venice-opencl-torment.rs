//! Program of the crate's tests: lists OpenCL devices, and hosts a service that runs any kernel.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::CString;
use std::process::ExitCode;
use std::ptr::{null, null_mut};

use libloading::os::unix::Library as Loader;
use opencl_sys::cl_function_types::*;
use opencl_sys::{
    CL_MEM_READ_WRITE, CL_PROGRAM_BUILD_LOG, CL_TRUE, cl_command_queue, cl_context, cl_device_id,
    cl_int, cl_mem, cl_program,
};
use venice_accel::opencl::library::Library;
use venice_accel::opencl::options::OpenClOptions;
use venice_accel::opencl::{SERVICE, listing};
use venice_service::{
    Answer, HostContext, Request, Service, ServiceEntry, ServiceLimits, Status, host_main,
};

/// Values that a kernel gets, and changes.
const VALUES: usize = 1024;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("service-host") => host_main(&[ServiceEntry { name: SERVICE, make: Torment::make }]),
        Some(listing::SUBCOMMAND) => listing::print_devices(),
        Some(_) | None => {
            eprintln!("usage: venice-opencl-torment service-host | {}", listing::SUBCOMMAND);
            ExitCode::from(2)
        }
    }
}

/// Runs the kernel `f(global float *values)` of each request's source over 1024 zeros; answers the
/// first value, or the error.
struct Torment {
    loader: Loader,
    device: cl_device_id,
    context: cl_context,
    queue: cl_command_queue,
    answers: VecDeque<(Answer, String)>,
}

impl Service for Torment {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn limits(&self) -> ServiceLimits {
        ServiceLimits { max_request_bytes: 60_000, max_answer_bytes: 60_000, max_outstanding: 4 }
    }

    fn handle_request(&mut self, _now_ns: u64, request: Request<'_>) {
        let Request { connection, id, payload, .. } = request;
        let source = std::str::from_utf8(payload).expect("a test sends text");
        let said = match self.run(source) {
            Ok(value) => value.to_string(),
            Err(why) => why,
        };
        self.answers.push_back((Answer { connection, id, status: Status::OK }, said));
    }

    fn poll_answer(&mut self, _now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        let (answer, said) = self.answers.pop_front()?;
        payload.extend_from_slice(said.as_bytes());
        Some(answer)
    }
}

/// Calls a function of the loader by its name and type.
macro_rules! call {
    ($loader:expr, $name:ident: $type:ident ( $($argument:expr),* $(,)? )) => {
        // SAFETY: the function has the type of cl.h, and its arguments are valid for the call.
        unsafe {
            let symbol = concat!(stringify!($name), "\0");
            let function = $loader.get::<$type>(symbol.as_bytes()).expect("OpenCL 1.2");
            let function = function.expect("a symbol is not null");
            function($($argument),*)
        }
    };
}

impl Torment {
    fn make(context: &HostContext<'_>) -> Result<Box<dyn Service>, String> {
        let options = OpenClOptions::parse(&context.spec.options)?;
        let library = Library::load().map_err(|error| error.to_string())?;
        let found = options.find(&library).map_err(|error| error.to_string())?;
        let (_, device) = found.ok_or("no such device")?;
        // SAFETY: loaded before by `Library`.
        let loader = unsafe { Loader::new("libOpenCL.so.1") }.map_err(|error| error.to_string())?;
        let mut code = 0;
        let context = call!(
            loader,
            clCreateContext: clCreateContext_t(null(), 1, &raw const device, None, null_mut(), &raw mut code)
        );
        check("clCreateContext", code)?;
        let queue = call!(
            loader,
            clCreateCommandQueue: clCreateCommandQueue_t(context, device, 0, &raw mut code)
        );
        check("clCreateCommandQueue", code)?;
        Ok(Box::new(Self { loader, device, context, queue, answers: VecDeque::new() }))
    }

    fn run(&self, source: &str) -> Result<f32, String> {
        let Self { loader, context, queue, .. } = self;
        let mut code = 0;
        let kernel = {
            let program = self.build(source)?;
            call!(loader, clCreateKernel: clCreateKernel_t(program, c"f".as_ptr(), &raw mut code))
        };
        check("clCreateKernel", code)?;
        let mut values = [0f32; VALUES];
        let bytes = size_of_val(&values);
        let buffer: cl_mem = call!(
            loader,
            clCreateBuffer: clCreateBuffer_t(*context, CL_MEM_READ_WRITE, bytes, null_mut(), &raw mut code)
        );
        check("clCreateBuffer", code)?;
        let data = values.as_mut_ptr().cast();
        let write = call!(
            loader,
            clEnqueueWriteBuffer: clEnqueueWriteBuffer_t(
                *queue, buffer, CL_TRUE, 0, bytes, data, 0, null(), null_mut()
            )
        );
        check("clEnqueueWriteBuffer", write)?;
        let argument = (&raw const buffer).cast();
        let set = call!(
            loader,
            clSetKernelArg: clSetKernelArg_t(kernel, 0, size_of::<cl_mem>(), argument)
        );
        check("clSetKernelArg", set)?;
        let count = values.len();
        let run = call!(
            loader,
            clEnqueueNDRangeKernel: clEnqueueNDRangeKernel_t(
                *queue, kernel, 1, null(), &raw const count, null(), 0, null(), null_mut()
            )
        );
        check("clEnqueueNDRangeKernel", run)?;
        let read = call!(
            loader,
            clEnqueueReadBuffer: clEnqueueReadBuffer_t(
                *queue, buffer, CL_TRUE, 0, bytes, data, 0, null(), null_mut()
            )
        );
        check("clEnqueueReadBuffer", read)?;
        Ok(values[0])
    }

    fn build(&self, source: &str) -> Result<cl_program, String> {
        let Self { loader, device, context, .. } = self;
        let text = CString::new(source).map_err(|error| error.to_string())?;
        let (mut text, mut code) = (text.as_ptr(), 0);
        let program = call!(
            loader,
            clCreateProgramWithSource: clCreateProgramWithSource_t(
                *context, 1, &raw mut text, null(), &raw mut code
            )
        );
        check("clCreateProgramWithSource", code)?;
        let built = call!(
            loader,
            clBuildProgram: clBuildProgram_t(program, 1, device, c"".as_ptr(), None, null_mut())
        );
        if built == 0 {
            return Ok(program);
        }
        let mut log = vec![0u8; 1 << 14];
        let mut len = 0;
        call!(
            loader,
            clGetProgramBuildInfo: clGetProgramBuildInfo_t(
                program, *device, CL_PROGRAM_BUILD_LOG, log.len(), log.as_mut_ptr().cast(), &raw mut len
            )
        );
        log.truncate(len);
        Err(format!("clBuildProgram {built}: {}", String::from_utf8_lossy(&log)))
    }
}

fn check(call: &str, code: cl_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call} {code}")) }
}
