//! Mapped memory objects: in place where the region is mapped, else by a copy.

use std::ffi::c_void;

use opencl_sys::*;
use venice_accel::opencl::wire::CommandKind;

use crate::call::{Done, code, made, store, three};
use crate::event::Event;
use crate::image::Part;
use crate::memory::Memory;
use crate::object::Shared;
use crate::queue::Enqueue;
use crate::rows::{Piece, Rows};
use crate::transfer::{Target, check_access, end_of_former, finish, memory_of, read, write_staged};
use crate::transit::Access;

/// A mapping of a memory object.
pub struct Map {
    /// Address that the program has.
    pub start: usize,
    flags: cl_map_flags,
    kind: MapKind,
}

impl Map {
    /// True if its address is that of the donor's bytes.
    pub fn is_in_place(&self) -> bool {
        matches!(self.kind, MapKind::InPlace)
    }
}

enum MapKind {
    /// The buffer's own bytes.
    InPlace,
    /// A copy of bytes of a buffer.
    Bytes { offset: u64, len: usize, _copy: Option<Copied> },
    /// A copy of pixels, with the pitches of the program's pointer.
    Pixels { part: Part, pitches: [u64; 2], _copy: Option<Copied> },
}

/// Memory of a copy, aligned as OpenCL's longest vector.
struct Copied(Vec<u128>);

impl Copied {
    fn new(len: usize) -> Self {
        // One vector longer, to begin at an aligned address.
        Self(vec![0; len.div_ceil(16) + 8])
    }

    fn start(&mut self) -> *mut u8 {
        let start = self.0.as_mut_ptr().cast::<u8>();
        let ahead = start.addr().next_multiple_of(128) - start.addr();
        // SAFETY: less than the vector by which the memory is longer.
        unsafe { start.add(ahead) }
    }
}

fn check_map_flags(memory: &Memory, flags: cl_map_flags) -> Done {
    const KNOWN: cl_map_flags = CL_MAP_READ | CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION;
    let invalidates = flags & CL_MAP_WRITE_INVALIDATE_REGION != 0;
    if flags & !KNOWN != 0 || (invalidates && flags & (CL_MAP_READ | CL_MAP_WRITE) != 0) {
        return Err(CL_INVALID_VALUE);
    }
    if flags & CL_MAP_READ != 0 {
        check_access(memory, CL_MEM_HOST_WRITE_ONLY)?;
    }
    if writes(flags) {
        check_access(memory, CL_MEM_HOST_READ_ONLY)?;
    }
    Ok(())
}

fn writes(flags: cl_map_flags) -> bool {
    flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION) != 0
}

fn reads(flags: cl_map_flags) -> bool {
    flags & CL_MAP_WRITE_INVALIDATE_REGION == 0
}

fn map_buffer(
    call: &mut Enqueue,
    memory: &Shared<Memory>,
    blocks: bool,
    flags: cl_map_flags,
    offset: u64,
    bytes: usize,
) -> Done<*mut c_void> {
    let place = memory.prepare(call, Access::storing(writes(flags)))?;
    let device = Shared::clone(&call.queue.device);
    let in_place = place.and_then(|place| device.session().region().mapped(place + offset, bytes));
    if let Some(start) = in_place.filter(|_| memory.host_ptr == 0) {
        let event = end_of_former(call)?;
        let map = Map { start: start.addr(), flags, kind: MapKind::InPlace };
        memory.state().maps.push(map);
        let moved = |is_moved| if is_moved { bytes as u64 } else { 0 };
        device.session().note_moved(moved(writes(flags)), moved(reads(flags)));
        finish(call, event, blocks)?;
        return Ok(start.cast());
    }
    let mut copied = (memory.host_ptr == 0).then(|| Copied::new(bytes));
    let start = match &mut copied {
        Some(copied) => copied.start(),
        None => (memory.host_ptr as *mut u8).wrapping_add(offset as usize),
    };
    if reads(flags) {
        read(call, memory, offset, Target::new(start.cast(), bytes), blocks)?;
    } else {
        call.send(Vec::new(), CommandKind::Marker {})?;
    }
    let kind = MapKind::Bytes { offset, len: bytes, _copy: copied };
    memory.state().maps.push(Map { start: start.addr(), flags, kind });
    Ok(start.cast())
}

pub unsafe extern "C" fn enqueue_map_buffer(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: cl_bool,
    flags: cl_map_flags,
    offset: usize,
    bytes: usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
    stored: *mut cl_int,
) -> *mut c_void {
    // SAFETY: the program passes valid lists, and null or valid places.
    unsafe {
        made(stored, || {
            let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_MAP_BUFFER)?;
            let memory = memory_of(&call, buffer)?;
            memory.check_range(offset, bytes)?;
            check_map_flags(&memory, flags)?;
            map_buffer(&mut call, &memory, blocking != CL_FALSE, flags, offset as u64, bytes)
        })
    }
}

