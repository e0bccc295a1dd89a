//! Streams and events.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use venice_accel::cuda::wire::{Awaited, Command, Elapsed, encode, opcode};

use crate::call::*;
use crate::context::{Current, current};
use crate::device::Device;
use crate::handle::{self, Object};
use crate::names::refuse;

/// Flag of a stream that does not wait for the default one.
const NON_BLOCKING: c_uint = 1;

/// `CUstreamAttrID`s.
const ACCESS_POLICY: c_int = 1;
const SYNCHRONIZATION_POLICY: c_int = 3;

thread_local! {
    static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
}

/// A stream.
pub struct Stream {
    pub id: u64,
    pub context: usize,
    device: &'static Device,
    flags: c_uint,
    priority: c_int,
}

/// An event.
pub struct Event {
    pub id: u64,
    pub context: usize,
    device: &'static Device,
    /// Copies that come before it; `None`: it was never recorded.
    copies: Mutex<Option<Vec<u64>>>,
}

impl Event {
    fn copies(&self) -> Option<Vec<u64>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the id of a stream. The default stream of a thread is the one of all: its commands wait
/// for more than they need. A stream of another device is none.
pub fn id_of(current: &Current, stream: usize) -> Done<u64> {
    if stream <= 2 {
        return Ok(0);
    }
    let stream = handle::stream(stream)?;
    if stream.device.number == current.device.number { Ok(stream.id) } else { Err(INVALID_HANDLE) }
}

/// Returns a stream's device and its id, whatever device is the current one.
///
/// # Errors
/// There is no such stream, or the device is lost.
pub fn id_on(stream: usize) -> Done<(&'static Device, u64)> {
    let (device, id) = match stream {
        0..=2 => (current()?.device, 0),
        made => {
            let its = handle::stream(made)?;
            (its.device, its.id)
        }
    };
    device.link.check()?;
    Ok((device, id))
}

/// Returns an event of the current device.
fn event_here(current: &Current, event: usize) -> Done<Arc<Event>> {
    let event = handle::event(event)?;
    if event.device.number == current.device.number { Ok(event) } else { Err(INVALID_HANDLE) }
}

fn create(at: *mut usize, flags: c_uint, priority: c_int) -> Done {
    let current = current()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(INVALID_VALUE);
    }
    let (link, context, device) = (current.link(), current.handle, current.device);
    if flags & NON_BLOCKING != 0 {
        link.add_free_stream()?;
    }
    let id = link.new_id();
    link.submit(&Command::CreateStream { id, flags, priority })?;
    let stream = Arc::new(Stream { id, context, device, flags, priority });
    // SAFETY: the program passes room for a handle.
    unsafe { put(at, handle::add(Object::Stream(stream))) }
}

fn record(event: usize, stream: usize) -> Done {
    let current = current()?;
    let event = event_here(&current, event)?;
    let stream = id_of(&current, stream)?;
    let copies = current.link().copies_before(stream);
    *event.copies.lock().unwrap_or_else(PoisonError::into_inner) = Some(copies);
    current.link().submit(&Command::Record { event: event.id, stream })
}

fn elapsed(ms: *mut f32, start: usize, end: usize) -> Done {
    let (start, end) = (handle::event(start)?, handle::event(end)?);
    if start.device.number != end.device.number {
        return Err(INVALID_HANDLE);
    }
    let ids = [start.id, end.id];
    let elapsed: Elapsed = start.device.link.call(opcode::ELAPSED, &encode(&ids))?;
    told(elapsed.status)?;
    // SAFETY: the program passes room for a result.
    unsafe { put(ms, f32::from_bits(elapsed.ms)) }
}

