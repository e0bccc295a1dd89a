//! Events: ends of commands, and events that the program itself completes.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use opencl_sys::*;
use venice_accel::opencl::wire::{Command, CommandKind, Times};

use crate::call::{Done, Out, array, check_list, code, made, session_code};
use crate::context::Context;
use crate::device::Device;
use crate::followers::{CALLBACKS, COMMANDS};
use crate::gate;
use crate::object::{Object, Shared, bodies, new_id};
use crate::queue::Queue;

bodies! {
    Event: CL_INVALID_EVENT;
}

/// Something to do when an event ends, with its status and the bytes that came with it. It must not
/// wait, nor send commands.
pub type Action = Box<dyn FnOnce(cl_int, &[u8]) + Send>;

/// An event.
pub struct Event {
    pub id: u64,
    pub context: Shared<Context>,
    /// `None` for events of the program.
    pub queue: Option<Shared<Queue>>,
    command: cl_command_type,
    state: Mutex<State>,
    /// Devices at which it exists.
    made_at: Mutex<u64>,
}

struct State {
    status: cl_int,
    times: Option<Times>,
    actions: Vec<Action>,
    callbacks: Vec<Callback>,
}

struct Callback {
    at: cl_int,
    function: unsafe extern "C" fn(cl_event, cl_int, *mut c_void),
    user: usize,
}

/// Tells of the end of any event that no session tells of.
static ENDED: Condvar = Condvar::new();
static ENDING: Mutex<()> = Mutex::new(());

impl Object<Event> {
    /// Makes the event of a command.
    pub fn of_command(queue: &Shared<Queue>, command: cl_command_type) -> Shared<Event> {
        let made_at = queue.device.bit();
        Self::make(&queue.context, Some(queue), command, CL_QUEUED as cl_int, made_at)
    }

    /// Makes the event of a command that has ended already.
    pub fn ended(
        queue: &Shared<Queue>,
        command: cl_command_type,
        times: Option<Times>,
    ) -> Shared<Event> {
        let event = Self::make(&queue.context, Some(queue), command, CL_COMPLETE, 0);
        event.state().times = times;
        event
    }

    /// Makes the event of a command of the driver's own, which the program does not know.
    pub fn of_driver(context: &Shared<Context>) -> Shared<Event> {
        Self::make(context, None, CL_COMMAND_MARKER, CL_QUEUED as cl_int, 0)
    }

    /// True if the program has still to end it, and commands of a device may wait for it.
    pub fn is_open_in(&self, device: &Shared<Device>) -> bool {
        let is_in = || self.context.devices.iter().any(|it| Shared::ptr_eq(it, device));
        // One that commands wait for exists at some device.
        let is_awaited = || *self.made_at.lock().unwrap_or_else(PoisonError::into_inner) != 0;
        self.command == CL_COMMAND_USER && !self.has_ended() && is_in() && is_awaited()
    }

    /// Makes it anew at a device that has moved, when a command there is to wait for it.
    pub fn forget_device(&self, device: &Device) {
        *self.made_at.lock().unwrap_or_else(PoisonError::into_inner) &= !device.bit();
    }

