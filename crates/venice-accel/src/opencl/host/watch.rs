//! Watched commands: the driver's threads tell of their ends, the host's thread takes them in.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use opencl_sys::{CL_COMPLETE, cl_event, cl_int, cl_mem};
use venice_service::ConnectionId;

use super::build::Built;
use super::execute::done;
use super::fetch::Fetched;
use super::objects::Owned;
use crate::opencl::library::{Library, OpenClError, call, check};
use crate::opencl::wire::Times;

/// Something that a thread of the driver or of the service has brought.
#[derive(Debug)]
pub(super) enum Brought {
    /// A watched command has ended.
    Ended(Ended),
    /// Nothing uses a placed buffer any more.
    Freed { connection: ConnectionId, id: u64 },
    /// A build has ended.
    Built(Built),
    /// A fetch has ended.
    Fetched(Fetched),
}

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) command: Watched,
    pub(super) status: cl_int,
}

/// A command on its way.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) connection: ConnectionId,
    /// Id of its event; 0: none.
    pub(super) event: u64,
    /// Id of its queue.
    pub(super) queue: u64,
    /// The driver's event.
    pub(super) handle: Owned,
    /// Commands of a command buffer, which this is the end of. PoCL 3.1 ends the host if the event of
    /// a command that fails is released before.
    pub(super) steps: Vec<Owned>,
    pub(super) has_times: bool,
    /// Bytes that it reads or stores.
    pub(super) data: Vec<u8>,
    /// True if `data` is for the recipient.
    pub(super) is_read: bool,
    /// True for the last command of a queue whose connection is gone.
    pub(super) is_last: bool,
}

impl Watched {
    /// Returns the times of the command, which has ended; `None` if the driver has none. Those of a
    /// command buffer are from its first command to its end.
    pub(super) fn times(&self, library: &Library) -> Option<Times> {
        let mut times = times_of(library, self.handle.raw())?;
        if let Some(first) = self.steps.first() {
            let first = times_of(library, first.raw())?;
            times.ns[..3].copy_from_slice(&first.ns[..3]);
        }
        Some(times)
    }
}

/// Returns the times of an ended command; `None` if the driver has none.
fn times_of(library: &Library, event: cl_event) -> Option<Times> {
    const NAMES: [u32; 4] = [
        opencl_sys::CL_PROFILING_COMMAND_QUEUED,
        opencl_sys::CL_PROFILING_COMMAND_SUBMIT,
        opencl_sys::CL_PROFILING_COMMAND_START,
        opencl_sys::CL_PROFILING_COMMAND_END,
    ];
    let mut ns = [0_u64; 4];
    for (value, name) in ns.iter_mut().zip(NAMES) {
        let at = (&raw mut *value).cast();
        let asked =
            call!(library, clGetEventProfilingInfo(event, name, size_of::<u64>(), at, null_mut()));
        done(asked).ok()?;
    }
    Some(Times { ns })
}

/// Box of what threads bring.
pub(super) type Inbox = crate::stream::host::Inbox<Brought>;

/// Watches a command: the inbox gets it when it ends.
///
/// # Errors
/// That of `clSetEventCallback`.
pub(super) fn watch(
    library: &Library,
    inbox: &Arc<Inbox>,
    command: Watched,
) -> Result<(), OpenClError> {
    let event: cl_event = command.handle.raw();
    let boxed = Box::into_raw(Box::new((Arc::clone(inbox), command)));
    let code = call!(
        library,
        clSetEventCallback(event, CL_COMPLETE, Some(on_end), boxed.cast::<c_void>())
    );
    let set = code.and_then(|code| check("clSetEventCallback", code));
    if set.is_err() {
        // SAFETY: the driver did not take the pointer, which came from a box above.
        drop(unsafe { Box::from_raw(boxed) });
    }
    set
}

/// Takes a command's end from a thread of the driver.
extern "C" fn on_end(_event: cl_event, status: cl_int, user: *mut c_void) {
    // SAFETY: `watch` gave this pointer for one call of this function, and keeps none itself.
    let (inbox, command) = *unsafe { Box::from_raw(user.cast::<(Arc<Inbox>, Watched)>()) };
    inbox.put(Brought::Ended(Ended { command, status }));
}

/// Watches the end of a placed buffer.
///
/// # Errors
/// That of `clSetMemObjectDestructorCallback`.
pub(super) fn watch_memory(
    library: &Library,
    inbox: &Arc<Inbox>,
    memory: cl_mem,
    of: (ConnectionId, u64),
) -> Result<(), OpenClError> {
    let boxed = Box::into_raw(Box::new((Arc::clone(inbox), of)));
    let code = call!(
        library,
        clSetMemObjectDestructorCallback(memory, Some(on_freed), boxed.cast::<c_void>())
    );
    let set = code.and_then(|code| check("clSetMemObjectDestructorCallback", code));
    if set.is_err() {
        // SAFETY: the driver did not take the pointer, which came from a box above.
        drop(unsafe { Box::from_raw(boxed) });
    }
    set
}

extern "C" fn on_freed(_memory: cl_mem, user: *mut c_void) {
    // SAFETY: `watch_memory` gave this pointer for one call of this function.
    let boxed = unsafe { Box::from_raw(user.cast::<(Arc<Inbox>, (ConnectionId, u64))>()) };
    let (inbox, (connection, id)) = *boxed;
    inbox.put(Brought::Freed { connection, id });
}
