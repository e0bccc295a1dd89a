//! Command queues, and the one way by which commands go to a device.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opencl_sys::*;
use venice_accel::opencl::wire::{Command, CommandKind};

use crate::call::{self, Done, Out, code, made, session_code, store};
use crate::command_buffer::Recording;
use crate::context::Context;
use crate::device::Device;
use crate::event::{Action, Event, plain, wait_list};
use crate::memory::Memory;
use crate::object::{Object, Shared, bodies, new_id};

bodies! {
    Queue: CL_INVALID_COMMAND_QUEUE;
}

/// A queue.
pub struct Queue {
    pub id: u64,
    pub context: Shared<Context>,
    pub device: Shared<Device>,
    pub properties: cl_command_queue_properties,
    /// Properties as the program gave them.
    list: Vec<cl_queue_properties>,
    order: Mutex<Order>,
    /// True if a barrier may hold commands up in a queue without an order.
    has_barrier: AtomicBool,
}

/// The latest command of a queue, as far as it is known here.
pub enum Order {
    /// All commands have ended.
    Idle,
    /// All have ended once this event has, in a queue in order.
    Until(Shared<Event>),
    /// Some command may run.
    Unknown,
}

/// Call that enqueues a command: its wait list, and the place of its event.
pub struct Enqueue {
    pub queue: Shared<Queue>,
    pub waits: Vec<Shared<Event>>,
    /// Whole memory objects, of a context of several devices, that it stores something in.
    pub stores: Vec<Shared<Memory>>,
    /// Command buffer that takes the command, in place of the device.
    pub recording: Option<Recording>,
    place: *mut cl_event,
    command: cl_command_type,
}

impl Enqueue {
    /// Begins a call.
    ///
    /// # Errors
    /// The codes of an invalid queue or wait list.
    ///
    /// # Safety
    /// The list is as long as `count` says; `place` is null or valid for a write.
    pub unsafe fn begin(
        queue: cl_command_queue,
        count: cl_uint,
        waits: *const cl_event,
        place: *mut cl_event,
        command: cl_command_type,
    ) -> Done<Self> {
        let queue = Object::<Queue>::get(queue)?;
        // SAFETY: promised by the caller.
        unsafe { Self::on(queue, count, waits, place, command) }
    }

    /// Begins a call with a queue that is known.
    ///
    /// # Errors
    /// The codes of an invalid wait list.
    ///
    /// # Safety
    /// That of [`Enqueue::begin`].
    pub unsafe fn on(
        queue: Shared<Queue>,
        count: cl_uint,
        waits: *const cl_event,
        place: *mut cl_event,
        command: cl_command_type,
    ) -> Done<Self> {
        queue.device.seat().wait_while_held();
        // SAFETY: promised by the caller.
        let waits = unsafe { wait_list(&queue.context, count, waits)? };
        Ok(Self { queue, waits, stores: Vec::new(), recording: None, place, command })
    }

    /// Begins a call that records a command.
    pub fn record(queue: Shared<Queue>, recording: Recording) -> Self {
        let (waits, stores, place) = (Vec::new(), Vec::new(), std::ptr::null_mut());
        Self { queue, waits, stores, recording: Some(recording), place, command: 0 }
    }

    /// True if the program wants the event.
    pub fn wants_event(&self) -> bool {
        !self.place.is_null()
    }

    /// Gives the program its event.
    pub fn hand_out(&self, event: Shared<Event>) {
        if self.wants_event() {
            // SAFETY: promised by the caller of `begin`.
            unsafe { store(self.place, Object::hand_out(event)) };
        }
    }

    /// Makes the event of the command.
    pub fn event(&self) -> Shared<Event> {
        Object::<Event>::of_command(&self.queue, self.command)
    }

    /// Makes the event of the command, which has ended.
    pub fn ended_event(&self) -> Shared<Event> {
        let times = (self.queue.properties & CL_QUEUE_PROFILING_ENABLE != 0).then(crate::time::now);
        Object::<Event>::ended(&self.queue, self.command, times)
    }

