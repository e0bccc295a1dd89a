//! Replica repair: builds a replica of a slab without a lock, while the program goes on writing to
//! the slab.
//!
//! From the moment that a replica is [`ReplicaState::Building`], each writer to the slab also
//! writes to the replica, and marks the slot afterwards. The copier ([`Rebuild`]) performs these
//! steps:
//! 1. It waits until the batches of writes are over that began before. Their writers may not have
//!    seen the new replica.
//! 2. It takes the marks of the next few slots in use, and copies these slots. A write may come
//!    between the copier's read and its write of a slot, which then undoes that write. But the writer
//!    marks the slot.
//! 3. It waits until the batches are over that began before its own write, and checks the marks of
//!    these slots. Marked slots are copied again from step 2 on. Without marks nothing was undone, and
//!    all later writes reach both replicas by themselves. The copier goes on with the next few slots.
//! 4. It makes the replica live when no slots are left.
//!
//! A slot is copied again only if it was written while the copier worked on it. A program that
//! writes all the time, even all of the slab, does not delay the end.
//!
//! A process that dies in the middle of a write has not published that page. The module `model`
//! checks all other interleavings.

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

/// Slots copied in one step.
const STEP_SLOTS: usize = 256;
/// The copier's interval between checks for finished batches.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// A copier's view of one slab: copied from a live replica to one being built.
trait SlabAccess {
    /// True if any process holds the slot.
    fn is_used(&self, slot: u32) -> bool;
    /// Clears the slot's mark; `true` if it was set.
    fn take_mark(&mut self, slot: u32) -> bool;
    /// Takes a snapshot of the batches under way.
    fn snapshot_batches(&mut self);
    /// True if all batches of the snapshot are over.
    fn are_batches_over(&self) -> bool;
    /// Changes the state of the new replica; `false`: it was dropped.
    fn transition(&mut self, from: ReplicaState, to: ReplicaState) -> bool;
    /// Reads slots from the old replica, or computes them from other fragments; `false`: none are
    /// left.
    fn read(&mut self, slots: &[u32]) -> bool;
    /// Writes the slots just read to the new replica; `false`: its donor is lost.
    fn write(&mut self, slots: &[u32]) -> bool;
}

/// The copier's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Take a snapshot of batches whose writers may not have seen the new replica.
    SnapshotUnaware,
    AwaitUnaware,
    /// Choose the next slots.
    Choose,
    Read,
    Write,
    /// Take a snapshot of batches whose writers may mark one of the slots.
    SnapshotMarking,
    AwaitMarking,
    /// Check for marks: marked slots are copied again.
    Check,
    GoLive,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Going,
    /// Some batch must end first.
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
    /// The slots being copied.
    slots: Vec<u32>,
    step_slots: usize,
}

impl Rebuild {
    /// Creates the copier's state for the slots `slots` of a replica that is being built.
    fn new(slots: std::ops::Range<u32>, step_slots: usize) -> Rebuild {
        let left = slots.rev().collect();
        Rebuild { phase: Phase::SnapshotUnaware, left, slots: Vec::new(), step_slots }
    }

    fn step(&mut self, slab: &mut impl SlabAccess) -> Step {
        self.phase = match self.phase {
            Phase::SnapshotUnaware => {
                slab.snapshot_batches();
                Phase::AwaitUnaware
            }
            Phase::AwaitUnaware if !slab.are_batches_over() => return Step::Waiting,
            Phase::AwaitUnaware => Phase::Choose,
            Phase::Choose => {
                self.choose(slab);
                if self.slots.is_empty() { Phase::GoLive } else { Phase::Read }
            }
            Phase::Read if slab.read(&self.slots) => Phase::Write,
            Phase::Write if slab.write(&self.slots) => Phase::SnapshotMarking,
            Phase::SnapshotMarking => {
                slab.snapshot_batches();
                Phase::AwaitMarking
            }
            Phase::AwaitMarking if !slab.are_batches_over() => return Step::Waiting,
            Phase::AwaitMarking => Phase::Check,
            Phase::Check => {
                self.slots.retain(|&slot| slab.take_mark(slot));
                if self.slots.is_empty() { Phase::Choose } else { Phase::Read }
            }
            Phase::GoLive if slab.transition(ReplicaState::Building, ReplicaState::Live) => {
                return Step::Done;
            }
            Phase::Read | Phase::Write | Phase::GoLive => return Step::Failed,
        };
        Step::Going
    }

    /// Chooses the next slots in use. Their marks are cleared before they are read.
    fn choose(&mut self, slab: &mut impl SlabAccess) {
        self.slots.clear();
        while self.slots.len() < self.step_slots
            && let Some(slot) = self.left.pop()
        {
            if slab.is_used(slot) {
                slab.take_mark(slot);
                self.slots.push(slot);
            }
        }
    }
}

