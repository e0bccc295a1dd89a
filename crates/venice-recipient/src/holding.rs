//! The grants of a recipient, their entries in its run block, and the memory itself where it is
//! mapped.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use venice_control::Grant;
use venice_control::client::Access;
use venice_memory::paged::SlotReader;
use venice_memory::paged::direct::FarMemory;
use venice_memory::paged::run_block::{ReplicaAt, ReplicaState, RunBlock, RunBlockMap};
use venice_memory::paged::write_behind::Drain;
use venice_ports::shm::{ShmConnection, SlabFile};
use venice_wire::{ByteSize, PAGE_BYTES, PortId, SLAB_BYTES};

use crate::copies::Copies;
use crate::error::RecipientError;
use crate::loan::{Loan, fetch, release, slabs_of};
use crate::local_fallback::{LocalFallback, ReclaimTo};
use crate::pairing::pair;
use crate::reclamation::{Reclamation, UnusedSlab};
use crate::spec::{AllocationSpec, MemorySpec};

/// The grants of a recipient. [`Leases`](crate::Leases) keeps them.
#[derive(Debug)]
pub struct Holding {
    pub(crate) access: Access,
    pub(crate) spec: AllocationSpec,
    home: Option<String>,
    block: Arc<RunBlockMap>,
    held: Mutex<Vec<Held>>,
    /// The slabs by replica, where they can be mapped.
    slabs: Mutex<BTreeMap<usize, SlabFile>>,
    /// The local fallback memory in use.
    local_fallback: Mutex<LocalFallback>,
    /// The writer of the write-behind, until its thread takes it.
    drain: Mutex<Option<Drain>>,
    /// The error of the last rebuild of lost copies.
    not_rebuilt: Mutex<Option<String>>,
    /// The number of grants at the start.
    first_grants: usize,
}

/// One grant.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) grant: Grant,
    /// The donor's index in the run block.
    pub(crate) donor: usize,
    /// The connection, with the shm port.
    pub(crate) connection: Option<ShmConnection>,
}

impl Holding {
    /// Takes a loan over and enters it into `block`: its donors, and slabs with their copies. With
    /// `home`, the address of a relay, the donors are reached through that.
    ///
    /// # Errors
    /// If the block has no room, or the Monitor Node's shares do not form copies on different
    /// donors. The loan is released then.
    pub fn new(
        mut loan: Loan,
        block: Arc<RunBlockMap>,
        home: Option<&str>,
    ) -> Result<Arc<Holding>, RecipientError> {
        let shares = loan.shares();
        let (access, spec) = (loan.access.clone(), loan.spec.clone());
        let mut connections = std::mem::take(&mut loan.connections);
        let grants = &loan.memory;
        for (grant, connection) in grants.iter().zip(&connections) {
            check_pages(&block, grant, connection)?;
        }
        let counts: Vec<usize> = grants.iter().map(slabs_of).collect();
        let paired = pair(&counts, shares, block.data_fragments());
        let paired = paired.ok_or(RecipientError::NotPaired)?;
        let mut left: Vec<_> =
            connections.iter_mut().map(|connection| connection.slabs.drain(..)).collect();
        let (home, held) = (home.map(str::to_owned), Mutex::default());
        let (slabs, local_fallback, drain) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (not_rebuilt, first_grants) = (Mutex::default(), grants.len());
        let holding = Holding {
            access,
            spec,
            home,
            block,
            held,
            slabs,
            local_fallback,
            drain,
            not_rebuilt,
            first_grants,
        };
        let lease_s = grants.iter().map(|grant| grant.lease_s).fold(f64::INFINITY, f64::min);
        holding.block.set_lease(Duration::from_secs_f64(lease_s.clamp(0.5, 3600.0)));
        let mut donors = Vec::new();
        for grant in grants {
            donors.push(holding.add_donor(grant, holding.home.as_deref())?);
        }
        let mut next = vec![0; grants.len()];
        let is_coded = holding.block.coding().is_some();
        for (slab, shares) in paired.into_iter().enumerate() {
            for (nth, grant) in shares.into_iter().enumerate() {
                let at = replica_at(&grants[grant], donors[grant], next[grant]);
                next[grant] += 1;
                let replica = match nth {
                    0 => {
                        let replica = holding.block.replicas().len();
                        holding.block.add_slab(at)?;
                        replica
                    }
                    _ if is_coded => {
                        holding.block.add_fragment(slab, nth, at, ReplicaState::Live)?
                    }
                    _ => holding.block.add_replica(slab, at, ReplicaState::Live)?,
                };
                let memory = left.get_mut(grant).and_then(Iterator::next);
                holding.lock_slabs().extend(memory.map(|memory| (replica, memory)));
            }
        }
        drop(left);
        if let Some(behind) = &holding.memory().write_behind {
            *holding.drain.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(behind.drain(&holding.block)?);
            holding.block.add_disk("disk")?;
        }
        let mut connections = connections.into_iter();
        let grants = std::mem::take(&mut loan.memory);
        holding.lock_held().extend(grants.into_iter().zip(donors).map(|(grant, donor)| {
            let connection = connections.next();
            Held { grant, donor, connection }
        }));
        Ok(Arc::new(holding))
    }