    /// Sends the command, behind `before`, with an event if the program wants one; or records it.
    ///
    /// # Errors
    /// The codes of wait lists and of lost sessions.
    pub fn send<'a>(&self, before: Vec<Command<'a>>, kind: CommandKind<'a>) -> Done {
        if let Some(recording) = &self.recording {
            return recording.add(&kind);
        }
        let ids = self.queue.ids_of(&self.waits)?;
        let mut order = self.queue.order();
        // The first command after a pause is likely to be waited for: then no marker is needed.
        let is_first = self.queue.is_in_order() && self.queue.is_idle(&order);
        let wants_event = self.wants_event() || is_first || !self.stores.is_empty();
        let event = wants_event.then(|| self.event());
        if let Some(event) = event.as_ref().filter(|_| !self.wants_event()) {
            self.queue.note_failure_of(event);
        }
        self.queue.send_in(&mut order, ids, event.as_ref(), before, kind)?;
        drop(order);
        self.note_stores(event.as_ref());
        if let Some(event) = event {
            self.hand_out(event);
        }
        Ok(())
    }

    /// Sends the command with an event.
    ///
    /// # Errors
    /// The codes of wait lists and of lost sessions.
    pub fn send_as(&self, event: &Shared<Event>, kind: CommandKind<'_>) -> Done {
        self.queue.send(&self.waits, Some(event), Vec::new(), kind)?;
        self.note_stores(Some(event));
        Ok(())
    }

    /// Notes at memory objects that the command, which has this event or has ended, is the latest
    /// one that stores something in them.
    pub fn note_stores(&self, event: Option<&Shared<Event>>) {
        for memory in &self.stores {
            memory.state().holders.store(&self.queue.device, event);
        }
    }

    /// Sends the command with an event; `action` follows its end.
    ///
    /// # Errors
    /// The errors of [`Enqueue::send`]; then no action follows.
    pub fn send_with(&self, kind: CommandKind<'_>, action: Action) -> Done<Shared<Event>> {
        let event = self.event();
        event.on_end(action);
        self.send_as(&event, kind)?;
        Ok(event)
    }
}

impl Object<Queue> {
    /// True if commands run in the order of their calls.
    pub fn is_in_order(&self) -> bool {
        self.properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0
    }

    /// True if the next command waits for others, though it has no wait list.
    pub fn holds_up(&self) -> bool {
        self.is_in_order() || self.has_barrier.load(Ordering::Relaxed)
    }

