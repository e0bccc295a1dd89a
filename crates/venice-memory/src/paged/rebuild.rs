//! Building a replica of a slab while its program goes on writing to it, without a lock.
//!
//! From the moment that a replica is [`ReplicaState::Building`], who writes to the slab writes to
//! it too, and marks the slot afterwards. So the copier ([`Rebuild`])
//! 1. waits until the batches of writes are over that began before, and may not know of it;
//! 2. takes the marks of the next few slots that are in use, and copies them. A write may come
//!    between its reading a slot and its writing it, which then undoes that write; but who made it
//!    marks the slot;
//! 3. waits until the batches are over that began before it had written, and looks for marks of
//!    these slots: those it copies again, from step 2 on; once there are none, nothing was undone,
//!    and what is written from here on reaches both replicas without it: the next few slots;
//! 4. has the replica live, when there are no more.
//!
//! A slot is copied again only if it was written while it was in hand, so that a program that
//! writes all the time, even all of the slab, does not keep it from getting done.
//!
//! A process that dies in the middle of a write has not told anybody that the page is there. What
//! may go wrong otherwise is tried out in `model`, in every order.

#[cfg(test)]
mod coded;
#[cfg(test)]
mod deaths;
#[cfg(test)]
mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::PAGE;
use super::direct::FarMemory;
use super::far::{Far, FarError};
use super::run_block::{Batches, ReplicaState, RunBlockMap};
use super::transfer::Words;

/// Slots copied at a time.
const SLOTS_AT_A_TIME: usize = 256;
/// How long the copier waits before it looks again whether batches are over.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// What a copier works on: one slab, from a replica that is live to one that is being built.
trait World {
    /// Does anybody hold the slot?
    fn is_used(&self, slot: u32) -> bool;
    /// Takes the mark that it was written; `true` if there was one.
    fn take_mark(&mut self, slot: u32) -> bool;
    /// Notes the batches under way.
    fn note_batches(&mut self);
    /// Are those noted over?
    fn are_batches_over(&self) -> bool;
    /// Says what is done with the new replica; `false`: it was dropped.
    fn pass(&mut self, from: ReplicaState, to: ReplicaState) -> bool;
    /// Reads slots from the old replica, or computes them from others; `false`: none are left.
    fn read(&mut self, slots: &[u32]) -> bool;
    /// Writes what was read to the new one; `false`: that is lost.
    fn write(&mut self, slots: &[u32]) -> bool;
}

/// The copier's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Wait for who may not know of the new replica.
    NoteUnaware,
    AwaitUnaware,
    /// Choose the next slots.
    Choose,
    Read,
    Write,
    /// Wait for who may have marked one of them.
    NoteMarking,
    AwaitMarking,
    /// Look for marks: those once more.
    Check,
    GoLive,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Going,
    /// Nothing can be done before some batch is over.
    Waiting,
    Done,
    /// The new replica is lost, or the last live one.
    Failed,
}

/// The copier's state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rebuild {
    phase: Phase,
    /// Slots yet to be copied, the next one last.
    left: Vec<u32>,
    /// Those in hand.
    slots: Vec<u32>,
    at_a_time: usize,
}

impl Rebuild {
    /// For slots `slots`, of a replica that is being built.
    fn new(slots: std::ops::Range<u32>, at_a_time: usize) -> Rebuild {
        let left = slots.rev().collect();
        Rebuild { phase: Phase::NoteUnaware, left, slots: Vec::new(), at_a_time }
    }

    fn step(&mut self, world: &mut impl World) -> Step {
        self.phase = match self.phase {
            Phase::NoteUnaware => {
                world.note_batches();
                Phase::AwaitUnaware
            }
            Phase::AwaitUnaware if !world.are_batches_over() => return Step::Waiting,
            Phase::AwaitUnaware => Phase::Choose,
            Phase::Choose => {
                self.choose(world);
                if self.slots.is_empty() { Phase::GoLive } else { Phase::Read }
            }
            Phase::Read if world.read(&self.slots) => Phase::Write,
            Phase::Write if world.write(&self.slots) => Phase::NoteMarking,
            Phase::NoteMarking => {
                world.note_batches();
                Phase::AwaitMarking
            }
            Phase::AwaitMarking if !world.are_batches_over() => return Step::Waiting,
            Phase::AwaitMarking => Phase::Check,
            Phase::Check => {
                self.slots.retain(|&slot| world.take_mark(slot));
                if self.slots.is_empty() { Phase::Choose } else { Phase::Read }
            }
            Phase::GoLive if world.pass(ReplicaState::Building, ReplicaState::Live) => {
                return Step::Done;
            }
            Phase::Read | Phase::Write | Phase::GoLive => return Step::Failed,
        };
        Step::Going
    }

    /// The next slots that are in use; their marks are taken before they are read.
    fn choose(&mut self, world: &mut impl World) {
        self.slots.clear();
        while self.slots.len() < self.at_a_time
            && let Some(slot) = self.left.pop()
        {
            if world.is_used(slot) {
                world.take_mark(slot);
                self.slots.push(slot);
            }
        }
    }
}

/// Why a replica was not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Its donor is lost.
    #[error("the donor of the new copy is lost")]
    Lost,
    /// No live replica of the slab is left.
    #[error("no copy is left to copy from")]
    NoSource,
    /// It was told to stop.
    #[error("stopped")]
    Stopped,
}

