//! Moving a device to another donor: its queues are drained, its objects are made at the other
//! donor under the same ids, their contents follow, and the program goes on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opencl_sys::{
    CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DEVICE_VERSION, CL_DRIVER_VERSION, CL_OUT_OF_RESOURCES,
    cl_device_info, cl_int,
};
use venice_accel::opencl::wire::CommandKind;
use venice_rack::types::ServiceAccess;

use crate::call::{Done, session_code};
use crate::command_buffer::CommandBuffer;
use crate::context::Context;
use crate::device::Device;
use crate::event::{Event, plain};
use crate::gate;
use crate::kernel::Kernel;
use crate::link::Link;
use crate::memory::Memory;
use crate::object::{Shared, living};
use crate::part::{Division, whole_of};
use crate::program::Program;
use crate::queue::Queue;
use crate::sampler::Sampler;
use crate::seat::Hold;
use crate::transit;

/// Longest time in which calls are kept from entering, until those inside have left.
const CLOSE_WITHIN: Duration = Duration::from_millis(100);
/// Longest time in which commands are held back while the program's own events are open: it may
/// have to enqueue something before it ends them.
const HOLD_WITHIN: Duration = Duration::from_millis(100);
/// Pause between two looks at a draining queue.
const LOOK: Duration = Duration::from_micros(200);
/// Attempts, as long as calls are in the way.
const ATTEMPTS: usize = 100;
/// Parameters that two devices must have in common: a program knows those of the first one.
const SAME: [cl_device_info; 4] =
    [CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DEVICE_VERSION, CL_DRIVER_VERSION];

