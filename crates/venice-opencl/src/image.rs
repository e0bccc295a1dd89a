//! Images.

use std::ffi::c_void;

use opencl_sys::*;
use venice_accel::opencl::wire::ImageShape;

use crate::call::{Done, Out, code, made, store};
use crate::context::Context;
use crate::memory::{Image, Memory, Shape, check_flags, no_properties, with_access};
use crate::object::{Object, Shared};
use crate::rows::Rows;

/// A part of an image, in pixels.
#[derive(Clone, Copy)]
pub struct Part {
    pub origin: [u64; 3],
    pub region: [u64; 3],
}

impl Part {
    /// Checks that a part lies in an image.
    ///
    /// # Errors
    /// [`CL_INVALID_VALUE`].
    pub fn new(image: &Image, origin: [u64; 3], region: [u64; 3]) -> Done<Self> {
        let extent = image.shape.extent();
        for at in 0..3 {
            let end = origin[at].checked_add(region[at]).ok_or(CL_INVALID_VALUE)?;
            if region[at] == 0 || end > extent[at] {
                return Err(CL_INVALID_VALUE);
            }
        }
        Ok(Self { origin, region })
    }

    /// Returns bytes of a row, rows and slices of its tight contents.
    pub fn tight_bytes(&self, pixel_bytes: u64) -> [u64; 3] {
        [self.region[0] * pixel_bytes, self.region[1], self.region[2]]
    }

    /// Returns the first byte in memory with these pitches.
    pub fn start(&self, pixel_bytes: u64, [row, slice]: [u64; 2]) -> u64 {
        self.origin[0] * pixel_bytes + self.origin[1] * row + self.origin[2] * slice
    }
}

impl Image {
    /// True if its pixels lie in slices: it has layers, or a depth.
    pub fn has_slices(&self) -> bool {
        [CL_MEM_OBJECT_IMAGE3D, CL_MEM_OBJECT_IMAGE2D_ARRAY, CL_MEM_OBJECT_IMAGE1D_ARRAY]
            .contains(&self.shape.kind)
    }

    /// Returns the bytes from a layer or slice to the next one in memory with these pitches; 0 for an
    /// image without. A layer of rows is the second dimension of regions.
    pub fn layer_pitch(&self, [row, slice]: [u64; 2]) -> u64 {
        match (self.has_slices(), self.shape.kind) {
            (false, _) => 0,
            (true, CL_MEM_OBJECT_IMAGE1D_ARRAY) => row,
            (true, _) => slice,
        }
    }

    /// Returns the pitches of the program's memory.
    pub fn host_pitches(&self) -> [u64; 2] {
        let [width, height, _] = self.shape.extent();
        let row = if self.pitches[0] == 0 { width * self.pixel_bytes } else { self.pitches[0] };
        let slice = match (self.pitches[1], self.shape.kind) {
            (0, CL_MEM_OBJECT_IMAGE1D_ARRAY) => row,
            (0, _) => row * height,
            (slice, _) => slice,
        };
        // A layer of rows is the second dimension of regions.
        if self.shape.kind == CL_MEM_OBJECT_IMAGE1D_ARRAY {
            [slice, slice * height]
        } else {
            [row, slice]
        }
    }
}

/// Returns the pitches of a call: 0 stands for tight ones.
///
/// # Errors
/// [`CL_INVALID_VALUE`].
pub fn pitches(image: &Image, part: Part, row: usize, slice: usize) -> Done<[u64; 2]> {
    let [tight_row, rows, _] = part.tight_bytes(image.pixel_bytes);
    let row = if row == 0 { tight_row } else { row as u64 };
    if row < tight_row {
        return Err(CL_INVALID_VALUE);
    }
    if image.shape.kind == CL_MEM_OBJECT_IMAGE1D_ARRAY {
        let slice = if slice == 0 { row } else { slice as u64 };
        return if slice < row { Err(CL_INVALID_VALUE) } else { Ok([slice, slice * rows]) };
    }
    if slice != 0 && !image.has_slices() {
        return Err(CL_INVALID_VALUE);
    }
    let slice = if slice == 0 { row * rows } else { slice as u64 };
    if slice < row * rows { Err(CL_INVALID_VALUE) } else { Ok([row, slice]) }
}