    /// Returns the command that makes it at its device.
    pub fn creation(&self) -> CommandKind<'static> {
        let (id, context, properties) = (self.id, self.context.id, self.properties);
        CommandKind::CreateQueue { id, context, part: self.device.part_id(), properties }
    }

    fn make(
        context: &Shared<Context>,
        device: &Shared<Device>,
        properties: cl_command_queue_properties,
        list: Vec<cl_queue_properties>,
    ) -> Done<Shared<Queue>> {
        context.id_at(device)?;
        let (id, order) = (new_id(), Mutex::new(Order::Idle));
        let (context, device) = (Shared::clone(context), Shared::clone(device));
        let queue = Object::new(Queue {
            id,
            context,
            device,
            properties,
            list,
            order,
            has_barrier: AtomicBool::new(false),
        });
        let session = queue.device.session();
        session.submit(&plain(queue.creation())).map_err(session_code)?;
        Ok(queue)
    }

    /// Returns the state of its order; commands of other threads wait while it is held.
    pub fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command.
    ///
    /// # Errors
    /// The codes of wait lists and of lost sessions.
    pub fn send<'a>(
        self: &Arc<Self>,
        waits: &[Shared<Event>],
        event: Option<&Shared<Event>>,
        before: Vec<Command<'a>>,
        kind: CommandKind<'a>,
    ) -> Done {
        let ids = self.ids_of(waits)?;
        let mut order = self.order();
        self.send_in(&mut order, ids, event, before, kind)
    }

    /// Returns the ids of events at the queue's device.
    ///
    /// # Errors
    /// The code of a wait list with a failed command.
    pub fn ids_of(&self, waits: &[Shared<Event>]) -> Done<Vec<u64>> {
        let ids = waits.iter().map(|event| event.id_at(&self.device));
        ids.filter_map(Result::transpose).collect()
    }

    /// Sends a command while the order is held.
    ///
    /// # Errors
    /// The code of a lost session.
    pub fn send_in<'a>(
        self: &Arc<Self>,
        order: &mut Order,
        waits: Vec<u64>,
        event: Option<&Shared<Event>>,
        mut commands: Vec<Command<'a>>,
        kind: CommandKind<'a>,
    ) -> Done {
        let link = self.device.link();
        if let Some(event) = event {
            link.expect(event);
        }
        let id = event.map_or(0, |event| event.id);
        commands.push(Command { queue: self.id, event: id, waits, kind });
        if let Err(error) = link.session.submit_all(&commands) {
            event.iter().for_each(|event| link.forget(event));
            return Err(session_code(error));
        }
        *order = match event {
            Some(event) => Order::Until(Shared::clone(event)),
            None => Order::Unknown,
        };
        Ok(())
    }

    /// True if all commands are known to have ended.
    pub fn is_idle(&self, order: &Order) -> bool {
        match order {
            Order::Idle => true,
            Order::Until(event) => self.is_in_order() && event.has_ended(),
            Order::Unknown => false,
        }
    }

    /// Waits until all commands so far have ended.
    ///
    /// # Errors
    /// The code of a lost session.
    pub fn finish(self: &Arc<Self>) -> Done {
        let mut order = self.order();
        if self.is_idle(&order) {
            drop(order);
            // The device may have been lost since somebody looked last.
            self.device.session().receive_ready().map_err(session_code)?;
            return self.check();
        }
        let last = match &*order {
            Order::Until(event) if self.is_in_order() => Shared::clone(event),
            Order::Idle | Order::Until(_) | Order::Unknown => {
                let marker = Object::<Event>::of_command(self, CL_COMMAND_MARKER);
                let kind = CommandKind::Marker {};
                self.send_in(&mut order, Vec::new(), Some(&marker), Vec::new(), kind)?;
                marker
            }
        };
        drop(order);
        last.wait()?;
        let mut order = self.order();
        if matches!(&*order, Order::Until(event) if Shared::ptr_eq(event, &last)) {
            *order = Order::Idle;
            self.has_barrier.store(false, Ordering::Relaxed);
        }
        drop(order);
        self.check()
    }

    /// Checks that the device is there, and that no command has failed that the program has no event
    /// of.
    ///
    /// # Errors
    /// The code of a lost device; that of the first such command.
    pub fn check(&self) -> Done {
        let link = self.device.link();
        if link.session.why_lost().is_some() {
            return Err(CL_DEVICE_NOT_AVAILABLE);
        }
        link.failure(self.id).map_or(Ok(()), Err)
    }

    /// Notes the failure of a command whose event the program does not have; one that waited for a
    /// failed one is told by that one.
    fn note_failure_of(&self, event: &Shared<Event>) {
        let (id, link) = (self.id, self.device.link());
        event.on_end(Box::new(move |status, _| {
            if status < 0 && status != CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST {
                link.note_failure(id, status);
            }
        }));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.session().release(self.id);
    }
}

fn create(
    context: cl_context,
    device: cl_device_id,
    properties: cl_command_queue_properties,
    list: Vec<cl_queue_properties>,
) -> Done<*mut c_void> {
    const KNOWN: u64 = CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE;
    let context = Object::<Context>::get(context)?;
    let device = Shared::clone(context.device(device)?);
    if properties & !KNOWN != 0 {
        let is_known = properties & !(KNOWN | CL_QUEUE_ON_DEVICE | CL_QUEUE_ON_DEVICE_DEFAULT) == 0;
        return Err(if is_known { CL_INVALID_QUEUE_PROPERTIES } else { CL_INVALID_VALUE });
    }
    if properties & !device.number(CL_DEVICE_QUEUE_PROPERTIES) != 0 {
        return Err(CL_INVALID_QUEUE_PROPERTIES);
    }
    Ok(Object::hand_out(Object::<Queue>::make(&context, &device, properties, list)?))
}

pub unsafe extern "C" fn create_command_queue(
    context: cl_context,
    device: cl_device_id,
    properties: cl_command_queue_properties,
    stored: *mut cl_int,
) -> cl_command_queue {
    // SAFETY: the program passes null or a valid place.
    unsafe { made(stored, || create(context, device, properties, Vec::new())) }
}

pub unsafe extern "C" fn create_command_queue_with_properties(
    context: cl_context,
    device: cl_device_id,
    properties: *const cl_queue_properties,
    stored: *mut cl_int,
) -> cl_command_queue {
    // SAFETY: the program passes null or a list that ends with 0, and null or a valid place.
    unsafe {
        made(stored, || {
            let mut bits = 0;
            let list = call::properties(properties, |name, value| {
                match name as cl_command_queue_info {
                    CL_QUEUE_PROPERTIES => bits = value,
                    CL_QUEUE_SIZE => return Err(CL_INVALID_QUEUE_PROPERTIES),
                    _ => return Err(CL_INVALID_VALUE),
                }
                Ok(())
            })?;
            create(context, device, bits, list)
        })
    }
}

