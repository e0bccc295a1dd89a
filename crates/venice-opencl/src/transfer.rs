//! Reads and writes of buffers: at once in the region if nothing else runs, else by a command.

use std::ffi::c_void;

use opencl_sys::*;
use venice_accel::opencl::wire::{Blob, CommandKind, INLINE_BYTES, Place};

use crate::call::{Done, array, code, session_code, three};
use crate::event::{Action, Event};
use crate::memory::Memory;
use crate::object::{Object, Shared};
use crate::queue::{Enqueue, Order, Queue};
use crate::rows::Rows;
use crate::transit::Access;

/// Memory of the program that a command fills later.
#[derive(Clone, Copy)]
pub struct Target {
    start: *mut u8,
    len: usize,
}

// SAFETY: until the command ends the program leaves the memory to it, as the specification says.
unsafe impl Send for Target {}

impl Target {
    pub fn new(start: *mut c_void, len: usize) -> Self {
        Self { start: start.cast(), len }
    }

    /// Returns the memory.
    ///
    /// # Safety
    /// It is the program's, valid for writes, and used by nobody else now.
    pub unsafe fn bytes<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Checks that the program may read or write the contents.
///
/// # Errors
/// [`CL_INVALID_OPERATION`].
pub fn check_access(memory: &Memory, forbidden: cl_mem_flags) -> Done {
    if memory.flags & (forbidden | CL_MEM_HOST_NO_ACCESS) != 0 {
        return Err(CL_INVALID_OPERATION);
    }
    Ok(())
}

/// Returns the memory object of a call.
///
/// # Errors
/// [`CL_INVALID_MEM_OBJECT`], [`CL_INVALID_CONTEXT`], [`CL_MISALIGNED_SUB_BUFFER_OFFSET`].
pub fn memory_of(call: &Enqueue, handle: cl_mem) -> Done<Shared<Memory>> {
    let memory = Object::<Memory>::get(handle)?;
    check_context(&call.queue, &memory)?;
    Ok(memory)
}

/// Returns source and destination of a call.
///
/// # Errors
/// The errors of [`memory_of`].
pub fn pair_of(call: &Enqueue, from: cl_mem, to: cl_mem) -> Done<(Shared<Memory>, Shared<Memory>)> {
    let (from, to) = (Object::<Memory>::get(from)?, Object::<Memory>::get(to)?);
    check_context(&call.queue, &from)?;
    check_context(&call.queue, &to)?;
    Ok((from, to))
}

/// Checks that queue and memory object belong together.
fn check_context(queue: &Object<Queue>, memory: &Memory) -> Done {
    if !Shared::ptr_eq(&queue.context, &memory.context) {
        return Err(CL_INVALID_CONTEXT);
    }
    if let crate::memory::Shape::Part { origin, .. } = &memory.shape {
        let align = queue.device.number(CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8;
        if align != 0 && !origin.is_multiple_of(align) {
            return Err(CL_MISALIGNED_SUB_BUFFER_OFFSET);
        }
    }
    Ok(())
}

/// Returns the first byte of a memory object in its whole.
fn origin_of(memory: &Memory) -> u64 {
    match &memory.shape {
        crate::memory::Shape::Part { origin, .. } => *origin,
        crate::memory::Shape::Buffer | crate::memory::Shape::Image(_) => 0,
    }
}

/// True if none of the events is still to come.
///
/// # Errors
/// The code of a wait list with a failed command.
fn have_ended(waits: &[Shared<Event>]) -> Done<bool> {
    let mut all = true;
    for event in waits {
        match event.outcome() {
            None => all = false,
            Some(CL_COMPLETE) => {}
            Some(_) => return Err(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
        }
    }
    Ok(all)
}

/// Returns the code of a blocking call by the outcome of its command.
pub fn outcome(event: &Object<Event>) -> Done {
    match event.wait()? {
        CL_COMPLETE => Ok(()),
        // PoCL says only that it failed, as what waits for a failed one does.
        CL_DEVICE_NOT_FOUND => Err(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
        status => Err(status),
    }
}

/// Reads bytes of a buffer into the program's memory.
///
/// # Errors
/// The codes of `clEnqueueReadBuffer`.
pub fn read(
    call: &mut Enqueue,
    memory: &Shared<Memory>,
    offset: u64,
    into: Target,
    blocks: bool,
) -> Done {
    if memory.prepare(call, Access::Load)?.is_none() {
        return or_finished(call, |call| read_by_command(call, memory, offset, into, blocks));
    }
    // Short bytes come with the end of a command: of another machine in one round trip, not two.
    let comes_with_end =
        into.len <= INLINE_BYTES && !call.queue.device.session().region().is_mapped();
    if is_free(call)? || (blocks && !comes_with_end) {
        return read_at_once(call, memory, offset, into);
    }
    match read_by_command(call, memory, offset, into, blocks) {
        // Without room for the bytes on their way the call waits for them.
        Err(CL_MEM_OBJECT_ALLOCATION_FAILURE) => read_at_once(call, memory, offset, into),
        done => done,
    }
}

/// True if nothing comes before the next command.
fn is_free(call: &Enqueue) -> Done<bool> {
    Ok(have_ended(&call.waits)? && call.queue.is_idle(&call.queue.order()))
}

/// Returns the event of a command without work of its own: it ends once what comes before has.
///
/// # Errors
/// The codes of wait lists and of lost sessions.
pub fn end_of_former(call: &Enqueue) -> Done<Shared<Event>> {
    if is_free(call)? {
        call.queue.check()?;
        call.note_stores(None);
        return Ok(call.ended_event());
    }
    let event = call.event();
    call.send_as(&event, CommandKind::Marker {})?;
    Ok(event)
}

/// Tries a transfer; without room for its bytes once more after all others of the queue.
fn or_finished(call: &mut Enqueue, transfer: impl Fn(&mut Enqueue) -> Done) -> Done {
    match transfer(call) {
        Err(CL_MEM_OBJECT_ALLOCATION_FAILURE) => {
            call.queue.finish()?;
            transfer(call)
        }
        done => done,
    }
}

/// Waits for what comes before, and reads the region. Meanwhile no other command is enqueued.
fn read_at_once(call: &Enqueue, memory: &Memory, offset: u64, into: Target) -> Done {
    let queue = &call.queue;
    let mut order = queue.order();
    let is_ready = have_ended(&call.waits)? && (!queue.holds_up() || queue.is_idle(&order));
    match &*order {
        _ if is_ready => {}
        // The check of the queue tells of its failure, or the program has this event.
        Order::Until(last) if queue.is_in_order() && call.waits.is_empty() => {
            let last = Shared::clone(last);
            last.wait()?;
        }
        Order::Idle | Order::Until(_) | Order::Unknown => {
            let waits = queue.ids_of(&call.waits)?;
            let marker = call.event();
            let kind = CommandKind::Marker {};
            queue.send_in(&mut order, waits, Some(&marker), Vec::new(), kind)?;
            outcome(&marker)?;
        }
    }
    queue.check()?;
    // Only now: the device may have moved meanwhile, to one where buffers lie elsewhere.
    let Some(place) = memory.place_at(&queue.device)? else {
        drop(order);
        return read_by_command(call, memory, offset, into, true);
    };
    // SAFETY: the call blocks, so the program's memory is ours until it returns.
    let read = queue.device.session().read(place + offset, unsafe { into.bytes() });
    drop(order);
    read.map_err(session_code)?;
    if call.wants_event() {
        call.hand_out(call.ended_event());
    }
    Ok(())
}

fn read_by_command(
    call: &Enqueue,
    memory: &Memory,
    offset: u64,
    into: Target,
    blocks: bool,
) -> Done {
    let (id, bytes) = (memory.id, into.len as u64);
    let kind = |place| CommandKind::ReadBuffer { memory: id, offset, bytes, place };
    let event = if into.len <= INLINE_BYTES {
        let fill: Action = Box::new(move |status, data| {
            if status == CL_COMPLETE && data.len() == into.len {
                // SAFETY: the command has not ended for the program, whose memory is ours so long.
                unsafe { into.bytes() }.copy_from_slice(data);
            }
        });
        call.send_with(kind(None), fill)?
    } else {
        read_staged(call, into, |place| kind(Some(place)))?
    };
    finish(call, event, blocks)
}

/// Reads by a command that stores into the region; the end of the command copies from there.
///
/// # Errors
/// The code of a full device, or of a lost session.
pub fn read_staged(
    call: &Enqueue,
    into: Target,
    kind: impl FnOnce(u64) -> CommandKind<'static>,
) -> Done<Shared<Event>> {
    let session = call.queue.device.session();
    let place = session.allocate(into.len as u64).map_err(session_code)?;
    let fill: Action = Box::new(move |status, _| {
        if status == CL_COMPLETE {
            // SAFETY: the command has not ended for the program, whose memory is ours so long.
            // A lost session ends all its events with an error.
            let _ = session.read(place, unsafe { into.bytes() });
        }
        session.free(place);
    });
    call.send_with(kind(place), fill)
}

/// Hands the event of a command out, and waits for its end if the call blocks.
///
/// # Errors
/// The command's error if the call blocks.
pub fn finish(call: &Enqueue, event: Shared<Event>, blocks: bool) -> Done {
    if blocks {
        outcome(&event)?;
    }
    call.hand_out(event);
    Ok(())
}

/// Writes bytes of the program to a buffer. They are copied before this returns.
///
/// # Errors
/// The codes of `clEnqueueWriteBuffer`.
pub fn write(call: &mut Enqueue, memory: &Shared<Memory>, offset: u64, from: &[u8]) -> Done {
    let is_all = from.len() as u64 == memory.bytes;
    let access = if is_all { Access::Replace } else { Access::Store };
    or_finished(call, |call| {
        let place = memory.prepare(call, access)?;
        let is_mapped = call.queue.device.session().region().is_mapped();
        let place = place.filter(|_| is_mapped || from.len() > INLINE_BYTES);
        if let Some(place) = place
            && write_at_once(call, place + offset, from)?
        {
            return Ok(());
        }
        write_by_command(call, memory, offset, from)
    })
}

/// Writes into the region if nothing comes before; returns false if something does.
fn write_at_once(call: &Enqueue, place: u64, from: &[u8]) -> Done<bool> {
    let queue = &call.queue;
    let order = queue.order();
    if !have_ended(&call.waits)? || !queue.is_idle(&order) {
        return Ok(false);
    }
    let written = queue.device.session().write(place, from);
    drop(order);
    written.map_err(session_code)?;
    call.note_stores(None);
    if call.wants_event() {
        call.hand_out(call.ended_event());
    }
    Ok(true)
}

fn write_by_command(call: &Enqueue, memory: &Memory, offset: u64, from: &[u8]) -> Done {
    let id = memory.id;
    if from.len() <= INLINE_BYTES {
        let data = Blob::Inline { bytes: from };
        return call.send(Vec::new(), CommandKind::WriteBuffer { memory: id, offset, data });
    }
    let event = write_staged(call, from, |place| CommandKind::WriteBuffer {
        memory: id,
        offset,
        data: Blob::Region { place },
    })?;
    call.hand_out(event);
    Ok(())
}

/// Writes by a command that takes its bytes from the region.
///
/// # Errors
/// The code of a full device, or of a lost session.
pub fn write_staged(
    call: &Enqueue,
    from: &[u8],
    kind: impl FnOnce(Place) -> CommandKind<'static>,
) -> Done<Shared<Event>> {
    let session = call.queue.device.session();
    let place = session.stage(from).map_err(session_code)?;
    let offset = place.offset;
    call.send_with(kind(place), Box::new(move |_, _| session.free(offset)))
}

pub unsafe extern "C" fn enqueue_read_buffer(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: cl_bool,
    offset: usize,
    bytes: usize,
    into: *mut c_void,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_READ_BUFFER)?;
        let memory = memory_of(&call, buffer)?;
        if into.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        memory.check_range(offset, bytes)?;
        check_access(&memory, CL_MEM_HOST_WRITE_ONLY)?;
        read(&mut call, &memory, offset as u64, Target::new(into, bytes), blocking != CL_FALSE)
    })
}

pub unsafe extern "C" fn enqueue_write_buffer(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: cl_bool,
    offset: usize,
    bytes: usize,
    from: *const c_void,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    let _ = blocking;
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_WRITE_BUFFER)?;
        let memory = memory_of(&call, buffer)?;
        if from.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        memory.check_range(offset, bytes)?;
        check_access(&memory, CL_MEM_HOST_READ_ONLY)?;
        write(&mut call, &memory, offset as u64, array(from.cast(), bytes))
    })
}

