//! Commands on images.

use std::ffi::c_void;

use opencl_sys::*;
use venice_accel::opencl::wire::CommandKind;

use crate::call::{Done, array, code, three};
use crate::image::{Part, pitches};
use crate::memory::Image;
use crate::object::Shared;
use crate::queue::Enqueue;
use crate::rows::Rows;
use crate::transfer::{check_access, memory_of, pair_of};
use crate::transit::Access;

pub unsafe extern "C" fn enqueue_read_image(
    queue: cl_command_queue,
    image: cl_mem,
    blocking: cl_bool,
    origin: *const usize,
    region: *const usize,
    row_pitch: usize,
    slice_pitch: usize,
    into: *mut c_void,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_READ_IMAGE)?;
        let memory = memory_of(&call, image)?;
        let image = memory.image()?;
        let part = Part::new(image, three(origin)?, three(region)?)?;
        if into.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        check_access(&memory, CL_MEM_HOST_WRITE_ONLY)?;
        let pitches = pitches(image, part, row_pitch, slice_pitch)?;
        memory.prepare(&mut call, Access::Load)?;
        let (id, tight) = (memory.id, part.tight_bytes(image.pixel_bytes));
        let rows = Rows { start: into.cast(), region: tight, pitches };
        rows.fill(&call, blocking != CL_FALSE, &|piece, place| {
            let (origin, region) = piece.of(part.origin, part.region);
            CommandKind::ReadImage { memory: id, origin, region, place }
        })
    })
}

pub unsafe extern "C" fn enqueue_write_image(
    queue: cl_command_queue,
    image: cl_mem,
    _blocking: cl_bool,
    origin: *const usize,
    region: *const usize,
    row_pitch: usize,
    slice_pitch: usize,
    from: *const c_void,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_WRITE_IMAGE)?;
        let memory = memory_of(&call, image)?;
        let image = memory.image()?;
        let part = Part::new(image, three(origin)?, three(region)?)?;
        if from.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        check_access(&memory, CL_MEM_HOST_READ_ONLY)?;
        let pitches = pitches(image, part, row_pitch, slice_pitch)?;
        memory.prepare(&mut call, Access::Store)?;
        let (id, region) = (memory.id, part.tight_bytes(image.pixel_bytes));
        let rows = Rows { start: from.cast_mut().cast(), region, pitches };
        let written = rows.take(&call, &|piece, place| {
            let (origin, region) = piece.of(part.origin, part.region);
            CommandKind::WriteImage { memory: id, origin, region, place }
        })?;
        call.hand_out(written);
        Ok(())
    })
}

pub unsafe extern "C" fn enqueue_copy_image(
    queue: cl_command_queue,
    from: cl_mem,
    to: cl_mem,
    from_origin: *const usize,
    to_origin: *const usize,
    region: *const usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_COPY_IMAGE)?;
        copy_image(call, from, to, from_origin, to_origin, region)
    })
}

/// Sends or records the command of [`enqueue_copy_image`].
///
/// # Safety
/// Pointers and lists of the program are valid.
pub unsafe fn copy_image(
    mut call: Enqueue,
    from: cl_mem,
    to: cl_mem,
    from_origin: *const usize,
    to_origin: *const usize,
    region: *const usize,
) -> Done {
    // SAFETY: promised by the caller.
    unsafe {
        let (from, to) = pair_of(&call, from, to)?;
        let (source, target) = (from.image()?, to.image()?);
        let format = |image: &Image| (image.shape.order, image.shape.channel);
        if format(source) != format(target) {
            return Err(CL_IMAGE_FORMAT_MISMATCH);
        }
        let region = three(region)?;
        let first = Part::new(source, three(from_origin)?, region)?;
        let second = Part::new(target, three(to_origin)?, region)?;
        let meets = |at: usize| {
            first.origin[at] < second.origin[at] + region[at]
                && second.origin[at] < first.origin[at] + region[at]
        };
        if Shared::ptr_eq(&from, &to) && (0..3).all(meets) {
            return Err(CL_MEM_COPY_OVERLAP);
        }
        from.prepare(&mut call, Access::Load)?;
        to.prepare(&mut call, Access::Store)?;
        let (from_origin, to_origin) = (first.origin, second.origin);
        let (from, to) = (from.id, to.id);
        let kind = CommandKind::CopyImage { from, to, from_origin, to_origin, region };
        call.send(Vec::new(), kind)
    }
}

