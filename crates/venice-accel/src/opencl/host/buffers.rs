//! Command buffers: commands that the recipient has sent once, enqueued again by each replay. Drivers
//! need not know the extension.

use std::collections::HashMap;
use std::ptr::{null, null_mut};

use opencl_sys::{
    CL_INVALID_VALUE, CL_OUT_OF_HOST_MEMORY, cl_command_queue, cl_event, cl_int, cl_uint,
};

use super::execute::{Executor, Queued, Target, done};
use super::objects::{Kind, Owned};
use crate::opencl::library::call;
use crate::opencl::wire::{Command, CommandKind, ReplayOrder, decode};

/// Most command buffers of a connection.
const MAX_BUFFERS: usize = 1 << 16;
/// Most commands of one.
const MAX_STEPS: usize = 1 << 16;
/// Most bytes of all commands of a connection.
const MAX_BYTES: usize = 64 << 20;
/// Error for an id that is no command buffer.
const CL_INVALID_COMMAND_BUFFER_KHR: cl_int = -1138;

/// Command buffers of a connection, by the ids that the recipient chose.
#[derive(Debug, Default)]
pub(super) struct CommandBuffers {
    buffers: HashMap<u64, CommandBuffer>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct CommandBuffer {
    steps: Vec<Step>,
    /// End of its last replay.
    last: Option<Owned>,
}

/// A recorded command.
#[derive(Debug)]
struct Step {
    /// Places of the steps before it.
    waits: Box<[u32]>,
    command: Box<[u8]>,
}

impl Step {
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.waits) + self.command.len()
    }
}

impl CommandBuffers {
    /// Adds one without commands.
    ///
    /// # Errors
    /// That of an id that is taken or 0; too many.
    pub(super) fn add(&mut self, id: u64) -> Result<(), cl_int> {
        if id == 0 || self.buffers.contains_key(&id) {
            return Err(CL_INVALID_VALUE);
        }
        if self.buffers.len() >= MAX_BUFFERS {
            return Err(CL_OUT_OF_HOST_MEMORY);
        }
        self.buffers.insert(id, CommandBuffer::default());
        Ok(())
    }

    /// Adds a command to a buffer.
    ///
    /// # Errors
    /// That of an unknown buffer, or of a command that none may have; too many.
    pub(super) fn record(&mut self, id: u64, waits: Vec<u32>, step: &[u8]) -> Result<(), cl_int> {
        let buffer = self.buffers.get_mut(&id).ok_or(CL_INVALID_COMMAND_BUFFER_KHR)?;
        let kind = decode::<CommandKind<'_>>(step).map_err(|_| CL_INVALID_VALUE)?;
        let place = buffer.steps.len();
        if !kind.may_be_recorded() || waits.iter().any(|wait| *wait as usize >= place) {
            return Err(CL_INVALID_VALUE);
        }
        let step = Step { waits: waits.into(), command: step.into() };
        self.bytes += step.bytes();
        if place == MAX_STEPS || self.bytes > MAX_BYTES {
            self.bytes -= step.bytes();
            return Err(CL_OUT_OF_HOST_MEMORY);
        }
        buffer.steps.push(step);
        Ok(())
    }

    /// Forgets a buffer; commands of its replays go on.
    pub(super) fn remove(&mut self, id: u64) {
        if let Some(buffer) = self.buffers.remove(&id) {
            self.bytes -= buffer.steps.iter().map(Step::bytes).sum::<usize>();
        }
    }
}

/// A replay whose commands are being enqueued.
struct Running {
    /// Wait list of the replay.
    before: Vec<cl_event>,
    /// Ends of the commands so far.
    ends: Vec<Owned>,
    /// Place of the latest barrier.
    barrier: Option<usize>,
}

impl Running {
    /// Returns the wait list of the next command.
    fn waits_of(&self, step: &Step, order: &ReplayOrder, is_barrier: bool) -> Vec<cl_event> {
        let Some(last) = self.ends.last() else { return self.before.clone() };
        match order {
            ReplayOrder::OfQueue {} => Vec::new(),
            ReplayOrder::AsRecorded {} => vec![last.raw()],
            ReplayOrder::ByWaits {} => {
                let named = step.waits.iter().map(|wait| self.ends[*wait as usize].raw());
                match self.barrier {
                    _ if is_barrier && step.waits.is_empty() => self.all(),
                    Some(barrier) => named.chain([self.ends[barrier].raw()]).collect(),
                    None if step.waits.is_empty() => self.before.clone(),
                    None => named.collect(),
                }
            }
        }
    }

