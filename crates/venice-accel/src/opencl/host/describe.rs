//! Description of the device, in one piece.

use std::ptr::null_mut;

use opencl_sys::*;

use super::execute::{created, done};
use super::objects::{Kind, Owned};
use crate::opencl::library::{Library, OpenClError, call, info, number};
use crate::opencl::wire::{ImageFormats, Parameter, PartInfo};

/// Parameters of a device whose values mean the same at the recipient.
const DEVICE: &[cl_device_info] = &[
    CL_DEVICE_TYPE,
    CL_DEVICE_VENDOR_ID,
    CL_DEVICE_MAX_COMPUTE_UNITS,
    CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS,
    CL_DEVICE_MAX_WORK_GROUP_SIZE,
    CL_DEVICE_MAX_WORK_ITEM_SIZES,
    CL_DEVICE_PREFERRED_VECTOR_WIDTH_CHAR,
    CL_DEVICE_PREFERRED_VECTOR_WIDTH_SHORT,
    CL_DEVICE_PREFERRED_VECTOR_WIDTH_INT,
    CL_DEVICE_PREFERRED_VECTOR_WIDTH_LONG,
    CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT,
    CL_DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE,
    CL_DEVICE_MAX_CLOCK_FREQUENCY,
    CL_DEVICE_ADDRESS_BITS,
    CL_DEVICE_MAX_READ_IMAGE_ARGS,
    CL_DEVICE_MAX_WRITE_IMAGE_ARGS,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE,
    CL_DEVICE_IMAGE2D_MAX_WIDTH,
    CL_DEVICE_IMAGE2D_MAX_HEIGHT,
    CL_DEVICE_IMAGE3D_MAX_WIDTH,
    CL_DEVICE_IMAGE3D_MAX_HEIGHT,
    CL_DEVICE_IMAGE3D_MAX_DEPTH,
    CL_DEVICE_IMAGE_SUPPORT,
    CL_DEVICE_MAX_PARAMETER_SIZE,
    CL_DEVICE_MAX_SAMPLERS,
    CL_DEVICE_MEM_BASE_ADDR_ALIGN,
    CL_DEVICE_MIN_DATA_TYPE_ALIGN_SIZE,
    CL_DEVICE_SINGLE_FP_CONFIG,
    CL_DEVICE_GLOBAL_MEM_CACHE_TYPE,
    CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE,
    CL_DEVICE_GLOBAL_MEM_CACHE_SIZE,
    CL_DEVICE_GLOBAL_MEM_SIZE,
    CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE,
    CL_DEVICE_MAX_CONSTANT_ARGS,
    CL_DEVICE_LOCAL_MEM_TYPE,
    CL_DEVICE_LOCAL_MEM_SIZE,
    CL_DEVICE_ERROR_CORRECTION_SUPPORT,
    CL_DEVICE_PROFILING_TIMER_RESOLUTION,
    CL_DEVICE_ENDIAN_LITTLE,
    CL_DEVICE_AVAILABLE,
    CL_DEVICE_COMPILER_AVAILABLE,
    CL_DEVICE_EXECUTION_CAPABILITIES,
    CL_DEVICE_QUEUE_PROPERTIES,
    CL_DEVICE_NAME,
    CL_DEVICE_VENDOR,
    CL_DRIVER_VERSION,
    CL_DEVICE_PROFILE,
    CL_DEVICE_VERSION,
    CL_DEVICE_EXTENSIONS,
    CL_DEVICE_DOUBLE_FP_CONFIG,
    CL_DEVICE_HALF_FP_CONFIG,
    CL_DEVICE_PREFERRED_VECTOR_WIDTH_HALF,
    CL_DEVICE_HOST_UNIFIED_MEMORY,
    CL_DEVICE_NATIVE_VECTOR_WIDTH_CHAR,
    CL_DEVICE_NATIVE_VECTOR_WIDTH_SHORT,
    CL_DEVICE_NATIVE_VECTOR_WIDTH_INT,
    CL_DEVICE_NATIVE_VECTOR_WIDTH_LONG,
    CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT,
    CL_DEVICE_NATIVE_VECTOR_WIDTH_DOUBLE,
    CL_DEVICE_NATIVE_VECTOR_WIDTH_HALF,
    CL_DEVICE_OPENCL_C_VERSION,
    CL_DEVICE_LINKER_AVAILABLE,
    CL_DEVICE_BUILT_IN_KERNELS,
    CL_DEVICE_IMAGE_MAX_BUFFER_SIZE,
    CL_DEVICE_IMAGE_MAX_ARRAY_SIZE,
    CL_DEVICE_PREFERRED_INTEROP_USER_SYNC,
    CL_DEVICE_PRINTF_BUFFER_SIZE,
    CL_DEVICE_IMAGE_PITCH_ALIGNMENT,
    CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT,
    CL_DEVICE_IL_VERSION,
    CL_DEVICE_MAX_NUM_SUB_GROUPS,
    CL_DEVICE_NUMERIC_VERSION,
    CL_DEVICE_OPENCL_C_ALL_VERSIONS,
    CL_DEVICE_OPENCL_C_FEATURES,
    CL_DEVICE_EXTENSIONS_WITH_VERSION,
    CL_DEVICE_ILS_WITH_VERSION,
    CL_DEVICE_SPIR_VERSIONS,
    CL_DEVICE_MAX_READ_WRITE_IMAGE_ARGS,
    CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE,
    CL_DEVICE_GLOBAL_VARIABLE_PREFERRED_TOTAL_SIZE,
    CL_DEVICE_PREFERRED_PLATFORM_ATOMIC_ALIGNMENT,
    CL_DEVICE_PREFERRED_GLOBAL_ATOMIC_ALIGNMENT,
    CL_DEVICE_PREFERRED_LOCAL_ATOMIC_ALIGNMENT,
    CL_DEVICE_ATOMIC_MEMORY_CAPABILITIES,
    CL_DEVICE_ATOMIC_FENCE_CAPABILITIES,
    CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT,
    CL_DEVICE_WORK_GROUP_COLLECTIVE_FUNCTIONS_SUPPORT,
    CL_DEVICE_GENERIC_ADDRESS_SPACE_SUPPORT,
    CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
    CL_DEVICE_LATEST_CONFORMANCE_VERSION_PASSED,
    CL_DEVICE_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS,
    CL_DEVICE_BUILT_IN_KERNELS_WITH_VERSION,
    CL_DEVICE_PARTITION_MAX_SUB_DEVICES,
    CL_DEVICE_PARTITION_PROPERTIES,
    CL_DEVICE_PARTITION_AFFINITY_DOMAIN,
];

