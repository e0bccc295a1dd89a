//! Requests on the driver.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use venice_service::{ConnectionId, Status};

use super::build::{self, Image};
use super::execute::{Done, INVALID_HANDLE, OUT_OF_MEMORY, done, stream};
use super::objects::Kernel;
use super::{
    Allocation, Brought, Built, Cuda, INVALID_VALUE, MAX_BUILD_BYTES, MAX_OBJECTS, Product,
};
use crate::cuda::library::{Library, call};
use crate::cuda::wire::{
    Allocated, Awaited, Elapsed, GlobalRequest, LinkRequest, LoadRequest, Loaded, OccupancyRequest,
    OrderedRequest, Place, Told, decode, encode,
};

const NOT_FOUND: i32 = 500;

/// Answer of a request; `None`: it comes later.
type Answer = Option<(Status, Vec<u8>)>;

const MALFORMED: (Status, Vec<u8>) = (Status::MALFORMED, Vec::new());
const BUSY: (Status, Vec<u8>) = (Status::BUSY, Vec::new());

impl Cuda {
    /// Loads a module, on the thread for that.
    pub(super) fn load(
        &mut self,
        connection: ConnectionId,
        request: u64,
        payload: &[u8],
    ) -> Answer {
        let Ok(LoadRequest { id, options, image }) = decode(payload) else {
            return Some(MALFORMED);
        };
        let bytes = self.building_bytes + image.bytes();
        if bytes > MAX_BUILD_BYTES {
            return Some(BUSY);
        }
        let Some(mut image) = self.blob(connection, &image) else { return Some(MALFORMED) };
        self.building_bytes = bytes;
        let bytes = image.len() as u64;
        // A text ends with a zero.
        image.push(0);
        self.builder.give(move |library| {
            let (module, logs) = build::load(library, &image, &options);
            let product = Product::Module { id, module, logs };
            Some(Brought::Built(Built { connection, request, bytes, product }))
        });
        None
    }

    /// Links images, on the thread for that.
    pub(super) fn link(
        &mut self,
        connection: ConnectionId,
        request: u64,
        payload: &[u8],
    ) -> Answer {
        let Ok(LinkRequest { options, images, bytes }) = decode(payload) else {
            return Some(MALFORMED);
        };
        let sum = self.building_bytes + bytes.bytes();
        if sum > MAX_BUILD_BYTES {
            return Some(BUSY);
        }
        let Some(all) = self.blob(connection, &bytes) else { return Some(MALFORMED) };
        let (bytes, mut left, mut parts) = (all.len() as u64, &all[..], Vec::new());
        for it in images {
            let len = usize::try_from(it.bytes).unwrap_or(usize::MAX);
            let Some((part, rest)) = left.split_at_checked(len) else { return Some(MALFORMED) };
            left = rest;
            let Ok(name) = CString::new(it.name) else { return Some(MALFORMED) };
            parts.push(Image { kind: it.kind, name, values: it.values, bytes: part.to_vec() });
        }
        self.building_bytes = sum;
        self.builder.give(move |library| {
            let product = Product::Linked(build::link(library, parts, &options));
            Some(Brought::Built(Built { connection, request, bytes, product }))
        });
        None
    }

    /// Answers a load or a link.
    pub(super) fn built(&mut self, built: Built) {
        let Built { connection, request, bytes, product } = built;
        self.building_bytes -= bytes;
        let library = self.library;
        let answer = match product {
            Product::Linked(linked) => encode(&linked),
            Product::Module { module: Err(status), logs, .. } => {
                encode(&build::failed(status, logs))
            }
            Product::Module { id, module: Ok(module), logs } => {
                let objects = self.objects_mut(connection);
                let Some(objects) = objects.ok().filter(|it| it.count() < MAX_OBJECTS) else {
                    let _ = call!(library, cuModuleUnload(module.raw));
                    return;
                };
                if let Some(former) = objects.modules.insert(id, module.raw) {
                    self.unload(former);
                }
                let mut functions = Vec::new();
                for (raw, mut info) in module.functions {
                    let end = |it: &Place| it.offset + it.bytes;
                    let bytes = info.parameters.iter().map(end).max().unwrap_or(0) as usize;
                    info.number = self.next_kernel;
                    self.next_kernel += 1;
                    let kernel = Kernel { connection, module: id, raw, bytes };
                    self.kernels.insert(info.number, kernel);
                    functions.push(info);
                }
                encode(&Loaded { status: 0, functions, logs })
            }
        };
        if self.connections.contains_key(&connection) {
            let (status, answer) = self.answer_long(connection, &answer);
            self.answer(connection, request, status, answer);
        }
    }

