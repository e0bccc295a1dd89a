//! A donor's memory: grants with keys, each a few watched pages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use venice_fabric::{Atomic, GrantedMemory, LendingMemory, Refusal};
use venice_wire::{Checksum, GrantId, GrantKey};

use super::sabotage::{Sabotage, Saboteur};
use crate::checkers::{Oracle, RegionId};

/// Grants of one node.
#[derive(Debug, Default)]
pub(super) struct Lent {
    pub grants: BTreeMap<GrantId, Grant>,
    /// Grants that it restores under the same keys after a crash.
    pub remembered: Vec<(GrantId, GrantKey, u16)>,
}

#[derive(Debug)]
pub(super) struct Grant {
    pub key: GrantKey,
    pub recipient: u16,
    pub region: RegionId,
    pub bytes: Arc<Bytes>,
    /// True while recipients are notified of its end.
    pub is_ending: bool,
}

/// A region, then its words for atomics. Bulk reads are served from here.
#[derive(Debug)]
pub(super) struct Bytes(Mutex<Vec<u8>>);

impl Bytes {
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().expect("a thread panicked while it held the lock")
    }
}

impl LendingMemory for Bytes {
    fn copy_to(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.lock()[offset..offset + into.len()]);
    }

    fn feed(&self, range: Range<usize>, checksum: &mut Checksum) {
        checksum.update(&self.lock()[range]);
    }

    fn address(&self, offset: usize) -> *const u8 {
        &raw const self.lock()[offset]
    }
}

/// The target's view of the memory: every access goes to the oracle.
pub(super) struct Watched<'a> {
    pub lent: &'a mut Lent,
    pub oracle: &'a mut Oracle,
    pub saboteur: &'a mut Saboteur,
    pub now_ns: u64,
}

impl Lent {
    /// Returns the grant lent to a recipient, if there is one.
    pub fn to(&self, recipient: u16) -> Option<(GrantId, &Grant)> {
        let is_for = |grant: &Grant| grant.recipient == recipient && !grant.is_ending;
        let mut grants = self.grants.iter().filter(|(_, grant)| is_for(grant));
        grants.next().map(|(&id, grant)| (id, grant))
    }

    /// True while recipients are notified of the end of a grant.
    pub fn has_ending(&self) -> bool {
        self.grants.values().any(|grant| grant.is_ending)
    }

    fn check(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        len: usize,
    ) -> Result<(&mut Grant, usize), Refusal> {
        let grant = self.grants.get_mut(&grant).ok_or(Refusal::UnknownGrant)?;
        if grant.key != key {
            return Err(Refusal::WrongKey);
        }
        let end = addr.checked_add(len as u64).ok_or(Refusal::OutOfRange)?;
        if end > grant.bytes.lock().len() as u64 {
            return Err(Refusal::OutOfRange);
        }
        Ok((grant, addr as usize))
    }
}

impl GrantedMemory for Watched<'_> {
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        let (grant, at) = self.lent.check(grant, key, addr, into.len())?;
        grant.bytes.copy_to(at, into);
        if self.saboteur.strikes(Sabotage::StaleRead) {
            into.fill(0);
        }
        Ok(())
    }

    fn lend(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        len: usize,
    ) -> Result<Option<venice_fabric::Lent>, Refusal> {
        let (grant, at) = self.lent.check(grant, key, addr, len)?;
        let memory = Arc::clone(&grant.bytes) as Arc<dyn LendingMemory>;
        Ok(Some(venice_fabric::Lent::new(memory, at..at + len)))
    }

    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        let (grant, at) = self.lent.check(grant, key, addr, from.len())?;
        if self.saboteur.strikes(Sabotage::DropWrite) {
            return Ok(());
        }
        grant.bytes.lock()[at..at + from.len()].copy_from_slice(from);
        self.oracle.executed(self.now_ns, grant.region, addr as u32, from);
        if self.saboteur.strikes(Sabotage::FlipBit) {
            grant.bytes.lock()[at] ^= 1;
        }
        if let Some((region, addr, bytes)) = self.saboteur.repeat_write(grant.region, addr, from) {
            self.oracle.executed(self.now_ns, region, addr as u32, &bytes);
            let old = self.lent.grants.values_mut().find(|grant| grant.region == region);
            if let Some(grant) = old {
                grant.bytes.lock()[addr as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        atomic: Atomic,
    ) -> Result<u64, Refusal> {
        let (grant, at) = self.lent.check(grant, key, addr, Atomic::BYTES)?;
        let mut bytes = grant.bytes.lock();
        let (word, _) = bytes[at..].split_first_chunk_mut().expect("the length is checked");
        let old = u64::from_le_bytes(*word);
        let new = atomic.apply(old).unwrap_or(old);
        let is_twice = self.saboteur.strikes(Sabotage::RepeatAtomic);
        let new = if is_twice { atomic.apply(new).unwrap_or(new) } else { new };
        *word = new.to_le_bytes();
        Ok(if self.saboteur.strikes(Sabotage::StaleAtomic) { new } else { old })
    }
}
