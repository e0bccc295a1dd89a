//! What a recipient holds: the grants it was given, what it entered into its run block of them, and
//! the memory itself where it is mapped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use venice_control::Grant;
use venice_control::client::Access;
use venice_memory::paged::most_grants;
use venice_memory::paged::run_block::{PortKind, ReplicaAt, ReplicaState, RunBlock, RunBlockMap};
use venice_memory::paged::write_behind::Drain;
use venice_ports::shm::{ShmConnection, SlabFile};
use venice_wire::{ByteSize, PAGE_BYTES, SLAB_BYTES};

use crate::at_home::{AtHome, ReclaimTo};
use crate::copies::Copies;
use crate::error::RecipientError;
use crate::freeing::{Freeing, UnusedSlab};
use crate::loan::{Loan, Wish, fetch, release, slabs_of};
use crate::pairing::pair;

/// What a recipient holds. It is kept by [`Leases`](crate::Leases).
#[derive(Debug)]
pub struct Holding {
    pub(crate) access: Access,
    pub(crate) wish: Wish,
    home: Option<String>,
    block: Arc<RunBlockMap>,
    held: Mutex<Vec<Held>>,
    /// The slabs by replica, where they can be mapped.
    slabs: Mutex<BTreeMap<usize, SlabFile>>,
    /// What of this machine's own is in use.
    at_home: Mutex<AtHome>,
    /// What takes pages to the disk, until somebody does that.
    drain: Mutex<Option<Drain>>,
    /// Why copies that were lost are not there again, when it was last tried.
    not_rebuilt: Mutex<Option<String>>,
    /// How many grants it began with.
    first_grants: usize,
}

/// One grant.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) grant: Grant,
    /// Index in the run block.
    pub(crate) donor: usize,
    /// With the shm port.
    pub(crate) connection: Option<ShmConnection>,
}