pub unsafe extern "C" fn enqueue_copy_image_to_buffer(
    queue: cl_command_queue,
    from: cl_mem,
    to: cl_mem,
    origin: *const usize,
    region: *const usize,
    offset: usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_COPY_IMAGE_TO_BUFFER)?;
        copy_image_to_buffer(call, from, to, origin, region, offset)
    })
}

/// Sends or records the command of [`enqueue_copy_image_to_buffer`].
///
/// # Safety
/// Pointers and lists of the program are valid.
pub unsafe fn copy_image_to_buffer(
    mut call: Enqueue,
    from: cl_mem,
    to: cl_mem,
    origin: *const usize,
    region: *const usize,
    offset: usize,
) -> Done {
    // SAFETY: promised by the caller.
    unsafe {
        let (from, to) = pair_of(&call, from, to)?;
        let image = from.image()?;
        let part = Part::new(image, three(origin)?, three(region)?)?;
        let [row, rows, slices] = part.tight_bytes(image.pixel_bytes);
        to.check_range(offset, (row * rows * slices) as usize)?;
        from.prepare(&mut call, Access::Load)?;
        to.prepare(&mut call, Access::Store)?;
        let (from, to, offset) = (from.id, to.id, offset as u64);
        let Part { origin, region } = part;
        let kind = CommandKind::CopyImageToBuffer { from, to, origin, region, offset };
        call.send(Vec::new(), kind)
    }
}

pub unsafe extern "C" fn enqueue_copy_buffer_to_image(
    queue: cl_command_queue,
    from: cl_mem,
    to: cl_mem,
    offset: usize,
    origin: *const usize,
    region: *const usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_COPY_BUFFER_TO_IMAGE)?;
        copy_buffer_to_image(call, from, to, offset, origin, region)
    })
}

/// Sends or records the command of [`enqueue_copy_buffer_to_image`].
///
/// # Safety
/// Pointers and lists of the program are valid.
pub unsafe fn copy_buffer_to_image(
    mut call: Enqueue,
    from: cl_mem,
    to: cl_mem,
    offset: usize,
    origin: *const usize,
    region: *const usize,
) -> Done {
    // SAFETY: promised by the caller.
    unsafe {
        let (from, to) = pair_of(&call, from, to)?;
        let image = to.image()?;
        let part = Part::new(image, three(origin)?, three(region)?)?;
        let [row, rows, slices] = part.tight_bytes(image.pixel_bytes);
        from.check_range(offset, (row * rows * slices) as usize)?;
        from.prepare(&mut call, Access::Load)?;
        to.prepare(&mut call, Access::Store)?;
        let (from, to, offset) = (from.id, to.id, offset as u64);
        let Part { origin, region } = part;
        let kind = CommandKind::CopyBufferToImage { from, to, offset, origin, region };
        call.send(Vec::new(), kind)
    }
}

pub unsafe extern "C" fn enqueue_fill_image(
    queue: cl_command_queue,
    image: cl_mem,
    color: *const c_void,
    origin: *const usize,
    region: *const usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_FILL_IMAGE)?;
        fill_image(call, image, color, origin, region)
    })
}

/// Sends or records the command of [`enqueue_fill_image`].
///
/// # Safety
/// Pointers and lists of the program are valid.
pub unsafe fn fill_image(
    mut call: Enqueue,
    image: cl_mem,
    color: *const c_void,
    origin: *const usize,
    region: *const usize,
) -> Done {
    // SAFETY: promised by the caller.
    unsafe {
        let memory = memory_of(&call, image)?;
        let image = memory.image()?;
        if color.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        let Part { origin, region } = Part::new(image, three(origin)?, three(region)?)?;
        // The colour of a depth image is one number.
        let given = if image.shape.order == CL_DEPTH { 4 } else { 16 };
        let mut bytes = [0_u8; 16];
        bytes[..given].copy_from_slice(array(color.cast::<u8>(), given));
        memory.prepare(&mut call, Access::Store)?;
        let kind = CommandKind::FillImage { memory: memory.id, color: bytes, origin, region };
        call.send(Vec::new(), kind)
    }
}
