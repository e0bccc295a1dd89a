//! The table of functions that loaders call, in the order of `cl_icd.h`.

use std::ffi::{CStr, c_char, c_void};
use std::sync::LazyLock;

use opencl_sys::cl_icd::_cl_icd_dispatch;
use opencl_sys::{CL_INVALID_OPERATION, cl_int};

use crate::command_buffer::{self, record};
use crate::{
    context, device, event, image, image_commands, kernel, map, memory, part, program, queue,
    sampler, transfer,
};

/// The table.
pub type Dispatch = Table;

/// The table, which never changes.
#[repr(transparent)]
pub struct Table(_cl_icd_dispatch);

// SAFETY: pointers to functions, of which none changes.
unsafe impl Sync for Table {}
// SAFETY: as above.
unsafe impl Send for Table {}

/// Returns the table.
pub fn dispatch() -> &'static Dispatch {
    static TABLE: LazyLock<Table> = LazyLock::new(table);
    &TABLE
}

/// Refuses a call that returns a code.
unsafe extern "C" fn unsupported() -> cl_int {
    CL_INVALID_OPERATION
}

/// Refuses a call that returns an address, and has no place for a code.
unsafe extern "C" fn no_address() -> *mut c_void {
    std::ptr::null_mut()
}

macro_rules! implemented {
    ($table:ident; $($name:ident = $module:ident::$function:ident;)*) => {
        $($table.$name = Some($module::$function);)*
    };
}

/// Refuses calls that make an object and store a code as their last argument.
macro_rules! refused {
    ($table:ident; $($name:ident ( $($argument:ty),* );)*) => {
        $({
            unsafe extern "C" fn refuse($(_: $argument,)* stored: *mut cl_int) -> *mut c_void {
                // SAFETY: the program passes null or a valid place.
                unsafe { crate::call::made(stored, || Err(CL_INVALID_OPERATION)) }
            }
            $table.$name = Some(refuse);
        })*
    };
}