pub unsafe extern "C" fn enqueue_copy_buffer(
    queue: cl_command_queue,
    from: cl_mem,
    to: cl_mem,
    from_offset: usize,
    to_offset: usize,
    bytes: usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_COPY_BUFFER)?;
        copy_buffer(call, from, to, from_offset, to_offset, bytes)
    })
}

/// Sends or records the command of [`enqueue_copy_buffer`].
///
/// # Errors
/// The codes of `clEnqueueCopyBuffer`.
pub fn copy_buffer(
    mut call: Enqueue,
    from: cl_mem,
    to: cl_mem,
    from_offset: usize,
    to_offset: usize,
    bytes: usize,
) -> Done {
    let (from, to) = pair_of(&call, from, to)?;
    from.check_range(from_offset, bytes)?;
    to.check_range(to_offset, bytes)?;
    let overlap = |a: usize, b: usize| a < b + bytes && b < a + bytes;
    if Shared::ptr_eq(from.root(), to.root()) {
        let at = |memory: &Memory, offset: usize| origin_of(memory) as usize + offset;
        if overlap(at(&from, from_offset), at(&to, to_offset)) {
            return Err(CL_MEM_COPY_OVERLAP);
        }
    }
    from.prepare(&mut call, Access::Load)?;
    to.prepare(&mut call, Access::Store)?;
    let offsets = [from_offset as u64, to_offset as u64];
    let (from, to, bytes) = (from.id, to.id, bytes as u64);
    call.send(Vec::new(), CommandKind::CopyBuffer { from, to, offsets, bytes })
}

