//! Lent memory, with notes of all stores into it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Result;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use venice_fabric::{Atomic, GrantedMemory, Refusal};
use venice_ports::shm::{SlabBatch, SlabSource};
use venice_sim::rack::Sabotage;
use venice_sim::scenario::Workload;
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use crate::racks::notes::{Bytes, Notebook, What};
use crate::racks::plan::{Plan, Port};

/// Grants of a donor.
#[derive(Debug)]
pub(super) struct Lent {
    grants: BTreeMap<GrantId, Grant>,
    workload: Workload,
    is_mapped_by_others: bool,
    sabotage: Option<Sabotage>,
    stores: u64,
    notebook: Arc<Notebook>,
}

#[derive(Debug)]
struct Grant {
    key: GrantKey,
    region: u32,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Own(Vec<u8>),
    /// A slab that its recipient maps: stores into it are not observed.
    Slab(OwnedFd),
}

/// Stores for one strike of sabotage.
const STRIKE_EVERY: u64 = 20;

impl Lent {
    pub fn new(plan: &Plan, sabotage: Option<Sabotage>, notebook: Arc<Notebook>) -> Self {
        let (grants, workload) = (BTreeMap::new(), plan.scenario.workload);
        let is_mapped_by_others = plan.port == Port::Shm;
        Self { grants, workload, is_mapped_by_others, sabotage, stores: 0, notebook }
    }

    /// Lends zeros.
    pub fn lend(&mut self, id: GrantId, key: GrantKey, region: u32) -> Result<()> {
        let memory = match self.is_mapped_by_others {
            true => Memory::Slab(new_slab()?),
            false => Memory::Own(vec![0; self.workload.window_bytes() as usize]),
        };
        self.grants.insert(id, Grant { key, region, memory });
        Ok(())
    }

    pub fn end(&mut self, id: GrantId) {
        self.grants.remove(&id);
    }

    /// Notes all grants and their contents.
    pub fn report(&self) -> Result<()> {
        for Grant { region, memory, .. } in self.grants.values() {
            let data = match memory {
                Memory::Own(bytes) => bytes.clone(),
                Memory::Slab(slab) => {
                    let mut bytes = vec![0; self.workload.window_bytes() as usize];
                    let len = rustix::io::pread(slab, &mut bytes, 0)?;
                    bytes.truncate(len);
                    bytes
                }
            };
            self.notebook.note(What::Holds { region: *region, data: Bytes(data) });
        }
        Ok(())
    }

    fn find(
        &mut self,
        id: GrantId,
        key: GrantKey,
        addr: u64,
        len: usize,
    ) -> Result<(u32, &mut [u8]), Refusal> {
        let Grant { key: good, region, memory } =
            self.grants.get_mut(&id).ok_or(Refusal::UnknownGrant)?;
        if *good != key {
            return Err(Refusal::WrongKey);
        }
        let Memory::Own(bytes) = memory else { return Err(Refusal::UnknownGrant) };
        let end = addr.checked_add(len as u64).ok_or(Refusal::OutOfRange)?;
        let range = addr as usize..end as usize;
        Ok((*region, bytes.get_mut(range).ok_or(Refusal::OutOfRange)?))
    }

    fn strikes(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage) && self.stores.is_multiple_of(STRIKE_EVERY)
    }
}

fn new_slab() -> Result<OwnedFd> {
    let slab = memfd_create("slab", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&slab, SLAB_BYTES)?;
    fcntl_add_seals(&slab, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(slab)
}

/// The ports' view of the memory.
#[derive(Clone, Debug)]
pub(super) struct Watched(pub Arc<Mutex<Lent>>);

impl Watched {
    pub fn lock(&self) -> MutexGuard<'_, Lent> {
        self.0.lock().expect("a thread panicked while it held the lock")
    }
}

impl GrantedMemory for Watched {
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        let mut lent = self.lock();
        into.copy_from_slice(lent.find(grant, key, addr, into.len())?.1);
        Ok(())
    }

    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        let mut lent = self.lock();
        lent.stores += 1;
        let (drops, flips) = (lent.strikes(Sabotage::DropWrite), lent.strikes(Sabotage::FlipBit));
        let notebook = Arc::clone(&lent.notebook);
        let (region, bytes) = lent.find(grant, key, addr, from.len())?;
        if !drops {
            bytes.copy_from_slice(from);
            bytes[0] ^= u8::from(flips);
            notebook.note(What::Stored { region, at: addr as u32, data: Bytes(from.to_vec()) });
        }
        Ok(())
    }

    /// Executes an atomic. It is not noted: its result shows what was done.
    fn atomic(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        atomic: Atomic,
    ) -> Result<u64, Refusal> {
        let mut lent = self.lock();
        let repeats = lent.sabotage == Some(Sabotage::RepeatAtomic);
        let (_, bytes) = lent.find(grant, key, addr, Atomic::BYTES)?;
        let word: &mut [u8; Atomic::BYTES] = bytes.try_into().expect("as long as asked for");
        let old = u64::from_le_bytes(*word);
        for _ in 0..1 + u32::from(repeats) {
            let now = u64::from_le_bytes(*word);
            *word = atomic.apply(now).unwrap_or(now).to_le_bytes();
        }
        Ok(old)
    }
}

impl SlabSource for Watched {
    fn slabs(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        let lent = self.lock();
        let grant = lent.grants.get(&id).filter(|grant| grant.key == key);
        match grant.map(|grant| &grant.memory) {
            Some(Memory::Slab(slab)) if (first, count) == (0, 1) => {
                let fd = slab.try_clone().map_err(|error| error.to_string())?;
                Ok(SlabBatch { total: 1, files: vec![fd.into()] })
            }
            _ => Err("no such grant, key or slab".into()),
        }
    }
}
