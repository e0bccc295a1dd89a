//! Command buffers (`cl_khr_command_buffer` 0.9): commands that are recorded here, sent once, and run
//! by one command a replay.
//!
//! A recorded launch has a kernel of its own, with the arguments as they were. The donor gets kernels
//! and commands with the first replay at a device, and again after the device has moved.

pub mod record;

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use opencl_sys::*;
use venice_accel::opencl::wire::{CommandKind, ReplayOrder, encode};

use crate::call::{self, Done, Out, array, check_list, code, made, session_code, store};
use crate::device::Device;
use crate::event::plain;
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::object::{Body, Object, Shared, Table, new_id};
use crate::queue::{Enqueue, Queue};
use crate::transit::Access;

/// Name of the extension.
pub const EXTENSION: &str = "cl_khr_command_buffer";
/// Version of it: 0.9.8.
pub const EXTENSION_VERSION: u32 = 9 << 12 | 8;

// Numbers of `cl_ext.h`.
pub const CL_DEVICE_COMMAND_BUFFER_SUPPORTED_QUEUE_PROPERTIES_KHR: cl_device_info = 0x129A;
pub const CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR: cl_device_info = 0x12A9;
pub const CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR: cl_device_info = 0x12AA;
const CL_COMMAND_BUFFER_FLAGS_KHR: u64 = 0x1293;
const CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR: u64 = 1;
const CL_COMMAND_BUFFER_QUEUES_KHR: cl_uint = 0x1294;
const CL_COMMAND_BUFFER_NUM_QUEUES_KHR: cl_uint = 0x1295;
const CL_COMMAND_BUFFER_REFERENCE_COUNT_KHR: cl_uint = 0x1296;
const CL_COMMAND_BUFFER_STATE_KHR: cl_uint = 0x1297;
const CL_COMMAND_BUFFER_PROPERTIES_ARRAY_KHR: cl_uint = 0x1298;
const CL_COMMAND_BUFFER_CONTEXT_KHR: cl_uint = 0x1299;
const CL_COMMAND_BUFFER_STATE_RECORDING_KHR: cl_uint = 0;
const CL_COMMAND_BUFFER_STATE_EXECUTABLE_KHR: cl_uint = 1;
const CL_COMMAND_COMMAND_BUFFER_KHR: cl_command_type = 0x12A8;
const CL_INVALID_COMMAND_BUFFER_KHR: cl_int = -1138;
const CL_INVALID_SYNC_POINT_WAIT_LIST_KHR: cl_int = -1139;
const CL_INCOMPATIBLE_COMMAND_QUEUE_KHR: cl_int = -1140;

/// Capabilities of every device: output of kernels; simultaneous use and, in version 0.9.0, queues
/// out of order.
pub const CAPABILITIES: u64 = 1 | 1 << 2 | 1 << 3;

impl Body for CommandBuffer {
    const INVALID: cl_int = CL_INVALID_COMMAND_BUFFER_KHR;

    fn table() -> &'static Table<Self> {
        static TABLE: LazyLock<Table<CommandBuffer>> = LazyLock::new(Default::default);
        &TABLE
    }
}

/// A command buffer.
pub struct CommandBuffer {
    id: u64,
    queue: Shared<Queue>,
    /// Properties as the program gave them.
    list: Vec<u64>,
    /// True if a replay need not wait for the one before.
    is_simultaneous: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_final: bool,
    steps: Vec<Step>,
    /// Memory objects, with what all commands do.
    uses: Vec<(Shared<Memory>, Access)>,
    kernels: Vec<Shared<Kernel>>,
    /// Devices that have the commands.
    sent: HashSet<usize>,
}

/// A recorded command.
struct Step {
    /// Places of commands before it.
    waits: Vec<u32>,
    command: Vec<u8>,
}

/// A call that records a command.
pub struct Recording {
    buffer: Shared<CommandBuffer>,
    waits: Vec<u32>,
    /// Place of the sync point.
    place: *mut cl_uint,
    /// Memory objects of the command.
    pub uses: Vec<(Shared<Memory>, Access)>,
    /// Kernel of the command.
    pub kernels: Vec<Shared<Kernel>>,
}

