//! Slabs and their replicas: the donors that hold the pages of a far slot.
//!
//! Invariant: the table of replicas only grows. An entry is one grant's memory for one slab and is
//! never reused. A fact that a process has read from an entry therefore stays true, and a replica
//! that was lost or has missed a write is never read again.
//!
//! A replica of a coded slab has one fragment of each page. Without coding every replica has
//! fragment 0, which is the whole page.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::super::coding::MAX_FRAGMENTS;
use super::slab_states::SlabWord;
use super::{Fate, RunBlock, RunBlockError, RunBlockMap};

/// Most copies that a run keeps of a slab.
pub const MAX_COPIES: usize = 3;
/// Most replicas of a slab at a time: all fragments of a coded one, and as many again while some
/// move.
pub const MAX_SLAB_REPLICAS: usize = 16;
const _: () = assert!(MAX_SLAB_REPLICAS > MAX_COPIES && MAX_SLAB_REPLICAS > MAX_FRAGMENTS);
/// Most replicas over the life of a run.
pub const MAX_REPLICAS: usize = 1 << 16;

/// A slab of a run: far slots `index * SLAB_SLOTS ..`.
#[derive(Debug)]
#[repr(C)]
pub struct Slab {
    /// The indexes of its replicas, plus one; 0: free.
    positions: [AtomicU32; MAX_SLAB_REPLICAS],
    /// The state of each replica.
    states: SlabWord,
    /// 1: atomic accesses wait, because the replica they go to first is about to change.
    pub(super) is_releasing: AtomicU32,
}

/// The state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ReplicaState {
    /// Neither written nor read, for good.
    Dropped = 0,
    /// Written, not read: pages are being copied to it. Writers mark each slot they write.
    Building = 1,
    /// Written and read.
    Live = 2,
}

impl ReplicaState {
    pub(super) fn of(bits: u32) -> ReplicaState {
        match bits {
            1 => ReplicaState::Building,
            2 => ReplicaState::Live,
            _ => ReplicaState::Dropped,
        }
    }
}

/// One donor's memory for one slab.
#[derive(Debug)]
#[repr(C)]
pub struct Replica {
    /// The replica's own index.
    index: AtomicU32,
    slab: AtomicU32,
    /// Its position among the replicas of its slab, until another replica takes it.
    position: AtomicU32,
    /// The fragment of each page that it has.
    fragment: AtomicU32,
    donor: AtomicU32,
    remote_addr: AtomicU64,
    grant: AtomicU64,
    key: AtomicU64,
}

/// The address of a replica's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaAt {
    /// Index of the donor.
    pub donor: usize,
    /// Address in the grant, bytes.
    pub remote_addr: u64,
    /// The grant.
    pub grant: u64,
    /// Its key.
    pub key: u64,
}

/// The replicas that a write goes to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Targets {
    replicas: [u32; MAX_SLAB_REPLICAS],
    count: usize,
    /// True if one of them is being built: the slot must be marked after the write.
    pub is_marking: bool,
}

/// The readable replica of each fragment of a slab.
#[derive(Clone, Copy, Debug, Default)]
pub struct FragmentsAt {
    /// A bit for each readable fragment.
    pub there: u32,
    replicas: [u32; MAX_FRAGMENTS],
}

impl FragmentsAt {
    /// The replica that has a fragment.
    pub fn replica(&self, fragment: usize) -> Option<usize> {
        (self.there & 1 << fragment != 0).then(|| self.replicas[fragment] as usize)
    }
}

impl Targets {
    /// Their indexes.
    pub fn replicas(&self) -> impl Iterator<Item = usize> + use<> {
        let Targets { replicas, count, .. } = *self;
        (0..count).map(move |at| replicas[at] as usize)
    }

    /// The index of one of them by position, from 0 on.
    pub fn get(&self, at: usize) -> Option<usize> {
        (at < self.count).then(|| self.replicas[at] as usize)
    }
}

impl Replica {
    fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    fn position(&self) -> usize {
        self.position.load(Ordering::Relaxed) as usize
    }

    /// Its slab.
    pub fn slab(&self) -> usize {
        self.slab.load(Ordering::Relaxed) as usize
    }

    /// The fragment of each page that it has.
    pub fn fragment(&self) -> usize {
        self.fragment.load(Ordering::Relaxed) as usize
    }

    /// Index of its donor.
    pub fn donor(&self) -> usize {
        self.donor.load(Ordering::Relaxed) as usize
    }

    /// The address of its memory.
    pub fn at(&self) -> ReplicaAt {
        ReplicaAt {
            donor: self.donor(),
            remote_addr: self.remote_addr.load(Ordering::Relaxed),
            grant: self.grant.load(Ordering::Relaxed),
            key: self.key.load(Ordering::Relaxed),
        }
    }
}

