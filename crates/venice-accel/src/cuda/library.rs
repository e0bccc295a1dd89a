//! The driver library of this machine.

use std::ffi::{OsString, c_char, c_int, c_uint, c_void};

use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};

/// Name of the driver library.
const SONAME: &str = "libcuda.so.1";
/// Variable that names another library, for tests.
pub const VARIABLE: &str = "VENICE_CUDA_LIBRARY";
/// Oldest version of the driver API that tells the parameters of kernels: 12.4.
pub const OLDEST_VERSION: c_int = 12040;

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No driver is installed.
    #[error("{SONAME} cannot be loaded: {0}")]
    NoDriver(String),
    /// The driver is older than what Venice needs.
    #[error("the CUDA driver is of version {0}: Venice needs 12.4 or newer")]
    Old(String),
    /// The driver refused.
    #[error("{call}: CUDA error {code}")]
    Failed {
        /// The function.
        call: &'static str,
        /// Code of the driver API.
        code: c_int,
    },
}

/// Function that a stream calls.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Side of a copy of rows: part of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowSide {
    /// First byte in a row.
    pub x: usize,
    /// First row.
    pub y: usize,
    /// `CUmemorytype`.
    pub kind: c_uint,
    /// Memory of the process.
    pub host: *mut c_void,
    /// Memory of the device.
    pub device: u64,
    /// Array.
    pub array: usize,
    /// Distance between rows in bytes.
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowCopy {
    /// Source.
    pub from: RowSide,
    /// Target.
    pub to: RowSide,
    /// Bytes of a row.
    pub width: usize,
    /// Number of rows.
    pub rows: usize,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchAttributeRaw {
    /// `CUlaunchAttributeID`.
    pub name: c_uint,
    /// Unused.
    pub pad: u32,
    /// `CUlaunchAttributeValue`.
    pub value: [u64; 8],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: [c_uint; 3],
    /// Threads of a block.
    pub block: [c_uint; 3],
    /// Bytes of shared memory.
    pub shared: c_uint,
    /// Stream.
    pub stream: usize,
    /// Attributes.
    pub attributes: *const LaunchAttributeRaw,
    /// Number of attributes.
    pub count: c_uint,
}

/// Declares [`Library`] and its loader.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// Functions of the driver, under their names in the API.
        #[allow(non_snake_case, missing_docs, reason = "names of the CUDA driver API")]
        #[derive(Debug)]
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        fn load(path: &OsString) -> Result<Library, CudaError> {
            // SAFETY: the driver's constructors do nothing; cuInit starts it.
            let library = unsafe {
                libloading::os::unix::Library::open(Some(path), RTLD_NOW | RTLD_LOCAL)
            };
            let library = library.map_err(|error| CudaError::NoDriver(error.to_string()))?;
            let loaded = Library {
                // SAFETY: each has the type that the API declares for its symbol.
                $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                    .map_err(|_| CudaError::Old(format!("without {}", stringify!($name))))?,)*
            };
            // Never unloaded: drivers have threads.
            std::mem::forget(library);
            Ok(loaded)
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut usize, c_int);
    cuCtxSetCurrent(usize);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, usize);
    cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, usize);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, usize);
    cuMemsetD8Async(u64, u8, usize, usize);
    cuMemsetD16Async(u64, u16, usize, usize);
    cuMemsetD32Async(u64, c_uint, usize, usize);
    cuMemcpy2DAsync_v2(*const RowCopy, usize);
    cuMemAllocAsync(*mut u64, usize, usize);
    cuMemFreeAsync(u64, usize);
    cuModuleLoadDataEx(*mut usize, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    cuLinkCreate_v2(c_uint, *mut c_int, *mut *mut c_void, *mut usize);
    cuLinkAddData_v2(usize, c_int, *mut c_void, usize, *const c_char, c_uint, *mut c_int, *mut *mut c_void);
    cuLinkComplete(usize, *mut *mut c_void, *mut usize);
    cuLinkDestroy(usize);
    cuModuleUnload(usize);
    cuModuleGetFunctionCount(*mut c_uint, usize);
    cuModuleEnumerateFunctions(*mut usize, c_uint, usize);
    cuModuleGetGlobal_v2(*mut u64, *mut usize, usize, *const c_char);
    cuFuncGetName(*mut *const c_char, usize);
    cuFuncGetAttribute(*mut c_int, c_int, usize);
    cuFuncGetParamInfo(usize, usize, *mut usize, *mut usize);
    cuLaunchKernel(usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void, *mut *mut c_void);
    cuLaunchKernelEx(*const LaunchConfig, usize, *mut *mut c_void, *mut *mut c_void);
    cuLaunchHostFunc(usize, HostFunction, *mut c_void);
    cuFuncSetAttribute(usize, c_int, c_int);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(*mut c_int, usize, c_int, usize, c_uint);
    cuOccupancyAvailableDynamicSMemPerBlock(*mut usize, usize, c_int, c_int);
    cuCtxGetLimit(*mut usize, c_int);
    cuCtxSetLimit(c_int, usize);
    cuDevicePrimaryCtxReset_v2(c_int);
    cuStreamCreateWithPriority(*mut usize, c_uint, c_int);
    cuStreamDestroy_v2(usize);
    cuStreamQuery(usize);
    cuStreamWaitEvent(usize, usize, c_uint);
    cuEventCreate(*mut usize, c_uint);
    cuEventDestroy_v2(usize);
    cuEventRecord(usize, usize);
    cuEventSynchronize(usize);
    cuEventQuery(usize);
    cuEventElapsedTime(*mut f32, usize, usize);
}

/// Calls a function of the driver: `call!(library, cuCtxSynchronize())`; its code.
macro_rules! call {
    ($library:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        // SAFETY: the function has the type that the API declares for its symbol; the caller passes
        // what its documentation asks for.
        match unsafe { ($library.$function)($($argument),*) } {
            0 => Ok(()),
            code => Err($crate::cuda::library::CudaError::Failed { call: stringify!($function), code }),
        }
    };
}
pub(crate) use call;

impl Library {
    /// Loads and starts the driver.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn load() -> Result<Self, CudaError> {
        let library = load(&named().unwrap_or_else(|| SONAME.into()))?;
        call!(library, cuInit(0))?;
        let version = library.version()?;
        if version < OLDEST_VERSION {
            return Err(CudaError::Old(format!("{}.{}", version / 1000, version % 1000 / 10)));
        }
        Ok(library)
    }

    /// Returns the version of the driver API.
    ///
    /// # Errors
    /// The driver's.
    pub fn version(&self) -> Result<c_int, CudaError> {
        let mut version = 0;
        call!(self, cuDriverGetVersion(&raw mut version))?;
        Ok(version)
    }
}

/// Returns the library that is named in the place of the driver's.
pub fn named() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty())
}

/// Returns the code of the driver API for an error.
pub fn code(error: &CudaError) -> c_int {
    match error {
        CudaError::NoDriver(_) | CudaError::Old(_) => 999,
        CudaError::Failed { code, .. } => *code,
    }
}
