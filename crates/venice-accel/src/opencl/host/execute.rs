//! Carries commands out on the driver.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

use opencl_sys::{
    CL_INVALID_ARG_VALUE, CL_INVALID_BUFFER_SIZE, CL_INVALID_IMAGE_SIZE, CL_INVALID_KERNEL_NAME,
    CL_INVALID_VALUE, CL_MEM_COPY_HOST_PTR, CL_MEM_USE_HOST_PTR, CL_QUEUE_PROFILING_ENABLE,
    cl_command_queue, cl_context, cl_device_id, cl_event, cl_image_desc, cl_image_format, cl_int,
    cl_mem, cl_uint,
};
use venice_service::ConnectionId;

use super::Donor;
use super::objects::{Kind, Objects, Owned};
use super::watch::{self, Watched};
use crate::opencl::library::{OpenClError, call};
use crate::opencl::wire::{Argument, Blob, Command, CommandKind, INLINE_BYTES, ImageShape};

/// Error of a command that the driver, or this host, refuses.
type Code = cl_int;

/// Longest pattern of a fill in bytes.
const MAX_PATTERN_BYTES: usize = 128;

/// Data of an enqueued command.
#[derive(Debug, Default)]
pub(super) struct Queued {
    /// Bytes that it reads or stores: they live until it ends.
    data: Vec<u8>,
    is_read: bool,
    /// Commands of a command buffer.
    steps: Vec<Owned>,
}

impl Queued {
    /// Returns that of a command buffer with these commands.
    pub(super) fn behind(steps: Vec<Owned>) -> Self {
        Self { steps, ..Self::default() }
    }
}

/// A connection's objects, while a command is carried out.
pub(super) struct Executor<'a> {
    pub(super) donor: &'a Donor,
    pub(super) connection: ConnectionId,
    pub(super) objects: &'a mut Objects,
}