impl RunBlock {
    /// Adds a slab with its first replica, live, and returns the slab's index. Only the supervisor
    /// calls this and all other functions that add entries.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`] if the run has all its slabs or replicas.
    pub fn add_slab(&self, first: ReplicaAt) -> Result<usize, RunBlockError> {
        let index = self.slabs_in_use.load(Ordering::Relaxed) as usize;
        let limit = (self.slot_count / self.slab_slots()) as usize;
        if index >= limit {
            return Err(RunBlockError::TooMany { what: "slabs", limit });
        }
        self.add_replica(index, first, ReplicaState::Live)?;
        self.slabs_in_use.store(index as u32 + 1, Ordering::Release);
        Ok(index)
    }

    /// Adds a copy to a slab and returns its index.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`] if the run or the slab has all its replicas.
    pub fn add_replica(
        &self,
        slab: usize,
        at: ReplicaAt,
        state: ReplicaState,
    ) -> Result<usize, RunBlockError> {
        self.add_fragment(slab, 0, at, state)
    }

    /// Adds a replica with this fragment of every page to a slab, and returns its index.
    ///
    /// # Errors
    /// [`RunBlockError::TooMany`] if the run or the slab has all its replicas.
    ///
    /// # Panics
    /// If the coding has no such fragment.
    pub fn add_fragment(
        &self,
        slab: usize,
        fragment: usize,
        at: ReplicaAt,
        state: ReplicaState,
    ) -> Result<usize, RunBlockError> {
        assert!(fragment < self.fragment_count(), "fragment {fragment} out of range");
        let index = self.replicas_in_use.load(Ordering::Relaxed) as usize;
        let limit = self.replica_limit();
        if index >= limit {
            return Err(RunBlockError::TooMany { what: "copies of slabs", limit });
        }
        let free = |position: &AtomicU32| match position.load(Ordering::SeqCst).checked_sub(1) {
            None => true,
            Some(old) => !self.is_written(&self.replicas[old as usize]),
        };
        let too_many =
            RunBlockError::TooMany { what: "copies of a slab", limit: MAX_SLAB_REPLICAS };
        let Slab { positions, states, .. } = &self.slabs[slab];
        let position = positions.iter().position(free).ok_or(too_many)?;
        let replica = &self.replicas[index];
        replica.index.store(index as u32, Ordering::Relaxed);
        replica.position.store(position as u32, Ordering::Relaxed);
        replica.fragment.store(fragment as u32, Ordering::Relaxed);
        replica.slab.store(slab as u32, Ordering::Relaxed);
        replica.donor.store(at.donor as u32, Ordering::Relaxed);
        replica.remote_addr.store(at.remote_addr, Ordering::Relaxed);
        replica.grant.store(at.grant, Ordering::Relaxed);
        replica.key.store(at.key, Ordering::Relaxed);
        self.replicas_in_use.store(index as u32 + 1, Ordering::Release);
        // In this order, so that no thread takes the old replica's state for the new one's.
        states.change(|states| Some(states.with(position, ReplicaState::Dropped)));
        positions[position].store(index as u32 + 1, Ordering::SeqCst);
        states.change(|states| Some(states.with(position, state)));
        Ok(index)
    }

    /// The state of a replica.
    pub fn state(&self, replica: &Replica) -> ReplicaState {
        let Slab { positions, states, .. } = &self.slabs[replica.slab()];
        // The state first, then the replica's index: no replica gets its position twice.
        let (position, state) = (replica.position(), states.load());
        match positions[position].load(Ordering::SeqCst) == replica.index() + 1 {
            true => state.at(position),
            false => ReplicaState::Dropped,
        }
    }

    /// Changes a replica from one state to another; `false` if it was dropped meanwhile. Only the
    /// supervisor calls it.
    pub fn transition(&self, replica: &Replica, from: ReplicaState, to: ReplicaState) -> bool {
        let is_still = || self.state(replica) == from;
        let position = replica.position();
        self.slabs[replica.slab()].states.change(|states| {
            (is_still() && states.at(position) == from).then(|| states.with(position, to))
        })
    }

    /// Drops a replica that has missed a write or is no longer needed. `false`: it was kept,
    /// because it is the last live one, or too few fragments would be left. In that case the thread
    /// whose write was missed has lost that write, and no other thread loses more.
    pub fn drop_replica(&self, replica: &Replica) -> bool {
        self.drop_replica_if(replica, |_| true)
    }

    /// Drops a replica like [`RunBlock::drop_replica`], but counts only the other live replicas whose
    /// donors are live and satisfy `counts` (by donor index).
    pub fn drop_replica_if(&self, replica: &Replica, counts: impl Fn(usize) -> bool) -> bool {
        let Slab { positions, states, .. } = &self.slabs[replica.slab()];
        let is_there = |position: usize| {
            let index = positions[position].load(Ordering::SeqCst).checked_sub(1)?;
            let replica = &self.replicas[index as usize];
            let donor = replica.donor();
            (!self.donors[donor].is_gone() && counts(donor)).then(|| replica.fragment())
        };
        let is_dropped = || self.state(replica) == ReplicaState::Dropped;
        states.change(|states| match is_dropped() {
            true => Some(states),
            false => states.without(replica.position(), self.data_fragments(), is_there),
        })
    }