/// Builds replicas, one at a time.
#[derive(Debug)]
pub struct Copier {
    block: Arc<RunBlockMap>,
    far: Far,
    pages: Vec<Words>,
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.far.close(&self.block);
    }
}

impl Copier {
    /// A copier over `memory`.
    ///
    /// # Errors
    /// [`FarError`].
    pub fn new(memory: &FarMemory) -> Result<Copier, FarError> {
        let block = memory.block().clone();
        Ok(Copier { block, far: memory.far()?, pages: vec![[0; PAGE / 8]; SLOTS_AT_A_TIME] })
    }

    /// The same over another way to the donors.
    #[cfg(test)]
    pub(super) fn over(block: &Arc<RunBlockMap>, far: Far) -> Copier {
        let pages = vec![[0; PAGE / 8]; SLOTS_AT_A_TIME];
        Copier { block: block.clone(), far, pages }
    }

    /// The same where what is far is in a file too, by its descriptor, which stays open.
    pub fn with_disk(mut self, fd: Option<i32>) -> Copier {
        self.far.set_disk(fd);
        self
    }

    /// Builds `replica`, which was entered as [`ReplicaState::Building`], and makes it live.
    ///
    /// # Errors
    /// [`BuildError`]; the replica is dropped then.
    pub fn build(&mut self, replica: usize, stop: &AtomicBool) -> Result<(), BuildError> {
        let block = self.block.clone();
        let entry = &block.replicas()[replica];
        let slots = block.slab_slots();
        let first = entry.slab() as u32 * slots;
        let mut rebuild = Rebuild::new(first..first + slots, SLOTS_AT_A_TIME);
        let mut slab = BuiltSlab { copier: self, replica, noted: None, stop };
        let outcome = loop {
            if stop.load(Ordering::Acquire) {
                break Err(BuildError::Stopped);
            }
            match rebuild.step(&mut slab) {
                Step::Going => {}
                Step::Waiting => slab.copier.far.rest(LOOK_EVERY),
                Step::Done => return Ok(()),
                Step::Failed if stop.load(Ordering::Acquire) => break Err(BuildError::Stopped),
                Step::Failed if !slab.is_alive() => break Err(BuildError::NoSource),
                Step::Failed => break Err(BuildError::Lost),
            }
            if block.donors()[entry.donor()].is_gone() {
                break Err(BuildError::Lost);
            }
        };
        block.give_up(entry);
        outcome
    }
}

/// A slab and its new replica, as they really are.
struct BuiltSlab<'a> {
    copier: &'a mut Copier,
    replica: usize,
    noted: Option<Batches>,
    stop: &'a AtomicBool,
}

impl BuiltSlab<'_> {
    fn slab(&self) -> usize {
        self.copier.block.replicas()[self.replica].slab()
    }

    fn is_alive(&self) -> bool {
        self.copier.block.slab_is_alive(self.slab())
    }

    /// A replica that has what this one is to have; `None`: that is to be computed.
    fn twin(&self) -> Option<usize> {
        let (block, slab) = (&self.copier.block, self.slab());
        let fragment = block.replicas()[self.replica].fragment();
        let at_donors = block.readable_of(slab, fragment).map(|(index, _)| index).next();
        at_donors.or_else(|| block.on_disk(slab).map(|(index, _)| index))
    }
}

impl World for BuiltSlab<'_> {
    fn is_used(&self, slot: u32) -> bool {
        self.copier.block.holders()[slot as usize].load(Ordering::SeqCst) != 0
    }

    fn take_mark(&mut self, slot: u32) -> bool {
        self.copier.block.take_mark(slot)
    }

    fn note_batches(&mut self) {
        self.noted = Some(self.copier.block.batches());
    }

    fn are_batches_over(&self) -> bool {
        self.noted.as_ref().is_none_or(|noted| self.copier.block.are_over(noted))
    }

    fn pass(&mut self, from: ReplicaState, to: ReplicaState) -> bool {
        self.copier.block.pass(&self.copier.block.replicas()[self.replica], from, to)
    }

    fn read(&mut self, slots: &[u32]) -> bool {
        while self.is_alive() {
            self.copier.far.begin_visit(&self.copier.block);
            let (slab, twin) = (self.slab(), self.twin());
            let Copier { block, far, pages } = &mut *self.copier;
            let fragment = block.replicas()[self.replica].fragment();
            let is_read = match twin {
                Some(twin) => far.read_slots(block, twin, slots, pages),
                None => far.compute_slots(block, fragment, slots, pages, self.stop),
            };
            far.end_visit(block);
            if is_read {
                return true;
            }
            // What is lost while it is read is read from the next; what is silent is waited for.
            let is_there = match twin {
                Some(twin) => block.is_readable(&block.replicas()[twin]),
                None => block.slab_is_alive(slab),
            };
            if is_there && (far.is_mapped() || self.stop.load(Ordering::Acquire)) {
                return false;
            }
            far.rest(LOOK_EVERY);
        }
        false
    }

    fn write(&mut self, slots: &[u32]) -> bool {
        let Copier { block, far, pages } = &mut *self.copier;
        far.begin_visit(block);
        let is_written = block.is_written(&block.replicas()[self.replica])
            && far.write_slots(block, self.replica, slots, pages);
        far.end_visit(block);
        is_written
    }
}