impl Recording {
    /// Adds the command to its buffer.
    ///
    /// # Errors
    /// [`CL_INVALID_OPERATION`] once the buffer is final.
    pub fn add(&self, kind: &CommandKind<'_>) -> Done {
        let mut state = self.buffer.state();
        if state.is_final {
            return Err(CL_INVALID_OPERATION);
        }
        let place = state.steps.len() as u32;
        state.steps.push(Step { waits: self.waits.clone(), command: encode(kind) });
        for (memory, access) in &self.uses {
            let known = state.uses.iter_mut().find(|known| Shared::ptr_eq(&known.0, memory));
            match known {
                Some(known) if known.1 == *access => {}
                Some(known) => known.1 = Access::Store,
                None => state.uses.push((Shared::clone(memory), *access)),
            }
        }
        state.kernels.extend(self.kernels.iter().cloned());
        // SAFETY: the program passes null or a valid place.
        unsafe { store(self.place, point(place)) };
        Ok(())
    }
}

/// Returns the sync point of a command.
fn point(place: u32) -> cl_uint {
    place + 1
}

impl CommandBuffer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if no call is at work with it.
    pub fn is_free(&self) -> bool {
        self.state.try_lock().is_ok()
    }

    /// Sends its commands anew to a device that has moved, with the next replay.
    pub fn forget_device(&self, device: &Device) {
        self.state().sent.remove(&device.index);
    }

    /// Sends kernels and commands to a device that lacks them.
    fn send_to(&self, state: &mut State, device: &Shared<Device>) -> Done {
        if state.sent.contains(&device.index) {
            return Ok(());
        }
        state.kernels.iter().try_for_each(|kernel| kernel.send_to(device))?;
        let (id, mut commands) = (self.id, Vec::with_capacity(1 + state.steps.len()));
        commands.push(plain(CommandKind::CreateCommandBuffer { id }));
        commands.extend(state.steps.iter().map(|step| {
            let (waits, step) = (step.waits.clone(), &step.command[..]);
            plain(CommandKind::Record { buffer: id, waits, step })
        }));
        device.session().submit_all(&commands).map_err(session_code)?;
        state.sent.insert(device.index);
        Ok(())
    }

    /// Checks a queue that is to run the commands.
    fn check_queue(&self, queue: &Object<Queue>) -> Done {
        if !Shared::ptr_eq(&queue.context, &self.queue.context) {
            return Err(CL_INVALID_CONTEXT);
        }
        if !Shared::ptr_eq(&queue.device, &self.queue.device) {
            return Err(CL_INCOMPATIBLE_COMMAND_QUEUE_KHR);
        }
        Ok(())
    }

    fn replay(&self, mut call: Enqueue) -> Done {
        let mut state = self.state();
        if !state.is_final {
            return Err(CL_INVALID_OPERATION);
        }
        for (memory, access) in &state.uses {
            memory.prepare(&mut call, *access)?;
        }
        let queue = Shared::clone(&call.queue);
        self.send_to(&mut state, &queue.device)?;
        let order = match (queue.is_in_order(), self.queue.is_in_order()) {
            (true, _) => ReplayOrder::OfQueue {},
            (false, true) => ReplayOrder::AsRecorded {},
            (false, false) => ReplayOrder::ByWaits {},
        };
        let alone = !queue.is_in_order() && !self.is_simultaneous;
        call.send(Vec::new(), CommandKind::Replay { buffer: self.id, order, alone })
    }
}

impl Drop for CommandBuffer {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for device in &self.queue.context.devices {
            if state.sent.contains(&device.index) {
                device.session().release(self.id);
            }
        }
    }
}