impl Holding {
    /// Takes a loan over and enters it into `block`: its donors, and slabs with their copies. With
    /// `home`, the address of a relay, the donors are reached through that.
    ///
    /// # Errors
    /// When the block has no room, or the Monitor Node's shares make no copies on different donors;
    /// the loan's leases end by themselves then.
    pub fn new(
        loan: Loan,
        block: Arc<RunBlockMap>,
        home: Option<&str>,
    ) -> Result<Arc<Holding>, RecipientError> {
        let shares = loan.shares();
        let Loan { access, wish, grants, mut connections, .. } = loan;
        for (grant, connection) in grants.iter().zip(&connections) {
            check_pages(&block, grant, connection)?;
        }
        let counts: Vec<usize> = grants.iter().map(slabs_of).collect();
        let paired = pair(&counts, shares, block.data_fragments());
        let paired = paired.ok_or(RecipientError::NotPaired)?;
        let mut left: Vec<_> =
            connections.iter_mut().map(|connection| connection.slabs.drain(..)).collect();
        let (home, held) = (home.map(str::to_owned), Mutex::default());
        let (slabs, at_home, drain) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (not_rebuilt, first_grants) = (Mutex::default(), grants.len());
        let holding = Holding {
            access,
            wish,
            home,
            block,
            held,
            slabs,
            at_home,
            drain,
            not_rebuilt,
            first_grants,
        };
        let lease_s = grants.iter().map(|grant| grant.lease_s).fold(f64::INFINITY, f64::min);
        holding.block.set_lease(Duration::from_secs_f64(lease_s.clamp(0.5, 3600.0)));
        let mut donors = Vec::new();
        for grant in &grants {
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
        if let Some(behind) = &holding.wish.write_behind {
            *holding.drain.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(behind.drain(&holding.block)?);
            holding.block.add_disk("disk")?;
        }
        let mut connections = connections.into_iter();
        holding.lock_held().extend(grants.into_iter().zip(donors).map(|(grant, donor)| {
            let connection = connections.next();
            Held { grant, donor, connection }
        }));
        Ok(Arc::new(holding))
    }

    /// The run block.
    pub fn block(&self) -> &Arc<RunBlockMap> {
        &self.block
    }

    /// How the copies of what is held are at present.
    pub fn copies(&self) -> Copies {
        let not_rebuilt = self.not_rebuilt.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Copies { not_rebuilt, ..Copies::of(&self.block) }
    }

    /// Notes why copies that were lost are not there again; `None`: nothing is in the way.
    pub(crate) fn set_not_rebuilt(&self, why: Option<String>) {
        *self.not_rebuilt.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why what is held cannot move to other donors, so that one which wants its memory back waits
    /// for this holding's end; `None`: it can.
    pub(crate) fn anchored(&self) -> Option<&'static str> {
        if self.block.is_window() {
            return self.block.window_immobility();
        }
        None
    }

    /// How many grants more this holding's processes can reach.
    fn grants_left(&self) -> usize {
        if self.block.port() != PortKind::Verbs {
            return usize::MAX;
        }
        let there = self.block.donors().iter().filter(|donor| !donor.is_gone()).count();
        most_grants(self.first_grants).saturating_sub(there)
    }

    /// The memory of a replica, to be mapped, or the file that has all of them; `None`: there is none,
    /// or it is not by the shm port.
    pub fn slab(&self, replica: usize) -> Option<SlabFile> {
        if self.block.is_disk_replica(replica) {
            let file = self.wish.write_behind.as_ref()?.file();
            return file.try_clone().ok().map(SlabFile::from);
        }
        self.lock_slabs().get(&replica)?.try_clone().ok()
    }

    /// Enters a grant that came later; its slabs are in nobody's use yet.
    pub(crate) fn add_grant(&self, grant: &Grant) -> Result<NewGrant, RecipientError> {
        if self.grants_left() == 0 {
            return Err(RecipientError::NoQueuePairs { most: most_grants(self.first_grants) });
        }
        let mut connection = None;
        if self.block.port() == PortKind::Shm {
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

    /// Enters slabs of this machine's own, in nobody's use yet.
    pub(crate) fn add_at_home(
        &self,
        place: &ReclaimTo,
        slabs: usize,
    ) -> Result<NewGrant, RecipientError> {
        let mut at_home = self.at_home.lock().unwrap_or_else(PoisonError::into_inner);
        let (grant, memory) = at_home.lend(&self.block, place, self.wish.locks_local, slabs)?;
        let donor = self.add_donor(&grant, None)?;
        Ok(NewGrant { grant, donor, memory: memory.into_iter(), next: 0 })
    }

    /// Enters the next slab of such a grant as a copy of `slab`, or of its `fragment`, that is to be
    /// built; `None`: it has no more, or its donor wants it back already.
    pub(crate) fn add_copy(
        &self,
        (slab, fragment): (usize, usize),
        new: &mut NewGrant,
    ) -> Result<Option<usize>, RecipientError> {
        // Whoever sees the entry may ask for its memory at once. And what is given back for want
        // of entries is given back under this lock.
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

    /// The grants whose donors want them back and where nothing is any more, nor is yet to be
    /// `freed`: they are this holding's no longer, and their caller's to release.
    pub(crate) fn take_emptied(&self, freed: &Freeing) -> Vec<(usize, Grant)> {
        let slabs = self.lock_slabs();
        let (donors, replicas) = (self.block.donors(), self.block.replicas());
        let is_freed = |donor| {
            let mut unfreed = slabs.keys().filter(|replica| replicas[**replica].donor() == donor);
            unfreed.next().is_none() && !freed.has_some_of(donor)
        };
        let held = self.lock_held();
        let emptied = held.iter().filter(|held| {
            let donor = &donors[held.donor];
            let is_empty = self.block.is_donor_empty(held.donor) && is_freed(held.donor);
            donor.is_reclaiming() && !donor.is_gone() && is_empty
        });
        let emptied = emptied.filter(|held| donors[held.donor].give_back());
        emptied.map(|held| (held.donor, held.grant.clone())).collect()
    }

    /// Whether there is, or was, something in a grant that came later; one in which there is nothing,
    /// and never will be, is this holding's no longer, and its caller's to release.
    pub(crate) fn uses(&self, grant: &Grant) -> bool {
        // Nobody enters a copy meanwhile.
        let _slabs = self.lock_slabs();
        let held = self.lock_held();
        let Some(held) = held.iter().find(|held| held.grant.id == grant.id) else { return false };
        !(self.block.is_donor_empty(held.donor) && self.block.donors()[held.donor].give_back())
    }

    /// The slabs that are neither read nor written any more: nobody who asks is given them from here
    /// on.
    pub(crate) fn take_unused(&self) -> Vec<UnusedSlab> {
        let replicas = self.block.replicas();
        let mut slabs = self.lock_slabs();
        let is_unused = |replica: &&usize| !self.block.is_written(&replicas[**replica]);
        let unused: Vec<usize> = slabs.keys().filter(is_unused).copied().collect();
        let taken = unused.into_iter().filter_map(|replica| {
            let donor = replicas[replica].donor();
            slabs.remove(&replica).map(|memory| UnusedSlab { donor, memory })
        });
        taken.collect()
    }

    /// What takes pages to the disk; once, and where something does.
    pub(crate) fn take_drain(&self) -> Option<Drain> {
        self.drain.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn lock_held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_slabs(&self) -> MutexGuard<'_, BTreeMap<usize, SlabFile>> {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all grants.
    pub(crate) async fn release(&self) {
        let grants: Vec<Grant> = {
            let held = self.lock_held();
            let kept = held.iter().filter(|held| !self.block.donors()[held.donor].is_given_back());
            kept.map(|held| held.grant.clone()).collect()
        };
        release(&self.access, &grants).await;
    }

    /// With `relay`, the donor is reached through that.
    fn add_donor(&self, grant: &Grant, relay: Option<&str>) -> Result<usize, RecipientError> {
        let address = relay.unwrap_or(&grant.udp_addr);
        let donor = self.block.add_donor(&grant.donor, grant.donor_node.0, address)?;
        let entry = &self.block.donors()[donor];
        if relay.is_some() {
            entry.set_via();
        }
        if let Some(key) = grant.seal_key {
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

/// Can what a donor lends be mapped as the run needs it?
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