    /// Returns the run block.
    pub fn block(&self) -> &Arc<RunBlockMap> {
        &self.block
    }

    /// Returns the state of the copies.
    pub fn copies(&self) -> Copies {
        let not_rebuilt = self.not_rebuilt.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Copies { not_rebuilt, ..Copies::of(&self.block) }
    }

    /// Records the error of the last rebuild; `None`: none.
    pub(crate) fn set_not_rebuilt(&self, why: Option<String>) {
        *self.not_rebuilt.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Returns the reason why the data cannot move to other donors, so that a reclaiming donor
    /// waits for the end of this holding; `None`: it can.
    pub(crate) fn anchored(&self) -> Option<&'static str> {
        if self.block.is_window() {
            return self.block.window_immobility();
        }
        None
    }

    /// Returns how many more grants its processes can reach.
    fn grants_left(&self) -> usize {
        let there = self.block.donors().iter().filter(|donor| !donor.is_gone()).count();
        self.most_grants().saturating_sub(there)
    }

    fn most_grants(&self) -> usize {
        self.block.port().capabilities().most_grants(self.first_grants)
    }

    /// Returns the memory of a replica, to be mapped, or the file that has all of them; `None`: it
    /// does not exist, or is not reached by the shm port.
    pub fn slab(&self, replica: usize) -> Option<SlabFile> {
        if self.block.is_disk_replica(replica) {
            let file = self.memory().write_behind.as_ref()?.file();
            return file.try_clone().ok().map(SlabFile::from);
        }
        self.lock_slabs().get(&replica)?.try_clone().ok()
    }

    /// Opens a reader of the run's far pages, for one thread.
    ///
    /// # Errors
    /// If the donors cannot be reached.
    pub fn slot_reader(self: &Arc<Holding>) -> Result<SlotReader, RecipientError> {
        let slabs = self.clone();
        let source = Box::new(move |replica| slabs.slab(replica));
        let memory = FarMemory::new(self.block.clone(), source).map_err(RecipientError::Map)?;
        let disk = self.memory().write_behind.as_ref().map(|behind| behind.file().as_raw_fd());
        Ok(SlotReader::new(&memory, disk)?)
    }

    /// Enters a later grant; its slabs are not in use yet.
    pub(crate) fn add_grant(&self, grant: &Grant) -> Result<NewGrant, RecipientError> {
        if self.grants_left() == 0 {
            return Err(RecipientError::NoQueuePairs { most: self.most_grants() });
        }
        let mut connection = None;
        if self.block.port().capabilities().mapped {
            connection = Some(fetch(grant)?);
        }
        if let Some(connection) = &connection {
            check_pages(&self.block, grant, connection)?;
        }
        let donor = self.add_donor(grant, self.home.as_deref())?;
        let memory = connection.as_mut().map(|connection| std::mem::take(&mut connection.slabs));
        let grant = grant.clone();
        self.lock_held().push(Held { grant: grant.clone(), donor, connection });
        let memory = memory.into_iter().flatten().collect::<Vec<_>>();
        Ok(NewGrant { grant, donor, memory: memory.into_iter(), next: 0 })
    }

    /// Returns the specification of its memory.
    pub(crate) fn memory(&self) -> &MemorySpec {
        self.spec.memory.as_ref().expect("a holding is of memory")
    }

    /// Enters local slabs, not in use yet.
    pub(crate) fn add_local(
        &self,
        place: &ReclaimTo,
        slabs: usize,
    ) -> Result<NewGrant, RecipientError> {
        let mut local_fallback = self.local_fallback.lock().unwrap_or_else(PoisonError::into_inner);
        let (grant, memory) =
            local_fallback.lend(&self.block, place, self.memory().locks_local, slabs)?;
        let donor = self.add_donor(&grant, None)?;
        Ok(NewGrant { grant, donor, memory: memory.into_iter(), next: 0 })
    }

    /// Enters the next slab of a new grant as a copy of `slab`, or of its `fragment`, to be built;
    /// `None`: it has no more, or its donor already reclaims it.
    pub(crate) fn add_copy(
        &self,
        (slab, fragment): (usize, usize),
        new: &mut NewGrant,
    ) -> Result<Option<usize>, RecipientError> {
        // Once the entry is visible its memory may be requested. Grants released for want of
        // entries are released under this lock, too.
        let mut slabs = self.lock_slabs();
        let donor = &self.block.donors()[new.donor];
        if new.next == slabs_of(&new.grant) || donor.is_reclaiming() || donor.is_gone() {
            return Ok(None);
        }
        let at = replica_at(&new.grant, new.donor, new.next);
        new.next += 1;
        let replica = self.block.add_fragment(slab, fragment, at, ReplicaState::Building)?;
        slabs.extend(new.memory.next().map(|memory| (replica, memory)));
        Ok(Some(replica))
    }