impl Executor<'_> {
    /// Carries a command out.
    ///
    /// # Errors
    /// The id of the object that could not be made, or 0, and the error.
    pub(super) fn execute(&mut self, command: Command<'_>) -> Result<(), (u64, Code)> {
        match command.kind {
            CommandKind::CreateContext { id, parts } => {
                self.make(id, Kind::Context, |it| it.context(&parts))
            }
            CommandKind::CreateQueue { id, context, part, properties } => {
                self.make(id, Kind::Queue, |it| it.queue(context, part, properties))?;
                if properties & CL_QUEUE_PROFILING_ENABLE != 0 {
                    self.objects.note_profiling(id);
                }
                Ok(())
            }
            CommandKind::CreateBuffer { id, context, flags, bytes, place, data } => {
                self.make(id, Kind::Memory, |it| match place {
                    Some(offset) => it.placed_buffer(id, context, flags, bytes, offset),
                    None => it.buffer(context, flags, bytes, data.as_ref()),
                })
            }
            CommandKind::CreateSubBuffer { id, parent, flags, origin, bytes } => {
                self.make(id, Kind::Memory, |it| it.sub_buffer(parent, flags, origin, bytes))
            }
            CommandKind::CreateImage { id, context, flags, shape, data } => {
                self.make(id, Kind::Memory, |it| it.image(context, flags, &shape, data.as_ref()))
            }
            CommandKind::CreateSampler { id, context, normalized, addressing, filter } => self
                .make(id, Kind::Sampler, |it| it.sampler(context, normalized, addressing, filter)),
            CommandKind::CreateProgram { id, context, source } => {
                self.make(id, Kind::Program, |it| it.program(context, &source))
            }
            CommandKind::CreateKernel { id, program, name } => {
                self.make(id, Kind::Kernel, |it| it.kernel(program, name))
            }
            CommandKind::CreateUserEvent { id, context } => {
                self.make(id, Kind::Event, |it| it.user_event(context))
            }
            CommandKind::SetUserEvent { id, status } => {
                self.set_user_event(id, status).map_err(|code| (0, code))
            }
            CommandKind::Release { id } => {
                self.objects.release(id);
                Ok(())
            }
            CommandKind::SetArgument { kernel, index, value } => {
                self.set_argument(kernel, index, &value).map_err(|code| (0, code))
            }
            CommandKind::CreateCommandBuffer { id } => {
                self.objects.buffers.add(id).map_err(|code| (id, code))
            }
            CommandKind::Record { buffer, waits, step } => {
                self.objects.buffers.record(buffer, waits, step).map_err(|code| (buffer, code))
            }
            CommandKind::Flush {} => self.flush(command.queue).map_err(|code| (0, code)),
            CommandKind::Launch { .. }
            | CommandKind::ReadBuffer { .. }
            | CommandKind::WriteBuffer { .. }
            | CommandKind::ReadRectangle { .. }
            | CommandKind::WriteRectangle { .. }
            | CommandKind::CopyBuffer { .. }
            | CommandKind::CopyRectangle { .. }
            | CommandKind::FillBuffer { .. }
            | CommandKind::ReadImage { .. }
            | CommandKind::WriteImage { .. }
            | CommandKind::CopyImage { .. }
            | CommandKind::CopyImageToBuffer { .. }
            | CommandKind::CopyBufferToImage { .. }
            | CommandKind::FillImage { .. }
            | CommandKind::Migrate { .. }
            | CommandKind::Marker {}
            | CommandKind::Barrier {}
            | CommandKind::Replay { .. } => self.enqueue(&command).map_err(|code| (0, code)),
        }
    }

    fn make(
        &mut self,
        id: u64,
        kind: Kind,
        make: impl FnOnce(&Self) -> Result<*mut c_void, Code>,
    ) -> Result<(), (u64, Code)> {
        let made = make(self).map(|raw| Owned::new(self.donor.library, kind, raw));
        self.objects.add(id, kind, made).map_err(|code| (id, code))
    }

    /// Makes a context of the device and of parts of it.
    fn context(&self, parts: &[u64]) -> Result<*mut c_void, Code> {
        let library = self.donor.library;
        let mut devices = vec![self.donor.device];
        for part in parts {
            devices.push(self.device(*part)?);
        }
        let (count, first) = (devices.len() as cl_uint, devices.as_ptr());
        created(|code| {
            call!(library, clCreateContext(null(), count, first, None, null_mut(), code))
        })
    }

    /// Returns the device, or a part of it.
    fn device(&self, part: u64) -> Result<cl_device_id, Code> {
        if part == 0 { Ok(self.donor.device) } else { self.objects.get(part, Kind::Part) }
    }

    fn context_of(&self, id: u64) -> Result<cl_context, Code> {
        self.objects.get(id, Kind::Context)
    }

    fn queue(&self, context: u64, part: u64, properties: u64) -> Result<*mut c_void, Code> {
        let (library, context) = (self.donor.library, self.context_of(context)?);
        let device = self.device(part)?;
        created(|code| call!(library, clCreateCommandQueue(context, device, properties, code)))
    }

    fn buffer(
        &self,
        context: u64,
        flags: u64,
        bytes: u64,
        data: Option<&Blob<'_>>,
    ) -> Result<*mut c_void, Code> {
        let (library, context) = (self.donor.library, self.context_of(context)?);
        let bytes = usize::try_from(bytes).map_err(|_| CL_INVALID_BUFFER_SIZE)?;
        let mut data = self.first_data(data)?;
        if data.as_ref().is_some_and(|data| data.len() != bytes) {
            return Err(CL_INVALID_VALUE);
        }
        let (flags, at) = with_data(flags, data.as_mut());
        created(|code| call!(library, clCreateBuffer(context, flags, bytes, at, code)))
    }

    /// Makes a buffer whose bytes lie in the region.
    fn placed_buffer(
        &self,
        id: u64,
        context: u64,
        flags: u64,
        bytes: u64,
        offset: u64,
    ) -> Result<*mut c_void, Code> {
        let (library, context) = (self.donor.library, self.context_of(context)?);
        let at = self.place(offset, bytes)?;
        let flags = flags | CL_MEM_USE_HOST_PTR;
        let raw = created(|code| {
            call!(library, clCreateBuffer(context, flags, bytes as usize, at, code))
        })?;
        let of = (self.connection, id);
        watch::watch_memory(library, &self.donor.inbox, raw, of).map_err(|error| error.code())?;
        Ok(raw)
    }

    fn first_data(&self, data: Option<&Blob<'_>>) -> Result<Option<Vec<u8>>, Code> {
        data.map(|data| self.blob(data)).transpose()
    }

    fn sub_buffer(
        &self,
        parent: u64,
        flags: u64,
        origin: u64,
        bytes: u64,
    ) -> Result<*mut c_void, Code> {
        let library = self.donor.library;
        let parent = self.objects.get(parent, Kind::Memory)?;
        let region = opencl_sys::cl_buffer_region { origin: origin as usize, size: bytes as usize };
        let (kind, region) = (opencl_sys::CL_BUFFER_CREATE_TYPE_REGION, &raw const region);
        created(|code| call!(library, clCreateSubBuffer(parent, flags, kind, region.cast(), code)))
    }

    fn image(
        &self,
        context: u64,
        flags: u64,
        shape: &ImageShape,
        data: Option<&Blob<'_>>,
    ) -> Result<*mut c_void, Code> {
        let (library, context) = (self.donor.library, self.context_of(context)?);
        let buffer = match shape.buffer {
            0 => null_mut(),
            id => self.objects.get(id, Kind::Memory)?,
        };
        let format = cl_image_format {
            image_channel_order: shape.order,
            image_channel_data_type: shape.channel,
        };
        let [width, height, depth] = shape.size.map(|it| it as usize);
        let desc = cl_image_desc {
            image_type: shape.kind,
            image_width: width,
            image_height: height,
            image_depth: depth,
            image_array_size: shape.array as usize,
            image_row_pitch: shape.row_pitch as usize,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            buffer,
        };
        let mut data = self.first_data(data)?;
        if let Some(data) = &data {
            // The driver reads as much as the image has.
            let pixels = shape.pixels().ok_or(CL_INVALID_IMAGE_SIZE)?;
            let needed = shape.pixel_bytes().and_then(|bytes| pixels.checked_mul(bytes));
            if needed.is_none_or(|needed| needed > data.len() as u64) {
                return Err(CL_INVALID_VALUE);
            }
        }
        let (flags, at) = with_data(flags, data.as_mut());
        let (format, desc) = (&raw const format, &raw const desc);
        created(|code| call!(library, clCreateImage(context, flags, format, desc, at, code)))
    }

    fn sampler(
        &self,
        context: u64,
        normalized: bool,
        addressing: u32,
        filter: u32,
    ) -> Result<*mut c_void, Code> {
        let (library, context) = (self.donor.library, self.context_of(context)?);
        created(|code| {
            call!(library, clCreateSampler(context, normalized.into(), addressing, filter, code))
        })
    }

    fn program(&self, context: u64, source: &Blob<'_>) -> Result<*mut c_void, Code> {
        let (library, context) = (self.donor.library, self.context_of(context)?);
        let mut text = self.blob(source)?;
        let len = text.len();
        // Of length 0 drivers look for the terminating zero.
        text.push(0);
        let mut start = text.as_ptr().cast();
        let (start, len) = (&raw mut start, &raw const len);
        created(|code| call!(library, clCreateProgramWithSource(context, 1, start, len, code)))
    }

    fn kernel(&self, program: u64, name: &str) -> Result<*mut c_void, Code> {
        let library = self.donor.library;
        let program = self.objects.get(program, Kind::Program)?;
        let name = CString::new(name).map_err(|_| CL_INVALID_KERNEL_NAME)?;
        created(|code| call!(library, clCreateKernel(program, name.as_ptr(), code)))
    }

    fn user_event(&self, context: u64) -> Result<*mut c_void, Code> {
        let (library, context) = (self.donor.library, self.context_of(context)?);
        created(|code| call!(library, clCreateUserEvent(context, code)))
    }

    fn set_user_event(&self, id: u64, status: i32) -> Result<(), Code> {
        let event = self.objects.get(id, Kind::Event)?;
        let status = status.min(0);
        done(call!(self.donor.library, clSetUserEventStatus(event, status)))
    }

    fn set_argument(&self, kernel: u64, index: u32, value: &Argument<'_>) -> Result<(), Code> {
        let library = self.donor.library;
        let kernel = self.objects.get(kernel, Kind::Kernel)?;
        let set = |bytes: usize, value: *const c_void| {
            done(call!(library, clSetKernelArg(kernel, index, bytes, value)))
        };
        let set_handle =
            |handle: *mut c_void| set(size_of::<*mut c_void>(), (&raw const handle).cast());
        match *value {
            Argument::Value { bytes } => set(bytes.len(), bytes.as_ptr().cast()),
            Argument::Memory { id: 0 } => set_handle(null_mut()),
            Argument::Memory { id } => set_handle(self.objects.get(id, Kind::Memory)?),
            Argument::Sampler { id } => set_handle(self.objects.get(id, Kind::Sampler)?),
            Argument::Local { bytes } => {
                set(usize::try_from(bytes).map_err(|_| CL_INVALID_ARG_VALUE)?, null())
            }
        }
    }

    fn flush(&self, queue: u64) -> Result<(), Code> {
        let queue = self.objects.get(queue, Kind::Queue)?;
        done(call!(self.donor.library, clFlush(queue)))
    }

    /// Enqueues a command, and watches its end if someone is to be told of it.
    fn enqueue(&mut self, command: &Command<'_>) -> Result<(), Code> {
        let enqueued = self.enqueue_unwatched(command);
        if command.event == 0 {
            return match enqueued {
                Ok((handle, queued)) if !(queued.data.is_empty() && queued.steps.is_empty()) => {
                    self.watch(command, handle, queued)
                }
                Ok((handle, _)) => {
                    self.objects.note_last(command.queue, handle);
                    Ok(())
                }
                Err(code) => Err(code),
            };
        }
        let (handle, queued) = match enqueued {
            Ok(done) => done,
            Err(code) => {
                // Commands that wait for it fail too.
                let _ = self.objects.add(command.event, Kind::Event, Err(code));
                return Err(code);
            }
        };
        // One reference for the wait lists of later commands, one for the watch.
        done(call!(self.donor.library, clRetainEvent(handle.raw())))?;
        let shared = Owned::new(self.donor.library, Kind::Event, handle.raw());
        self.objects.add(command.event, Kind::Event, Ok(shared))?;
        self.watch(command, handle, queued)
    }

    fn watch(&self, command: &Command<'_>, handle: Owned, queued: Queued) -> Result<(), Code> {
        let watched = Watched {
            connection: self.connection,
            event: command.event,
            queue: command.queue,
            handle,
            has_times: self.objects.has_times(command.queue),
            steps: queued.steps,
            data: queued.data,
            is_read: queued.is_read,
            is_last: false,
        };
        watch::watch(self.donor.library, &self.donor.inbox, watched).map_err(|error| error.code())
    }

    fn enqueue_unwatched(&mut self, command: &Command<'_>) -> Result<(Owned, Queued), Code> {
        if let CommandKind::Replay { buffer, ref order, alone } = command.kind {
            return self.replay(command, buffer, (order, alone));
        }
        let queue: cl_command_queue = self.objects.get(command.queue, Kind::Queue)?;
        let waits = self.objects.events(&command.waits)?;
        let mut event: cl_event = null_mut();
        let mut queued = Queued::default();
        let to = Target {
            queue,
            count: waits.len() as cl_uint,
            waits: if waits.is_empty() { null() } else { waits.as_ptr() },
            event: &raw mut event,
        };
        done(self.enqueue_on(&to, &command.kind, &mut queued)?)?;
        Ok((Owned::new(self.donor.library, Kind::Event, event), queued))
    }

    pub(super) fn enqueue_on(
        &self,
        to: &Target,
        kind: &CommandKind<'_>,
        queued: &mut Queued,
    ) -> Result<Result<cl_int, OpenClError>, Code> {
        let library = self.donor.library;
        let &Target { queue, count, waits, event } = to;
        Ok(match *kind {
            CommandKind::Launch { kernel, dimensions, offset, global, local } => {
                let kernel = self.objects.get(kernel, Kind::Kernel)?;
                let sizes = |sizes: [u64; 3]| sizes.map(|it| it as usize);
                let (offset, global, local) = (offset.map(sizes), sizes(global), local.map(sizes));
                let pointer =
                    |it: &Option<[usize; 3]>| it.as_ref().map_or(null(), |it| it.as_ptr());
                let (offset, local) = (pointer(&offset), pointer(&local));
                let global = global.as_ptr();
                call!(
                    library,
                    clEnqueueNDRangeKernel(
                        queue, kernel, dimensions, offset, global, local, count, waits, event
                    )
                )
            }
            CommandKind::ReadBuffer { memory, offset, bytes, place } => {
                let memory = self.memory(memory)?;
                let at = match place {
                    Some(place) => self.place(place, bytes)?,
                    None if bytes as usize > INLINE_BYTES => return Err(CL_INVALID_VALUE),
                    None => {
                        queued.data = vec![0; bytes as usize];
                        queued.is_read = true;
                        queued.data.as_mut_ptr().cast()
                    }
                };
                let (offset, bytes) = (offset as usize, bytes as usize);
                call!(
                    library,
                    clEnqueueReadBuffer(queue, memory, 0, offset, bytes, at, count, waits, event)
                )
            }
            CommandKind::WriteBuffer { memory, offset, ref data } => {
                let memory = self.memory(memory)?;
                let (at, bytes) = match *data {
                    Blob::Inline { bytes } => {
                        queued.data = bytes.to_vec();
                        (queued.data.as_ptr().cast(), bytes.len())
                    }
                    Blob::Region { ref place } => {
                        let at = self.place(place.offset, place.bytes)?;
                        (at.cast_const(), place.bytes as usize)
                    }
                };
                let offset = offset as usize;
                call!(
                    library,
                    clEnqueueWriteBuffer(queue, memory, 0, offset, bytes, at, count, waits, event)
                )
            }
            CommandKind::FillBuffer { memory, pattern, offset, bytes } => {
                let memory = self.memory(memory)?;
                if pattern.len() > MAX_PATTERN_BYTES {
                    return Err(CL_INVALID_VALUE);
                }
                let (at, len) = (pattern.as_ptr().cast(), pattern.len());
                let (offset, bytes) = (offset as usize, bytes as usize);
                call!(
                    library,
                    clEnqueueFillBuffer(queue, memory, at, len, offset, bytes, count, waits, event)
                )
            }
            CommandKind::CopyBuffer { from, to, offsets: [from_offset, to_offset], bytes } => {
                let (from, to) = (self.memory(from)?, self.memory(to)?);
                let (from_offset, to_offset) = (from_offset as usize, to_offset as usize);
                let bytes = bytes as usize;
                call!(
                    library,
                    clEnqueueCopyBuffer(
                        queue,
                        from,
                        to,
                        from_offset,
                        to_offset,
                        bytes,
                        count,
                        waits,
                        event
                    )
                )
            }
            CommandKind::Migrate { ref memory, flags } => {
                let handles = memory.iter().map(|id| self.memory(*id));
                let handles = handles.collect::<Result<Vec<_>, _>>()?;
                let (all, first) = (handles.len() as cl_uint, handles.as_ptr());
                call!(
                    library,
                    clEnqueueMigrateMemObjects(queue, all, first, flags, count, waits, event)
                )
            }
            CommandKind::Marker {} => {
                call!(library, clEnqueueMarkerWithWaitList(queue, count, waits, event))
            }
            CommandKind::Barrier {} => {
                call!(library, clEnqueueBarrierWithWaitList(queue, count, waits, event))
            }
            CommandKind::ReadRectangle { .. }
            | CommandKind::WriteRectangle { .. }
            | CommandKind::CopyRectangle { .. } => return self.enqueue_rectangle(to, kind),
            CommandKind::ReadImage { .. }
            | CommandKind::WriteImage { .. }
            | CommandKind::CopyImage { .. }
            | CommandKind::CopyImageToBuffer { .. }
            | CommandKind::CopyBufferToImage { .. }
            | CommandKind::FillImage { .. } => return self.enqueue_image(to, kind),
            _ => return Err(CL_INVALID_VALUE),
        })
    }

    /// Returns a memory object.
    pub(super) fn memory(&self, id: u64) -> Result<cl_mem, Code> {
        self.objects.get(id, Kind::Memory)
    }

    /// Returns the address of a place that this connection has reserved.
    pub(super) fn place(&self, offset: u64, bytes: u64) -> Result<*mut c_void, Code> {
        self.donor.place(self.connection, offset, bytes).ok_or(CL_INVALID_VALUE)
    }

    /// Copies bytes out of a message, or of the region, where the recipient could still change them.
    pub(super) fn blob(&self, blob: &Blob<'_>) -> Result<Vec<u8>, Code> {
        self.donor.blob(self.connection, blob).ok_or(CL_INVALID_VALUE)
    }
}

/// Adds first contents to the flags of a memory object.
fn with_data(flags: u64, data: Option<&mut Vec<u8>>) -> (u64, *mut c_void) {
    match data {
        Some(data) => (flags | CL_MEM_COPY_HOST_PTR, data.as_mut_ptr().cast()),
        None => (flags, null_mut()),
    }
}

/// Queue, wait list and event of a command.
pub(super) struct Target {
    pub(super) queue: cl_command_queue,
    pub(super) count: cl_uint,
    pub(super) waits: *const cl_event,
    pub(super) event: *mut cl_event,
}

/// Calls a function that returns an object and stores a code.
pub(super) fn created(
    make: impl FnOnce(*mut cl_int) -> Result<*mut c_void, OpenClError>,
) -> Result<*mut c_void, Code> {
    let mut code = CL_INVALID_VALUE;
    let made = make(&raw mut code).map_err(|error| error.code())?;
    if code == 0 && !made.is_null() { Ok(made) } else { Err(code.min(-1)) }
}

/// Turns a call's code into a result.
pub(super) fn done(called: Result<cl_int, OpenClError>) -> Result<(), Code> {
    match called {
        Ok(0) => Ok(()),
        Ok(code) => Err(code),
        Err(error) => Err(error.code()),
    }
}