pub unsafe extern "C" fn retain_command_queue(handle: cl_command_queue) -> cl_int {
    code(|| Object::<Queue>::get(handle).map(|queue| queue.retain()))
}

pub unsafe extern "C" fn release_command_queue(handle: cl_command_queue) -> cl_int {
    code(|| {
        let queue = Object::<Queue>::get(handle)?;
        // The last release flushes, says the specification. A lost session has nothing to flush.
        let _ = queue.device.session().flush();
        queue.release()
    })
}

pub unsafe extern "C" fn command_queue_info(
    handle: cl_command_queue,
    name: cl_command_queue_info,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    code(|| {
        let queue = Object::<Queue>::get(handle)?;
        let out = Out { room, value, needed };
        // SAFETY: the program passes null or valid places.
        unsafe {
            match name {
                CL_QUEUE_CONTEXT => out.put_plain(&[Object::handle(&queue.context)]),
                CL_QUEUE_DEVICE => out.put_plain(&[Object::handle(&queue.device)]),
                CL_QUEUE_REFERENCE_COUNT => out.put_plain(&[queue.references()]),
                CL_QUEUE_PROPERTIES => out.put_plain(&[queue.properties]),
                CL_QUEUE_PROPERTIES_ARRAY => out.put_plain(&queue.list),
                CL_QUEUE_DEVICE_DEFAULT => out.put_plain(&[0_usize]),
                CL_QUEUE_SIZE => Err(CL_INVALID_COMMAND_QUEUE),
                _ => Err(CL_INVALID_VALUE),
            }
        }
    })
}

pub unsafe extern "C" fn flush(handle: cl_command_queue) -> cl_int {
    code(|| {
        let queue = Object::<Queue>::get(handle)?;
        let flush = Command { queue: queue.id, ..plain(CommandKind::Flush {}) };
        let session = queue.device.session();
        session.submit(&flush).and_then(|()| session.flush()).map_err(session_code)
    })
}

pub unsafe extern "C" fn finish(handle: cl_command_queue) -> cl_int {
    code(|| Object::<Queue>::get(handle)?.finish())
}

pub unsafe extern "C" fn enqueue_marker_with_wait_list(
    queue: cl_command_queue,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes a valid list, and null or a valid place.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_MARKER)?;
        call.send(Vec::new(), CommandKind::Marker {})
    })
}

pub unsafe extern "C" fn enqueue_barrier_with_wait_list(
    queue: cl_command_queue,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes a valid list, and null or a valid place.
    code(|| unsafe {
        let call = Enqueue::begin(queue, count, waits, event, CL_COMMAND_BARRIER)?;
        if !call.queue.is_in_order() {
            call.queue.has_barrier.store(true, Ordering::Relaxed);
        }
        call.send(Vec::new(), CommandKind::Barrier {})
    })
}

pub unsafe extern "C" fn enqueue_marker(queue: cl_command_queue, event: *mut cl_event) -> cl_int {
    if event.is_null() {
        return CL_INVALID_VALUE;
    }
    // SAFETY: the program passes a valid place.
    unsafe { enqueue_marker_with_wait_list(queue, 0, std::ptr::null(), event) }
}

pub unsafe extern "C" fn enqueue_barrier(queue: cl_command_queue) -> cl_int {
    // SAFETY: nothing is passed on but the handle.
    unsafe { enqueue_barrier_with_wait_list(queue, 0, std::ptr::null(), std::ptr::null_mut()) }
}

pub unsafe extern "C" fn enqueue_wait_for_events(
    queue: cl_command_queue,
    count: cl_uint,
    waits: *const cl_event,
) -> cl_int {
    if count == 0 || waits.is_null() {
        return CL_INVALID_VALUE;
    }
    // SAFETY: the program passes so many handles.
    let done = unsafe { enqueue_barrier_with_wait_list(queue, count, waits, std::ptr::null_mut()) };
    if done == CL_INVALID_EVENT_WAIT_LIST { CL_INVALID_EVENT } else { done }
}

pub unsafe extern "C" fn set_command_queue_property(
    queue: cl_command_queue,
    _properties: cl_command_queue_properties,
    _enable: cl_bool,
    _old: *mut cl_command_queue_properties,
) -> cl_int {
    code(|| Object::<Queue>::get(queue).and(Err(CL_INVALID_OPERATION)))
}