    /// Returns the reclaimed grants without any data left, or slabs yet to be `freed`. They are no
    /// longer part of this holding; the caller must release them.
    pub(crate) fn take_emptied(&self, freed: &Reclamation) -> Vec<(usize, Grant)> {
        let (slabs, held) = (self.lock_slabs(), self.lock_held());
        let (donors, replicas) = (self.block.donors(), self.block.replicas());
        let is_freed = |donor| {
            let mut unfreed = slabs.keys().filter(|replica| replicas[**replica].donor() == donor);
            unfreed.next().is_none() && !freed.has_some_of(donor)
        };
        let emptied = held.iter().filter(|held| {
            let donor = &donors[held.donor];
            let is_empty = self.block.is_donor_empty(held.donor) && is_freed(held.donor);
            donor.is_reclaiming() && !donor.is_gone() && is_empty
        });
        let emptied = emptied.filter(|held| donors[held.donor].give_back());
        emptied.map(|held| (held.donor, held.grant.clone())).collect()
    }

    /// True if a later grant has, or had, any data. One that has none, and never will, is no longer
    /// part of this holding; the caller must release it.
    pub(crate) fn uses(&self, grant: &Grant) -> bool {
        // No copy is entered meanwhile.
        let _slabs = self.lock_slabs();
        let held = self.lock_held();
        let Some(held) = held.iter().find(|held| held.grant.id == grant.id) else { return false };
        !(self.block.is_donor_empty(held.donor) && self.block.donors()[held.donor].give_back())
    }

    /// Returns the slabs that are neither read nor written any more, and hands them out to no one
    /// from then on.
    pub(crate) fn take_unused(&self) -> Vec<UnusedSlab> {
        // Under the lock, or a copy that is entered meanwhile is missing among the replicas.
        let mut slabs = self.lock_slabs();
        let replicas = self.block.replicas();
        let is_unused = |replica: &&usize| !self.block.is_written(&replicas[**replica]);
        let unused: Vec<usize> = slabs.keys().filter(is_unused).copied().collect();
        let taken = unused.into_iter().filter_map(|replica| {
            let donor = replicas[replica].donor();
            slabs.remove(&replica).map(|memory| UnusedSlab { donor, memory })
        });
        taken.collect()
    }

    /// Takes the writer of the write-behind, once, if there is one.
    pub(crate) fn take_drain(&self) -> Option<Drain> {
        self.drain.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn lock_held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_slabs(&self) -> MutexGuard<'_, BTreeMap<usize, SlabFile>> {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases all grants.
    pub(crate) async fn release(&self) {
        release(&self.access, &self.grants()).await;
    }

    /// Returns the grants that are not released.
    pub(crate) fn grants(&self) -> Vec<Grant> {
        let held = self.lock_held();
        let kept = held.iter().filter(|held| !self.block.donors()[held.donor].is_given_back());
        kept.map(|held| held.grant.clone()).collect()
    }

    /// Adds a donor. With `relay`, it is reached through that.
    fn add_donor(&self, grant: &Grant, relay: Option<&str>) -> Result<usize, RecipientError> {
        let address = relay.unwrap_or(grant.address(PortId::Udp));
        let donor = self.block.add_donor(&grant.donor, grant.donor_node.0, address)?;
        let entry = &self.block.donors()[donor];
        if relay.is_some() {
            entry.set_via();
        }
        if let Some(key) = grant.seal_key() {
            entry.set_seal(grant.id, key);
        }
        Ok(donor)
    }
}

/// A grant whose slabs become copies one after the other.
pub(crate) struct NewGrant {
    pub(crate) grant: Grant,
    pub(crate) donor: usize,
    memory: std::vec::IntoIter<SlabFile>,
    next: usize,
}

/// Checks that a donor's memory can be mapped as the run needs it.
fn check_pages(
    block: &RunBlock,
    grant: &Grant,
    connection: &ShmConnection,
) -> Result<(), RecipientError> {
    if !block.is_window() {
        return Ok(());
    }
    let pages = connection.slabs.iter().filter_map(SlabFile::page_bytes);
    match pages.max().filter(|bytes| *bytes > PAGE_BYTES) {
        Some(bytes) => {
            let (donor, page) = (grant.donor.clone(), ByteSize(bytes));
            Err(RecipientError::LargePages { donor, page })
        }
        None => Ok(()),
    }
}

fn replica_at(grant: &Grant, donor: usize, index: usize) -> ReplicaAt {
    let remote_addr = index as u64 * SLAB_BYTES;
    ReplicaAt { donor, remote_addr, grant: grant.id.0, key: grant.key.0 }
}