pub unsafe extern "C" fn enqueue_map_image(
    queue: cl_command_queue,
    image: cl_mem,
    blocking: cl_bool,
    flags: cl_map_flags,
    origin: *const usize,
    region: *const usize,
    row_pitch: *mut usize,
    slice_pitch: *mut usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
    stored: *mut cl_int,
) -> *mut c_void {
    // SAFETY: the program passes valid lists, and null or valid places.
    unsafe {
        made(stored, || {
            let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_MAP_IMAGE)?;
            let memory = memory_of(&call, image)?;
            let image = memory.image()?;
            check_map_flags(&memory, flags)?;
            let part = Part::new(image, three(origin)?, three(region)?)?;
            if row_pitch.is_null() || (slice_pitch.is_null() && image.has_slices()) {
                return Err(CL_INVALID_VALUE);
            }
            let (start, pitches) =
                map_image(&mut call, &memory, blocking != CL_FALSE, flags, part)?;
            row_pitch.write(pitches[0] as usize);
            store(slice_pitch, image.layer_pitch(pitches) as usize);
            Ok(start)
        })
    }
}

fn map_image(
    call: &mut Enqueue,
    memory: &Shared<Memory>,
    blocks: bool,
    flags: cl_map_flags,
    part: Part,
) -> Done<(*mut c_void, [u64; 2])> {
    let image = memory.image()?;
    memory.prepare(call, Access::storing(writes(flags)))?;
    let tight = part.tight_bytes(image.pixel_bytes);
    let (mut copied, pitches) = if memory.host_ptr == 0 {
        let [row, rows, slices] = tight;
        (Some(Copied::new((row * rows * slices) as usize)), [row, row * rows])
    } else {
        (None, image.host_pitches())
    };
    let start = match &mut copied {
        Some(copied) => copied.start(),
        None => {
            let ahead = part.start(image.pixel_bytes, pitches);
            (memory.host_ptr as *mut u8).wrapping_add(ahead as usize)
        }
    };
    if reads(flags) {
        let rows = Rows { start, region: tight, pitches };
        let read = |piece: Piece, place| {
            let (origin, region) = piece.of(part.origin, part.region);
            CommandKind::ReadImage { memory: memory.id, origin, region, place }
        };
        // SAFETY: a mapping is valid until it is unmapped.
        unsafe { rows.fill(call, blocks, &read)? };
    } else {
        call.send(Vec::new(), CommandKind::Marker {})?;
    }
    let kind = MapKind::Pixels { part, pitches, _copy: copied };
    memory.state().maps.push(Map { start: start.addr(), flags, kind });
    Ok((start.cast(), pitches))
}

pub unsafe extern "C" fn enqueue_unmap_mem_object(
    queue: cl_command_queue,
    memory: cl_mem,
    start: *mut c_void,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists, and null or a valid place.
    code(|| unsafe {
        let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_UNMAP_MEM_OBJECT)?;
        let memory = memory_of(&call, memory)?;
        let map = {
            let mut state = memory.state();
            let at = state.maps.iter().position(|map| map.start == start.addr());
            state.maps.swap_remove(at.ok_or(CL_INVALID_VALUE)?)
        };
        let unmapped = unmap(&mut call, &memory, &map, start.cast())?;
        call.hand_out(unmapped);
        Ok(())
    })
}

/// Stores what the program has written to a mapping.
fn unmap(
    call: &mut Enqueue,
    memory: &Shared<Memory>,
    map: &Map,
    start: *mut u8,
) -> Done<Shared<Event>> {
    let id = memory.id;
    if writes(map.flags) {
        memory.prepare(call, Access::Store)?;
        match &map.kind {
            MapKind::InPlace => {}
            MapKind::Bytes { offset, len, .. } => {
                // SAFETY: a mapping is the program's, and valid, until it is unmapped.
                let bytes = unsafe { std::slice::from_raw_parts(start, *len) };
                let offset = *offset;
                return write_staged(call, bytes, |place| {
                    let data = venice_accel::opencl::wire::Blob::Region { place };
                    CommandKind::WriteBuffer { memory: id, offset, data }
                });
            }
            MapKind::Pixels { part, pitches, .. } => {
                let region = part.tight_bytes(memory.image()?.pixel_bytes);
                let rows = Rows { start, region, pitches: *pitches };
                let write = |piece: Piece, place| {
                    let (origin, region) = piece.of(part.origin, part.region);
                    CommandKind::WriteImage { memory: id, origin, region, place }
                };
                // SAFETY: as above.
                return unsafe { rows.take(call, &write) };
            }
        }
    }
    end_of_former(call)
}