/// Parameters by which a part differs from its device.
const PART: &[cl_device_info] = &[
    CL_DEVICE_MAX_COMPUTE_UNITS,
    CL_DEVICE_MAX_WORK_GROUP_SIZE,
    CL_DEVICE_MAX_WORK_ITEM_SIZES,
    CL_DEVICE_LOCAL_MEM_SIZE,
    CL_DEVICE_GLOBAL_MEM_CACHE_SIZE,
    CL_DEVICE_BUILT_IN_KERNELS,
    CL_DEVICE_PARTITION_TYPE,
    CL_DEVICE_PARTITION_MAX_SUB_DEVICES,
    CL_DEVICE_PARTITION_PROPERTIES,
    CL_DEVICE_PARTITION_AFFINITY_DOMAIN,
];

/// Parameters of a platform.
const PLATFORM: &[cl_platform_info] = &[
    CL_PLATFORM_PROFILE,
    CL_PLATFORM_VERSION,
    CL_PLATFORM_NAME,
    CL_PLATFORM_VENDOR,
    CL_PLATFORM_EXTENSIONS,
    CL_PLATFORM_NUMERIC_VERSION,
    CL_PLATFORM_EXTENSIONS_WITH_VERSION,
];

const IMAGES: [cl_mem_object_type; 6] = [
    CL_MEM_OBJECT_IMAGE2D,
    CL_MEM_OBJECT_IMAGE3D,
    CL_MEM_OBJECT_IMAGE2D_ARRAY,
    CL_MEM_OBJECT_IMAGE1D,
    CL_MEM_OBJECT_IMAGE1D_ARRAY,
    CL_MEM_OBJECT_IMAGE1D_BUFFER,
];
const USES: [cl_mem_flags; 4] =
    [CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY, CL_MEM_READ_WRITE, CL_MEM_KERNEL_READ_AND_WRITE];