fn table() -> Table {
    // SAFETY: every field is an optional function or a pointer: all zeros stand for none.
    let mut table: _cl_icd_dispatch = unsafe { std::mem::zeroed() };
    implemented! { table;
        clGetPlatformIDs = device::icd_platform_ids;
        clGetPlatformInfo = device::platform_info;
        clGetDeviceIDs = device::device_ids;
        clGetDeviceInfo = device::device_info;
        clCreateSubDevices = part::create_sub_devices;
        clRetainDevice = part::retain_device;
        clReleaseDevice = part::release_device;
        clCreateContext = context::create_context;
        clCreateContextFromType = context::create_context_from_type;
        clRetainContext = context::retain_context;
        clReleaseContext = context::release_context;
        clGetContextInfo = context::context_info;
        clSetContextDestructorCallback = context::set_context_destructor_callback;
        clCreateCommandQueue = queue::create_command_queue;
        clCreateCommandQueueWithProperties = queue::create_command_queue_with_properties;
        clRetainCommandQueue = queue::retain_command_queue;
        clReleaseCommandQueue = queue::release_command_queue;
        clGetCommandQueueInfo = queue::command_queue_info;
        clSetCommandQueueProperty = queue::set_command_queue_property;
        clFlush = queue::flush;
        clFinish = queue::finish;
        clEnqueueMarker = queue::enqueue_marker;
        clEnqueueBarrier = queue::enqueue_barrier;
        clEnqueueWaitForEvents = queue::enqueue_wait_for_events;
        clEnqueueMarkerWithWaitList = queue::enqueue_marker_with_wait_list;
        clEnqueueBarrierWithWaitList = queue::enqueue_barrier_with_wait_list;
        clCreateBuffer = memory::create_buffer;
        clCreateBufferWithProperties = memory::create_buffer_with_properties;
        clCreateSubBuffer = memory::create_sub_buffer;
        clRetainMemObject = memory::retain_memory;
        clReleaseMemObject = memory::release_memory;
        clSetMemObjectDestructorCallback = memory::set_memory_destructor_callback;
        clGetPipeInfo = memory::pipe_info;
        clGetMemObjectInfo = memory::memory_info;
        clCreateImage = image::create_image;
        clCreateImageWithProperties = image::create_image_with_properties;
        clCreateImage2D = image::create_image_2d;
        clCreateImage3D = image::create_image_3d;
        clGetSupportedImageFormats = image::supported_image_formats;
        clGetImageInfo = image::image_info;
        clCreateSampler = sampler::create_sampler;
        clCreateSamplerWithProperties = sampler::create_sampler_with_properties;
        clRetainSampler = sampler::retain_sampler;
        clReleaseSampler = sampler::release_sampler;
        clGetSamplerInfo = sampler::sampler_info;
        clCreateProgramWithSource = program::create_program_with_source;
        clCreateProgramWithBinary = program::create_program_with_binary;
        clCreateProgramWithBuiltInKernels = program::create_program_with_built_in_kernels;
        clCreateProgramWithIL = program::create_program_with_il;
        clRetainProgram = program::retain_program;
        clReleaseProgram = program::release_program;
        clBuildProgram = program::build_program;
        clCompileProgram = program::compile_program;
        clLinkProgram = program::link_program;
        clUnloadCompiler = program::unload_compiler;
        clUnloadPlatformCompiler = program::unload_platform_compiler;
        clGetProgramInfo = program::program_info;
        clGetProgramBuildInfo = program::program_build_info;
        clCreateKernel = kernel::create_kernel;
        clCreateKernelsInProgram = kernel::create_kernels_in_program;
        clCloneKernel = kernel::clone_kernel;
        clRetainKernel = kernel::retain_kernel;
        clReleaseKernel = kernel::release_kernel;
        clSetKernelArg = kernel::set_kernel_arg;
        clGetKernelInfo = kernel::kernel_info;
        clGetKernelArgInfo = kernel::kernel_arg_info;
        clGetKernelWorkGroupInfo = kernel::kernel_work_group_info;
        clEnqueueNDRangeKernel = kernel::enqueue_nd_range_kernel;
        clEnqueueTask = kernel::enqueue_task;
        clEnqueueNativeKernel = kernel::enqueue_native_kernel;
        clWaitForEvents = event::wait_for_events;
        clGetEventInfo = event::event_info;
        clRetainEvent = event::retain_event;
        clReleaseEvent = event::release_event;
        clGetEventProfilingInfo = event::profiling_info;
        clCreateUserEvent = event::create_user_event;
        clSetUserEventStatus = event::set_user_event_status;
        clSetEventCallback = event::set_event_callback;
        clEnqueueReadBuffer = transfer::enqueue_read_buffer;
        clEnqueueWriteBuffer = transfer::enqueue_write_buffer;
        clEnqueueCopyBuffer = transfer::enqueue_copy_buffer;
        clEnqueueFillBuffer = transfer::enqueue_fill_buffer;
        clEnqueueReadBufferRect = transfer::enqueue_read_buffer_rect;
        clEnqueueWriteBufferRect = transfer::enqueue_write_buffer_rect;
        clEnqueueCopyBufferRect = transfer::enqueue_copy_buffer_rect;
        clEnqueueMigrateMemObjects = transfer::enqueue_migrate_mem_objects;
        clEnqueueMapBuffer = map::enqueue_map_buffer;
        clEnqueueMapImage = map::enqueue_map_image;
        clEnqueueUnmapMemObject = map::enqueue_unmap_mem_object;
        clEnqueueReadImage = image_commands::enqueue_read_image;
        clEnqueueWriteImage = image_commands::enqueue_write_image;
        clEnqueueCopyImage = image_commands::enqueue_copy_image;
        clEnqueueCopyImageToBuffer = image_commands::enqueue_copy_image_to_buffer;
        clEnqueueCopyBufferToImage = image_commands::enqueue_copy_buffer_to_image;
        clEnqueueFillImage = image_commands::enqueue_fill_image;
    }
    table.clGetExtensionFunctionAddressForPlatform = Some(crate::extension_for_platform);
    refuse_makers(&mut table);
    fill(&mut table);
    Table(table)
}