/// Reason why a device stays where it is, for now.
#[derive(Debug, thiserror::Error)]
pub enum Kept {
    /// The other host cannot be reached.
    #[error("the other device cannot be used: {0}")]
    Unreachable(#[from] venice_accel::opencl::session::OpenError),
    /// The other device is of another sort.
    #[error("the other device is not the same: {theirs}, not {ours}")]
    Different {
        /// Device of the program.
        ours: String,
        /// Device that was granted instead.
        theirs: String,
    },
    /// The program has an address of a buffer's bytes at the donor.
    #[error("a buffer is mapped")]
    Mapped,
    /// Commands wait for an event that the program ends.
    #[error("commands wait for an event of the program")]
    WaitsForProgram,
    /// Calls are always under way.
    #[error("calls are under way")]
    Busy,
    /// An object could not be made there.
    #[error("moving its objects failed: {}", venice_accel::opencl::code::ErrorCode(*.0))]
    Failed(cl_int),
}

/// Moves a device to the donor of another grant.
///
/// # Errors
/// [`Kept`]: then everything is as before.
pub fn move_device(device: &Shared<Device>, to: &ServiceAccess) -> Result<(), Kept> {
    let from = device.link();
    let link = Link::open(to)?;
    check_same(&from, &link)?;
    // Compilers are slow: most of their work is done while the program still runs.
    let mut made = Made::default();
    made.add(device, &from, &link).map_err(Kept::Failed)?;
    for _ in 0..ATTEMPTS {
        let hold = Hold::of(device.seat());
        drain(device, &from)?;
        let Some(closed) = gate::close(CLOSE_WITHIN) else { continue };
        if transit::are_under_way() {
            continue;
        }
        // What was on its way before the hold is drained too.
        drain(device, &from)?;
        let objects = Objects::of(device);
        let moved = match objects.check(device) {
            Ok(true) => objects.carry(device, (&from, &link), &mut made).map_err(Kept::Failed),
            Ok(false) => {
                drop((closed, hold));
                std::thread::sleep(LOOK);
                continue;
            }
            Err(kept) => Err(kept),
        };
        // The last reference to an object may be ours, and end in a callback that calls.
        drop((closed, hold));
        drop((objects, made));
        return moved;
    }
    Err(Kept::Busy)
}

fn check_same(ours: &Link, theirs: &Link) -> Result<(), Kept> {
    let told = |link: &Link| SAME.map(|name| link.text(name)).join(", ");
    let (ours, theirs) = (told(ours), told(theirs));
    if ours == theirs { Ok(()) } else { Err(Kept::Different { ours, theirs }) }
}

/// Waits until all commands of a device have ended.
fn drain(device: &Shared<Device>, link: &Arc<Link>) -> Result<(), Kept> {
    let began = Instant::now();
    let markers = queues_of(device)
        .into_iter()
        .map(|queue| link.send(&queue.context, queue.id, CommandKind::Marker {}));
    let markers = markers.collect::<Done<Vec<_>>>().map_err(Kept::Failed)?;
    let is_drained = || {
        let has_ended = markers.iter().all(|marker| marker.has_ended());
        has_ended && link.is_quiet() && !transit::are_under_way()
    };
    while !is_drained() {
        link.session.receive_ready().map_err(session_code).map_err(Kept::Failed)?;
        if began.elapsed() >= HOLD_WITHIN && has_open_events(device) {
            return Err(Kept::WaitsForProgram);
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Returns the queues of a device and of its parts.
fn queues_of(device: &Shared<Device>) -> Vec<Shared<Queue>> {
    let mut queues = living::<Queue>();
    queues.retain(|queue| Shared::ptr_eq(whole_of(&queue.device), device));
    queues
}

/// True if commands of a device may wait for an event that the program has to end.
fn has_open_events(device: &Shared<Device>) -> bool {
    living::<Event>().iter().any(|event| event.is_open_in(device))
}

/// Objects that are at the other donor already. They live until the device has moved, so that their
/// release goes there.
#[derive(Default)]
struct Made {
    divisions: Vec<Arc<Division>>,
    contexts: Vec<Shared<Context>>,
    /// Programs, with the marks of their builds.
    programs: HashMap<u64, (Shared<Program>, u64)>,
}

impl Made {
    /// Adds what is not there yet: parts of the device, contexts, programs.
    fn add(&mut self, device: &Shared<Device>, from: &Link, to: &Link) -> Done {
        for division in divisions_of(device) {
            if !self.divisions.iter().any(|made| Arc::ptr_eq(made, &division)) {
                division.make(&to.session)?;
                self.divisions.push(division);
            }
        }
        for context in living::<Context>() {
            let is_made = self.contexts.iter().any(|made| Shared::ptr_eq(made, &context));
            if context.is_at(device) && !is_made {
                to.session.submit(&plain(context.creation_at(device))).map_err(session_code)?;
                self.contexts.push(context);
            }
        }
        for program in living::<Program>() {
            let Some(mark) = program.mark_at(device) else { continue };
            match self.programs.get(&program.id) {
                Some((_, made)) if *made == mark => continue,
                // It was built once more.
                Some(_) => to.session.release(program.id),
                None => {}
            }
            program.carry(device, from, to)?;
            self.programs.insert(program.id, (program, mark));
        }
        Ok(())
    }
}

/// Returns the divisions of a device, those of parts last.
fn divisions_of(device: &Shared<Device>) -> Vec<Arc<Division>> {
    let mut parts = living::<Device>();
    parts.retain(|part| Shared::ptr_eq(whole_of(part), device));
    let parts = parts.iter().filter_map(|device| device.part());
    let mut divisions: Vec<_> = parts.map(|part| Arc::clone(&part.division)).collect();
    divisions.sort_by_key(|division| (division.depth(), Arc::as_ptr(division)));
    divisions.dedup_by_key(|division| Arc::as_ptr(division));
    divisions
}

/// The other objects that a device may have. They live as long as this does, so that none is released
/// while it is carried.
struct Objects {
    queues: Vec<Shared<Queue>>,
    memory: Vec<Shared<Memory>>,
    samplers: Vec<Shared<Sampler>>,
    kernels: Vec<Shared<Kernel>>,
    buffers: Vec<Shared<CommandBuffer>>,
    events: Vec<Shared<Event>>,
}

impl Objects {
    fn of(device: &Shared<Device>) -> Self {
        let mut memory = living::<Memory>();
        // A whole comes before its parts and before images of it.
        memory.sort_by_key(|memory| memory.depth());
        let queues = queues_of(device);
        let (samplers, kernels, buffers) = (living(), living(), living());
        Self { queues, memory, samplers, kernels, buffers, events: living() }
    }

    /// True if nobody is at work with one of them.
    fn check(&self, device: &Device) -> Result<bool, Kept> {
        let mut is_free = self.kernels.iter().all(|kernel| kernel.is_free())
            && self.buffers.iter().all(|buffer| buffer.is_free());
        for memory in &self.memory {
            match memory.is_mapped_at(device) {
                None => is_free = false,
                Some(true) => return Err(Kept::Mapped),
                Some(false) => {}
            }
        }
        Ok(is_free)
    }

    /// Makes them at another donor, and gives the device its link there.
    fn carry(
        &self,
        device: &Shared<Device>,
        (from, to): (&Arc<Link>, &Arc<Link>),
        made: &mut Made,
    ) -> Done {
        made.add(device, from, to)?;
        let submit = |kind| to.session.submit(&plain(kind)).map_err(session_code);
        for queue in &self.queues {
            submit(queue.creation())?;
        }
        for sampler in self.samplers.iter().filter(|it| it.context.is_at(device)) {
            submit(sampler.creation())?;
        }
        let mut places = HashMap::new();
        for memory in &self.memory {
            if let Some(place) = memory.carry(device, (from, to), &places)? {
                places.insert(memory.id, place);
            }
        }
        // A donor tells of failures before the end of what comes behind them.
        for queue in &self.queues {
            to.run(&queue.context, queue.id, CommandKind::Marker {})?;
        }
        let ids = self.queues.iter().map(|it| it.id).chain(made.contexts.iter().map(|it| it.id));
        let ids = ids.chain(self.memory.iter().map(|it| it.id));
        if ids.into_iter().any(|id| to.failure(id).is_some()) {
            return Err(CL_OUT_OF_RESOURCES);
        }
        self.queues.iter().for_each(|queue| to.inherit_failure(from, queue.id));
        for memory in &self.memory {
            memory.set_place(device, places.get(&memory.id).copied());
        }
        self.kernels.iter().for_each(|kernel| kernel.forget_device(device));
        self.buffers.iter().for_each(|buffer| buffer.forget_device(device));
        self.events.iter().for_each(|event| event.forget_device(device));
        if from.receives_always() {
            to.receive_always();
        }
        from.leave();
        drop(device.seat().change_link(Arc::clone(to)));
        Ok(())
    }
}