pub unsafe extern "C" fn create_command_buffer(
    count: cl_uint,
    queues: *const cl_command_queue,
    properties: *const u64,
    stored: *mut cl_int,
) -> *mut c_void {
    // SAFETY: the program passes so many queues, null or a list that ends with 0, and null or a
    // valid place.
    unsafe {
        made(stored, || {
            // One queue: several need another extension.
            if count != 1 || queues.is_null() {
                return Err(CL_INVALID_VALUE);
            }
            let queue = Object::<Queue>::get(queues.read())?;
            let mut flags = None;
            let list = call::properties(properties, |name, value| {
                let is_known = name == CL_COMMAND_BUFFER_FLAGS_KHR
                    && value & !CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR == 0;
                match flags.replace(value) {
                    None if is_known => Ok(()),
                    _ => Err(CL_INVALID_VALUE),
                }
            })?;
            let is_simultaneous = flags.is_some_and(|flags| flags != 0);
            let (id, state) = (new_id(), Mutex::default());
            let buffer = CommandBuffer { id, queue, list, is_simultaneous, state };
            Ok(Object::hand_out(Object::new(buffer)))
        })
    }
}

pub unsafe extern "C" fn finalize_command_buffer(handle: *mut c_void) -> cl_int {
    code(|| {
        let buffer = Object::<CommandBuffer>::get(handle)?;
        let mut state = buffer.state();
        if state.is_final {
            return Err(CL_INVALID_OPERATION);
        }
        state.is_final = true;
        Ok(())
    })
}

pub unsafe extern "C" fn retain_command_buffer(handle: *mut c_void) -> cl_int {
    code(|| Object::<CommandBuffer>::get(handle).map(|buffer| buffer.retain()))
}

pub unsafe extern "C" fn release_command_buffer(handle: *mut c_void) -> cl_int {
    code(|| Object::<CommandBuffer>::get(handle)?.release())
}

pub unsafe extern "C" fn enqueue_command_buffer(
    queue_count: cl_uint,
    queues: *mut cl_command_queue,
    handle: *mut c_void,
    count: cl_uint,
    waits: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the program passes valid lists, and null or a valid place.
    code(|| unsafe {
        let buffer = Object::<CommandBuffer>::get(handle)?;
        check_list(queue_count, queues, CL_INVALID_VALUE)?;
        let queue = match array(queues.cast_const(), queue_count as usize) {
            [] => Shared::clone(&buffer.queue),
            [queue] => Object::<Queue>::get(*queue)?,
            _ => return Err(CL_INVALID_VALUE),
        };
        buffer.check_queue(&queue)?;
        buffer.replay(Enqueue::on(queue, count, waits, event, CL_COMMAND_COMMAND_BUFFER_KHR)?)
    })
}

pub unsafe extern "C" fn command_buffer_info(
    handle: *mut c_void,
    name: cl_uint,
    room: usize,
    value: *mut c_void,
    needed: *mut usize,
) -> cl_int {
    // SAFETY: the program passes null or valid places.
    code(|| unsafe {
        let buffer = Object::<CommandBuffer>::get(handle)?;
        let out = Out { room, value, needed };
        match name {
            CL_COMMAND_BUFFER_NUM_QUEUES_KHR => out.put_plain(&[1_u32]),
            CL_COMMAND_BUFFER_QUEUES_KHR => out.put_plain(&[Object::handle(&buffer.queue)]),
            CL_COMMAND_BUFFER_REFERENCE_COUNT_KHR => out.put_plain(&[buffer.references()]),
            CL_COMMAND_BUFFER_STATE_KHR => out.put_plain(&[match buffer.state().is_final {
                true => CL_COMMAND_BUFFER_STATE_EXECUTABLE_KHR,
                false => CL_COMMAND_BUFFER_STATE_RECORDING_KHR,
            }]),
            CL_COMMAND_BUFFER_PROPERTIES_ARRAY_KHR => out.put_plain(&buffer.list),
            CL_COMMAND_BUFFER_CONTEXT_KHR => {
                out.put_plain(&[Object::handle(&buffer.queue.context)])
            }
            _ => Err(CL_INVALID_VALUE),
        }
    })
}
