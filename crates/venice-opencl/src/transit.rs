//! Contents of memory objects in a context of several devices: each command finds the latest ones at
//! its device. They come there behind the commands that store them, while the program goes on.

use std::sync::atomic::{AtomicUsize, Ordering};

use opencl_sys::{CL_COMMAND_MARKER, CL_COMPLETE, CL_DEVICE_NOT_AVAILABLE};
use venice_accel::opencl::wire::CommandKind;

use crate::call::{Done, session_code};
use crate::coherence::{self, End};
use crate::device::Device;
use crate::event::Event;
use crate::followers::TRANSITS;
use crate::memory::Memory;
use crate::object::{Object, Shared};
use crate::queue::{Enqueue, Queue};

/// Use that a command makes of the contents of a memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It loads them.
    Load,
    /// It stores some, and may load others.
    Store,
    /// It stores all of them, and loads none.
    Replace,
}

impl Access {
    /// Returns that of a command that stores something, or nothing.
    pub fn storing(stores: bool) -> Self {
        if stores { Self::Store } else { Self::Load }
    }
}

/// Devices with the latest contents of a memory object.
#[derive(Default)]
pub struct Holders {
    /// Devices whose copy is the latest, or will be; none: nothing was stored yet.
    devices: u64,
    /// Latest command that stores something.
    writer: Option<Shared<Event>>,
    transits: Vec<Transit>,
}

/// Contents on their way.
struct Transit {
    from: u64,
    to: u64,
    /// Ends when they have come.
    end: Shared<Event>,
}

/// Transits that have not ended.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// True while contents are on their way.
pub fn are_under_way() -> bool {
    UNDER_WAY.load(Ordering::Acquire) > 0
}

impl Holders {
    /// True if a device has the latest contents, or will have them.
    pub fn has(&self, device: &Device) -> bool {
        self.devices & device.bit() != 0
    }

    /// Notes that a device has them too.
    pub fn add(&mut self, device: &Device) {
        self.devices |= device.bit();
    }

    /// Notes that a command, which has this event or has ended, stores something.
    pub fn store(&mut self, device: &Device, writer: Option<&Shared<Event>>) {
        self.devices = device.bit();
        self.writer = writer.cloned();
    }

    fn forget_ended(&mut self) {
        self.transits.retain(|transit| !transit.end.has_ended());
        self.writer = self.writer.take().filter(|writer| !writer.has_ended());
    }

    /// Returns the ends of the transits that a command at a device waits for.
    fn awaited_by(&self, device: &Device, access: Access) -> impl Iterator<Item = Shared<Event>> {
        let bit = device.bit();
        // A load disturbs none of those that leave.
        let awaited =
            move |it: &&Transit| it.to == bit || (it.from == bit && access != Access::Load);
        self.transits.iter().filter(awaited).map(|it| Shared::clone(&it.end))
    }

    /// Returns a device that the contents come from: rather one that has them already.
    fn source<'a>(&self, devices: &'a [Shared<Device>]) -> Option<&'a Shared<Device>> {
        let is_coming = |device: &Device| self.transits.iter().any(|it| it.to == device.bit());
        let mut holders = devices.iter().filter(|device| self.has(device));
        let first = holders.clone().next();
        holders.find(|device| !is_coming(device)).or(first)
    }

    /// Undoes the begin of a transit that has failed.
    fn take_back(&mut self, transit_from: u64, to: u64) {
        self.devices &= !to;
        if self.devices == 0 {
            self.devices = transit_from;
        }
    }
}

/// Has a command of a call find the latest contents of a whole memory object at its device.
///
/// # Errors
/// The code of a lost session, of a full device, or of a failed command in the wait list.
pub fn bring(memory: &Shared<Memory>, call: &mut Enqueue, access: Access) -> Done {
    let queue = Shared::clone(&call.queue);
    let device = &queue.device;
    memory.place_at(device)?;
    let mut state = memory.state();
    let holders = &mut state.holders;
    holders.forget_ended();
    if access != Access::Replace && !holders.has(device) {
        if let Some(source) = holders.source(&memory.context.devices) {
            let transit = begin(memory, holders, (source, &queue), &call.waits)?;
            holders.transits.push(transit);
        }
        holders.add(device);
    }
    call.waits.extend(holders.awaited_by(device, access));
    drop(state);
    if access != Access::Load {
        call.stores.push(Shared::clone(memory));
    }
    Ok(())
}

/// Begins a transit, for a command that waits for events.
fn begin(
    memory: &Shared<Memory>,
    holders: &Holders,
    (source, queue): (&Shared<Device>, &Shared<Queue>),
    waits: &[Shared<Event>],
) -> Done<Transit> {
    let from = source.link();
    if from.session.why_lost().is_some() {
        return Err(CL_DEVICE_NOT_AVAILABLE);
    }
    let stored = holders.writer.iter().cloned();
    let ends = holders.transits.iter().map(|it| Shared::clone(&it.end));
    let before: Vec<_> = waits.iter().cloned().chain(stored).chain(ends).collect();
    let ready = marker(queue, &before)?;
    let end = Object::<Event>::of_driver(&memory.context);
    let transit = Transit { from: source.bit(), to: queue.device.bit(), end: Shared::clone(&end) };
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    let (memory, source, queue) =
        (Shared::clone(memory), Shared::clone(source), Shared::clone(queue));
    ready.on_end(Box::new(move |status, _| {
        TRANSITS.follow(Box::new(move || {
            let carried =
                if status < 0 { Err(status) } else { carry(&memory, &source, &queue.device) };
            if let Err(status) = carried {
                memory.state().holders.take_back(source.bit(), queue.device.bit());
                // The program has no event that tells it.
                queue.device.link().note_failure(queue.id, status);
            }
            UNDER_WAY.fetch_sub(1, Ordering::Release);
            end.end(carried.map_or_else(|status| status, |()| CL_COMPLETE), None, &[]);
        }));
    }));
    Ok(transit)
}

/// Sends a marker that ends once the commands before it, as far as the queue has an order, and the
/// events have ended.
fn marker(queue: &Shared<Queue>, before: &[Shared<Event>]) -> Done<Shared<Event>> {
    let ready = Object::<Event>::of_command(queue, CL_COMMAND_MARKER);
    let mut waits = before.to_vec();
    waits.retain(|event| !event.has_ended());
    let mut ids = queue.ids_of(&waits)?;
    // Without a wait list it would wait for all commands, also for those without an order.
    let nothing = (ids.is_empty() && !queue.is_in_order())
        .then(|| Object::<Event>::of_driver(&queue.context));
    if let Some(nothing) = &nothing {
        ids.extend(nothing.id_at(&queue.device)?);
    }
    queue.send_in(&mut queue.order(), ids, Some(&ready), Vec::new(), CommandKind::Marker {})?;
    if let Some(nothing) = nothing {
        nothing.end(CL_COMPLETE, None, &[]);
    }
    let link = queue.device.link();
    link.session.flush().map_err(session_code)?;
    // The program may wait for something else than this device.
    link.receive_always();
    Ok(ready)
}

fn carry(memory: &Memory, source: &Shared<Device>, target: &Shared<Device>) -> Done {
    let end = |device: &Shared<Device>| End::new(memory, &device.link(), memory.place_at(device)?);
    coherence::copy(memory, &end(source)?, &end(target)?)
}