    /// Returns the wait list of the mark behind all commands.
    fn last_ones(&self, order: &ReplayOrder) -> Vec<cl_event> {
        match (order, self.ends.last()) {
            (_, None) => self.before.clone(),
            (ReplayOrder::OfQueue {}, Some(_)) => Vec::new(),
            (ReplayOrder::AsRecorded {}, Some(last)) => vec![last.raw()],
            (ReplayOrder::ByWaits {}, Some(_)) => self.all(),
        }
    }

    fn all(&self) -> Vec<cl_event> {
        self.ends.iter().map(Owned::raw).collect()
    }
}

impl Executor<'_> {
    /// Enqueues the commands of a buffer, and a mark behind them.
    pub(super) fn replay(
        &mut self,
        command: &Command<'_>,
        buffer: u64,
        (order, alone): (&ReplayOrder, bool),
    ) -> Result<(Owned, Queued), cl_int> {
        let queue: cl_command_queue = self.objects.get(command.queue, Kind::Queue)?;
        let mut before = self.objects.events(&command.waits)?;
        let found = self.objects.buffers.buffers.get(&buffer);
        let found = found.ok_or(CL_INVALID_COMMAND_BUFFER_KHR)?;
        before.extend(found.last.as_ref().filter(|_| alone).map(Owned::raw));
        let mut replay = Running { before, ends: Vec::new(), barrier: None };
        for step in &found.steps {
            let kind = decode::<CommandKind<'_>>(&step.command).map_err(|_| CL_INVALID_VALUE)?;
            let is_barrier = kind == CommandKind::Barrier {};
            let waits = replay.waits_of(step, order, is_barrier);
            // A barrier of the queue would hold commands up that are not of the buffer.
            let kind = if is_barrier { CommandKind::Marker {} } else { kind };
            replay.ends.push(self.enqueue_step(queue, &waits, &kind)?);
            if is_barrier {
                replay.barrier = Some(replay.ends.len() - 1);
            }
        }
        let end = self.enqueue_step(queue, &replay.last_ones(order), &CommandKind::Marker {})?;
        done(call!(self.donor.library, clRetainEvent(end.raw())))?;
        let last = Owned::new(self.donor.library, Kind::Event, end.raw());
        if let Some(found) = self.objects.buffers.buffers.get_mut(&buffer) {
            found.last = Some(last);
        }
        Ok((end, Queued::behind(replay.ends)))
    }

    fn enqueue_step(
        &self,
        queue: cl_command_queue,
        waits: &[cl_event],
        kind: &CommandKind<'_>,
    ) -> Result<Owned, cl_int> {
        let mut event: cl_event = null_mut();
        let to = Target {
            queue,
            count: waits.len() as cl_uint,
            waits: if waits.is_empty() { null() } else { waits.as_ptr() },
            event: &raw mut event,
        };
        done(self.enqueue_on(&to, kind, &mut Queued::default())?)?;
        Ok(Owned::new(self.donor.library, Kind::Event, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opencl::wire::encode;

    #[test]
    fn only_steps_are_recorded() {
        let mut buffers = CommandBuffers::default();
        assert_eq!((buffers.add(0), buffers.add(7)), (Err(CL_INVALID_VALUE), Ok(())));
        assert_eq!(buffers.add(7), Err(CL_INVALID_VALUE));
        let barrier = encode(&CommandKind::Barrier {});
        assert_eq!(buffers.record(8, Vec::new(), &barrier), Err(CL_INVALID_COMMAND_BUFFER_KHR));
        assert_eq!(buffers.record(7, vec![0], &barrier), Err(CL_INVALID_VALUE), "of itself");
        assert_eq!(buffers.record(7, Vec::new(), &barrier), Ok(()));
        assert_eq!(buffers.record(7, vec![0], &barrier), Ok(()));
        let replay =
            CommandKind::Replay { buffer: 7, order: ReplayOrder::OfQueue {}, alone: false };
        for kind in [CommandKind::Release { id: 3 }, replay, CommandKind::Flush {}] {
            assert_eq!(buffers.record(7, Vec::new(), &encode(&kind)), Err(CL_INVALID_VALUE));
        }
        assert_eq!(buffers.record(7, Vec::new(), &barrier[..1]), Err(CL_INVALID_VALUE));
        buffers.remove(7);
        assert_eq!(buffers.bytes, 0);
    }
}