/// Description of an image as the program gives it.
struct Asked {
    flags: cl_mem_flags,
    format: cl_image_format,
    desc: cl_image_desc,
    host_ptr: *mut c_void,
}

unsafe fn create(context: cl_context, asked: Asked, properties: Vec<u64>) -> Done<*mut c_void> {
    let context = Object::<Context>::get(context)?;
    let Asked { flags, format, desc, host_ptr } = asked;
    let has_images =
        |device: &&Shared<crate::device::Device>| device.number(CL_DEVICE_IMAGE_SUPPORT) != 0;
    if !context.devices.iter().any(|device| has_images(&device)) {
        return Err(CL_INVALID_OPERATION);
    }
    let buffer =
        if desc.buffer.is_null() { None } else { Some(Object::<Memory>::get(desc.buffer)?) };
    if buffer.is_none() {
        check_flags(flags, host_ptr)?;
    }
    let shape = ImageShape {
        order: format.image_channel_order,
        channel: format.image_channel_data_type,
        kind: desc.image_type,
        size: size_of_image(&desc),
        array: layers_of_image(&desc),
        buffer: buffer.as_ref().map_or(0, |buffer| buffer.id),
        row_pitch: if buffer.is_some() { desc.image_row_pitch as u64 } else { 0 },
    };
    let pixel_bytes = shape.pixel_bytes().ok_or(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR)?;
    check_desc(&context, &shape, &desc, host_ptr.is_null())?;
    check_format(&context, flags, &shape)?;
    let pitches = [desc.image_row_pitch as u64, desc.image_slice_pitch as u64];
    let image = Image { shape, buffer, pixel_bytes, pitches };
    let pixels = image.shape.pixels().ok_or(CL_INVALID_IMAGE_SIZE)?;
    let bytes = pixels.checked_mul(pixel_bytes).ok_or(CL_INVALID_IMAGE_SIZE)?;
    let extent = image.shape.extent();
    let first = (!host_ptr.is_null()).then(|| {
        let region = [extent[0] * pixel_bytes, extent[1], extent[2]];
        let rows = Rows { start: host_ptr.cast(), region, pitches: image.host_pitches() };
        // SAFETY: the program passes memory as description and pitches say.
        unsafe { rows.pack() }
    });
    let used = if flags & CL_MEM_USE_HOST_PTR != 0 { host_ptr.addr() } else { 0 };
    let inherited = image.buffer.as_ref().map_or(0, |buffer| buffer.flags);
    let flags = if flags == 0 && inherited != 0 { inherited } else { with_access(flags) };
    let shape = Shape::Image(image);
    let made = Memory::create(&context, flags, bytes, shape, used, first, properties)?;
    Ok(Object::hand_out(made))
}

/// Returns width, height and depth as far as the kind of image has them: programs leave others unset.
fn size_of_image(desc: &cl_image_desc) -> [u64; 3] {
    let [width, height, depth] =
        [desc.image_width, desc.image_height, desc.image_depth].map(|it| it as u64);
    match desc.image_type {
        CL_MEM_OBJECT_IMAGE3D => [width, height, depth],
        CL_MEM_OBJECT_IMAGE2D | CL_MEM_OBJECT_IMAGE2D_ARRAY => [width, height, 0],
        _ => [width, 0, 0],
    }
}

/// Returns the number of layers; 0 for a kind of image that has none.
fn layers_of_image(desc: &cl_image_desc) -> u64 {
    match desc.image_type {
        CL_MEM_OBJECT_IMAGE1D_ARRAY | CL_MEM_OBJECT_IMAGE2D_ARRAY => desc.image_array_size as u64,
        _ => 0,
    }
}

