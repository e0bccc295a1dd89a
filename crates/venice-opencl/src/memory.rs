//! Memory objects: buffers, parts of them, and images. Each has a copy at every device that uses it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opencl_sys::*;
use venice_accel::opencl::wire::{Blob, CommandKind, ImageShape};

use crate::call::{Done, Out, array, code, made, session_code};
use crate::coherence::{self, End};
use crate::context::Context;
use crate::device::Device;
use crate::event::plain;
use crate::link::Link;
use crate::map::Map;
use crate::object::{Object, Shared, bodies, new_id};
use crate::queue::Enqueue;
use crate::transit::{self, Access, Holders};

bodies! {
    Memory: CL_INVALID_MEM_OBJECT;
}

/// Flags that matter to kernels.
const KERNEL_FLAGS: cl_mem_flags =
    CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY | CL_MEM_READ_ONLY | CL_MEM_KERNEL_READ_AND_WRITE;
const HOST_FLAGS: cl_mem_flags =
    CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;
const POINTER_FLAGS: cl_mem_flags =
    CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR;

/// A memory object.
pub struct Memory {
    pub id: u64,
    pub context: Shared<Context>,
    pub flags: cl_mem_flags,
    pub bytes: u64,
    /// The program's own memory, of [`CL_MEM_USE_HOST_PTR`].
    pub host_ptr: usize,
    pub shape: Shape,
    /// Properties as the program gave them.
    pub properties: Vec<cl_mem_properties>,
    state: Mutex<State>,
}

/// Kind of a memory object.
pub enum Shape {
    Buffer,
    /// A part of a buffer, from a byte on.
    Part {
        whole: Shared<Memory>,
        origin: u64,
    },
    Image(Image),
}

/// An image.
pub struct Image {
    pub shape: ImageShape,
    /// Buffer that it shows.
    pub buffer: Option<Shared<Memory>>,
    pub pixel_bytes: u64,
    /// Bytes of a row and of a slice, as the program gave them for its own memory.
    pub pitches: [u64; 2],
}

/// State of a memory object.
#[derive(Default)]
pub struct State {
    /// Place in the region, if it has one, at each device with a copy.
    copies: HashMap<usize, Option<u64>>,
    pub holders: Holders,
    /// First contents, until a device has them.
    first: Option<Vec<u8>>,
    pub maps: Vec<Map>,
    destructors: Vec<Destructor>,
}

struct Destructor {
    function: unsafe extern "C" fn(cl_mem, *mut c_void),
    user: usize,
}

impl Memory {
    /// Makes a memory object; with only one device in its context there at once.
    pub fn create(
        context: &Shared<Context>,
        flags: cl_mem_flags,
        bytes: u64,
        shape: Shape,
        host_ptr: usize,
        first: Option<Vec<u8>>,
        properties: Vec<cl_mem_properties>,
    ) -> Done<Shared<Self>> {
        let state = State { first, ..State::default() };
        let memory = Object::new(Self {
            id: new_id(),
            context: Shared::clone(context),
            flags,
            bytes,
            host_ptr,
            shape,
            properties,
            state: Mutex::new(state),
        });
        if let [device] = &context.devices[..] {
            memory.place_at(device)?;
        }
        Ok(memory)
    }

    /// Returns the state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the image.
    ///
    /// # Errors
    /// [`CL_INVALID_MEM_OBJECT`] for a buffer.
    pub fn image(&self) -> Done<&Image> {
        match &self.shape {
            Shape::Image(image) => Ok(image),
            Shape::Buffer | Shape::Part { .. } => Err(CL_INVALID_MEM_OBJECT),
        }
    }

    /// True for an image.
    pub fn is_image(&self) -> bool {
        self.image().is_ok()
    }

    /// Checks that a range lies in the buffer.
    ///
    /// # Errors
    /// [`CL_INVALID_MEM_OBJECT`] for an image, [`CL_INVALID_VALUE`].
    pub fn check_range(&self, offset: usize, bytes: usize) -> Done {
        if self.is_image() {
            return Err(CL_INVALID_MEM_OBJECT);
        }
        let end = (offset as u64).checked_add(bytes as u64).ok_or(CL_INVALID_VALUE)?;
        if bytes == 0 || end > self.bytes { Err(CL_INVALID_VALUE) } else { Ok(()) }
    }