    /// Allocates memory.
    pub(super) fn allocate(
        &mut self,
        connection: ConnectionId,
        request: u64,
        payload: &[u8],
    ) -> Answer {
        let Ok(bytes) = decode::<u64>(payload) else { return Some(MALFORMED) };
        self.allocate_bytes(connection, request, bytes, None)
    }

    /// Allocates memory in the order of a stream.
    pub(super) fn allocate_ordered(
        &mut self,
        connection: ConnectionId,
        request: u64,
        payload: &[u8],
    ) -> Answer {
        let Ok(OrderedRequest { bytes, stream: id }) = decode(payload) else {
            return Some(MALFORMED);
        };
        match self.objects(connection).and_then(|it| stream(it, id)) {
            Ok(raw) => self.allocate_bytes(connection, request, bytes, Some(raw)),
            Err(code) => Some(allocated(Err(code), bytes)),
        }
    }

    fn allocate_bytes(
        &mut self,
        connection: ConnectionId,
        request: u64,
        bytes: u64,
        stream: Option<usize>,
    ) -> Answer {
        let is_freeing = self.freeing.load(Ordering::Acquire) > 0;
        if bytes > self.free_bytes() + self.releasing_bytes || bytes == 0 {
            return Some(allocated(Err(if bytes == 0 { INVALID_VALUE } else { OUT_OF_MEMORY }), 0));
        }
        if bytes <= self.free_bytes() {
            match allocate(self.library, bytes, stream) {
                Err(OUT_OF_MEMORY) if is_freeing => {}
                made => {
                    let made = made.and_then(|address| self.own(connection, address, bytes));
                    return Some(allocated(made, bytes));
                }
            }
        }
        // Behind what is being freed.
        self.freer.give(move |library| {
            let address = allocate(library, bytes, stream);
            Some(Brought::Allocated(Allocation { connection, request, bytes, address }))
        });
        None
    }

    /// Answers an allocation that has waited.
    pub(super) fn allocated(&mut self, allocation: Allocation) {
        let Allocation { connection, request, bytes, address } = allocation;
        let is_too_much = bytes > self.free_bytes();
        if let Ok(address) = address
            && (is_too_much || !self.connections.contains_key(&connection))
        {
            let _ = call!(self.library, cuMemFree_v2(address));
        }
        let made = if is_too_much { Err(OUT_OF_MEMORY) } else { address };
        let made = made.and_then(|address| self.own(connection, address, bytes));
        let (status, answer) = allocated(made, bytes);
        if self.connections.contains_key(&connection) {
            self.answer(connection, request, status, answer);
        }
    }

    fn own(&mut self, connection: ConnectionId, address: u64, bytes: u64) -> Done<u64> {
        self.objects_mut(connection)?.add_memory(address, bytes);
        Ok(address)
    }

    /// Frees memory on the thread for that: the driver waits for the device.
    pub(super) fn free(&self, address: u64) {
        let freeing = Arc::clone(&self.freeing);
        freeing.fetch_add(1, Ordering::AcqRel);
        self.freer.give(move |library| {
            let _ = call!(library, cuMemFree_v2(address));
            count_down(&freeing);
            None
        });
    }

    /// Unloads a module on that thread, for the same reason.
    pub(super) fn unload(&self, module: usize) {
        self.freer.give(move |library| {
            let _ = call!(library, cuModuleUnload(module));
            None
        });
    }

