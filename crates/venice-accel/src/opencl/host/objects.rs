//! Objects of a connection, by the ids that the recipient chose.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;

use opencl_sys::{
    CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, CL_INVALID_COMMAND_QUEUE, CL_INVALID_CONTEXT,
    CL_INVALID_DEVICE, CL_INVALID_EVENT, CL_INVALID_KERNEL, CL_INVALID_MEM_OBJECT,
    CL_INVALID_PROGRAM, CL_INVALID_SAMPLER, CL_INVALID_VALUE, CL_OUT_OF_HOST_MEMORY, cl_event,
    cl_int,
};

use super::buffers::CommandBuffers;
use crate::opencl::library::{Library, call};

/// Most objects of one connection.
const MAX_OBJECTS: usize = 1 << 20;

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A part of the device.
    Part,
    Context,
    Queue,
    Memory,
    Sampler,
    Program,
    Kernel,
    Event,
}

impl Kind {
    /// Returns the error for an id that is none of this kind.
    fn invalid(self) -> cl_int {
        match self {
            Self::Part => CL_INVALID_DEVICE,
            Self::Context => CL_INVALID_CONTEXT,
            Self::Queue => CL_INVALID_COMMAND_QUEUE,
            Self::Memory => CL_INVALID_MEM_OBJECT,
            Self::Sampler => CL_INVALID_SAMPLER,
            Self::Program => CL_INVALID_PROGRAM,
            Self::Kernel => CL_INVALID_KERNEL,
            Self::Event => CL_INVALID_EVENT,
        }
    }
}

/// One reference to an object of the driver, given back on drop.
#[derive(Debug)]
pub(super) struct Owned {
    library: &'static Library,
    kind: Kind,
    raw: *mut c_void,
}

// SAFETY: objects of OpenCL may be used from any thread (specification, Appendix A.2), and each
// value is one reference of its own.
unsafe impl Send for Owned {}

impl Owned {
    /// Takes over a reference.
    pub(super) fn new(library: &'static Library, kind: Kind, raw: *mut c_void) -> Self {
        Self { library, kind, raw }
    }

    pub(super) fn raw(&self) -> *mut c_void {
        self.raw
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let library = self.library;
        // A driver that cannot release an object leaves nothing to be done.
        let _ = match self.kind {
            Kind::Part => call!(library, clReleaseDevice(self.raw)),
            Kind::Context => call!(library, clReleaseContext(self.raw)),
            Kind::Queue => call!(library, clReleaseCommandQueue(self.raw)),
            Kind::Memory => call!(library, clReleaseMemObject(self.raw)),
            Kind::Sampler => call!(library, clReleaseSampler(self.raw)),
            Kind::Program => call!(library, clReleaseProgram(self.raw)),
            Kind::Kernel => call!(library, clReleaseKernel(self.raw)),
            Kind::Event => call!(library, clReleaseEvent(self.raw)),
        };
    }
}

/// An object, or the error of its making.
#[derive(Debug)]
struct Entry {
    kind: Kind,
    made: Result<Owned, cl_int>,
    /// True for a queue with profiling.
    has_times: bool,
}

/// Objects of one connection.
#[derive(Debug, Default)]
pub(super) struct Objects {
    entries: HashMap<u64, Entry>,
    /// The last unwatched command of each queue that may not have ended.
    last: BTreeMap<u64, Owned>,
    pub(super) buffers: CommandBuffers,
}

impl Objects {
    /// Adds an object, or the error of its making, which its users get too.
    ///
    /// # Errors
    /// The error of its making; an id that is taken or 0; too many objects.
    pub(super) fn add(
        &mut self,
        id: u64,
        kind: Kind,
        made: Result<Owned, cl_int>,
    ) -> Result<(), cl_int> {
        if id == 0 || self.entries.contains_key(&id) {
            return Err(CL_INVALID_VALUE);
        }
        if self.entries.len() >= MAX_OBJECTS {
            return Err(CL_OUT_OF_HOST_MEMORY);
        }
        let outcome = made.as_ref().map(drop).map_err(|code| *code);
        self.entries.insert(id, Entry { kind, made, has_times: false });
        outcome
    }

    /// Notes that the commands of a queue have times.
    pub(super) fn note_profiling(&mut self, queue: u64) {
        if let Some(entry) = self.entries.get_mut(&queue) {
            entry.has_times = true;
        }
    }

    /// True if the commands of a queue have times.
    pub(super) fn has_times(&self, queue: u64) -> bool {
        self.entries.get(&queue).is_some_and(|entry| entry.has_times)
    }

    /// Notes the last unwatched command of a queue.
    pub(super) fn note_last(&mut self, queue: u64, event: Owned) {
        self.last.insert(queue, event);
    }

    /// True if the last unwatched command of a queue has not ended; forgets those that have.
    pub(super) fn has_last(&mut self, runs: impl Fn(cl_event) -> bool) -> bool {
        self.last.retain(|_, event| runs(event.raw()));
        !self.last.is_empty()
    }

    /// Returns the handle of an object.
    ///
    /// # Errors
    /// The error of its making, or the one for an id that is none of this kind.
    pub(super) fn get(&self, id: u64, kind: Kind) -> Result<*mut c_void, cl_int> {
        match self.entries.get(&id).filter(|entry| entry.kind == kind) {
            Some(entry) => entry.made.as_ref().map(Owned::raw).map_err(|code| *code),
            None => Err(kind.invalid()),
        }
    }

    /// Returns the events of a wait list.
    ///
    /// # Errors
    /// That of a wait list with a failed command, or with an id that is no event.
    pub(super) fn events(&self, ids: &[u64]) -> Result<Vec<cl_event>, cl_int> {
        let found = ids.iter().map(|id| self.get(*id, Kind::Event));
        found.collect::<Result<_, _>>().map_err(|code| match code {
            CL_INVALID_EVENT => CL_INVALID_EVENT,
            _ => CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST,
        })
    }

    /// Forgets an object; one that is unknown is none.
    pub(super) fn release(&mut self, id: u64) {
        self.entries.remove(&id);
        self.buffers.remove(id);
    }

    /// Returns the queues.
    pub(super) fn queues(&self) -> Vec<*mut c_void> {
        let queues = self.entries.values().filter(|entry| entry.kind == Kind::Queue);
        queues.filter_map(|entry| entry.made.as_ref().ok().map(Owned::raw)).collect()
    }
}
