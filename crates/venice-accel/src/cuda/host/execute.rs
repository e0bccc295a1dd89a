//! Commands and requests on the driver.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use venice_service::{ConnectionId, Status};

use super::objects::{Event, Kernel, Objects, OwnedEvent};
use super::waits::{Reply, Target};
use super::{Cuda, INVALID_VALUE, code_of};
use crate::cuda::library::{CudaError, Library, call};
use crate::cuda::wire::{
    Allocated, Attribute, Awaited, Command, Elapsed, FunctionInfo, GlobalRequest, LoadRequest,
    Loaded, Place, decode, encode,
};

/// Flag of an event without times.
const DISABLE_TIMING: u32 = 2;
const INVALID_HANDLE: i32 = 400;
const OUT_OF_MEMORY: i32 = 2;
const NOT_FOUND: i32 = 500;
/// Numbers of a function's attributes that are asked for.
const FUNCTION_ATTRIBUTES: std::ops::Range<i32> = 0..16;
/// Most parameters of a kernel that are asked for.
const MAX_PARAMETERS: usize = 4096;

/// Outcome of a call, with its code.
type Done<T = ()> = Result<T, i32>;

fn done(result: Result<(), CudaError>) -> Done {
    result.map_err(|error| code_of(&error))
}

fn stream(objects: &Objects, id: u64) -> Done<usize> {
    if id == 0 {
        return Ok(0);
    }
    objects.streams.get(&id).copied().ok_or(INVALID_HANDLE)
}

