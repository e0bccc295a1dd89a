//! The ICD loader of this machine, loaded on first use.

use std::ffi::c_void;

use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};
use opencl_sys::cl_function_types::*;
use opencl_sys::{
    CL_DEVICE_TYPE_ALL, CL_SUCCESS, cl_device_id, cl_device_info, cl_int, cl_platform_id,
    cl_platform_info, cl_uint,
};

/// Soname of every loader.
const SONAME: &str = "libOpenCL.so.1";

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenClError {
    /// No ICD loader is installed.
    #[error("{SONAME} cannot be loaded: {0} (Debian: apt install ocl-icd-libopencl1)")]
    NoLoader(String),
    /// The loader is older than the call.
    #[error("{0} is not in this machine's {SONAME}")]
    NoFunction(&'static str),
    /// The driver refused.
    #[error("{call}: {}", super::code::ErrorCode(*.code))]
    Failed {
        /// The function.
        call: &'static str,
        /// Error code of `cl.h`, below 0.
        code: cl_int,
    },
}

impl OpenClError {
    /// Returns the error code of `cl.h` that stands for it.
    pub fn code(&self) -> cl_int {
        match self {
            Self::NoLoader(_) => opencl_sys::CL_DEVICE_NOT_AVAILABLE,
            Self::NoFunction(_) => opencl_sys::CL_INVALID_OPERATION,
            Self::Failed { code, .. } => *code,
        }
    }
}

/// Calls a function of the loader: `call!(library, clFlush(queue))`.
macro_rules! call {
    ($library:expr, $function:ident ( $($argument:expr),* $(,)? )) => {{
        match $library.functions.$function {
            // SAFETY: the function has the type that cl.h declares for its symbol; the caller passes
            // what its page in the OpenCL specification asks for.
            Some(function) => Ok(unsafe { function($($argument),*) }),
            None => Err($crate::opencl::library::OpenClError::NoFunction(stringify!($function))),
        }
    }};
}
pub(crate) use call;

/// Declares [`Functions`] and its loader.
macro_rules! functions {
    ($($name:ident: $type:ident;)*) => {
        /// Functions of the loader, under their names in cl.h; `None`: it is older.
        #[allow(non_snake_case, missing_docs, reason = "names of cl.h, which documents them")]
        pub struct Functions {
            $(pub $name: $type,)*
        }

        fn load() -> Result<Functions, OpenClError> {
            // SAFETY: the loader's constructors do nothing; its first call loads drivers.
            let library = unsafe {
                libloading::os::unix::Library::open(Some(SONAME), RTLD_NOW | RTLD_LOCAL)
            };
            let library = library.map_err(|error| OpenClError::NoLoader(error.to_string()))?;
            let loaded = Functions {
                // SAFETY: each has the type that cl.h declares for its symbol.
                $($name: unsafe {
                    library.get(concat!(stringify!($name), "\0").as_bytes()).map_or(None, |it| *it)
                },)*
            };
            // Never unloaded: drivers have threads.
            std::mem::forget(library);
            Ok(loaded)
        }
    };
}

functions! {
    clGetPlatformIDs: clGetPlatformIDs_t;
    clGetPlatformInfo: clGetPlatformInfo_t;
    clGetDeviceIDs: clGetDeviceIDs_t;
    clGetDeviceInfo: clGetDeviceInfo_t;
    clCreateSubDevices: clCreateSubDevices_t;
    clReleaseDevice: clReleaseDevice_t;
    clCreateContext: clCreateContext_t;
    clGetContextInfo: clGetContextInfo_t;
    clReleaseContext: clReleaseContext_t;
    clCreateCommandQueue: clCreateCommandQueue_t;
    clReleaseCommandQueue: clReleaseCommandQueue_t;
    clCreateBuffer: clCreateBuffer_t;
    clCreateSubBuffer: clCreateSubBuffer_t;
    clCreateImage: clCreateImage_t;
    clReleaseMemObject: clReleaseMemObject_t;
    clGetSupportedImageFormats: clGetSupportedImageFormats_t;
    clGetImageInfo: clGetImageInfo_t;
    clSetMemObjectDestructorCallback: clSetMemObjectDestructorCallback_t;
    clCreateSampler: clCreateSampler_t;
    clReleaseSampler: clReleaseSampler_t;
    clCreateProgramWithSource: clCreateProgramWithSource_t;
    clCreateProgramWithBinary: clCreateProgramWithBinary_t;
    clCreateProgramWithIL: clCreateProgramWithIL_t;
    clCreateProgramWithBuiltInKernels: clCreateProgramWithBuiltInKernels_t;
    clRetainProgram: clRetainProgram_t;
    clReleaseProgram: clReleaseProgram_t;
    clBuildProgram: clBuildProgram_t;
    clCompileProgram: clCompileProgram_t;
    clLinkProgram: clLinkProgram_t;
    clGetProgramInfo: clGetProgramInfo_t;
    clGetProgramBuildInfo: clGetProgramBuildInfo_t;
    clCreateKernel: clCreateKernel_t;
    clCreateKernelsInProgram: clCreateKernelsInProgram_t;
    clReleaseKernel: clReleaseKernel_t;
    clSetKernelArg: clSetKernelArg_t;
    clGetKernelInfo: clGetKernelInfo_t;
    clGetKernelArgInfo: clGetKernelArgInfo_t;
    clGetKernelWorkGroupInfo: clGetKernelWorkGroupInfo_t;
    clGetEventInfo: clGetEventInfo_t;
    clCreateUserEvent: clCreateUserEvent_t;
    clRetainEvent: clRetainEvent_t;
    clReleaseEvent: clReleaseEvent_t;
    clSetUserEventStatus: clSetUserEventStatus_t;
    clSetEventCallback: clSetEventCallback_t;
    clGetEventProfilingInfo: clGetEventProfilingInfo_t;
    clFlush: clFlush_t;
    clFinish: clFinish_t;
    clEnqueueReadBuffer: clEnqueueReadBuffer_t;
    clEnqueueReadBufferRect: clEnqueueReadBufferRect_t;
    clEnqueueWriteBuffer: clEnqueueWriteBuffer_t;
    clEnqueueWriteBufferRect: clEnqueueWriteBufferRect_t;
    clEnqueueFillBuffer: clEnqueueFillBuffer_t;
    clEnqueueCopyBuffer: clEnqueueCopyBuffer_t;
    clEnqueueCopyBufferRect: clEnqueueCopyBufferRect_t;
    clEnqueueReadImage: clEnqueueReadImage_t;
    clEnqueueWriteImage: clEnqueueWriteImage_t;
    clEnqueueFillImage: clEnqueueFillImage_t;
    clEnqueueCopyImage: clEnqueueCopyImage_t;
    clEnqueueCopyImageToBuffer: clEnqueueCopyImageToBuffer_t;
    clEnqueueCopyBufferToImage: clEnqueueCopyBufferToImage_t;
    clEnqueueMapBuffer: clEnqueueMapBuffer_t;
    clEnqueueUnmapMemObject: clEnqueueUnmapMemObject_t;
    clEnqueueMigrateMemObjects: clEnqueueMigrateMemObjects_t;
    clEnqueueNDRangeKernel: clEnqueueNDRangeKernel_t;
    clEnqueueMarkerWithWaitList: clEnqueueMarkerWithWaitList_t;
    clEnqueueBarrierWithWaitList: clEnqueueBarrierWithWaitList_t;
}

/// Turns the code of a call into a result.
pub(crate) fn check(call: &'static str, code: cl_int) -> Result<(), OpenClError> {
    if code == CL_SUCCESS { Ok(()) } else { Err(OpenClError::Failed { call, code }) }
}

/// The loaded library.
pub struct Library {
    pub(crate) functions: Functions,
}

impl Library {
    /// Returns its functions.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }
}

impl Library {
    /// Loads it.
    ///
    /// # Errors
    /// [`OpenClError::NoLoader`].
    pub fn load() -> Result<Self, OpenClError> {
        load().map(|functions| Self { functions })
    }

    /// Returns the platforms; none is no error.
    ///
    /// # Errors
    /// [`OpenClError::Failed`].
    pub(crate) fn platforms(&self) -> Result<Vec<cl_platform_id>, OpenClError> {
        let mut count: cl_uint = 0;
        const NONE: cl_int = -1001;
        match call!(self, clGetPlatformIDs(0, std::ptr::null_mut(), &raw mut count))? {
            NONE => return Ok(Vec::new()),
            code => check("clGetPlatformIDs", code)?,
        }
        let mut platforms = vec![std::ptr::null_mut(); count as usize];
        let code =
            call!(self, clGetPlatformIDs(count, platforms.as_mut_ptr(), std::ptr::null_mut()))?;
        check("clGetPlatformIDs", code)?;
        Ok(platforms)
    }

    /// Returns the devices of a platform; none is no error.
    ///
    /// # Errors
    /// [`OpenClError::Failed`].
    pub(crate) fn devices(
        &self,
        platform: cl_platform_id,
    ) -> Result<Vec<cl_device_id>, OpenClError> {
        let mut count: cl_uint = 0;
        const NONE: cl_int = -1;
        let null = std::ptr::null_mut();
        match call!(self, clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, null, &raw mut count))? {
            NONE => return Ok(Vec::new()),
            code => check("clGetDeviceIDs", code)?,
        }
        let mut devices = vec![std::ptr::null_mut(); count as usize];
        let code = call!(
            self,
            clGetDeviceIDs(
                platform,
                CL_DEVICE_TYPE_ALL,
                count,
                devices.as_mut_ptr(),
                std::ptr::null_mut()
            )
        )?;
        check("clGetDeviceIDs", code)?;
        Ok(devices)
    }

    /// Returns the value of a device's parameter.
    ///
    /// # Errors
    /// [`OpenClError::Failed`] for a parameter that the driver does not know.
    pub(crate) fn device_info(
        &self,
        device: cl_device_id,
        parameter: cl_device_info,
    ) -> Result<Vec<u8>, OpenClError> {
        info("clGetDeviceInfo", |bytes, value, needed| {
            call!(self, clGetDeviceInfo(device, parameter, bytes, value, needed))
        })
    }

    /// Returns the value of a platform's parameter.
    ///
    /// # Errors
    /// [`OpenClError::Failed`] for a parameter that the driver does not know.
    pub(crate) fn platform_info(
        &self,
        platform: cl_platform_id,
        parameter: cl_platform_info,
    ) -> Result<Vec<u8>, OpenClError> {
        info("clGetPlatformInfo", |bytes, value, needed| {
            call!(self, clGetPlatformInfo(platform, parameter, bytes, value, needed))
        })
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

/// Asks for a value whose size is unknown. `ask` takes the room in bytes, the place, and where to put
/// the bytes needed.
pub(crate) fn info(
    name: &'static str,
    ask: impl Fn(usize, *mut c_void, *mut usize) -> Result<cl_int, OpenClError>,
) -> Result<Vec<u8>, OpenClError> {
    let mut needed = 0;
    check(name, ask(0, std::ptr::null_mut(), &raw mut needed)?)?;
    let mut value = vec![0_u8; needed];
    if needed > 0 {
        check(name, ask(needed, value.as_mut_ptr().cast(), std::ptr::null_mut())?)?;
    }
    Ok(value)
}

/// Returns a value as text, without the terminating zero.
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').trim().to_owned()
}

/// Returns a value as a number: 1 to 8 little-endian bytes.
pub fn number(value: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = value.len().min(8);
    bytes[..len].copy_from_slice(&value[..len]);
    u64::from_le_bytes(bytes)
}