    /// Returns the place of its first byte in the region of a device, if it lies there; makes the
    /// copy if the device has none.
    ///
    /// # Errors
    /// The code of a lost session, or of a full device.
    pub fn place_at(&self, device: &Shared<Device>) -> Done<Option<u64>> {
        if let Some(status) = device.link().failure(self.id) {
            return Err(status);
        }
        let mut state = self.state();
        if let Some(place) = state.copies.get(&device.index) {
            return Ok(*place);
        }
        self.context.id_at(device)?;
        let link = device.link();
        let place = match &self.shape {
            Shape::Part { whole, .. } => {
                let place = whole.place_at(device)?;
                self.make(&link, place, None)?
            }
            Shape::Image(Image { buffer: Some(buffer), .. }) => {
                buffer.place_at(device)?;
                self.make(&link, None, None)?
            }
            Shape::Buffer | Shape::Image(_) => {
                let first = state.first.take();
                if first.is_some() {
                    state.holders.add(device);
                }
                self.make(&link, None, first.as_deref())?
            }
        };
        state.copies.insert(device.index, place);
        Ok(place)
    }

    /// Makes it at a donor, with its first contents if it is no part of another one, and returns its
    /// place; `whole` is the place of the one that it is a part of.
    fn make(&self, link: &Link, whole: Option<u64>, first: Option<&[u8]>) -> Done<Option<u64>> {
        let (id, context, flags) = (self.id, self.context.id, self.flags & KERNEL_FLAGS);
        match &self.shape {
            Shape::Buffer => self.make_buffer(link, first),
            Shape::Part { whole: parent, origin } => {
                let (parent, origin, bytes) = (parent.id, *origin, self.bytes);
                let create = CommandKind::CreateSubBuffer { id, parent, flags, origin, bytes };
                link.session.submit(&plain(create)).map_err(session_code)?;
                Ok(whole.map(|place| place + origin))
            }
            Shape::Image(image) => {
                let shape = image.shape.clone();
                with_first(link, first, |data| CommandKind::CreateImage {
                    id,
                    context,
                    flags,
                    shape,
                    data,
                })
            }
        }
    }

    fn make_buffer(&self, link: &Link, first: Option<&[u8]>) -> Done<Option<u64>> {
        let (id, context, flags) = (self.id, self.context.id, self.flags & KERNEL_FLAGS);
        let (session, bytes) = (&link.session, self.bytes);
        if !session.description().has_placed_buffers {
            return with_first(link, first, |data| CommandKind::CreateBuffer {
                id,
                context,
                flags,
                bytes,
                place: None,
                data,
            });
        }
        let at = session.allocate(bytes).map_err(session_code)?;
        if let Some(first) = first {
            session.write(at, first).map_err(session_code)?;
        }
        let place = Some(at);
        let create = CommandKind::CreateBuffer { id, context, flags, bytes, place, data: None };
        session.submit(&plain(create)).map_err(session_code)?;
        Ok(place)
    }

    /// Returns how many others it needs: a whole has less than its parts.
    pub fn depth(&self) -> usize {
        match &self.shape {
            Shape::Part { whole, .. } => 1 + whole.depth(),
            Shape::Image(Image { buffer: Some(buffer), .. }) => 1 + buffer.depth(),
            Shape::Buffer | Shape::Image(_) => 0,
        }
    }

    /// True if the program has an address of its bytes at a device; `None` if a call is at work
    /// with it.
    pub fn is_mapped_at(&self, device: &Device) -> Option<bool> {
        let state = self.state.try_lock().ok()?;
        let is_there = state.copies.contains_key(&device.index);
        Some(is_there && state.maps.iter().any(Map::is_in_place))
    }

    /// Makes it at the other donor that its device moves to, with its contents; returns its place,
    /// if it was at the device and is of use there. `places` are those of the objects before it.
    ///
    /// # Errors
    /// The code of a lost session, or of a full device.
    pub fn carry(
        &self,
        device: &Device,
        (from, to): (&Arc<Link>, &Arc<Link>),
        places: &HashMap<u64, Option<u64>>,
    ) -> Done<Option<Option<u64>>> {
        let copy = self.state().copies.get(&device.index).copied();
        let Some(former) = copy.filter(|_| from.failure(self.id).is_none()) else {
            return Ok(None);
        };
        let whole = match &self.shape {
            Shape::Part { whole, .. } => places.get(&whole.id).copied(),
            Shape::Image(Image { buffer: Some(buffer), .. }) => places.get(&buffer.id).copied(),
            Shape::Buffer | Shape::Image(_) => self.has_latest(device).then_some(None),
        };
        let Some(whole) = whole else { return Ok(None) };
        let place = self.make(to, whole, None)?;
        if self.depth() == 0 {
            let (from, to) = (End::new(self, from, former)?, End::new(self, to, place)?);
            coherence::copy(self, &from, &to)?;
        }
        Ok(Some(place))
    }

