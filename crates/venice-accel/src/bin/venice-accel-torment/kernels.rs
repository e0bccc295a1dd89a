//! A service that runs any kernel, well-behaved or hostile, without a check.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::CString;
use std::ptr::{null, null_mut};

use opencl_sys::{
    CL_MEM_READ_WRITE, CL_PROGRAM_BUILD_LOG, CL_TRUE, cl_command_queue, cl_context, cl_device_id,
    cl_int, cl_mem, cl_program,
};
use venice_accel::opencl::SERVICE;
use venice_accel::opencl::library::Library;
use venice_accel::opencl::options::OpenClOptions;
use venice_service::{Answer, HostContext, Request, Service, ServiceEntry, ServiceLimits, Status};

/// Values that a kernel gets, and changes.
const VALUES: usize = 1024;

/// The service, in the place of the real one.
pub const ENTRY: ServiceEntry = ServiceEntry { name: SERVICE, make: Torment::make };

/// Runs the kernel `f(global float *values)` of each request's source over 1024 zeros; answers the
/// first value, or the error.
struct Torment {
    library: Library,
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

/// Calls a function of the loader.
macro_rules! call {
    ($library:expr, $name:ident ( $($argument:expr),* $(,)? )) => {{
        let function = $library.functions().$name.expect("OpenCL 1.2");
        // SAFETY: the arguments are valid for the call.
        unsafe { function($($argument),*) }
    }};
}

impl Torment {
    fn make(context: &HostContext<'_>) -> Result<Box<dyn Service>, String> {
        let options = OpenClOptions::parse(&context.spec.options)?;
        let library = Library::load().map_err(|error| error.to_string())?;
        let found = options.find(&library).map_err(|error| error.to_string())?;
        let (_, device) = found.ok_or("no such device")?;
        let mut code = 0;
        let context = call!(
            library,
            clCreateContext(null(), 1, &raw const device, None, null_mut(), &raw mut code)
        );
        check("clCreateContext", code)?;
        let queue = call!(library, clCreateCommandQueue(context, device, 0, &raw mut code));
        check("clCreateCommandQueue", code)?;
        Ok(Box::new(Self { library, device, context, queue, answers: VecDeque::new() }))
    }

    fn run(&self, source: &str) -> Result<f32, String> {
        let Self { library, context, queue, .. } = self;
        let mut code = 0;
        let program = self.build(source)?;
        let kernel = call!(library, clCreateKernel(program, c"f".as_ptr(), &raw mut code));
        check("clCreateKernel", code)?;
        let mut values = [0f32; VALUES];
        let bytes = size_of_val(&values);
        let flags = CL_MEM_READ_WRITE;
        let buffer: cl_mem =
            call!(library, clCreateBuffer(*context, flags, bytes, null_mut(), &raw mut code));
        check("clCreateBuffer", code)?;
        let data = values.as_mut_ptr().cast();
        let write = call!(
            library,
            clEnqueueWriteBuffer(*queue, buffer, CL_TRUE, 0, bytes, data, 0, null(), null_mut())
        );
        check("clEnqueueWriteBuffer", write)?;
        let argument = (&raw const buffer).cast();
        let set = call!(library, clSetKernelArg(kernel, 0, size_of::<cl_mem>(), argument));
        check("clSetKernelArg", set)?;
        let count = values.len();
        let run = call!(
            library,
            clEnqueueNDRangeKernel(
                *queue,
                kernel,
                1,
                null(),
                &raw const count,
                null(),
                0,
                null(),
                null_mut()
            )
        );
        check("clEnqueueNDRangeKernel", run)?;
        let read = call!(
            library,
            clEnqueueReadBuffer(*queue, buffer, CL_TRUE, 0, bytes, data, 0, null(), null_mut())
        );
        check("clEnqueueReadBuffer", read)?;
        Ok(values[0])
    }

    fn build(&self, source: &str) -> Result<cl_program, String> {
        let Self { library, device, context, .. } = self;
        let text = CString::new(source).map_err(|error| error.to_string())?;
        let (mut text, mut code) = (text.as_ptr(), 0);
        let program = call!(
            library,
            clCreateProgramWithSource(*context, 1, &raw mut text, null(), &raw mut code)
        );
        check("clCreateProgramWithSource", code)?;
        let built =
            call!(library, clBuildProgram(program, 1, device, c"".as_ptr(), None, null_mut()));
        if built == 0 {
            return Ok(program);
        }
        let mut log = vec![0u8; 1 << 14];
        let (mut len, at) = (0, log.as_mut_ptr().cast());
        call!(
            library,
            clGetProgramBuildInfo(
                program,
                *device,
                CL_PROGRAM_BUILD_LOG,
                log.len(),
                at,
                &raw mut len
            )
        );
        log.truncate(len);
        Err(format!("clBuildProgram {built}: {}", String::from_utf8_lossy(&log)))
    }
}

fn check(call: &str, code: cl_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call} {code}")) }
}