fn check_desc(
    context: &Context,
    shape: &ImageShape,
    desc: &cl_image_desc,
    no_pointer: bool,
) -> Done {
    let [width, height, depth] = shape.size;
    let needed: &[u64] = match shape.kind {
        CL_MEM_OBJECT_IMAGE1D | CL_MEM_OBJECT_IMAGE1D_BUFFER => &[width],
        CL_MEM_OBJECT_IMAGE1D_ARRAY => &[width, shape.array],
        CL_MEM_OBJECT_IMAGE2D => &[width, height],
        CL_MEM_OBJECT_IMAGE2D_ARRAY => &[width, height, shape.array],
        CL_MEM_OBJECT_IMAGE3D => &[width, height, depth],
        _ => return Err(CL_INVALID_IMAGE_DESCRIPTOR),
    };
    if needed.contains(&0) {
        return Err(CL_INVALID_IMAGE_SIZE);
    }
    let is_of_buffer = shape.kind == CL_MEM_OBJECT_IMAGE1D_BUFFER;
    let may_have_buffer = is_of_buffer || shape.kind == CL_MEM_OBJECT_IMAGE2D;
    let has_pitch = |device: &Shared<crate::device::Device>| {
        device.number(CL_DEVICE_IMAGE_PITCH_ALIGNMENT) != 0
    };
    if shape.kind == CL_MEM_OBJECT_IMAGE2D
        && shape.buffer != 0
        && !context.devices.iter().any(has_pitch)
    {
        return Err(CL_INVALID_OPERATION);
    }
    if (is_of_buffer && shape.buffer == 0)
        || (!may_have_buffer && shape.buffer != 0)
        || desc.num_mip_levels != 0
        || desc.num_samples != 0
    {
        return Err(CL_INVALID_IMAGE_DESCRIPTOR);
    }
    let has_pitches = desc.image_row_pitch != 0 || desc.image_slice_pitch != 0;
    if no_pointer && shape.buffer == 0 && has_pitches {
        return Err(CL_INVALID_IMAGE_DESCRIPTOR);
    }
    let [row_bytes, _, _] = shape.extent();
    let row_bytes = row_bytes.saturating_mul(shape.pixel_bytes().unwrap_or(1));
    if desc.image_row_pitch != 0 && (desc.image_row_pitch as u64) < row_bytes {
        return Err(CL_INVALID_IMAGE_DESCRIPTOR);
    }
    let (most_width, most_height, most_depth) = match shape.kind {
        CL_MEM_OBJECT_IMAGE3D => {
            (CL_DEVICE_IMAGE3D_MAX_WIDTH, CL_DEVICE_IMAGE3D_MAX_HEIGHT, CL_DEVICE_IMAGE3D_MAX_DEPTH)
        }
        CL_MEM_OBJECT_IMAGE1D_BUFFER => (CL_DEVICE_IMAGE_MAX_BUFFER_SIZE, 0, 0),
        _ => (CL_DEVICE_IMAGE2D_MAX_WIDTH, CL_DEVICE_IMAGE2D_MAX_HEIGHT, 0),
    };
    let [width, height, depth] = shape.extent();
    let height = if shape.kind == CL_MEM_OBJECT_IMAGE1D_ARRAY { 1 } else { height };
    let fits = context.devices.iter().any(|device| {
        let within = |value: u64, name| name == 0 || value <= device.number(name);
        let layers = shape.array <= device.number(CL_DEVICE_IMAGE_MAX_ARRAY_SIZE).max(1);
        within(width, most_width)
            && within(height, most_height)
            && within(depth, most_depth)
            && layers
    });
    if fits { Ok(()) } else { Err(CL_INVALID_IMAGE_SIZE) }
}

