//! The measured OpenCL program: uses the first device of the first platform, through the loader; the
//! second one, if there is one, only for contents that go from device to device.

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use opencl_sys::*;
use serde::{Deserialize, Serialize};
use venice_accel::opencl::library::Library;
use venice_client::granted_services;
use venice_wire::PortId;

/// Turns of a call before those that are measured.
const WARM_UP: usize = 200;
/// Kernels in a queue at a time, and such queues.
const QUEUED: usize = 5000;
const QUEUES: usize = 5;
/// Size of large copies in bytes.
const LARGE: usize = 64 << 20;
/// Size of mapped ranges in bytes.
const MAPPED: usize = 1 << 20;
const SOURCE: &str = "__kernel void empty(void) {} \
                      __kernel void add(__global int *a) { a[0] += 1; }";

/// Arguments of `venice bench accel-program`.
#[derive(Debug, Clone, Args)]
pub struct ProgramArgs {
    /// Measured calls of each kind.
    #[arg(long)]
    calls: usize,

    /// Use a granted device in datagrams only.
    #[arg(long)]
    over_udp: bool,

    /// File for the figures.
    #[arg(long)]
    json: PathBuf,
}

/// Figures of one turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Empty kernel and `clFinish`, median and 99th percentile in nanoseconds.
    pub kernel_ns: [f64; 2],
    /// A kernel among many in a queue, in nanoseconds.
    pub queued_ns: f64,
    /// Blocking write of 4 bytes, median in nanoseconds.
    pub write_ns: f64,
    /// Blocking read of 4096 bytes, median in nanoseconds.
    pub read_ns: f64,
    /// Kernel, then a blocking read of 4 bytes, median and 99th percentile in nanoseconds.
    pub kernel_read_ns: [f64; 2],
    /// Map and unmap of 1 MiB, median in nanoseconds.
    pub map_ns: f64,
    /// Write of 64 MiB, in bytes a second.
    pub write_bps: f64,
    /// Read of 64 MiB, in bytes a second.
    pub read_bps: f64,
    /// 64 MiB from a device to another one of its context, in bytes a second; `None`: it has none.
    pub between_bps: Option<f64>,
}

/// Measures, and writes the figures.
///
/// # Errors
/// When there is no device, a call fails, or a result is wrong.
pub fn execute_program(args: ProgramArgs) -> Result<()> {
    if args.over_udp {
        keep_udp()?;
    }
    let library = Library::load()?;
    let device = Device::open(&library)?;
    let figures = device.measure(args.calls)?;
    let text = serde_json::to_string(&figures).context("writing the figures")?;
    std::fs::write(&args.json, text).context("writing the figures")
}

/// Leaves a granted device its UDP endpoint alone, as if it were on another machine.
fn keep_udp() -> Result<()> {
    let mut services = granted_services()?;
    for access in services.iter_mut().flatten() {
        access.endpoints.retain(|endpoint| endpoint.port == PortId::Udp);
    }
    let text = serde_json::to_string(&services).context("describing the services")?;
    // SAFETY: no other thread has started.
    unsafe { std::env::set_var("VENICE_GRANT_ENDPOINTS", text) };
    Ok(())
}

/// Calls a function, whose code has to be 0.
macro_rules! call {
    ($device:expr, $function:ident ( $($argument:expr),* $(,)? )) => {{
        let function = $device.library.functions().$function;
        let function = function.context(concat!("the loader lacks ", stringify!($function)))?;
        // SAFETY: arguments as the specification asks for; all objects live as long as the device.
        match unsafe { function($($argument),*) } {
            CL_SUCCESS => {}
            code => bail!(concat!(stringify!($function), ": error {}"), code),
        }
    }};
}

/// Calls a function that makes an object.
macro_rules! make {
    ($device:expr, $function:ident ( $($argument:expr),* $(,)? )) => {{
        let function = $device.library.functions().$function;
        let function = function.context(concat!("the loader lacks ", stringify!($function)))?;
        let mut code = CL_SUCCESS;
        // SAFETY: as in `call`.
        let made = unsafe { function($($argument,)* &raw mut code) };
        if code != CL_SUCCESS {
            bail!(concat!(stringify!($function), ": error {}"), code);
        }
        made
    }};
}

