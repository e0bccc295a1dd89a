//! Gates: a stream tells that it got to one, and waits until the recipient opens it.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use venice_service::ConnectionId;

use super::Brought;
use crate::cuda::library::{CudaError, Library, call};
use crate::stream::host::Inbox;

/// A gate.
pub(super) struct Gate {
    connection: ConnectionId,
    number: u64,
    inbox: Arc<Inbox<Brought>>,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(super) fn new(
        connection: ConnectionId,
        number: u64,
        inbox: &Arc<Inbox<Brought>>,
    ) -> Arc<Self> {
        let inbox = Arc::clone(inbox);
        let (is_open, opened) = (Mutex::new(false), Condvar::new());
        Arc::new(Self { connection, number, inbox, is_open, opened })
    }

    /// Puts it into a stream.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn place(
        self: &Arc<Self>,
        library: &Library,
        stream: usize,
    ) -> Result<(), CudaError> {
        let data = Arc::into_raw(Arc::clone(self));
        let placed = call!(library, cuLaunchHostFunc(stream, reach, data.cast_mut().cast()));
        if placed.is_err() {
            // SAFETY: made above; the driver has not taken it.
            drop(unsafe { Arc::from_raw(data) });
        }
        placed
    }

    /// Lets the stream pass.
    pub(super) fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }
}

/// Called by the driver when the stream has got there.
unsafe extern "C" fn reach(data: *mut c_void) {
    // SAFETY: `Gate::place` made it, and the driver calls once.
    let gate = unsafe { Arc::from_raw(data.cast_const().cast::<Gate>()) };
    gate.inbox.put(Brought::Reached { connection: gate.connection, gate: gate.number });
    let is_open = gate.is_open.lock().unwrap_or_else(PoisonError::into_inner);
    drop(gate.opened.wait_while(is_open, |is_open| !*is_open));
}
