//! Commands on the driver.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use venice_service::{ConnectionId, Status};

use super::gates::Gate;
use super::objects::{Event, Objects, OwnedEvent};
use super::waits::{Reply, Target};
use super::{Cuda, INVALID_VALUE, MAX_OBJECTS, code_of};
use crate::cuda::library::{CudaError, LaunchAttributeRaw, LaunchConfig, RowCopy, RowSide, call};
use crate::cuda::wire::{
    Awaited, CARRIED_ATTRIBUTES, Command, LaunchAttribute, Place, Reader, Rows, decode, encode,
};

/// Flag of an event without times.
const DISABLE_TIMING: u32 = 2;
pub(super) const INVALID_HANDLE: i32 = 400;
pub(super) const OUT_OF_MEMORY: i32 = 2;
/// `CUmemorytype`s.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// Outcome of a call, with its code.
pub(super) type Done<T = ()> = Result<T, i32>;

pub(super) fn done(result: Result<(), CudaError>) -> Done {
    result.map_err(|error| code_of(&error))
}

pub(super) fn stream(objects: &Objects, id: u64) -> Done<usize> {
    if id == 0 {
        return Ok(0);
    }
    objects.streams.get(&id).copied().ok_or(INVALID_HANDLE)
}

/// Fails if bytes are no memory of the recipient's.
fn check(objects: &Objects, address: u64, bytes: u64) -> Done {
    if bytes == 0 || objects.owns(address, bytes) { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Fails if rows are no memory of the recipient's.
fn check_rows(objects: &Objects, rows: &Rows, width: u64, count: u64) -> Done {
    let last = count.checked_sub(1).ok_or(INVALID_VALUE)?;
    let bytes = rows.pitch.checked_mul(last).and_then(|it| it.checked_add(width));
    if width == 0 || (count > 1 && rows.pitch < width) {
        return Err(INVALID_VALUE);
    }
    check(objects, rows.at, bytes.ok_or(INVALID_VALUE)?)
}

fn host_side(at: *mut u8, width: u64) -> RowSide {
    let (host, pitch) = (at.cast(), width as usize);
    RowSide { x: 0, y: 0, kind: HOST, host, device: 0, array: 0, pitch }
}

fn device_side(rows: &Rows) -> RowSide {
    let (device, pitch) = (rows.at, rows.pitch as usize);
    RowSide { x: 0, y: 0, kind: DEVICE, host: null_mut(), device, array: 0, pitch }
}

/// A launch, but for its function and its parameters.
struct Launch<'a> {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: u64,
    attributes: &'a [LaunchAttribute],
}

impl Cuda {
    /// Carries a command out.
    ///
    /// # Errors
    /// The code of the driver.
    pub(super) fn execute(&mut self, connection: ConnectionId, command: &Command<'_>) -> Done {
        match *command {
            Command::WriteFrom { .. }
            | Command::Read { .. }
            | Command::WriteRows { .. }
            | Command::ReadRows { .. } => self.copy_region(connection, command),
            Command::Launch { function, grid, block, shared, stream, parameters } => {
                let launch = Launch { grid, block, shared, stream, attributes: &[] };
                self.launch(connection, function, &launch, parameters)
            }
            Command::LaunchWith {
                function,
                grid,
                block,
                shared,
                stream,
                ref attributes,
                parameters,
            } => {
                let launch = Launch { grid, block, shared, stream, attributes };
                self.launch(connection, function, &launch, parameters)
            }
            Command::SetAttribute { function, name, value } => {
                let kernel = self.kernels.get(&function).filter(|it| it.connection == connection);
                let raw = kernel.ok_or(INVALID_HANDLE)?.raw;
                done(call!(self.library, cuFuncSetAttribute(raw, name, value)))
            }
            Command::SetLimit { limit, value } => {
                done(call!(self.library, cuCtxSetLimit(limit, value as usize)))
            }
            Command::Free { address } => {
                if !self.objects_mut(connection)?.remove_memory(address) {
                    return Err(INVALID_VALUE);
                }
                self.free(address);
                Ok(())
            }
            Command::Release { id } => self.release(connection, id),
            Command::Gate { stream: id, gate } => {
                let inbox = Arc::clone(&self.inbox);
                let library = self.library;
                let objects = self.objects_mut(connection)?;
                let raw = stream(objects, id)?;
                if objects.count() >= MAX_OBJECTS || objects.gates.contains_key(&gate) {
                    return Err(OUT_OF_MEMORY);
                }
                let made = Gate::new(connection, gate, &inbox);
                done(made.place(library, raw))?;
                objects.gates.insert(gate, made);
                Ok(())
            }
            Command::Open { gate } => {
                let gate = self.objects_mut(connection)?.gates.remove(&gate);
                gate.ok_or(INVALID_HANDLE)?.open();
                Ok(())
            }
            Command::Define { sequence, is_first, commands } => {
                self.define(connection, sequence, is_first, commands)
            }
            Command::Replay { sequence, stream } => self.replay(connection, sequence, stream),
            Command::CreateStream { .. }
            | Command::CreateEvent { .. }
            | Command::Record { .. }
            | Command::WaitEvent { .. }
            | Command::Write { .. }
            | Command::Copy { .. }
            | Command::CopyRows { .. }
            | Command::Fill { .. }
            | Command::FreeOrdered { .. } => self.execute_simple(connection, command),
        }
    }

    /// Carries out a command of a stream that nothing but the driver has a part in.
    fn execute_simple(&mut self, connection: ConnectionId, command: &Command<'_>) -> Done {
        let library = self.library;
        let objects = &mut self.connections.get_mut(&connection).ok_or(INVALID_HANDLE)?.objects;
        match *command {
            Command::CreateStream { id, flags, priority } => {
                if objects.count() >= MAX_OBJECTS || id == 0 || objects.streams.contains_key(&id) {
                    return Err(OUT_OF_MEMORY);
                }
                let mut raw = 0;
                done(call!(library, cuStreamCreateWithPriority(&raw mut raw, flags, priority)))?;
                objects.streams.insert(id, raw);
                Ok(())
            }
            Command::CreateEvent { id, flags } => {
                if objects.count() >= MAX_OBJECTS {
                    return Err(OUT_OF_MEMORY);
                }
                let mut raw = 0;
                done(call!(library, cuEventCreate(&raw mut raw, flags)))?;
                let owned = OwnedEvent::new(library, raw);
                objects.events.insert(id, Event { owned, stream: 0 });
                Ok(())
            }
            Command::Record { event, stream: id } => {
                let raw = stream(objects, id)?;
                let event = objects.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
                event.stream = id;
                done(call!(library, cuEventRecord(event.owned.raw, raw)))
            }
            Command::WaitEvent { stream: id, event } => {
                let raw = stream(objects, id)?;
                let event = objects.events.get(&event).ok_or(INVALID_HANDLE)?;
                done(call!(library, cuStreamWaitEvent(raw, event.owned.raw, 0)))
            }
            Command::Write { stream: id, to, data } => {
                let raw = stream(objects, id)?;
                check(objects, to, data.len() as u64)?;
                let from = data.as_ptr().cast::<c_void>();
                // The driver has its own copy of pageable bytes when it returns.
                done(call!(library, cuMemcpyHtoDAsync_v2(to, from, data.len(), raw)))
            }
            Command::Copy { stream: id, to, from, bytes } => {
                let raw = stream(objects, id)?;
                check(objects, to, bytes)?;
                check(objects, from, bytes)?;
                done(call!(library, cuMemcpyDtoDAsync_v2(to, from, bytes as usize, raw)))
            }
            Command::CopyRows { stream: id, ref to, ref from, width, rows } => {
                let raw = stream(objects, id)?;
                check_rows(objects, to, width, rows)?;
                check_rows(objects, from, width, rows)?;
                let (from, to) = (device_side(from), device_side(to));
                let copy = RowCopy { from, to, width: width as usize, rows: rows as usize };
                done(call!(library, cuMemcpy2DAsync_v2(&raw const copy, raw)))
            }
            Command::Fill { stream: id, to, width, value, count } => {
                let raw = stream(objects, id)?;
                let bytes = count.checked_mul(u64::from(width)).ok_or(INVALID_VALUE)?;
                check(objects, to, bytes)?;
                let count = count as usize;
                match width {
                    1 => done(call!(library, cuMemsetD8Async(to, value as u8, count, raw))),
                    2 => done(call!(library, cuMemsetD16Async(to, value as u16, count, raw))),
                    4 => done(call!(library, cuMemsetD32Async(to, value, count, raw))),
                    _ => Err(INVALID_VALUE),
                }
            }
            Command::FreeOrdered { stream: id, address } => {
                let raw = stream(objects, id)?;
                if !objects.remove_memory(address) {
                    return Err(INVALID_VALUE);
                }
                done(call!(library, cuMemFreeAsync(address, raw)))
            }
            _ => Err(INVALID_VALUE),
        }
    }

    /// Copies between the region and the device; a notice tells the end.
    fn copy_region(&mut self, connection: ConnectionId, command: &Command<'_>) -> Done {
        let library = self.library;
        let (id, place, number) = match *command {
            Command::WriteFrom { stream, ref place, done, .. }
            | Command::Read { stream, ref place, done, .. }
            | Command::WriteRows { stream, ref place, done, .. }
            | Command::ReadRows { stream, ref place, done, .. } => (stream, place, done),
            _ => return Err(INVALID_VALUE),
        };
        let at = self.place(connection, place).ok_or(INVALID_VALUE)?;
        let objects = self.objects(connection)?;
        let raw = stream(objects, id)?;
        let bytes = place.bytes as usize;
        match *command {
            Command::WriteFrom { to, .. } => {
                check(objects, to, place.bytes)?;
                done(call!(library, cuMemcpyHtoDAsync_v2(to, at.cast(), bytes, raw)))?;
            }
            Command::Read { from, .. } => {
                check(objects, from, place.bytes)?;
                done(call!(library, cuMemcpyDtoHAsync_v2(at.cast(), from, bytes, raw)))?;
            }
            Command::WriteRows { ref to, width, .. } => {
                let rows = rows_in(place, width)?;
                check_rows(objects, to, width, rows)?;
                let (from, to) = (host_side(at, width), device_side(to));
                let copy = RowCopy { from, to, width: width as usize, rows: rows as usize };
                done(call!(library, cuMemcpy2DAsync_v2(&raw const copy, raw)))?;
            }
            Command::ReadRows { ref from, width, .. } => {
                let rows = rows_in(place, width)?;
                check_rows(objects, from, width, rows)?;
                let (from, to) = (device_side(from), host_side(at, width));
                let copy = RowCopy { from, to, width: width as usize, rows: rows as usize };
                done(call!(library, cuMemcpy2DAsync_v2(&raw const copy, raw)))?;
            }
            _ => return Err(INVALID_VALUE),
        }
        self.watch(connection, id, Reply::Notice(number)).map_err(|(code, _)| code)
    }

    /// Keeps commands for repetition.
    fn define(
        &mut self,
        connection: ConnectionId,
        sequence: u64,
        is_first: bool,
        commands: &[u8],
    ) -> Done {
        let mut reader = Reader::new(commands);
        while !reader.is_at_end() {
            let command = reader.take::<Command<'_>>();
            if !command.is_ok_and(|mut it| it.put_into(0)) {
                return Err(INVALID_VALUE);
            }
        }
        let objects = self.objects_mut(connection)?;
        if is_first {
            objects.remove_sequence(sequence);
        }
        let has_room = objects.count() < MAX_OBJECTS;
        if has_room && objects.add_to_sequence(sequence, commands) {
            Ok(())
        } else {
            Err(OUT_OF_MEMORY)
        }
    }

    /// Carries kept commands out, up to one that fails.
    fn replay(&mut self, connection: ConnectionId, sequence: u64, stream: u64) -> Done {
        let commands = self.objects(connection)?.sequence(sequence).ok_or(INVALID_HANDLE)?;
        let mut reader = Reader::new(&commands);
        while !reader.is_at_end() {
            let mut command = reader.take::<Command<'_>>().map_err(|_| INVALID_VALUE)?;
            if !command.put_into(stream) {
                return Err(INVALID_VALUE);
            }
            self.execute(connection, &command)?;
        }
        Ok(())
    }

    fn release(&mut self, connection: ConnectionId, id: u64) -> Done {
        let library = self.library;
        let objects = self.objects_mut(connection)?;
        if let Some(raw) = objects.streams.remove(&id) {
            return done(call!(library, cuStreamDestroy_v2(raw)));
        }
        if let Some(raw) = objects.modules.remove(&id) {
            objects.remove_globals_of(id);
            self.kernels.retain(|_, it| it.connection != connection || it.module != id);
            self.unload(raw);
            return Ok(());
        }
        if objects.remove_sequence(id) {
            return Ok(());
        }
        objects.events.remove(&id).map(drop).ok_or(INVALID_HANDLE)
    }

    pub(super) fn objects(&self, connection: ConnectionId) -> Done<&Objects> {
        Ok(&self.connections.get(&connection).ok_or(INVALID_HANDLE)?.objects)
    }

    pub(super) fn objects_mut(&mut self, connection: ConnectionId) -> Done<&mut Objects> {
        Ok(&mut self.connections.get_mut(&connection).ok_or(INVALID_HANDLE)?.objects)
    }

    fn launch(
        &self,
        connection: ConnectionId,
        function: u64,
        launch: &Launch<'_>,
        parameters: &[u8],
    ) -> Done {
        let kernel = self.kernels.get(&function).filter(|it| it.connection == connection);
        let kernel = kernel.ok_or(INVALID_HANDLE)?;
        let stream = stream(self.objects(connection)?, launch.stream)?;
        if parameters.len() != kernel.bytes {
            return Err(INVALID_VALUE);
        }
        let mut len = parameters.len();
        // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END.
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(1),
            parameters.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(2),
            (&raw mut len).cast(),
            null_mut(),
        ];
        let extra = extra.as_mut_ptr();
        let ([x, y, z], [a, b, c]) = (launch.grid, launch.block);
        let shared = launch.shared;
        if launch.attributes.is_empty() {
            return done(call!(
                self.library,
                cuLaunchKernel(kernel.raw, x, y, z, a, b, c, shared, stream, null_mut(), extra)
            ));
        }
        let mut attributes = Vec::new();
        for it in launch.attributes {
            // Others hold handles, which the recipient must not choose.
            if !CARRIED_ATTRIBUTES.contains(&it.name) {
                return Err(INVALID_VALUE);
            }
            let (words, _) = it.value.as_chunks::<8>();
            let value = std::array::from_fn(|at| u64::from_ne_bytes(words[at]));
            attributes.push(LaunchAttributeRaw { name: it.name, pad: 0, value });
        }
        let config = LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            shared,
            stream,
            attributes: attributes.as_ptr(),
            count: attributes.len() as u32,
        };
        done(call!(
            self.library,
            cuLaunchKernelEx(&raw const config, kernel.raw, null_mut(), extra)
        ))
    }

    /// Has the end of a stream's commands told.
    fn watch(
        &mut self,
        connection: ConnectionId,
        id: u64,
        reply: Reply,
    ) -> Result<(), (i32, Reply)> {
        let library = self.library;
        let raw = match self.objects(connection).and_then(|it| stream(it, id)) {
            Ok(raw) => raw,
            Err(code) => return Err((code, reply)),
        };
        let mut event = 0;
        if let Err(code) = done(call!(library, cuEventCreate(&raw mut event, DISABLE_TIMING))) {
            return Err((code, reply));
        }
        let event = OwnedEvent::new(library, event);
        if let Err(code) = done(call!(library, cuEventRecord(event.raw, raw))) {
            return Err((code, reply));
        }
        let target = Target::Event { stream: id, event };
        self.waiters.wait(connection, target, reply).map_err(|reply| (OUT_OF_MEMORY, reply))
    }

    /// Answers later, once something has ended.
    ///
    /// # Errors
    /// The answer, if it is known at once.
    pub(super) fn wait(
        &mut self,
        connection: ConnectionId,
        request: u64,
        payload: &[u8],
    ) -> Result<(), (Status, Vec<u8>)> {
        let awaited = decode(payload).map_err(|_| (Status::MALFORMED, Vec::new()))?;
        let reply = Reply::Answer(request);
        let waits = match awaited {
            Awaited::Stream { id } => self.watch(connection, id, reply),
            Awaited::Event { id } => {
                let event = self.objects(connection).ok().and_then(|it| it.events.get(&id));
                match event.map(|it| (it.stream, Arc::clone(&it.owned))) {
                    Some((stream, event)) => self
                        .waiters
                        .wait(connection, Target::Event { stream, event }, reply)
                        .map_err(|reply| (OUT_OF_MEMORY, reply)),
                    None => Err((INVALID_HANDLE, reply)),
                }
            }
            Awaited::Everything {} => self
                .waiters
                .wait(connection, Target::Everything, reply)
                .map_err(|reply| (OUT_OF_MEMORY, reply)),
        };
        waits.map_err(|(code, _)| {
            let state = self.connections.get_mut(&connection);
            let deferred = state.map_or(0, |state| std::mem::take(&mut state.deferred));
            (Status::OK, encode(&if deferred != 0 { deferred } else { code }))
        })
    }

    /// Notes that the device is idle, if all streams are.
    pub(super) fn settle(&mut self, now_ns: u64) {
        if !self.activity.is_busy() {
            return;
        }
        let library = self.library;
        let streams = self.connections.values().flat_map(|it| it.objects.streams.values());
        let is_idle = |raw: usize| call!(library, cuStreamQuery(raw)).is_ok();
        match streams.copied().chain([0]).all(is_idle) {
            true => self.activity.handle_idle(now_ns),
            false => self.activity.look_again(now_ns),
        }
    }
}

/// Returns the number of rows in a place without gaps.
fn rows_in(place: &Place, width: u64) -> Done<u64> {
    if width == 0 || !place.bytes.is_multiple_of(width) {
        return Err(INVALID_VALUE);
    }
    Ok(place.bytes / width)
}