/// Returns the parameters of a device that its driver knows; its memory is what is granted of it.
pub(super) fn device(
    library: &Library,
    device: cl_device_id,
    granted_bytes: u64,
) -> Vec<Parameter> {
    let known = DEVICE.iter().filter_map(|name| {
        let value = library.device_info(device, *name).ok()?;
        let value = match *name {
            CL_DEVICE_GLOBAL_MEM_SIZE => number(&value).min(granted_bytes).to_le_bytes().to_vec(),
            // Half leaves room for the bytes of a transfer on their way.
            CL_DEVICE_MAX_MEM_ALLOC_SIZE => {
                number(&value).min(granted_bytes / 2).to_le_bytes().to_vec()
            }
            _ => value,
        };
        Some(Parameter { name: *name, value })
    });
    known.collect()
}

/// Returns the parameters of a part of the device.
pub(super) fn part(library: &Library, part: cl_device_id) -> PartInfo {
    let known = PART.iter().filter_map(|name| {
        Some(Parameter { name: *name, value: library.device_info(part, *name).ok()? })
    });
    PartInfo { device: known.collect() }
}

/// Returns the parameters of a platform that its driver knows.
pub(super) fn platform(library: &Library, platform: cl_platform_id) -> Vec<Parameter> {
    let known = PLATFORM.iter().filter_map(|name| {
        Some(Parameter { name: *name, value: library.platform_info(platform, *name).ok()? })
    });
    known.collect()
}

/// Returns the supported formats of images.
pub(super) fn formats(library: &'static Library, device: cl_device_id) -> Vec<ImageFormats> {
    let made = created(|code| {
        call!(
            library,
            clCreateContext(std::ptr::null(), 1, &raw const device, None, null_mut(), code)
        )
    });
    let Ok(raw) = made else { return Vec::new() };
    let context = Owned::new(library, Kind::Context, raw);
    let mut all = Vec::new();
    for kind in IMAGES {
        for flags in USES {
            if let Ok(formats) = formats_of(library, context.raw(), flags, kind) {
                all.push(ImageFormats { kind, flags, formats });
            }
        }
    }
    all
}

fn formats_of(
    library: &Library,
    context: cl_context,
    flags: cl_mem_flags,
    kind: cl_mem_object_type,
) -> Result<Vec<[u32; 2]>, cl_int> {
    let mut count: cl_uint = 0;
    let ask = |room: cl_uint, at: *mut cl_image_format, count: *mut cl_uint| {
        done(call!(library, clGetSupportedImageFormats(context, flags, kind, room, at, count)))
    };
    ask(0, null_mut(), &raw mut count)?;
    let none = cl_image_format { image_channel_order: 0, image_channel_data_type: 0 };
    let mut formats = vec![none; count as usize];
    if count > 0 {
        ask(count, formats.as_mut_ptr(), null_mut())?;
    }
    Ok(formats.iter().map(|it| [it.image_channel_order, it.image_channel_data_type]).collect())
}

/// Returns a number that the driver tells of an image.
pub(super) fn image_info(
    library: &Library,
    image: cl_mem,
    parameter: cl_image_info,
) -> Result<u64, OpenClError> {
    let value = info("clGetImageInfo", |bytes, value, needed| {
        call!(library, clGetImageInfo(image, parameter, bytes, value, needed))
    })?;
    Ok(number(&value))
}
