//! Streams and events.

use std::ffi::{c_int, c_uint};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use crate::device::current;
use crate::engine::{Event, Lane, Point, enqueue, handle, state};
use crate::*;

/// Flag of a stream that does not wait for the default one.
const NON_BLOCKING: c_uint = 1;

fn create(at: *mut usize, flags: c_uint) -> Result<(), Code> {
    current()?;
    let made = handle();
    state().lanes.insert(made, Arc::new(Lane::start(flags & NON_BLOCKING == 0)));
    // SAFETY: as in `put`.
    unsafe { put(at, made) }
}

fn tail(stream: usize) -> Result<Point, Code> {
    current()?;
    let stream = if stream <= 2 { 0 } else { stream };
    Ok(state().lanes.get(&stream).ok_or(INVALID_HANDLE)?.tail())
}

fn event(id: usize) -> Result<Arc<Event>, Code> {
    state().events.get(&id).cloned().ok_or(INVALID_HANDLE)
}

fn point(event: &Event) -> MutexGuard<'_, Option<Point>> {
    event.point.lock().unwrap_or_else(PoisonError::into_inner)
}

exported! {
    fn cuStreamCreate(at: *mut usize, flags: c_uint) {
        create(at, flags)
    }

    fn cuStreamCreateWithPriority(at: *mut usize, flags: c_uint, _priority: c_int) {
        create(at, flags)
    }

    fn cuStreamDestroy_v2(stream: usize) {
        current()?;
        if stream <= 2 {
            return Err(INVALID_HANDLE);
        }
        state().lanes.remove(&stream).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuStreamSynchronize(stream: usize) {
        tail(stream)?.wait();
        crate::engine::check()
    }

    fn cuStreamQuery(stream: usize) {
        if tail(stream)?.has_passed() { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamWaitEvent(stream: usize, id: usize, _flags: c_uint) {
        current()?;
        let event = event(id)?;
        let Some(number) = point(&event).as_ref().map(Point::again) else { return Ok(()) };
        let waits = move || {
            number.wait();
            Ok(())
        };
        enqueue(stream, waits).map(drop)
    }

    fn cuEventCreate(at: *mut usize, _flags: c_uint) {
        current()?;
        let made = handle();
        state().events.insert(made, Arc::default());
        // SAFETY: as in `put`.
        unsafe { put(at, made) }
    }

    fn cuEventDestroy_v2(id: usize) {
        current()?;
        state().events.remove(&id).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuEventRecord(id: usize, stream: usize) {
        current()?;
        let event = event(id)?;
        let its = Arc::clone(&event);
        let number = enqueue(stream, move || {
            *its.time.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            Ok(())
        })?;
        *point(&event) = Some(number);
        Ok(())
    }

    fn cuEventSynchronize(id: usize) {
        current()?;
        let event = event(id)?;
        let number = point(&event).as_ref().map(Point::again);
        if let Some(number) = number {
            number.wait();
        }
        crate::engine::check()
    }

    fn cuEventQuery(id: usize) {
        current()?;
        let event = event(id)?;
        let has_passed = point(&event).as_ref().is_none_or(Point::has_passed);
        if has_passed { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuEventElapsedTime(ms: *mut f32, start: usize, end: usize) {
        current()?;
        let time = |id| -> Result<Instant, Code> {
            let event = event(id)?;
            if !point(&event).as_ref().ok_or(INVALID_HANDLE)?.has_passed() {
                return Err(NOT_READY);
            }
            let time = *event.time.lock().unwrap_or_else(PoisonError::into_inner);
            time.ok_or(NOT_READY)
        };
        let (start, end) = (time(start)?, time(end)?);
        // SAFETY: as in `put`.
        unsafe { put(ms, end.saturating_duration_since(start).as_secs_f32() * 1e3) }
    }
}