/// An error of building a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Its donor is lost.
    #[error("new copy failed: its donor is lost")]
    Lost,
    /// No live replica of the slab is left.
    #[error("new copy failed: no copy is left to read from")]
    NoSource,
    /// The copier was stopped.
    #[error("new copy stopped")]
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
    /// Creates a copier over `memory`.
    ///
    /// # Errors
    /// [`FarError`] if the way to the donors cannot be set up.
    pub fn new(memory: &FarMemory) -> Result<Copier, FarError> {
        let block = memory.block().clone();
        Ok(Copier { block, far: memory.far()?, pages: vec![[0; PAGE / 8]; STEP_SLOTS] })
    }

    /// Creates a copier over another way to the donors.
    #[cfg(test)]
    pub(super) fn over(block: &Arc<RunBlockMap>, far: Far) -> Copier {
        let pages = vec![[0; PAGE / 8]; STEP_SLOTS];
        Copier { block: block.clone(), far, pages }
    }

    /// Adds the write-behind file by its descriptor, which must stay open.
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
        let mut rebuild = Rebuild::new(first..first + slots, STEP_SLOTS);
        let mut slab = BuiltSlab { copier: self, replica, noted: None, stop };
        let outcome = loop {
            if stop.load(Ordering::Acquire) {
                break Err(BuildError::Stopped);
            }
            match rebuild.step(&mut slab) {
                Step::Going => {}
                Step::Waiting => slab.copier.far.rest(POLL_INTERVAL),
                Step::Done => return Ok(()),
                Step::Failed if stop.load(Ordering::Acquire) => break Err(BuildError::Stopped),
                Step::Failed if !slab.is_alive() => break Err(BuildError::NoSource),
                Step::Failed => break Err(BuildError::Lost),
            }
            if block.donors()[entry.donor()].is_gone() {
                break Err(BuildError::Lost);
            }
        };
        block.drop_replica(entry);
        outcome
    }
}

/// A slab and its new replica in the run block.
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

    /// A readable replica with the same fragment; `None`: the fragment must be computed.
    fn source(&self) -> Option<usize> {
        let (block, slab) = (&self.copier.block, self.slab());
        let fragment = block.replicas()[self.replica].fragment();
        let at_donors = block.readable_of(slab, fragment).map(|(index, _)| index).next();
        at_donors.or_else(|| block.disk_replica(slab).map(|(index, _)| index))
    }
}

impl SlabAccess for BuiltSlab<'_> {
    fn is_used(&self, slot: u32) -> bool {
        self.copier.block.holders()[slot as usize].load(Ordering::SeqCst) != 0
    }

    fn take_mark(&mut self, slot: u32) -> bool {
        self.copier.block.take_mark(slot)
    }

    fn snapshot_batches(&mut self) {
        self.noted = Some(self.copier.block.batches());
    }

    fn are_batches_over(&self) -> bool {
        self.noted.as_ref().is_none_or(|noted| self.copier.block.are_over(noted))
    }

    fn transition(&mut self, from: ReplicaState, to: ReplicaState) -> bool {
        self.copier.block.transition(&self.copier.block.replicas()[self.replica], from, to)
    }

    fn read(&mut self, slots: &[u32]) -> bool {
        while self.is_alive() {
            self.copier.far.begin_read_section(&self.copier.block);
            let (slab, source) = (self.slab(), self.source());
            let Copier { block, far, pages } = &mut *self.copier;
            let fragment = block.replicas()[self.replica].fragment();
            let is_read = match source {
                Some(source) => far.read_slots(block, source, slots, pages),
                None => far.compute_slots(block, fragment, slots, pages, self.stop),
            };
            far.end_read_section(block);
            if is_read {
                return true;
            }
            // If the source is lost during the read, the next one is read; a suspected source is
            // waited for.
            let is_there = match source {
                Some(source) => block.is_readable(&block.replicas()[source]),
                None => block.slab_is_alive(slab),
            };
            if is_there && (far.is_mapped() || self.stop.load(Ordering::Acquire)) {
                return false;
            }
            far.rest(POLL_INTERVAL);
        }
        false
    }

    fn write(&mut self, slots: &[u32]) -> bool {
        let Copier { block, far, pages } = &mut *self.copier;
        far.begin_read_section(block);
        let is_written = block.is_written(&block.replicas()[self.replica])
            && far.write_slots(block, self.replica, slots, pages);
        far.end_read_section(block);
        is_written
    }
}