    /// Most replicas over the life of this run.
    pub fn replica_limit(&self) -> usize {
        (self.replica_limit as usize).min(MAX_REPLICAS)
    }

    /// Slabs in use.
    pub fn slab_count(&self) -> usize {
        self.slabs_in_use.load(Ordering::Acquire) as usize
    }

    /// All replicas entered so far.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas[..self.replicas_in_use.load(Ordering::Acquire) as usize]
    }

    /// The current replicas of a slab with their indexes. A freed position still shows its last
    /// replica.
    pub fn replicas_of(&self, slab: usize) -> impl Iterator<Item = (usize, &Replica)> {
        let placed = self.slabs[slab].positions.iter();
        let placed = placed.filter_map(|position| position.load(Ordering::SeqCst).checked_sub(1));
        placed.map(|index| (index as usize, &self.replicas[index as usize]))
    }

    /// The replicas of a slab that are readable at donors.
    pub fn readable(&self, slab: usize) -> impl Iterator<Item = (usize, &Replica)> {
        let at_donors = self.replicas_of(slab).filter(|(index, _)| !self.is_disk_replica(*index));
        at_donors.filter(|(_, replica)| self.is_readable(replica))
    }

    /// A readable replica for each fragment of a coded slab.
    pub fn fragments_at(&self, slab: usize) -> FragmentsAt {
        let mut fragments = FragmentsAt::default();
        for (index, replica) in self.readable(slab) {
            let fragment = replica.fragment();
            fragments.there |= 1 << fragment;
            fragments.replicas[fragment] = index as u32;
        }
        fragments
    }

    /// The readable replicas with this fragment of a slab.
    pub fn readable_of(
        &self,
        slab: usize,
        fragment: usize,
    ) -> impl Iterator<Item = (usize, &Replica)> {
        self.readable(slab).filter(move |(_, replica)| replica.fragment() == fragment)
    }

    /// Runs `find` over the replicas of a slab, and again if it found nothing and a state has
    /// changed meanwhile. A new replica may have taken a position already passed, and another one
    /// may have been released since.
    pub fn retry_on_change<T>(
        &self,
        slab: usize,
        mut find: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        loop {
            let before = self.slabs[slab].states.load();
            let found = find();
            if found.is_some() || self.slabs[slab].states.load() == before {
                return found;
            }
        }
    }

    /// True if the contents of the slab are still available.
    pub fn slab_is_alive(&self, slab: usize) -> bool {
        let is_there = || match self.coding {
            [1, _] => self.readable(slab).next().is_some() || self.disk_replica(slab).is_some(),
            [data, _] => self.fragments_at(slab).there.count_ones() >= data,
        };
        self.retry_on_change(slab, || is_there().then_some(())).is_some()
    }

    /// The index of the replica that an atomic access goes to first: the oldest readable one, which
    /// stays the same until it is gone.
    pub fn first_readable(&self, slab: usize) -> Option<usize> {
        self.readable(slab).map(|(index, _)| index).min()
    }

    /// The replicas at donors that a write must reach.
    pub fn targets(&self, slab: usize) -> Targets {
        let mut targets = Targets::default();
        for (index, replica) in self.replicas_of(slab).filter(|(at, _)| !self.is_disk_replica(*at))
        {
            let state = self.state(replica);
            if state != ReplicaState::Dropped && !self.donors[replica.donor()].is_gone() {
                targets.replicas[targets.count] = index as u32;
                targets.count += 1;
                targets.is_marking |= state == ReplicaState::Building;
            }
        }
        targets
    }

    /// True if the replica has received all writes.
    pub fn is_readable(&self, replica: &Replica) -> bool {
        self.state(replica) == ReplicaState::Live && !self.donors[replica.donor()].is_gone()
    }

    /// True if writes must reach the replica.
    pub fn is_written(&self, replica: &Replica) -> bool {
        self.state(replica) != ReplicaState::Dropped && !self.donors[replica.donor()].is_gone()
    }

    /// True if the contents of the slot are still available.
    pub fn slot_is_alive(&self, slot: u32) -> bool {
        self.slab_is_alive(self.slab_of(slot))
    }

    /// Marks the donor of a replica as lost, and all its contents with it.
    pub fn lose_donor_of(&self, replica: usize, fate: Fate) {
        self.donors[self.replicas[replica].donor()].lose(fate);
    }
}

impl RunBlockMap {
    /// Marks the slot as written while its slab is being copied.
    pub fn mark(&self, slot: u32) {
        self.marks()[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::SeqCst);
    }

    /// Clears the slot's mark; `true` if it was set.
    pub fn take_mark(&self, slot: u32) -> bool {
        let (word, bit) = (&self.marks()[slot as usize / 64], 1 << (slot % 64));
        word.load(Ordering::SeqCst) & bit != 0 && word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }
}