impl Cuda {
    /// Carries a command out.
    ///
    /// # Errors
    /// The code of the driver.
    pub(super) fn execute(&mut self, connection: ConnectionId, command: &Command<'_>) -> Done {
        let library = self.library;
        match *command {
            Command::WriteFrom { stream: id, to, ref place, done: number } => {
                let from = self.place(connection, place).ok_or(INVALID_VALUE)?;
                let raw = self.stream(connection, id)?;
                let bytes = place.bytes as usize;
                done(call!(library, cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, raw)))?;
                return self.watch(connection, id, Reply::Notice(number)).map_err(|(code, _)| code);
            }
            Command::Read { stream: id, from, ref place, done: number } => {
                let into = self.place(connection, place).ok_or(INVALID_VALUE)?;
                let raw = self.stream(connection, id)?;
                let bytes = place.bytes as usize;
                done(call!(library, cuMemcpyDtoHAsync_v2(into.cast(), from, bytes, raw)))?;
                return self.watch(connection, id, Reply::Notice(number)).map_err(|(code, _)| code);
            }
            Command::Launch { function, grid, block, shared, stream: id, parameters } => {
                let raw = self.stream(connection, id)?;
                return self.launch(connection, function, (grid, block, shared, raw), parameters);
            }
            Command::Release { .. }
            | Command::CreateStream { .. }
            | Command::CreateEvent { .. }
            | Command::Record { .. }
            | Command::WaitEvent { .. }
            | Command::Write { .. }
            | Command::Copy { .. }
            | Command::Fill { .. }
            | Command::Free { .. } => {}
        }
        let objects = &mut self.connections.get_mut(&connection).ok_or(INVALID_HANDLE)?.objects;
        match *command {
            Command::CreateStream { id, flags, priority } => {
                let mut raw = 0;
                done(call!(library, cuStreamCreateWithPriority(&raw mut raw, flags, priority)))?;
                objects.streams.insert(id, raw);
                Ok(())
            }
            Command::CreateEvent { id, flags } => {
                let mut raw = 0;
                done(call!(library, cuEventCreate(&raw mut raw, flags)))?;
                let owned = OwnedEvent::new(library, raw);
                objects.events.insert(id, Event { owned, stream: 0 });
                Ok(())
            }
            Command::Release { id } => {
                if let Some(raw) = objects.streams.remove(&id) {
                    return done(call!(library, cuStreamDestroy_v2(raw)));
                }
                if let Some(raw) = objects.modules.remove(&id) {
                    self.kernels.retain(|_, it| it.connection != connection || it.module != id);
                    return done(call!(library, cuModuleUnload(raw)));
                }
                objects.events.remove(&id).map(drop).ok_or(INVALID_HANDLE)
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
                let from = data.as_ptr().cast::<c_void>();
                // The driver has its own copy of pageable bytes when it returns.
                done(call!(library, cuMemcpyHtoDAsync_v2(to, from, data.len(), raw)))
            }
            Command::Copy { stream: id, to, from, bytes } => {
                let raw = stream(objects, id)?;
                done(call!(library, cuMemcpyDtoDAsync_v2(to, from, bytes as usize, raw)))
            }
            Command::Fill { stream: id, to, width, value, count } => {
                let raw = stream(objects, id)?;
                let count = count as usize;
                match width {
                    1 => done(call!(library, cuMemsetD8Async(to, value as u8, count, raw))),
                    4 => done(call!(library, cuMemsetD32Async(to, value, count, raw))),
                    _ => Err(INVALID_VALUE),
                }
            }
            Command::Free { address } => {
                objects.memory.remove(&address).ok_or(INVALID_VALUE)?;
                done(call!(library, cuMemFree_v2(address)))
            }
            Command::WriteFrom { .. } | Command::Read { .. } | Command::Launch { .. } => Ok(()),
        }
    }

    fn objects(&self, connection: ConnectionId) -> Done<&Objects> {
        Ok(&self.connections.get(&connection).ok_or(INVALID_HANDLE)?.objects)
    }

    fn stream(&self, connection: ConnectionId, id: u64) -> Done<usize> {
        stream(self.objects(connection)?, id)
    }

    fn launch(
        &self,
        connection: ConnectionId,
        function: u64,
        (grid, block, shared, stream): ([u32; 3], [u32; 3], u32, usize),
        parameters: &[u8],
    ) -> Done {
        let kernel = self.kernels.get(&function).filter(|it| it.connection == connection);
        let kernel = kernel.ok_or(INVALID_HANDLE)?;
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
        let ([x, y, z], [a, b, c]) = (grid, block);
        let extra = extra.as_mut_ptr();
        done(call!(
            self.library,
            cuLaunchKernel(kernel.raw, x, y, z, a, b, c, shared, stream, null_mut(), extra)
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
        let raw = match self.stream(connection, id) {
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
                match event.map(|it| (it.stream, std::sync::Arc::clone(&it.owned))) {
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

    pub(super) fn query(&self, connection: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok(awaited) = decode(payload) else { return (Status::MALFORMED, Vec::new()) };
        let library = self.library;
        let asked = self.objects(connection).and_then(|objects| match awaited {
            Awaited::Stream { id } => done(call!(library, cuStreamQuery(stream(objects, id)?))),
            Awaited::Event { id } => {
                let event = objects.events.get(&id).ok_or(INVALID_HANDLE)?;
                done(call!(library, cuEventQuery(event.owned.raw)))
            }
            Awaited::Everything {} => Err(INVALID_VALUE),
        });
        (Status::OK, encode(&asked.err().unwrap_or(0)))
    }

    pub(super) fn load(&mut self, connection: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok(LoadRequest { id, image }) = decode(payload) else {
            return (Status::MALFORMED, Vec::new());
        };
        let Some(mut image) = self.blob(connection, &image) else {
            return (Status::MALFORMED, Vec::new());
        };
        // A text ends with a zero.
        image.push(0);
        let loaded = self.load_image(connection, id, &image);
        let loaded = match loaded {
            Ok(functions) => Loaded { status: 0, functions },
            Err(status) => Loaded { status, functions: Vec::new() },
        };
        self.answer_long(connection, &encode(&loaded))
    }

    fn load_image(
        &mut self,
        connection: ConnectionId,
        id: u64,
        image: &[u8],
    ) -> Done<Vec<FunctionInfo>> {
        let library = self.library;
        let mut module = 0;
        done(call!(library, cuModuleLoadData(&raw mut module, image.as_ptr().cast())))?;
        let state = self.connections.get_mut(&connection).ok_or(INVALID_HANDLE)?;
        if let Some(former) = state.objects.modules.insert(id, module) {
            let _ = call!(library, cuModuleUnload(former));
        }
        let mut count = 0;
        done(call!(library, cuModuleGetFunctionCount(&raw mut count, module)))?;
        let mut all = vec![0_usize; count as usize];
        done(call!(library, cuModuleEnumerateFunctions(all.as_mut_ptr(), count, module)))?;
        let mut functions = Vec::new();
        for raw in all {
            let info = describe(library, raw, self.next_kernel)?;
            let end = |it: &Place| it.offset + it.bytes;
            let bytes = info.parameters.iter().map(end).max().unwrap_or(0) as usize;
            let kernel = Kernel { connection, module: id, raw, bytes };
            self.kernels.insert(self.next_kernel, kernel);
            self.next_kernel += 1;
            functions.push(info);
        }
        Ok(functions)
    }

    pub(super) fn allocate(
        &mut self,
        connection: ConnectionId,
        payload: &[u8],
    ) -> (Status, Vec<u8>) {
        let Ok(bytes) = decode::<u64>(payload) else { return (Status::MALFORMED, Vec::new()) };
        let allocated = self.allocate_bytes(connection, bytes);
        let (status, address) = allocated.map_or_else(|code| (code, 0), |address| (0, address));
        (Status::OK, encode(&Allocated { status, address, bytes }))
    }

    fn allocate_bytes(&mut self, connection: ConnectionId, bytes: u64) -> Done<u64> {
        if bytes > self.free_bytes() {
            return Err(OUT_OF_MEMORY);
        }
        let mut address = 0;
        done(call!(self.library, cuMemAlloc_v2(&raw mut address, bytes as usize)))?;
        let state = self.connections.get_mut(&connection).ok_or(INVALID_HANDLE)?;
        state.objects.memory.insert(address, bytes);
        Ok(address)
    }

    /// Returns the bytes of the grant that are not allocated.
    pub(super) fn free_bytes(&self) -> u64 {
        let all = self.connections.values().flat_map(|state| state.objects.memory.values());
        self.granted_bytes.saturating_sub(all.sum())
    }

    pub(super) fn global(&self, connection: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok(GlobalRequest { module, name }) = decode(payload) else {
            return (Status::MALFORMED, Vec::new());
        };
        let (mut address, mut bytes) = (0, 0);
        let found = self.objects(connection).and_then(|objects| {
            let raw = *objects.modules.get(&module).ok_or(INVALID_HANDLE)?;
            let name = CString::new(name).map_err(|_| NOT_FOUND)?;
            let (at, len) = (&raw mut address, &raw mut bytes);
            done(call!(self.library, cuModuleGetGlobal_v2(at, len, raw, name.as_ptr())))
        });
        let status = found.err().unwrap_or(0);
        (Status::OK, encode(&Allocated { status, address, bytes: bytes as u64 }))
    }

    pub(super) fn elapsed(&self, connection: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok([start, end]) = decode::<[u64; 2]>(payload) else {
            return (Status::MALFORMED, Vec::new());
        };
        let mut ms = 0_f32;
        let asked = self.objects(connection).and_then(|objects| {
            let raw = |id| -> Done<usize> {
                Ok(objects.events.get(&id).ok_or(INVALID_HANDLE)?.owned.raw)
            };
            done(call!(self.library, cuEventElapsedTime(&raw mut ms, raw(start)?, raw(end)?)))
        });
        let status = asked.err().unwrap_or(0);
        (Status::OK, encode(&Elapsed { status, ms: ms.to_bits() }))
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

/// Describes a kernel.
fn describe(library: &Library, raw: usize, number: u64) -> Done<FunctionInfo> {
    let mut name = std::ptr::null();
    done(call!(library, cuFuncGetName(&raw mut name, raw)))?;
    // SAFETY: the driver returns a terminated string, which lives as long as the module.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let mut parameters = Vec::new();
    for place in 0..MAX_PARAMETERS {
        let (mut offset, mut bytes) = (0, 0);
        let asked = call!(library, cuFuncGetParamInfo(raw, place, &raw mut offset, &raw mut bytes));
        if asked.is_err() {
            break;
        }
        parameters.push(Place { offset: offset as u64, bytes: bytes as u64 });
    }
    let attribute = |name| {
        let mut value = 0;
        let asked = call!(library, cuFuncGetAttribute(&raw mut value, name, raw));
        asked.ok().map(|()| Attribute { name, value })
    };
    let attributes = FUNCTION_ATTRIBUTES.filter_map(attribute).collect();
    Ok(FunctionInfo { name, number, parameters, attributes })
}