pub unsafe extern "C" fn enqueue_fill_buffer(
    queue: cl_command_queue,
    buffer: cl_mem,
    pattern: *const c_void,
    pattern_bytes: usize,
    offset: usize,
    bytes: usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_FILL_BUFFER)?;
        fill_buffer(call, buffer, pattern, pattern_bytes, offset, bytes)
    })
}

/// Sends or records the command of [`enqueue_fill_buffer`].
///
/// # Safety
/// Pointers and lists of the program are valid.
pub unsafe fn fill_buffer(
    mut call: Enqueue,
    buffer: cl_mem,
    pattern: *const c_void,
    pattern_bytes: usize,
    offset: usize,
    bytes: usize,
) -> Done {
    // SAFETY: promised by the caller.
    unsafe {
        let memory = memory_of(&call, buffer)?;
        memory.check_range(offset, bytes)?;
        let is_unit = pattern_bytes.is_power_of_two() && pattern_bytes <= 128;
        if pattern.is_null()
            || !is_unit
            || !offset.is_multiple_of(pattern_bytes)
            || !bytes.is_multiple_of(pattern_bytes)
        {
            return Err(CL_INVALID_VALUE);
        }
        let is_all = bytes as u64 == memory.bytes;
        memory.prepare(&mut call, if is_all { Access::Replace } else { Access::Store })?;
        let pattern = array(pattern.cast(), pattern_bytes);
        let (id, offset, bytes) = (memory.id, offset as u64, bytes as u64);
        call.send(Vec::new(), CommandKind::FillBuffer { memory: id, pattern, offset, bytes })
    }
}