fn check_format(context: &Context, flags: cl_mem_flags, shape: &ImageShape) -> Done {
    let formats = formats(context, with_access(flags), shape.kind);
    let is_known = formats.contains(&[shape.order, shape.channel]);
    if is_known { Ok(()) } else { Err(CL_IMAGE_FORMAT_NOT_SUPPORTED) }
}

/// Returns the formats that any device of a context supports.
fn formats(context: &Context, flags: cl_mem_flags, kind: cl_mem_object_type) -> Vec<[u32; 2]> {
    const USES: cl_mem_flags =
        CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY | CL_MEM_READ_ONLY | CL_MEM_KERNEL_READ_AND_WRITE;
    let mut all: Vec<[u32; 2]> = Vec::new();
    for device in &context.devices {
        let session = device.session();
        let lists = session.description().formats.iter();
        for list in lists.filter(|it| it.kind == kind && it.flags == flags & USES) {
            all.extend(
                list.formats.iter().filter(|it| !all.contains(it)).copied().collect::<Vec<_>>(),
            );
        }
    }
    all
}

pub unsafe extern "C" fn supported_image_formats(
    context: cl_context,
    flags: cl_mem_flags,
    kind: cl_mem_object_type,
    room: cl_uint,
    into: *mut cl_image_format,
    count: *mut cl_uint,
) -> cl_int {
    code(|| {
        let context = Object::<Context>::get(context)?;
        let is_kind = (CL_MEM_OBJECT_IMAGE2D..=CL_MEM_OBJECT_IMAGE1D_BUFFER).contains(&kind);
        if !is_kind || (room == 0 && !into.is_null()) {
            return Err(CL_INVALID_VALUE);
        }
        let flags = if flags & CL_MEM_KERNEL_READ_AND_WRITE != 0 {
            CL_MEM_KERNEL_READ_AND_WRITE
        } else {
            with_access(flags)
        };
        let found = formats(&context, flags, kind);
        // SAFETY: the program passes null, or room for so many.
        unsafe {
            store(count, found.len() as cl_uint);
            if !into.is_null() {
                for (at, [order, channel]) in found.iter().take(room as usize).enumerate() {
                    into.add(at).write(cl_image_format {
                        image_channel_order: *order,
                        image_channel_data_type: *channel,
                    });
                }
            }
        }
        Ok(())
    })
}

pub unsafe extern "C" fn create_image(
    context: cl_context,
    flags: cl_mem_flags,
    format: *const cl_image_format,
    desc: *const cl_image_desc,
    host_ptr: *mut c_void,
    stored: *mut cl_int,
) -> cl_mem {
    // SAFETY: the program passes null or valid places, and memory as they say.
    unsafe {
        made(stored, || {
            let format = *format.as_ref().ok_or(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR)?;
            let desc = *desc.as_ref().ok_or(CL_INVALID_IMAGE_DESCRIPTOR)?;
            create(context, Asked { flags, format, desc, host_ptr }, Vec::new())
        })
    }
}

pub unsafe extern "C" fn create_image_with_properties(
    context: cl_context,
    properties: *const cl_mem_properties,
    flags: cl_mem_flags,
    format: *const cl_image_format,
    desc: *const cl_image_desc,
    host_ptr: *mut c_void,
    stored: *mut cl_int,
) -> cl_mem {
    // SAFETY: the program passes null or valid places, and memory as they say.
    unsafe {
        made(stored, || {
            let format = *format.as_ref().ok_or(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR)?;
            let desc = *desc.as_ref().ok_or(CL_INVALID_IMAGE_DESCRIPTOR)?;
            let asked = Asked { flags, format, desc, host_ptr };
            create(context, asked, no_properties(properties)?)
        })
    }
}

fn desc(kind: cl_mem_object_type, size: [usize; 3], pitches: [usize; 2]) -> cl_image_desc {
    cl_image_desc {
        image_type: kind,
        image_width: size[0],
        image_height: size[1],
        image_depth: size[2],
        image_array_size: 0,
        image_row_pitch: pitches[0],
        image_slice_pitch: pitches[1],
        num_mip_levels: 0,
        num_samples: 0,
        buffer: std::ptr::null_mut(),
    }
}