    /// True if a device has the latest contents, or the only ones.
    fn has_latest(&self, device: &Device) -> bool {
        self.context.devices.len() == 1 || self.state().holders.has(device)
    }

    /// Notes its place at a device that has moved; without one it is made there when it is needed.
    pub fn set_place(&self, device: &Device, place: Option<Option<u64>>) {
        let mut state = self.state();
        match place {
            Some(place) => state.copies.insert(device.index, place),
            None => state.copies.remove(&device.index),
        };
    }
}

impl Object<Memory> {
    /// Returns the object that holds the bytes: of a part the whole.
    pub fn root(self: &Arc<Self>) -> &Shared<Memory> {
        match &self.shape {
            Shape::Part { whole, .. } => whole.root(),
            Shape::Image(Image { buffer: Some(buffer), .. }) => buffer.root(),
            Shape::Buffer | Shape::Image(_) => self,
        }
    }

    /// Has the command of a call find the latest contents; returns the place, as
    /// [`Memory::place_at`] does.
    ///
    /// # Errors
    /// The codes of [`Memory::place_at`] and of [`transit::bring`].
    pub fn prepare(self: &Arc<Self>, call: &mut Enqueue, access: Access) -> Done<Option<u64>> {
        if let Some(recording) = &mut call.recording {
            recording.uses.push((Shared::clone(self), access));
            return Ok(None);
        }
        if self.context.devices.len() > 1 {
            let is_whole = Arc::ptr_eq(self.root(), self);
            let access = if is_whole || access == Access::Load { access } else { Access::Store };
            transit::bring(self.root(), call, access)?;
        }
        self.place_at(&call.queue.device)
    }
}

/// Makes an object of a device with its first contents.
fn with_first<'a>(
    link: &Link,
    first: Option<&'a [u8]>,
    make: impl FnOnce(Option<Blob<'a>>) -> CommandKind<'a>,
) -> Done<Option<u64>> {
    let session = &link.session;
    let sent = match first {
        None => session.submit(&plain(make(None))),
        Some(bytes) => session.submit_with_blob(bytes, |blob| plain(make(Some(blob)))),
    };
    sent.map(|()| None).map_err(session_code)
}

impl Drop for Memory {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let is_whole = matches!(self.shape, Shape::Buffer);
        for device in &self.context.devices {
            match state.copies.get(&device.index) {
                Some(Some(place)) if is_whole => device.session().free_later(self.id, *place),
                Some(_) => device.session().release(self.id),
                None => {}
            }
        }
        for destructor in state.destructors.drain(..).rev() {
            // SAFETY: the program gave function and pointer to `clSetMemObjectDestructorCallback`.
            unsafe { (destructor.function)(std::ptr::null_mut(), destructor.user as *mut c_void) };
        }
    }
}

/// Checks the flags of a new memory object against its pointer.
///
/// # Errors
/// [`CL_INVALID_VALUE`], [`CL_INVALID_HOST_PTR`].
pub fn check_flags(flags: cl_mem_flags, host_ptr: *const c_void) -> Done {
    const KNOWN: cl_mem_flags = KERNEL_FLAGS | HOST_FLAGS | POINTER_FLAGS;
    const ACCESS: cl_mem_flags = CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY | CL_MEM_READ_ONLY;
    let uses_pointer = flags & CL_MEM_USE_HOST_PTR != 0;
    if flags & !KNOWN != 0
        || (flags & ACCESS).count_ones() > 1
        || (flags & HOST_FLAGS).count_ones() > 1
        || (uses_pointer && flags & (CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR) != 0)
    {
        return Err(CL_INVALID_VALUE);
    }
    let wants_pointer = flags & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR) != 0;
    if wants_pointer == host_ptr.is_null() { Err(CL_INVALID_HOST_PTR) } else { Ok(()) }
}

/// Adds the default access.
pub fn with_access(flags: cl_mem_flags) -> cl_mem_flags {
    const ACCESS: cl_mem_flags = CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY | CL_MEM_READ_ONLY;
    if flags & ACCESS == 0 { flags | CL_MEM_READ_WRITE } else { flags }
}