pub unsafe extern "C" fn enqueue_migrate_mem_objects(
    queue: cl_command_queue,
    objects: cl_uint,
    first: *const cl_mem,
    flags: cl_mem_migration_flags,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists.
    code(|| unsafe {
        let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_MIGRATE_MEM_OBJECTS)?;
        const KNOWN: u64 = CL_MIGRATE_MEM_OBJECT_HOST | CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED;
        if objects == 0 || first.is_null() || flags & !KNOWN != 0 {
            return Err(CL_INVALID_VALUE);
        }
        let mut ids = Vec::new();
        for handle in array(first, objects as usize) {
            let memory = Object::<Memory>::get(*handle)?;
            check_context(&call.queue, &memory)?;
            memory.prepare(&mut call, Access::Load)?;
            ids.push(memory.id);
        }
        call.send(Vec::new(), CommandKind::Migrate { memory: ids, flags })
    })
}

/// A box of a buffer, or of the program's memory.
#[derive(Clone, Copy)]
struct Rectangle {
    origin: [u64; 3],
    region: [u64; 3],
    row: u64,
    slice: u64,
}

impl Rectangle {
    /// Checks the pitches; 0 stands for tight ones.
    fn new(origin: [u64; 3], region: [u64; 3], row: usize, slice: usize) -> Done<Self> {
        let row = if row == 0 { region[0] } else { row as u64 };
        let rows = region[1].checked_mul(row).ok_or(CL_INVALID_VALUE)?;
        let slice = if slice == 0 { rows } else { slice as u64 };
        if region.contains(&0) || row < region[0] || slice < rows || !slice.is_multiple_of(row) {
            return Err(CL_INVALID_VALUE);
        }
        Ok(Self { origin, region, row, slice })
    }

