//! Functions of the program that streams call. At the donor the stream tells that it got to a gate; a
//! thread here calls the function, and then opens the gate.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use venice_accel::cuda::wire::Command;

use crate::call::*;
use crate::context::current;
use crate::link::Link;
use crate::stream::id_of;

/// Function of the program with its argument.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);
type StreamCallback = unsafe extern "C" fn(usize, Code, *mut c_void);

/// A function with its argument.
#[derive(Clone, Copy)]
enum Function {
    /// Is not called once the stream has failed.
    Host(HostFunction, usize),
    /// Is told of a failure; gets the handle of its stream.
    Stream(StreamCallback, usize, usize),
}

/// A function that a stream is to call.
struct Awaited {
    function: Function,
    /// Copies to the program that come before it.
    copies: Vec<u64>,
}

#[derive(Default)]
struct State {
    next: u64,
    awaited: BTreeMap<u64, Awaited>,
    /// Gates that streams got to, and codes of those that none gets to.
    reached: VecDeque<(u64, Code)>,
    is_running: bool,
}

/// The functions that streams of a device are to call.
#[derive(Default)]
pub struct Gates {
    state: Mutex<State>,
    changed: Condvar,
}

thread_local! {
    static IS_CALLED: Cell<bool> = const { Cell::new(false) };
}

/// True in a function that a stream called: it may not use the driver.
pub fn is_called_by_stream() -> bool {
    IS_CALLED.get()
}

impl Gates {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that a stream got to a gate, or that none will.
    pub fn handle_reached(&self, gate: u64, status: Code) {
        self.lock().reached.push_back((gate, status));
        self.changed.notify_all();
    }

    /// Takes note that no stream will get to any gate.
    pub fn handle_failure(&self, status: Code) {
        let mut state = self.lock();
        let State { awaited, reached, .. } = &mut *state;
        reached.extend(awaited.keys().map(|gate| (*gate, status)));
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the last gate that a function waits for.
    pub fn last(&self) -> Option<u64> {
        self.lock().awaited.keys().next_back().copied()
    }

    /// Waits for a while until functions up to that of a gate have been called; true if they have.
    pub fn wait(&self, last: u64, longest: Duration) -> bool {
        let is_pending = |state: &mut State| state.awaited.range(..=last).next().is_some();
        let waited = self.changed.wait_timeout_while(self.lock(), longest, is_pending);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn next(&self) -> (u64, Code) {
        let mut state = self.lock();
        loop {
            if let Some(reached) = state.reached.pop_front() {
                return reached;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Calls functions whenever streams get to them.
fn run(link: &Weak<Link>, gates: &Gates) {
    loop {
        let (gate, status) = gates.next();
        let Some(link) = link.upgrade() else { return };
        let found = gates.lock().awaited.get(&gate).map(|it| (it.function, it.copies.clone()));
        let Some((function, copies)) = found else { continue };
        if status == SUCCESS {
            // A failure shows at the next wait.
            let _ = link.wait_for_copies(&copies);
        }
        IS_CALLED.set(true);
        match function {
            // SAFETY: the program passed both for this call.
            Function::Host(function, data) if status == SUCCESS => unsafe {
                function(data as *mut c_void);
            },
            Function::Host(..) => {}
            // SAFETY: as above.
            Function::Stream(function, stream, data) => unsafe {
                function(stream, status, data as *mut c_void);
            },
        }
        IS_CALLED.set(false);
        if status == SUCCESS {
            let _ = link.submit(&Command::Open { gate });
            let _ = link.stream.flush();
        }
        gates.lock().awaited.remove(&gate);
        gates.changed.notify_all();
    }
}

/// Has a stream of the current device call a function.
fn enqueue(stream: usize, function: Function) -> Done {
    let current = current()?;
    let link = current.link();
    let id = id_of(&current, stream)?;
    let copies = link.copies_before(id);
    let mut state = link.gates.lock();
    if !state.is_running {
        let (weak, gates) = (Arc::downgrade(link), Arc::clone(&link.gates));
        let thread = std::thread::Builder::new().name("venice-call".into());
        thread.spawn(move || run(&weak, &gates)).map_err(|_| OUT_OF_MEMORY)?;
        state.is_running = true;
        // Somebody has to receive while the program does not wait.
        link.stream.receive_always();
    }
    state.next += 1;
    let gate = state.next;
    state.awaited.insert(gate, Awaited { function, copies });
    drop(state);
    link.submit(&Command::Gate { stream: id, gate })?;
    // The program may wait for the function without the driver.
    link.stream.flush().map_err(|error| link.failed(error))
}

/// Has a stream of the current device call a function with an argument.
///
/// # Errors
/// There is no such stream.
pub fn call_in_order(stream: usize, function: HostFunction, data: usize) -> Done {
    enqueue(stream, Function::Host(function, data))
}

exported! {
    fn cuLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: *mut c_void) {
        call_in_order(stream, function.ok_or(INVALID_VALUE)?, data as usize)
    }

    fn cuStreamAddCallback(
        stream: usize,
        function: Option<StreamCallback>,
        data: *mut c_void,
        flags: c_uint,
    ) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        enqueue(stream, Function::Stream(function.ok_or(INVALID_VALUE)?, stream, data as usize))
    }
}
