//! The donor's table of grants: which slabs a grant is made of, and who may touch them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use venice_fabric::{GrantedMemory, Refusal};
use venice_ports::shm::{SlabBatch, SlabSource};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::Slab;

/// Grant id → key and slabs. A grant's addresses run from 0 to its slabs' total length.
#[derive(Debug, Default)]
pub struct GrantTable {
    grants: BTreeMap<GrantId, Entry>,
}

#[derive(Debug)]
struct Entry {
    key: GrantKey,
    slabs: Vec<Slab>,
}

impl GrantTable {
    /// Puts a grant in.
    ///
    /// # Panics
    /// When the id is there already: it is the Monitor Node's to give out, and the caller's to
    /// check.
    pub fn insert(&mut self, id: GrantId, key: GrantKey, slabs: Vec<Slab>) {
        let old = self.grants.insert(id, Entry { key, slabs });
        assert!(old.is_none(), "{id:?} was granted twice");
    }

    /// Takes a grant out; no access reaches its slabs from then on.
    pub fn remove(&mut self, id: GrantId) -> Option<Vec<Slab>> {
        self.grants.remove(&id).map(|entry| entry.slabs)
    }

    /// Whether the grant is there.
    pub fn contains(&self, id: GrantId) -> bool {
        self.grants.contains_key(&id)
    }

    /// Reads `into.len()` bytes at `addr`.
    ///
    /// # Errors
    /// When there is no such grant, the key is wrong or the range leaves the grant; `into` is
    /// untouched then.
    pub fn read(
        &self,
        id: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        let entry = self.grants.get(&id).ok_or(Refusal::UnknownGrant)?;
        entry.check_key(key)?;
        entry.check_range(addr, into.len())?;
        let mut done = 0;
        for piece in pieces(addr, into.len()) {
            entry.slabs[piece.slab].read(piece.offset, &mut into[done..done + piece.len]);
            done += piece.len;
        }
        Ok(())
    }

    /// Writes `from` at `addr`.
    ///
    /// # Errors
    /// When there is no such grant, the key is wrong or the range leaves the grant; nothing is
    /// written then.
    pub fn write(
        &mut self,
        id: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        let entry = self.grants.get_mut(&id).ok_or(Refusal::UnknownGrant)?;
        entry.check_key(key)?;
        entry.check_range(addr, from.len())?;
        let mut done = 0;
        for piece in pieces(addr, from.len()) {
            entry.slabs[piece.slab].write(piece.offset, &from[done..done + piece.len]);
            done += piece.len;
        }
        Ok(())
    }

    /// Duplicates of the memfds of slabs `first..first + count`.
    ///
    /// # Errors
    /// In words, for the recipient.
    pub fn slab_fds(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        let entry = self.grants.get(&id).ok_or("it has no such grant")?;
        entry.check_key(key).map_err(|_| "that is not the grant's key")?;
        let end = first.checked_add(count);
        let wanted = end.and_then(|end| entry.slabs.get(first..end));
        let wanted = wanted.ok_or("the grant has fewer slabs")?;
        let fds =
            wanted.iter().map(|slab| slab.fd().try_clone_to_owned()).collect::<Result<_, _>>();
        let fds = fds.map_err(|error| format!("the donor cannot pass its slabs on: {error}"))?;
        Ok(SlabBatch { total: entry.slabs.len(), fds })
    }
}

impl Entry {
    /// Compares the keys in a time that does not depend on where they differ.
    fn check_key(&self, key: GrantKey) -> Result<(), Refusal> {
        match std::hint::black_box(self.key.0 ^ key.0) {
            0 => Ok(()),
            _ => Err(Refusal::WrongKey),
        }
    }

    fn check_range(&self, addr: u64, len: usize) -> Result<(), Refusal> {
        let end = addr.checked_add(len as u64).ok_or(Refusal::OutOfRange)?;
        if end > self.slabs.len() as u64 * SLAB_BYTES {
            return Err(Refusal::OutOfRange);
        }
        Ok(())
    }
}