unsafe fn create_buffer_of(
    context: cl_context,
    properties: Vec<cl_mem_properties>,
    flags: cl_mem_flags,
    bytes: usize,
    host_ptr: *mut c_void,
) -> Done<*mut c_void> {
    let context = Object::<Context>::get(context)?;
    check_flags(flags, host_ptr)?;
    let most = |device: &Shared<Device>| device.number(CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    let most = context.devices.iter().map(most).max().unwrap_or(0);
    if bytes == 0 || bytes as u64 > most {
        return Err(CL_INVALID_BUFFER_SIZE);
    }
    // SAFETY: the program passes so many bytes, if any.
    let first = unsafe { array(host_ptr.cast::<u8>(), bytes) };
    let first = (!host_ptr.is_null()).then(|| first.to_vec());
    let used = if flags & CL_MEM_USE_HOST_PTR != 0 { host_ptr.addr() } else { 0 };
    let (flags, shape) = (with_access(flags), Shape::Buffer);
    let made = Memory::create(&context, flags, bytes as u64, shape, used, first, properties)?;
    Ok(Object::hand_out(made))
}

pub unsafe extern "C" fn create_buffer(
    context: cl_context,
    flags: cl_mem_flags,
    bytes: usize,
    host_ptr: *mut c_void,
    stored: *mut cl_int,
) -> cl_mem {
    // SAFETY: the program passes memory as the flags say, and null or a valid place.
    unsafe { made(stored, || create_buffer_of(context, Vec::new(), flags, bytes, host_ptr)) }
}

/// Returns a list of properties, of which none is known.
///
/// # Safety
/// `list` is null or ends with 0.
pub unsafe fn no_properties(list: *const cl_mem_properties) -> Done<Vec<cl_mem_properties>> {
    // SAFETY: promised by the caller.
    match unsafe { list.as_ref() } {
        None => Ok(Vec::new()),
        Some(0) => Ok(vec![0]),
        Some(_) => Err(CL_INVALID_PROPERTY),
    }
}

pub unsafe extern "C" fn create_buffer_with_properties(
    context: cl_context,
    properties: *const cl_mem_properties,
    flags: cl_mem_flags,
    bytes: usize,
    host_ptr: *mut c_void,
    stored: *mut cl_int,
) -> cl_mem {
    // SAFETY: the program passes memory as the flags say, a valid list, and null or a valid place.
    unsafe {
        made(stored, || {
            create_buffer_of(context, no_properties(properties)?, flags, bytes, host_ptr)
        })
    }
}

pub unsafe extern "C" fn create_sub_buffer(
    whole: cl_mem,
    flags: cl_mem_flags,
    kind: cl_buffer_create_type,
    info: *const c_void,
    stored: *mut cl_int,
) -> cl_mem {
    // SAFETY: the program passes a region, and null or a valid place.
    unsafe {
        made(stored, || {
            let whole = Object::<Memory>::get(whole)?;
            if !matches!(whole.shape, Shape::Buffer) {
                return Err(CL_INVALID_MEM_OBJECT);
            }
            let region = info.cast::<cl_buffer_region>().as_ref().ok_or(CL_INVALID_VALUE)?;
            if kind != CL_BUFFER_CREATE_TYPE_REGION || flags & POINTER_FLAGS != 0 {
                return Err(CL_INVALID_VALUE);
            }
            check_part_flags(whole.flags, flags)?;
            let (origin, bytes) = (region.origin as u64, region.size as u64);
            if bytes == 0 {
                return Err(CL_INVALID_BUFFER_SIZE);
            }
            if origin.checked_add(bytes).is_none_or(|end| end > whole.bytes) {
                return Err(CL_INVALID_VALUE);
            }
            let fits = |device: &Shared<Device>| {
                let align = device.number(CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8;
                align == 0 || origin.is_multiple_of(align)
            };
            if !whole.context.devices.iter().any(fits) {
                return Err(CL_MISALIGNED_SUB_BUFFER_OFFSET);
            }
            let inherited = whole.flags & (KERNEL_FLAGS | HOST_FLAGS | POINTER_FLAGS);
            let access = KERNEL_FLAGS & if flags & KERNEL_FLAGS != 0 { flags } else { inherited };
            let hosts = HOST_FLAGS & if flags & HOST_FLAGS != 0 { flags } else { inherited };
            let flags = access | hosts | inherited & POINTER_FLAGS;
            let host_ptr = if whole.host_ptr == 0 { 0 } else { whole.host_ptr + region.origin };
            let context = Shared::clone(&whole.context);
            let shape = Shape::Part { whole, origin };
            let part = Memory::create(&context, flags, bytes, shape, host_ptr, None, Vec::new())?;
            Ok(Object::hand_out(part))
        })
    }
}

/// Checks that a part has no access that the whole lacks.
fn check_part_flags(whole: cl_mem_flags, part: cl_mem_flags) -> Done {
    const READS: cl_mem_flags = CL_MEM_READ_WRITE | CL_MEM_READ_ONLY;
    const WRITES: cl_mem_flags = CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY;
    let clash = |of_whole, of_part| whole & of_whole != 0 && part & of_part != 0;
    let wrong = clash(CL_MEM_WRITE_ONLY, READS)
        || clash(CL_MEM_READ_ONLY, WRITES)
        || clash(CL_MEM_HOST_WRITE_ONLY, CL_MEM_HOST_READ_ONLY)
        || clash(CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY)
        || clash(CL_MEM_HOST_NO_ACCESS, CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY);
    if wrong { Err(CL_INVALID_VALUE) } else { Ok(()) }
}

pub unsafe extern "C" fn retain_memory(handle: cl_mem) -> cl_int {
    code(|| Object::<Memory>::get(handle).map(|memory| memory.retain()))
}

pub unsafe extern "C" fn release_memory(handle: cl_mem) -> cl_int {
    code(|| Object::<Memory>::get(handle)?.release())
}

pub unsafe extern "C" fn set_memory_destructor_callback(
    handle: cl_mem,
    function: Option<unsafe extern "C" fn(cl_mem, *mut c_void)>,
    user: *mut c_void,
) -> cl_int {
    code(|| {
        let memory = Object::<Memory>::get(handle)?;
        let function = function.ok_or(CL_INVALID_VALUE)?;
        memory.state().destructors.push(Destructor { function, user: user as usize });
        Ok(())
    })
}

/// No memory object is a pipe.
pub unsafe extern "C" fn pipe_info(
    _handle: cl_mem,
    _name: cl_pipe_info,
    _room: usize,
    _value: *mut c_void,
    _needed: *mut usize,
) -> cl_int {
    CL_INVALID_MEM_OBJECT
}

pub unsafe extern "C" fn memory_info(
    handle: cl_mem,
    name: cl_mem_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    code(|| {
        let memory = Object::<Memory>::get(handle)?;
        let out = Out { room, value, needed };
        let null = std::ptr::null_mut::<c_void>();
        // SAFETY: the program passes null or valid places.
        unsafe {
            match name {
                CL_MEM_TYPE => out.put_plain(&[match &memory.shape {
                    Shape::Buffer | Shape::Part { .. } => CL_MEM_OBJECT_BUFFER,
                    Shape::Image(image) => image.shape.kind,
                }]),
                CL_MEM_FLAGS => out.put_plain(&[memory.flags]),
                CL_MEM_SIZE => out.put_plain(&[memory.bytes as usize]),
                CL_MEM_HOST_PTR => out.put_plain(&[memory.host_ptr]),
                CL_MEM_MAP_COUNT => out.put_plain(&[memory.state().maps.len() as cl_uint]),
                CL_MEM_REFERENCE_COUNT => out.put_plain(&[memory.references()]),
                CL_MEM_CONTEXT => out.put_plain(&[Object::handle(&memory.context)]),
                CL_MEM_ASSOCIATED_MEMOBJECT => out.put_plain(&[match &memory.shape {
                    Shape::Part { whole, .. } => Object::handle(whole),
                    Shape::Image(Image { buffer: Some(buffer), .. }) => Object::handle(buffer),
                    Shape::Buffer | Shape::Image(_) => null,
                }]),
                CL_MEM_OFFSET => out.put_plain(&[match &memory.shape {
                    Shape::Part { origin, .. } => *origin as usize,
                    Shape::Buffer | Shape::Image(_) => 0,
                }]),
                CL_MEM_USES_SVM_POINTER => out.put_plain(&[CL_FALSE]),
                CL_MEM_PROPERTIES => out.put_plain(&memory.properties),
                _ => Err(CL_INVALID_VALUE),
            }
        }
    })
}