    fn make(
        context: &Shared<Context>,
        queue: Option<&Shared<Queue>>,
        command: cl_command_type,
        status: cl_int,
        made_at: u64,
    ) -> Shared<Event> {
        let (actions, callbacks) = (Vec::new(), Vec::new());
        Object::new(Event {
            id: new_id(),
            context: Shared::clone(context),
            queue: queue.cloned(),
            command,
            state: Mutex::new(State { status, times: None, actions, callbacks }),
            made_at: Mutex::new(made_at),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its status: [`CL_COMPLETE`], an error below 0, or a state before the end.
    pub fn status(&self) -> cl_int {
        self.state().status
    }

    /// True once it has ended.
    pub fn has_ended(&self) -> bool {
        self.status() <= CL_COMPLETE
    }

    /// Returns the outcome of its command, once that has ended.
    pub fn outcome(&self) -> Option<cl_int> {
        Some(self.status()).filter(|status| *status <= CL_COMPLETE)
    }

    /// Adds an action, or does it at once if the event has ended.
    pub fn on_end(&self, action: Action) {
        let mut state = self.state();
        if state.status > CL_COMPLETE {
            return state.actions.push(action);
        }
        let status = state.status;
        drop(state);
        action(status, &[]);
    }

    /// Ends it: does its actions, then tells everybody.
    pub fn end(self: &Arc<Self>, status: cl_int, times: Option<Times>, data: &[u8]) {
        let mut state = self.state();
        if state.status <= CL_COMPLETE {
            return;
        }
        // Actions store what the program reads once it sees the end.
        while let Some(action) = state.actions.pop() {
            drop(state);
            action(status, data);
            state = self.state();
            if state.status <= CL_COMPLETE {
                return;
            }
        }
        state.status = status.min(CL_COMPLETE);
        state.times = times;
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        drop(ENDING.lock());
        ENDED.notify_all();
        for callback in callbacks {
            self.call_back(callback, status);
        }
    }

    fn call_back(self: &Arc<Self>, callback: Callback, status: cl_int) {
        let event = Shared::clone(self);
        let reported = if status < 0 { status } else { callback.at };
        CALLBACKS.follow(Box::new(move || {
            let handle = Object::handle(&event);
            // SAFETY: the program gave function and pointer to `clSetEventCallback`.
            unsafe { (callback.function)(handle, reported, callback.user as *mut c_void) };
        }));
    }

    /// Waits for its end; returns its outcome.
    ///
    /// # Errors
    /// The code of a lost session.
    pub fn wait(&self) -> Done<cl_int> {
        match self.outcome() {
            Some(outcome) => Ok(outcome),
            None => gate::outside(|| self.wait_outside()),
        }
    }

    fn wait_outside(&self) -> Done<cl_int> {
        let Some(queue) = &self.queue else { return Ok(self.wait_for_program()) };
        let session = queue.device.session();
        session.flush().map_err(session_code)?;
        match session.wait_until(|| self.outcome()) {
            Ok(outcome) => Ok(outcome),
            // The loss has ended it too.
            Err(error) => self.outcome().ok_or_else(|| session_code(error)),
        }
    }

    fn wait_for_program(&self) -> cl_int {
        let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            ending = ENDED.wait(ending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns its id at a device, where commands may wait for it; `None` if there is nothing to
    /// wait for.
    ///
    /// # Errors
    /// The code of a wait list with a failed command; that of a lost session.
    pub fn id_at(self: &Arc<Self>, device: &Shared<Device>) -> Done<Option<u64>> {
        match self.status() {
            CL_COMPLETE => return Ok(None),
            ..0 => return Err(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
            _ => {}
        }
        let mut made_at = self.made_at.lock().unwrap_or_else(PoisonError::into_inner);
        if *made_at & device.bit() == 0 {
            self.mirror(device)?;
            *made_at |= device.bit();
        }
        Ok(Some(self.id))
    }

    /// Makes an event at a device that ends when this one ends, at another device or by the program.
    fn mirror(self: &Arc<Self>, device: &Shared<Device>) -> Done {
        let context = self.context.id_at(device)?;
        let made = plain(CommandKind::CreateUserEvent { id: self.id, context });
        device.session().submit(&made).map_err(session_code)?;
        if let Some(queue) = &self.queue {
            queue.device.session().flush().map_err(session_code)?;
            queue.device.link().receive_always();
        }
        // Kept until the donor knows of its end: a release must not come before.
        let (event, target) = (Arc::clone(self), Shared::clone(device));
        self.on_end(Box::new(move |status, _| {
            COMMANDS.follow(Box::new(move || {
                let set = plain(CommandKind::SetUserEvent { id: event.id, status });
                // A target that is lost has no command left that waits.
                let _ = target.session().submit(&set).and_then(|()| target.session().flush());
            }));
        }));
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let made_at = *self.made_at.get_mut().unwrap_or_else(PoisonError::into_inner);
        for device in &self.context.devices {
            if made_at & device.bit() != 0 {
                device.session().release(self.id);
            }
        }
    }
}

/// Returns a command without queue, event and wait list.
pub fn plain(kind: CommandKind<'_>) -> Command<'_> {
    Command { queue: 0, event: 0, waits: Vec::new(), kind }
}

/// Returns the events of a wait list.
///
/// # Errors
/// The codes of wait lists.
///
/// # Safety
/// `first` is null or points to so many handles.
pub unsafe fn wait_list(
    context: &Shared<Context>,
    count: cl_uint,
    first: *const cl_event,
) -> Done<Vec<Shared<Event>>> {
    check_list(count, first, CL_INVALID_EVENT_WAIT_LIST)?;
    // SAFETY: promised by the caller.
    let handles = unsafe { array(first, count as usize) };
    let events = handles.iter().map(|handle| {
        let event = Object::<Event>::get(*handle).map_err(|_| CL_INVALID_EVENT_WAIT_LIST)?;
        let is_same = Shared::ptr_eq(&event.context, context);
        if is_same { Ok(event) } else { Err(CL_INVALID_CONTEXT) }
    });
    events.collect()
}

pub unsafe extern "C" fn wait_for_events(count: cl_uint, first: *const cl_event) -> cl_int {
    code(|| {
        if count == 0 || first.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        // SAFETY: the program passes so many handles.
        let handles = unsafe { array(first, count as usize) };
        let events = handles.iter().map(|handle| Object::<Event>::get(*handle));
        let events = events.collect::<Done<Vec<_>>>()?;
        let is_same = |event: &Shared<Event>| Shared::ptr_eq(&event.context, &events[0].context);
        if !events.iter().all(is_same) {
            return Err(CL_INVALID_CONTEXT);
        }
        let mut failed = false;
        for event in &events {
            failed |= event.wait()? < 0;
        }
        if failed { Err(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) } else { Ok(()) }
    })
}

pub unsafe extern "C" fn event_info(
    handle: cl_event,
    name: cl_event_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    code(|| {
        let event = Object::<Event>::get(handle)?;
        let out = Out { room, value, needed };
        let null = std::ptr::null_mut();
        // SAFETY: the program passes null or valid places.
        unsafe {
            match name {
                CL_EVENT_COMMAND_QUEUE => {
                    out.put_plain(&[event.queue.as_ref().map_or(null, Object::handle)])
                }
                CL_EVENT_CONTEXT => out.put_plain(&[Object::handle(&event.context)]),
                CL_EVENT_COMMAND_TYPE => out.put_plain(&[event.command]),
                CL_EVENT_COMMAND_EXECUTION_STATUS => {
                    if let (None, Some(queue)) = (event.outcome(), &event.queue) {
                        // Programs poll for the end. A lost session has ended it.
                        let _ = queue.device.session().receive_ready();
                    }
                    out.put_plain(&[event.status()])
                }
                CL_EVENT_REFERENCE_COUNT => out.put_plain(&[event.references()]),
                _ => Err(CL_INVALID_VALUE),
            }
        }
    })
}

pub unsafe extern "C" fn profiling_info(
    handle: cl_event,
    name: cl_profiling_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    code(|| {
        let event = Object::<Event>::get(handle)?;
        let at = match name {
            CL_PROFILING_COMMAND_QUEUED => 0,
            CL_PROFILING_COMMAND_SUBMIT => 1,
            CL_PROFILING_COMMAND_START => 2,
            CL_PROFILING_COMMAND_END | CL_PROFILING_COMMAND_COMPLETE => 3,
            _ => return Err(CL_INVALID_VALUE),
        };
        let is_profiled = event
            .queue
            .as_ref()
            .is_some_and(|queue| queue.properties & CL_QUEUE_PROFILING_ENABLE != 0);
        if let (None, Some(queue)) = (event.outcome(), &event.queue) {
            let _ = queue.device.session().receive_ready();
        }
        let times = event.state().times.clone().filter(|_| is_profiled);
        let times = times.ok_or(CL_PROFILING_INFO_NOT_AVAILABLE)?;
        // SAFETY: the program passes null or valid places.
        unsafe { Out { room, value, needed }.put_plain(&[times.ns[at]]) }
    })
}

pub unsafe extern "C" fn retain_event(handle: cl_event) -> cl_int {
    code(|| Object::<Event>::get(handle).map(|event| event.retain()))
}

pub unsafe extern "C" fn release_event(handle: cl_event) -> cl_int {
    code(|| Object::<Event>::get(handle)?.release())
}

pub unsafe extern "C" fn create_user_event(context: cl_context, stored: *mut cl_int) -> cl_event {
    // SAFETY: the program passes null or a valid place.
    unsafe {
        made(stored, || {
            let context = Object::<Context>::get(context)?;
            let status = CL_SUBMITTED as cl_int;
            let event = Object::<Event>::make(&context, None, CL_COMMAND_USER, status, 0);
            Ok(Object::hand_out(event))
        })
    }
}

pub unsafe extern "C" fn set_user_event_status(handle: cl_event, status: cl_int) -> cl_int {
    code(|| {
        let event = Object::<Event>::get(handle)?;
        if event.queue.is_some() {
            return Err(CL_INVALID_EVENT);
        }
        if status > CL_COMPLETE {
            return Err(CL_INVALID_VALUE);
        }
        if event.has_ended() {
            return Err(CL_INVALID_OPERATION);
        }
        event.end(status, None, &[]);
        Ok(())
    })
}

pub unsafe extern "C" fn set_event_callback(
    handle: cl_event,
    at: cl_int,
    function: Option<unsafe extern "C" fn(cl_event, cl_int, *mut c_void)>,
    user: *mut c_void,
) -> cl_int {
    code(|| {
        let event = Object::<Event>::get(handle)?;
        let function = function.ok_or(CL_INVALID_VALUE)?;
        if ![CL_SUBMITTED as cl_int, CL_RUNNING as cl_int, CL_COMPLETE].contains(&at) {
            return Err(CL_INVALID_VALUE);
        }
        let callback = Callback { at, function, user: user as usize };
        let mut state = event.state();
        // The donor tells of ends alone: an event is submitted once it exists.
        if state.status <= CL_COMPLETE {
            let status = state.status;
            drop(state);
            event.call_back(callback, status);
            return Ok(());
        }
        if at == CL_SUBMITTED as cl_int {
            drop(state);
            event.call_back(callback, at);
            return Ok(());
        }
        state.callbacks.push(callback);
        drop(state);
        if let Some(queue) = &event.queue {
            queue.device.link().receive_always();
        }
        Ok(())
    })
}