/// A device with a queue and kernels; its objects end with the process.
struct Device<'a> {
    library: &'a Library,
    platform: cl_platform_id,
    context: cl_context,
    queue: cl_command_queue,
    empty: cl_kernel,
    add: cl_kernel,
    buffer: cl_mem,
}

impl<'a> Device<'a> {
    fn open(library: &'a Library) -> Result<Self> {
        let none = null_mut();
        let mut device = Self {
            library,
            platform: none,
            context: none,
            queue: none,
            empty: none,
            add: none,
            buffer: none,
        };
        let (mut platform, mut id) = (null_mut(), null_mut());
        call!(device, clGetPlatformIDs(1, &raw mut platform, null_mut()));
        device.platform = platform;
        call!(device, clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &raw mut id, null_mut()));
        device.context = make!(device, clCreateContext(null(), 1, &raw const id, None, null_mut()));
        device.queue = make!(device, clCreateCommandQueue(device.context, id, 0));
        let (mut text, len) = (SOURCE.as_ptr().cast(), SOURCE.len());
        let (text, len) = (&raw mut text, &raw const len);
        let program = make!(device, clCreateProgramWithSource(device.context, 1, text, len));
        let options = c"".as_ptr();
        call!(device, clBuildProgram(program, 1, &raw const id, options, None, null_mut()));
        device.empty = make!(device, clCreateKernel(program, c"empty".as_ptr()));
        device.add = make!(device, clCreateKernel(program, c"add".as_ptr()));
        let (flags, bytes) = (CL_MEM_READ_WRITE, LARGE);
        device.buffer = make!(device, clCreateBuffer(device.context, flags, bytes, null_mut()));
        let handle = (&raw const device.buffer).cast();
        call!(device, clSetKernelArg(device.add, 0, size_of::<cl_mem>(), handle));
        Ok(device)
    }

    fn measure(&self, calls: usize) -> Result<Figures> {
        let kernel = self.times(calls, || {
            self.launch(self.empty)?;
            self.finish()
        })?;
        let queued_ns = self.queued()?;
        let write = self.times(calls, || self.write(&[0; 4]))?;
        let mut page = vec![0; 4096];
        let read = self.times(calls, || self.read(&mut page))?;
        let mut count = 0;
        self.write(&[0; 4])?;
        let kernel_read = self.times(calls, || {
            let mut sum = [0; 4];
            self.launch(self.add)?;
            self.read(&mut sum)?;
            count += 1;
            match u32::from_le_bytes(sum) == count {
                true => Ok(()),
                false => bail!("a kernel's result is wrong after {count} of them"),
            }
        })?;
        let map = self.times(calls.min(500), || self.map())?;
        let (write_bps, read_bps) = self.copies()?;
        let between_bps = self.between()?;
        Ok(Figures {
            kernel_ns: [kernel.median(), kernel.percentile(99)],
            queued_ns,
            write_ns: write.median(),
            read_ns: read.median(),
            kernel_read_ns: [kernel_read.median(), kernel_read.percentile(99)],
            map_ns: map.median(),
            write_bps,
            read_bps,
            between_bps,
        })
    }

    /// Times calls, after some that are not timed.
    fn times(&self, calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<Times> {
        for _ in 0..WARM_UP.min(calls) {
            call()?;
        }
        let timed = (0..calls.max(1)).map(|_| {
            let began = Instant::now();
            call()?;
            Ok(began.elapsed().as_secs_f64() * 1e9)
        });
        let mut times = timed.collect::<Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(Times(times))
    }

    /// Returns the time of each kernel of a full queue, the median of a few queues.
    fn queued(&self) -> Result<f64> {
        let queues = self.times(QUEUES, || {
            (0..QUEUED).try_for_each(|_| self.launch(self.empty))?;
            self.finish()
        })?;
        Ok(queues.median() / QUEUED as f64)
    }

    /// Returns the best of a few writes and reads, whose bytes it checks.
    fn copies(&self) -> Result<(f64, f64)> {
        let from: Vec<u8> = (0..LARGE).map(|at| (at % 251) as u8).collect();
        let mut into = vec![0; LARGE];
        let (mut write_s, mut read_s) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..5 {
            let began = Instant::now();
            self.write(&from)?;
            self.finish()?;
            write_s = write_s.min(began.elapsed().as_secs_f64());
            let began = Instant::now();
            self.read(&mut into)?;
            read_s = read_s.min(began.elapsed().as_secs_f64());
        }
        if from != into {
            bail!("64 MiB came back changed");
        }
        Ok((LARGE as f64 / write_s, LARGE as f64 / read_s))
    }

    /// Returns the rate of the best of a few ways from the first device to the second one, whose
    /// bytes it checks; `None`: there is one device only.
    fn between(&self) -> Result<Option<f64>> {
        let (mut ids, mut count) = ([null_mut(); 2], 0);
        let all = CL_DEVICE_TYPE_ALL;
        call!(self, clGetDeviceIDs(self.platform, all, 2, ids.as_mut_ptr(), &raw mut count));
        if count < 2 {
            return Ok(None);
        }
        let context = make!(self, clCreateContext(null(), 2, ids.as_ptr(), None, null_mut()));
        let [first, second] = ids;
        let first = make!(self, clCreateCommandQueue(context, first, 0));
        let second = make!(self, clCreateCommandQueue(context, second, 0));
        let buffer = make!(self, clCreateBuffer(context, CL_MEM_READ_WRITE, LARGE, null_mut()));
        let list = &raw const buffer;
        let mut best_s = f64::INFINITY;
        for turn in 1..=5_u32 {
            let pattern = (&raw const turn).cast();
            call!(
                self,
                clEnqueueFillBuffer(first, buffer, pattern, 4, 0, LARGE, 0, null(), null_mut())
            );
            call!(self, clFinish(first));
            let began = Instant::now();
            call!(self, clEnqueueMigrateMemObjects(second, 1, list, 0, 0, null(), null_mut()));
            call!(self, clFinish(second));
            best_s = best_s.min(began.elapsed().as_secs_f64());
            let (mut last, offset) = ([0_u8; 4], LARGE - 4);
            let into = last.as_mut_ptr().cast();
            call!(
                self,
                clEnqueueReadBuffer(
                    second,
                    buffer,
                    CL_TRUE,
                    offset,
                    4,
                    into,
                    0,
                    null(),
                    null_mut()
                )
            );
            if u32::from_ne_bytes(last) != turn {
                bail!("64 MiB changed on the way to the second device");
            }
        }
        Ok(Some(LARGE as f64 / best_s))
    }

    fn launch(&self, kernel: cl_kernel) -> Result<()> {
        let one = [1_usize];
        let one = one.as_ptr();
        call!(
            self,
            clEnqueueNDRangeKernel(self.queue, kernel, 1, null(), one, one, 0, null(), null_mut())
        );
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        call!(self, clFinish(self.queue));
        Ok(())
    }

    fn write(&self, from: &[u8]) -> Result<()> {
        let (at, len) = (from.as_ptr().cast::<c_void>(), from.len());
        call!(
            self,
            clEnqueueWriteBuffer(
                self.queue,
                self.buffer,
                CL_TRUE,
                0,
                len,
                at,
                0,
                null(),
                null_mut()
            )
        );
        Ok(())
    }

    fn read(&self, into: &mut [u8]) -> Result<()> {
        let (at, len) = (into.as_mut_ptr().cast::<c_void>(), into.len());
        call!(
            self,
            clEnqueueReadBuffer(
                self.queue,
                self.buffer,
                CL_TRUE,
                0,
                len,
                at,
                0,
                null(),
                null_mut()
            )
        );
        Ok(())
    }

    fn map(&self) -> Result<()> {
        let flags = CL_MAP_READ | CL_MAP_WRITE;
        let at = make!(
            self,
            clEnqueueMapBuffer(
                self.queue,
                self.buffer,
                CL_TRUE,
                flags,
                0,
                MAPPED,
                0,
                null(),
                null_mut()
            )
        );
        call!(self, clEnqueueUnmapMemObject(self.queue, self.buffer, at, 0, null(), null_mut()));
        self.finish()
    }
}

/// Times of calls in nanoseconds, in order.
struct Times(Vec<f64>);

impl Times {
    fn median(&self) -> f64 {
        self.percentile(50)
    }

    fn percentile(&self, percent: usize) -> f64 {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }
}