/// A part of a range that lies within one slab.
struct Piece {
    slab: usize,
    offset: usize,
    len: usize,
}

/// Cuts a range of a grant's addresses at the slabs' borders.
fn pieces(addr: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut addr = addr;
    let mut left = len;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let offset = (addr % SLAB_BYTES) as usize;
        let len = left.min(SLAB_BYTES as usize - offset);
        let piece = Piece { slab: (addr / SLAB_BYTES) as usize, offset, len };
        addr += len as u64;
        left -= len;
        Some(piece)
    })
}

/// The table as the agent's threads share it: the ports read and write, the control plane puts
/// grants in and takes them out. The lock is held for one access at a time; in particular slabs
/// are made and dropped outside of it.
#[derive(Debug, Clone, Default)]
pub struct SharedGrants(Arc<Mutex<GrantTable>>);

impl SharedGrants {
    /// Locks the table. Keep it short: the data plane waits.
    ///
    /// # Panics
    /// When another thread panicked with the table in its hands.
    pub fn lock(&self) -> MutexGuard<'_, GrantTable> {
        self.0.lock().expect("no thread panics with the grant table")
    }
}

impl SlabSource for SharedGrants {
    fn slabs(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        self.lock().slab_fds(id, key, first, count)
    }
}

impl GrantedMemory for SharedGrants {
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        self.lock().read(grant, key, addr, into)
    }

    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        self.lock().write(grant, key, addr, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: GrantId = GrantId(1);
    const KEY: GrantKey = GrantKey(42);

    fn table(slabs: usize) -> GrantTable {
        let mut table = GrantTable::default();
        table.insert(ID, KEY, (0..slabs).map(|_| Slab::new().unwrap()).collect());
        table
    }

    #[test]
    fn refuses_every_access_outside_a_grant() {
        let mut table = table(1);
        let mut byte = [9u8];
        for (id, key, addr, refusal) in [
            (GrantId(2), KEY, 0, Refusal::UnknownGrant),
            (ID, GrantKey(43), 0, Refusal::WrongKey),
            (ID, KEY, SLAB_BYTES, Refusal::OutOfRange),
            (ID, KEY, u64::MAX, Refusal::OutOfRange),
        ] {
            assert_eq!(table.read(id, key, addr, &mut byte), Err(refusal));
            assert_eq!(table.write(id, key, addr, &[7]), Err(refusal));
        }
        assert_eq!(byte, [9]);
        table.write(ID, KEY, SLAB_BYTES - 1, &[7]).unwrap();
        assert_eq!(table.remove(ID).unwrap().len(), 1);
        assert_eq!(table.read(ID, KEY, 0, &mut byte), Err(Refusal::UnknownGrant));
        assert!(table.slab_fds(ID, KEY, 0, 1).is_err());
    }

    #[test]
    fn hands_out_the_descriptors_of_existing_slabs_only() {
        let table = table(2);
        let batch = table.slab_fds(ID, KEY, 1, 1).unwrap();
        assert_eq!((batch.total, batch.fds.len()), (2, 1));
        assert!(table.slab_fds(ID, KEY, 1, 2).is_err());
        assert!(table.slab_fds(ID, KEY, usize::MAX, 2).is_err());
        assert!(table.slab_fds(ID, GrantKey(0), 0, 1).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// Reads and writes around the border of two slabs, against a plain array.
        #[test]
        fn behaves_like_an_array(
            ops in proptest::collection::vec((0u64..16_000, 1usize..5000, any::<u8>()), 1..40)
        ) {
            let base = SLAB_BYTES - 8000;
            let mut table = table(2);
            let mut model = vec![0u8; 32_000];
            for (at, len, byte) in ops {
                let range = at as usize..at as usize + len;
                table.write(ID, KEY, base + at, &vec![byte; len]).unwrap();
                model[range].fill(byte);
            }
            let mut seen = vec![0u8; model.len()];
            table.read(ID, KEY, base, &mut seen).unwrap();
            prop_assert!(seen == model);
        }
    }
}