    /// Returns the bytes of the grant that are not allocated.
    pub(super) fn free_bytes(&self) -> u64 {
        let used: u64 = self.connections.values().map(|it| it.objects.memory_bytes()).sum();
        self.granted_bytes.saturating_sub(used + self.releasing_bytes)
    }

    pub(super) fn query(&self, connection: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok(awaited) = decode(payload) else { return MALFORMED };
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

    pub(super) fn global(&mut self, connection: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok(GlobalRequest { module, name }) = decode(payload) else { return MALFORMED };
        let library = self.library;
        let (mut address, mut bytes) = (0, 0);
        let found = self.objects_mut(connection).and_then(|objects| {
            let raw = *objects.modules.get(&module).ok_or(INVALID_HANDLE)?;
            let name = CString::new(name).map_err(|_| NOT_FOUND)?;
            let (at, len) = (&raw mut address, &raw mut bytes);
            done(call!(library, cuModuleGetGlobal_v2(at, len, raw, name.as_ptr())))?;
            objects.add_global(address, module, bytes as u64);
            Ok(())
        });
        let status = found.err().unwrap_or(0);
        (Status::OK, encode(&Allocated { status, address, bytes: bytes as u64 }))
    }

    pub(super) fn elapsed(&self, connection: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok([start, end]) = decode::<[u64; 2]>(payload) else { return MALFORMED };
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

    pub(super) fn occupancy(&self, connection: ConnectionId, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok(asked) = decode(payload) else { return MALFORMED };
        let raw = |function: u64| -> Done<usize> {
            let kernel = self.kernels.get(&function).filter(|it| it.connection == connection);
            Ok(kernel.ok_or(INVALID_HANDLE)?.raw)
        };
        let value = match asked {
            OccupancyRequest::Blocks { function, threads, shared, flags } => {
                let mut blocks = 0;
                raw(function)
                    .and_then(|raw| {
                        let (at, shared) = (&raw mut blocks, shared as usize);
                        done(call!(
                            self.library,
                            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                                at, raw, threads, shared, flags
                            )
                        ))
                    })
                    .map(|()| u64::try_from(blocks).unwrap_or(0))
            }
            OccupancyRequest::Shared { function, blocks, threads } => {
                let mut bytes = 0_usize;
                raw(function)
                    .and_then(|raw| {
                        let at = &raw mut bytes;
                        done(call!(
                            self.library,
                            cuOccupancyAvailableDynamicSMemPerBlock(at, raw, blocks, threads)
                        ))
                    })
                    .map(|()| bytes as u64)
            }
        };
        told(value)
    }

    pub(super) fn limit(&self, payload: &[u8]) -> (Status, Vec<u8>) {
        let Ok(limit) = decode::<i32>(payload) else { return MALFORMED };
        let mut value = 0_usize;
        let asked = done(call!(self.library, cuCtxGetLimit(&raw mut value, limit)));
        told(asked.map(|()| value as u64))
    }
}

fn told(value: Done<u64>) -> (Status, Vec<u8>) {
    let (status, value) = value.map_or_else(|code| (code, 0), |value| (0, value));
    (Status::OK, encode(&Told { status, value }))
}

fn allocated(made: Done<u64>, bytes: u64) -> (Status, Vec<u8>) {
    let (status, address) = made.map_or_else(|code| (code, 0), |address| (0, address));
    (Status::OK, encode(&Allocated { status, address, bytes }))
}

fn allocate(library: &Library, bytes: u64, stream: Option<usize>) -> Done<u64> {
    let mut address = 0;
    match stream {
        Some(raw) => done(call!(library, cuMemAllocAsync(&raw mut address, bytes as usize, raw)))?,
        None => done(call!(library, cuMemAlloc_v2(&raw mut address, bytes as usize)))?,
    }
    Ok(address)
}

fn count_down(counter: &AtomicUsize) {
    counter.fetch_sub(1, Ordering::AcqRel);
}