pub unsafe extern "C" fn create_image_2d(
    context: cl_context,
    flags: cl_mem_flags,
    format: *const cl_image_format,
    width: usize,
    height: usize,
    row_pitch: usize,
    host_ptr: *mut c_void,
    stored: *mut cl_int,
) -> cl_mem {
    let desc = desc(CL_MEM_OBJECT_IMAGE2D, [width, height, 0], [row_pitch, 0]);
    // SAFETY: the program passes null or valid places, and memory as they say.
    unsafe { create_image(context, flags, format, &raw const desc, host_ptr, stored) }
}

pub unsafe extern "C" fn create_image_3d(
    context: cl_context,
    flags: cl_mem_flags,
    format: *const cl_image_format,
    width: usize,
    height: usize,
    depth: usize,
    row_pitch: usize,
    slice_pitch: usize,
    host_ptr: *mut c_void,
    stored: *mut cl_int,
) -> cl_mem {
    let desc = desc(CL_MEM_OBJECT_IMAGE3D, [width, height, depth], [row_pitch, slice_pitch]);
    // SAFETY: the program passes null or valid places, and memory as they say.
    unsafe { create_image(context, flags, format, &raw const desc, host_ptr, stored) }
}

pub unsafe extern "C" fn image_info(
    handle: cl_mem,
    name: cl_image_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    code(|| {
        let memory = Object::<Memory>::get(handle)?;
        let image = memory.image()?;
        let out = Out { room, value, needed };
        let shape = &image.shape;
        let [width, height, depth] = shape.size.map(|it| it as usize);
        let is_3d = shape.kind == CL_MEM_OBJECT_IMAGE3D;
        let is_2d =
            shape.kind == CL_MEM_OBJECT_IMAGE2D || shape.kind == CL_MEM_OBJECT_IMAGE2D_ARRAY;
        let is_array =
            shape.kind == CL_MEM_OBJECT_IMAGE2D_ARRAY || shape.kind == CL_MEM_OBJECT_IMAGE1D_ARRAY;
        let row = match image.pitches[0] {
            0 => width * image.pixel_bytes as usize,
            row => row as usize,
        };
        let slice = match (image.has_slices(), image.pitches[1]) {
            (false, _) => 0,
            (true, 0) if shape.kind == CL_MEM_OBJECT_IMAGE1D_ARRAY => row,
            (true, 0) => row * height,
            (true, slice) => slice as usize,
        };
        // SAFETY: the program passes null or valid places.
        unsafe {
            match name {
                CL_IMAGE_FORMAT => out.put_plain(&[shape.order, shape.channel]),
                CL_IMAGE_ELEMENT_SIZE => out.put_plain(&[image.pixel_bytes as usize]),
                CL_IMAGE_ROW_PITCH => out.put_plain(&[row]),
                CL_IMAGE_SLICE_PITCH => out.put_plain(&[slice]),
                CL_IMAGE_WIDTH => out.put_plain(&[width]),
                CL_IMAGE_HEIGHT => out.put_plain(&[if is_2d || is_3d { height } else { 0 }]),
                CL_IMAGE_DEPTH => out.put_plain(&[if is_3d { depth } else { 0 }]),
                CL_IMAGE_ARRAY_SIZE => {
                    out.put_plain(&[if is_array { shape.array as usize } else { 0 }])
                }
                CL_IMAGE_BUFFER => {
                    let null = std::ptr::null_mut();
                    out.put_plain(&[image.buffer.as_ref().map_or(null, Object::handle)])
                }
                CL_IMAGE_NUM_MIP_LEVELS | CL_IMAGE_NUM_SAMPLES => out.put_plain(&[0_u32]),
                _ => Err(CL_INVALID_VALUE),
            }
        }
    })
}