fn refuse_makers(table: &mut _cl_icd_dispatch) {
    use opencl_sys::{cl_context, cl_mem_flags, cl_pipe_properties, cl_uint};
    refused! { table;
        clCreatePipe(cl_context, cl_mem_flags, cl_uint, cl_uint, *const cl_pipe_properties);
    }
}

/// Refuses every call that is not implemented: GL and EGL sharing, shared virtual memory, sub-groups.
fn fill(table: &mut _cl_icd_dispatch) {
    let slots = size_of::<_cl_icd_dispatch>() / size_of::<*const c_void>();
    let first = std::ptr::from_mut(table).cast::<*const c_void>();
    let address = no_address as *const () as *const c_void;
    let is_maker = |at: usize| MAKERS.contains(&at);
    for at in 0..slots {
        // SAFETY: the table consists of so many pointers. On every calling convention of Linux a
        // function may be called with more arguments than it takes.
        unsafe {
            if (*first.add(at)).is_null() {
                *first.add(at) =
                    if is_maker(at) { address } else { unsupported as *const () as *const c_void };
            }
        }
    }
}

/// Slots of functions that return an address.
static MAKERS: LazyLock<Vec<usize>> = LazyLock::new(|| {
    macro_rules! slots {
        ($($name:ident)*) => {
            vec![$(std::mem::offset_of!(_cl_icd_dispatch, $name) / size_of::<*const c_void>(),)*]
        };
    }
    slots! {
        clCreateFromGLBuffer clCreateFromGLTexture2D clCreateFromGLTexture3D
        clCreateFromGLRenderbuffer clCreateFromGLTexture clCreateEventFromGLsyncKHR
        clCreateFromEGLImageKHR clCreateEventFromEGLSyncKHR clSVMAlloc
        clGetExtensionFunctionAddress
    }
});

/// Address of a function.
struct Function(*const c_void);

// SAFETY: code, which never changes.
unsafe impl Sync for Function {}

macro_rules! functions {
    ($($name:ident = $module:ident::$function:ident;)*) => {
        &[$((stringify!($name), Function($module::$function as *const c_void)),)*]
    };
}

/// Extension functions of the driver.
static EXTENSIONS: &[(&str, Function)] = functions! {
    clIcdGetPlatformIDsKHR = device::icd_platform_ids;
    clCreateCommandBufferKHR = command_buffer::create_command_buffer;
    clFinalizeCommandBufferKHR = command_buffer::finalize_command_buffer;
    clRetainCommandBufferKHR = command_buffer::retain_command_buffer;
    clReleaseCommandBufferKHR = command_buffer::release_command_buffer;
    clEnqueueCommandBufferKHR = command_buffer::enqueue_command_buffer;
    clGetCommandBufferInfoKHR = command_buffer::command_buffer_info;
    clCommandBarrierWithWaitListKHR = record::command_barrier_with_wait_list;
    clCommandCopyBufferKHR = record::command_copy_buffer;
    clCommandCopyBufferRectKHR = record::command_copy_buffer_rect;
    clCommandCopyBufferToImageKHR = record::command_copy_buffer_to_image;
    clCommandCopyImageKHR = record::command_copy_image;
    clCommandCopyImageToBufferKHR = record::command_copy_image_to_buffer;
    clCommandFillBufferKHR = record::command_fill_buffer;
    clCommandFillImageKHR = record::command_fill_image;
    clCommandNDRangeKernelKHR = record::command_nd_range_kernel;
    clCommandSVMMemcpyKHR = record::command_svm;
    clCommandSVMMemFillKHR = record::command_svm;
};

/// Returns the function of a name: the extension functions of the driver.
///
/// # Safety
/// `name` is null or a terminated string.
pub unsafe fn extension(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: promised by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    let found = EXTENSIONS.iter().find(|it| it.0.as_bytes() == name.to_bytes());
    found.map_or(std::ptr::null_mut(), |it| it.1.0.cast_mut())
}