    fn start(&self) -> Option<u64> {
        let [x, y, z] = self.origin;
        x.checked_add(y.checked_mul(self.row)?)?.checked_add(z.checked_mul(self.slice)?)
    }

    /// Returns the first byte behind it.
    fn end(&self) -> Done<u64> {
        let [x, y, z] = self.region;
        let end = || {
            let rows = (y - 1).checked_mul(self.row)?;
            let slices = (z - 1).checked_mul(self.slice)?;
            self.start()?.checked_add(slices)?.checked_add(rows)?.checked_add(x)
        };
        end().ok_or(CL_INVALID_VALUE)
    }

    fn pitches(&self) -> [u64; 2] {
        [self.row, self.slice]
    }

    /// True if it has bytes in common with another one of the same region, as far as the
    /// specification looks (OpenCL 3.0, appendix D); both begin at so many bytes of one buffer.
    fn meets(&self, ahead: u64, other: &Self, other_ahead: u64) -> bool {
        let slice_bytes = (self.region[1] - 1) * self.row + self.region[0];
        let bytes = |it: &Self| (it.region[2] - 1) * it.slice + (it.region[1] - 1) * it.row;
        let start = |it: &Self, ahead| it.start().unwrap_or(u64::MAX / 2) + ahead;
        let (here, there) = (start(self, ahead), start(other, other_ahead));
        if here + bytes(self) + self.region[0] <= there
            || there + bytes(other) + other.region[0] <= here
        {
            return false;
        }
        if self.pitches() != other.pitches() {
            return true;
        }
        // Rows, or slices, may lie in the gaps of the other's.
        let lies_between = |len: u64, pitch: u64| {
            let (here, there) = (here % pitch, there % pitch);
            let fits = |one: u64, two: u64| two >= one + len && two + len <= one + pitch;
            fits(here, there) || fits(there, here)
        };
        !lies_between(self.region[0], self.row) && !lies_between(slice_bytes, self.slice)
    }
}

/// Makes and checks the boxes of a call: in the buffer, and in the program's memory.
fn boxes(
    memory: &Memory,
    origins: [[u64; 3]; 2],
    region: [u64; 3],
    [row, slice, host_row, host_slice]: [usize; 4],
) -> Done<(Rectangle, Rectangle, u64)> {
    if memory.is_image() {
        return Err(CL_INVALID_MEM_OBJECT);
    }
    let inside = Rectangle::new(origins[0], region, row, slice)?;
    let outside = Rectangle::new(origins[1], region, host_row, host_slice)?;
    if inside.end()? > memory.bytes {
        return Err(CL_INVALID_VALUE);
    }
    outside.end()?;
    let start = outside.start().ok_or(CL_INVALID_VALUE)?;
    Ok((inside, outside, start))
}

pub unsafe extern "C" fn enqueue_read_buffer_rect(
    queue: cl_command_queue,
    buffer: cl_mem,
    blocking: cl_bool,
    origin: *const usize,
    host_origin: *const usize,
    region: *const usize,
    row: usize,
    slice: usize,
    host_row: usize,
    host_slice: usize,
    into: *mut c_void,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_READ_BUFFER_RECT)?;
        let memory = memory_of(&call, buffer)?;
        if into.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        let (origins, region) = ([three(origin)?, three(host_origin)?], three(region)?);
        let pitches = [row, slice, host_row, host_slice];
        let (inside, outside, start) = boxes(&memory, origins, region, pitches)?;
        check_access(&memory, CL_MEM_HOST_WRITE_ONLY)?;
        memory.prepare(&mut call, Access::Load)?;
        let (id, start) = (memory.id, into.cast::<u8>().add(start as usize));
        let rows = Rows { start, region, pitches: outside.pitches() };
        rows.fill(&call, blocking != CL_FALSE, &|piece, place| {
            let ((origin, region), pitches) = (piece.of(inside.origin, region), inside.pitches());
            CommandKind::ReadRectangle { memory: id, origin, region, pitches, place: place.offset }
        })
    })
}

