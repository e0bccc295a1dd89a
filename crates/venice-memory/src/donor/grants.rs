//! The donor's table of grants: which slabs a grant is made of, and who may touch them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use venice_ports::shm::{SlabBatch, SlabSource};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::Slab;

/// Why an access to lent memory is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessRefusal {
    /// No such grant, or not with this key. Which of the two is nobody's business.
    #[error("no such grant, or wrong key")]
    NoGrant,
    /// The range leaves the grant.
    #[error("outside the grant")]
    OutOfRange,
}

/// Grant id → key and slabs. A grant's addresses run from 0 to its slabs' total length.
#[derive(Debug, Default)]
pub struct GrantTable {
    grants: BTreeMap<u64, Entry>,
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
        let old = self.grants.insert(id.0, Entry { key, slabs });
        assert!(old.is_none(), "{id:?} was granted twice");
    }

    /// Takes a grant out; no access reaches its slabs from then on.
    pub fn remove(&mut self, id: GrantId) -> Option<Vec<Slab>> {
        self.grants.remove(&id.0).map(|entry| entry.slabs)
    }

    /// Whether the grant is there.
    pub fn contains(&self, id: GrantId) -> bool {
        self.grants.contains_key(&id.0)
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
    ) -> Result<(), AccessRefusal> {
        let entry = self.grants.get(&id.0);
        let entry = entry.filter(|entry| entry.opens_with(key)).ok_or(AccessRefusal::NoGrant)?;
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
    ) -> Result<(), AccessRefusal> {
        let entry = self.grants.get_mut(&id.0);
        let entry = entry.filter(|entry| entry.opens_with(key)).ok_or(AccessRefusal::NoGrant)?;
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
        let entry = self.grants.get(&id.0).filter(|entry| entry.opens_with(key));
        let entry = entry.ok_or_else(|| AccessRefusal::NoGrant.to_string())?;
        let end = first.checked_add(count);
        let wanted = end.and_then(|end| entry.slabs.get(first..end));
        let wanted = wanted.ok_or_else(|| AccessRefusal::OutOfRange.to_string())?;
        let fds =
            wanted.iter().map(|slab| slab.fd().try_clone_to_owned()).collect::<Result<_, _>>();
        let fds = fds.map_err(|error| format!("the donor cannot pass its slabs on: {error}"))?;
        Ok(SlabBatch { total: entry.slabs.len(), fds })
    }
}

impl Entry {
    /// Compares the keys in a time that does not depend on where they differ.
    fn opens_with(&self, key: GrantKey) -> bool {
        std::hint::black_box(self.key.0 ^ key.0) == 0
    }

    fn check_range(&self, addr: u64, len: usize) -> Result<(), AccessRefusal> {
        let end = addr.checked_add(len as u64).ok_or(AccessRefusal::OutOfRange)?;
        if end > self.slabs.len() as u64 * SLAB_BYTES {
            return Err(AccessRefusal::OutOfRange);
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
            (GrantId(2), KEY, 0, AccessRefusal::NoGrant),
            (ID, GrantKey(43), 0, AccessRefusal::NoGrant),
            (ID, KEY, SLAB_BYTES, AccessRefusal::OutOfRange),
            (ID, KEY, u64::MAX, AccessRefusal::OutOfRange),
        ] {
            assert_eq!(table.read(id, key, addr, &mut byte), Err(refusal));
            assert_eq!(table.write(id, key, addr, &[7]), Err(refusal));
        }
        assert_eq!(byte, [9]);
        table.write(ID, KEY, SLAB_BYTES - 1, &[7]).unwrap();
        assert_eq!(table.remove(ID).unwrap().len(), 1);
        assert_eq!(table.read(ID, KEY, 0, &mut byte), Err(AccessRefusal::NoGrant));
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
