//! Streams and events.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use crate::device::{current, current_device};
use crate::engine::{Event, Lane, Point, check, enqueue, handle, lane_of, state};
use crate::*;

/// Flag of a stream that does not wait for the default one.
const NON_BLOCKING: c_uint = 1;

fn create(at: *mut usize, flags: c_uint) -> Result<(), Code> {
    let device = current_device()?;
    let made = handle();
    let lane = Lane::start(device, flags & NON_BLOCKING == 0).ok_or(OUT_OF_MEMORY)?;
    state().lanes.insert(made, Arc::new(lane));
    // SAFETY: as in `put`.
    unsafe { put(at, made) }
}

fn tail(stream: usize) -> Result<Point, Code> {
    let stream = lane_of(current_device()?, stream);
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
        if state().end_lane(stream) { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    fn cuStreamSynchronize(stream: usize) {
        tail(stream)?.wait();
        check(current_device()?)
    }

    fn cuStreamQuery(stream: usize) {
        if tail(stream)?.has_passed() { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamWaitEvent(stream: usize, id: usize, _flags: c_uint) {
        let device = current_device()?;
        let event = event(id)?;
        let Some(number) = point(&event).as_ref().map(Point::again) else { return Ok(()) };
        let waits = move || {
            number.wait();
            Ok(())
        };
        enqueue(device, stream, waits).map(drop)
    }

    fn cuLaunchHostFunc(
        stream: usize,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) {
        let data = data as usize;
        let call = move || {
            // SAFETY: the program passes both for this call.
            unsafe { function(data as *mut c_void) };
            Ok(())
        };
        enqueue(current_device()?, stream, call).map(drop)
    }

    fn cuStreamAddCallback(
        stream: usize,
        function: unsafe extern "C" fn(usize, Code, *mut c_void),
        data: *mut c_void,
        flags: c_uint,
    ) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let data = data as usize;
        let call = move || {
            // SAFETY: as above.
            unsafe { function(stream, SUCCESS, data as *mut c_void) };
            Ok(())
        };
        enqueue(current_device()?, stream, call).map(drop)
    }

    fn cuStreamIsCapturing(_stream: usize, status: *mut c_int) {
        current()?;
        // SAFETY: as in `put`.
        unsafe { put(status, 0) }
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
        let device = current_device()?;
        let event = event(id)?;
        let its = Arc::clone(&event);
        let number = enqueue(device, stream, move || {
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
        check(current_device()?)
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