pub unsafe extern "C" fn enqueue_write_buffer_rect(
    queue: cl_command_queue,
    buffer: cl_mem,
    _blocking: cl_bool,
    origin: *const usize,
    host_origin: *const usize,
    region: *const usize,
    row: usize,
    slice: usize,
    host_row: usize,
    host_slice: usize,
    from: *const c_void,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let mut call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_WRITE_BUFFER_RECT)?;
        let memory = memory_of(&call, buffer)?;
        if from.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        let (origins, region) = ([three(origin)?, three(host_origin)?], three(region)?);
        let pitches = [row, slice, host_row, host_slice];
        let (inside, outside, start) = boxes(&memory, origins, region, pitches)?;
        check_access(&memory, CL_MEM_HOST_READ_ONLY)?;
        memory.prepare(&mut call, Access::Store)?;
        let start = from.cast::<u8>().add(start as usize).cast_mut();
        let rows = Rows { start, region, pitches: outside.pitches() };
        let id = memory.id;
        let written = rows.take(&call, &|piece, place| {
            let ((origin, region), pitches) = (piece.of(inside.origin, region), inside.pitches());
            CommandKind::WriteRectangle { memory: id, origin, region, pitches, place: place.offset }
        })?;
        call.hand_out(written);
        Ok(())
    })
}

pub unsafe extern "C" fn enqueue_copy_buffer_rect(
    queue: cl_command_queue,
    from: cl_mem,
    to: cl_mem,
    from_origin: *const usize,
    to_origin: *const usize,
    region: *const usize,
    from_row: usize,
    from_slice: usize,
    to_row: usize,
    to_slice: usize,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists and memory.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_COPY_BUFFER_RECT)?;
        let boxes = [from_origin, to_origin, region];
        copy_buffer_rect(call, (from, to), boxes, [from_row, from_slice, to_row, to_slice])
    })
}

/// Sends or records the command of [`enqueue_copy_buffer_rect`].
///
/// # Safety
/// Pointers and lists of the program are valid.
pub unsafe fn copy_buffer_rect(
    mut call: Enqueue,
    (from, to): (cl_mem, cl_mem),
    [from_origin, to_origin, region]: [*const usize; 3],
    [from_row, from_slice, to_row, to_slice]: [usize; 4],
) -> Done {
    // SAFETY: promised by the caller.
    unsafe {
        let (from, to) = pair_of(&call, from, to)?;
        if from.is_image() || to.is_image() {
            return Err(CL_INVALID_MEM_OBJECT);
        }
        let region = three(region)?;
        let source = Rectangle::new(three(from_origin)?, region, from_row, from_slice)?;
        let target = Rectangle::new(three(to_origin)?, region, to_row, to_slice)?;
        if source.end()? > from.bytes || target.end()? > to.bytes {
            return Err(CL_INVALID_VALUE);
        }
        if Shared::ptr_eq(from.root(), to.root()) {
            if Shared::ptr_eq(&from, &to) && source.pitches() != target.pitches() {
                return Err(CL_INVALID_VALUE);
            }
            if source.meets(origin_of(&from), &target, origin_of(&to)) {
                return Err(CL_MEM_COPY_OVERLAP);
            }
        }
        from.prepare(&mut call, Access::Load)?;
        to.prepare(&mut call, Access::Store)?;
        call.send(
            Vec::new(),
            CommandKind::CopyRectangle {
                from: from.id,
                to: to.id,
                from_origin: source.origin,
                to_origin: target.origin,
                region,
                from_pitches: source.pitches(),
                to_pitches: target.pitches(),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a rectangle.
    fn bytes_of(it: &Rectangle) -> std::collections::BTreeSet<u64> {
        let [x, y, z] = it.region;
        let start = it.start().unwrap();
        let rows = (0..z).flat_map(|k| (0..y).map(move |j| start + k * it.slice + j * it.row));
        rows.flat_map(|row| row..row + x).collect()
    }

    #[test]
    fn rectangles_with_common_bytes_meet() {
        let (row, slice, region) = (8, 40, [3, 2, 2]);
        let at = |origin| Rectangle::new(origin, region, row, slice).unwrap();
        let first = at([2, 1, 1]);
        for index in 0..8 * 5 * 4 {
            let other = at([index % 8, index / 8 % 5, index / 40]);
            if !bytes_of(&first).is_disjoint(&bytes_of(&other)) {
                assert!(first.meets(0, &other, 0) && other.meets(0, &first, 0), "{index}");
            }
        }
        assert!(!first.meets(0, &at([5, 1, 1]), 0), "in the gaps of rows");
        assert!(!first.meets(0, &at([2, 3, 1]), 0), "in the gaps of slices");
        assert!(!first.meets(0, &at([2, 1, 1]), 400), "behind it");
    }
}