/// Turns a code of the host into a result.
fn told(code: Code) -> Done {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

exported! {
    fn cuStreamCreate(at: *mut usize, flags: c_uint) {
        create(at, flags, 0)
    }

    fn cuStreamCreateWithPriority(at: *mut usize, flags: c_uint, priority: c_int) {
        create(at, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: usize) {
        let its = handle::stream(stream)?;
        handle::remove(stream);
        crate::pool::trim_stream(its.device, its.id);
        its.device.link.submit(&Command::Release { id: its.id })
    }

    fn cuStreamGetFlags(stream: usize, flags: *mut c_uint) {
        let told = if stream <= 2 { 0 } else { handle::stream(stream)?.flags };
        // SAFETY: the program passes room for a result, here and below.
        unsafe { put(flags, told) }
    }

    fn cuStreamGetPriority(stream: usize, priority: *mut c_int) {
        let told = if stream <= 2 { 0 } else { handle::stream(stream)?.priority };
        // SAFETY: as above.
        unsafe { put(priority, told) }
    }

    fn cuStreamGetCtx(stream: usize, context: *mut usize) {
        let told = if stream <= 2 { current()?.handle } else { handle::stream(stream)?.context };
        // SAFETY: as above.
        unsafe { put(context, told) }
    }

    fn cuStreamIsCapturing(_stream: usize, status: *mut c_int) {
        current()?;
        // SAFETY: as above.
        unsafe { put(status, 0) }
    }

    fn cuStreamGetCaptureInfo(_stream: usize, status: *mut c_int, _id: *mut u64) {
        current()?;
        // SAFETY: as above.
        unsafe { put(status, 0) }
    }

    fn cuStreamGetCaptureInfo_v2(
        _stream: usize,
        status: *mut c_int,
        _id: *mut u64,
        _graph: *mut usize,
        _nodes: *mut *const usize,
        _count: *mut usize,
    ) {
        current()?;
        // SAFETY: as above.
        unsafe { put(status, 0) }
    }

    fn cuStreamGetCaptureInfo_v3(
        _stream: usize,
        status: *mut c_int,
        _id: *mut u64,
        _graph: *mut usize,
        _nodes: *mut *const usize,
        _edges: *mut *const c_void,
        _count: *mut usize,
    ) {
        current()?;
        // SAFETY: as above.
        unsafe { put(status, 0) }
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        if mode.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as above; nothing is captured, so the mode has no effect.
        unsafe { mode.write(CAPTURE_MODE.replace(*mode)) };
        Ok(())
    }

    fn cuStreamGetId(stream: usize, id: *mut u64) {
        let (_, its) = id_on(stream)?;
        // SAFETY: as above.
        unsafe { put(id, its) }
    }

    fn cuStreamGetDevice(stream: usize, number: *mut c_int) {
        let (device, _) = id_on(stream)?;
        // SAFETY: as above.
        unsafe { put(number, device.number) }
    }

    fn cuStreamCopyAttributes(to: usize, from: usize) {
        id_on(to)?;
        id_on(from).map(drop)
    }

    fn cuStreamSetAttribute(stream: usize, name: c_int, _value: *const c_void) {
        id_on(stream)?;
        match name {
            // Preferences: they change no result.
            ACCESS_POLICY | SYNCHRONIZATION_POLICY => Ok(()),
            _ => Err(refuse("cuStreamSetAttribute of priority or domain")),
        }
    }

    fn cuStreamSynchronize(stream: usize) {
        let (device, id) = id_on(stream)?;
        device.link.wait_for_stream(id)
    }

    fn cuStreamQuery(stream: usize) {
        let (device, id) = id_on(stream)?;
        let copies = device.link.copies_before(id);
        told(device.link.call(opcode::QUERY, &encode(&Awaited::Stream { id }))?)?;
        if device.link.have_ended(&copies) { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        let current = current()?;
        let id = id_of(&current, stream)?;
        let event = handle::event(event)?;
        if event.device.number != current.device.number {
            // The devices do not know each other's events: the program waits in their place.
            return match event.copies() {
                Some(copies) => event.device.link.wait(&Awaited::Event { id: event.id }, &copies),
                None => Ok(()),
            };
        }
        if let Some(copies) = event.copies() {
            current.link().put_before(id, &copies);
        }
        current.link().submit(&Command::WaitEvent { stream: id, event: event.id })
    }

    fn cuEventCreate(at: *mut usize, flags: c_uint) {
        let current = current()?;
        let (link, context, device) = (current.link(), current.handle, current.device);
        let id = link.new_id();
        link.submit(&Command::CreateEvent { id, flags })?;
        let event = Arc::new(Event { id, context, device, copies: Mutex::default() });
        // SAFETY: as above.
        unsafe { put(at, handle::add(Object::Event(event))) }
    }

    fn cuEventDestroy_v2(event: usize) {
        let its = handle::event(event)?;
        handle::remove(event);
        its.device.link.stream.release(its.id);
        Ok(())
    }

    fn cuEventRecord(event: usize, stream: usize) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: usize, stream: usize, _flags: c_uint) {
        record(event, stream)
    }

    fn cuEventSynchronize(event: usize) {
        let event = handle::event(event)?;
        match event.copies() {
            Some(copies) => event.device.link.wait(&Awaited::Event { id: event.id }, &copies),
            None => Ok(()),
        }
    }

    fn cuEventQuery(event: usize) {
        let event = handle::event(event)?;
        let Some(copies) = event.copies() else { return Ok(()) };
        let (link, awaited) = (&event.device.link, Awaited::Event { id: event.id });
        told(link.call(opcode::QUERY, &encode(&awaited))?)?;
        if link.have_ended(&copies) { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuEventElapsedTime_v2(ms: *mut f32, start: usize, end: usize) {
        elapsed(ms, start, end)
    }

    fn cuEventElapsedTime(ms: *mut f32, start: usize, end: usize) {
        elapsed(ms, start, end)
    }
}
