//! The donor's table of grants: the slabs of each grant, and its key.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use venice_fabric::{Atomic, GrantedMemory, Lent, RecipientId, Refusal};
use venice_ports::monotonic_ns;
use venice_ports::shm::{SlabBatch, SlabSource};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::Slab;

/// The grants by id, each with its key and slabs. A grant's addresses run from 0 to its slabs'
/// total length.
#[derive(Debug, Default)]
pub struct GrantTable {
    grants: BTreeMap<GrantId, Arc<Entry>>,
    /// Ended grants whose recipients are still being notified.
    ended: BTreeSet<GrantId>,
    /// Accesses with wrong keys to grants that have ended since.
    wrong_keys_of_ended: Vec<(GrantId, u64)>,
    /// Number of changes so far.
    generation: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Entry {
    key: GrantKey,
    /// The recipient whose share of the port its accesses count on.
    recipient: RecipientId,
    /// Accesses with another key since the last report.
    wrong_keys: AtomicU64,
    /// True once a recipient has had files of its slabs, which it may map for good.
    is_handed_out: AtomicBool,
    /// Moment until which no files are handed out, by the monotonic clock.
    held_until_ns: AtomicU64,
    /// Empty once the grant has ended. Held for reading during an access, so that no access is
    /// under way once they are taken out. An answer begun before may still be sent from the slab's
    /// memory.
    slabs: RwLock<Vec<Slab>>,
}

impl GrantTable {
    /// Inserts a grant whose recipient has no other one.
    ///
    /// # Panics
    /// If the id exists already.
    pub fn insert(&mut self, id: GrantId, key: GrantKey, slabs: Vec<Slab>) {
        self.insert_of(RecipientId(id.0), id, key, slabs);
    }

    /// Inserts a grant of a recipient.
    ///
    /// # Panics
    /// If the id exists already. The Monitor Node assigns ids, and the caller checks them.
    pub fn insert_of(
        &mut self,
        recipient: RecipientId,
        id: GrantId,
        key: GrantKey,
        slabs: Vec<Slab>,
    ) {
        let entry = Entry {
            key,
            recipient,
            wrong_keys: AtomicU64::new(0),
            is_handed_out: AtomicBool::new(false),
            held_until_ns: AtomicU64::new(0),
            slabs: RwLock::new(slabs),
        };
        let old = self.grants.insert(id, Arc::new(entry));
        assert!(old.is_none(), "{id:?} inserted twice");
        self.ended.remove(&id);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Inserts a grant of slabs of another one, of the same recipient: it ends by itself, and they
    /// stay the other's. False if there is no such grant or slab, or the id is taken.
    #[must_use]
    pub fn insert_part(
        &mut self,
        (id, key): (GrantId, GrantKey),
        of: GrantId,
        slabs: Range<usize>,
    ) -> bool {
        let Some(entry) = self.grants.get(&of).filter(|_| !self.grants.contains_key(&id)) else {
            return false;
        };
        let recipient = entry.recipient;
        let shared: Option<Vec<Slab>> =
            entry.slabs().get(slabs).and_then(|slabs| slabs.iter().map(Slab::share).collect());
        let Some(shared) = shared.filter(|slabs| !slabs.is_empty()) else { return false };
        self.insert_of(recipient, id, key, shared);
        true
    }

    /// Ends a grant: no access reaches its slabs from then on. Its id is remembered until
    /// [`GrantTable::forget`], so that its users can be notified.
    pub fn end(&mut self, id: GrantId) -> Option<Vec<Slab>> {
        let entry = self.grants.remove(&id)?;
        self.ended.insert(id);
        self.wrong_keys_of_ended.extend(entry.take_wrong_keys().map(|count| (id, count)));
        self.generation.fetch_add(1, Ordering::Release);
        let mut slabs = entry.slabs.write().unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::take(&mut *slabs))
    }

    /// Hands out no files of a grant's slabs until that moment, by the monotonic clock, in
    /// nanoseconds. Returns false if some were handed out before: then nothing is held. A grant that
    /// does not exist has none.
    pub fn hold_files(&self, id: GrantId, until_ns: u64) -> bool {
        let Some(entry) = self.grants.get(&id) else { return true };
        let is_free = !entry.is_handed_out.load(Ordering::Relaxed);
        if is_free {
            entry.held_until_ns.store(until_ns, Ordering::Relaxed);
        }
        is_free
    }

    /// Returns slab files as [`GrantTable::slab_files`] does, for a recipient that may map them.
    ///
    /// # Errors
    /// A text for the recipient, also while the grant is being transferred.
    pub fn hand_out(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        let batch = self.slab_files(id, key, first, count)?;
        let entry = self.grants.get(&id).ok_or("unknown grant")?;
        if monotonic_ns() < entry.held_until_ns.load(Ordering::Relaxed) {
            return Err("the grant is being transferred".to_owned());
        }
        entry.is_handed_out.store(true, Ordering::Relaxed);
        Ok(batch)
    }

    /// Forgets a grant that has ended.
    pub fn forget(&mut self, id: GrantId) {
        if self.ended.remove(&id) {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the accesses refused since the last call because of a wrong key, by grant. They show
    /// invented keys, or a key that was issued for another grant.
    pub fn take_wrong_keys(&mut self) -> Vec<(GrantId, u64)> {
        let mut taken = std::mem::take(&mut self.wrong_keys_of_ended);
        let living = self.grants.iter();
        taken.extend(living.filter_map(|(id, entry)| Some((*id, entry.take_wrong_keys()?))));
        taken
    }

    /// True if the grant exists, or has ended and is not forgotten yet.
    pub fn remembers(&self, id: GrantId) -> bool {
        self.contains(id) || self.ended.contains(&id)
    }

    /// The ids of all grants.
    pub fn ids(&self) -> Vec<GrantId> {
        self.grants.keys().copied().collect()
    }

    /// True if the grant exists.
    pub fn contains(&self, id: GrantId) -> bool {
        self.grants.contains_key(&id)
    }

    /// Reads `into.len()` bytes at `addr`.
    ///
    /// # Errors
    /// [`Refusal`] if the grant does not exist, the key is wrong or the range leaves the grant.
    /// `into` is unchanged then.
    pub fn read(
        &self,
        id: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        self.grants.get(&id).ok_or(Refusal::UnknownGrant)?.read(key, addr, into)
    }

    /// Writes `from` at `addr`.
    ///
    /// # Errors
    /// [`Refusal`] if the grant does not exist, the key is wrong or the range leaves the grant. No
    /// byte is written then.
    pub fn write(&self, id: GrantId, key: GrantKey, addr: u64, from: &[u8]) -> Result<(), Refusal> {
        self.grants.get(&id).ok_or(Refusal::UnknownGrant)?.write(key, addr, from)
    }

    /// Performs `atomic` on the eight bytes at `addr` by one instruction of this machine, so that a
    /// recipient that maps the slab may do the same concurrently. Returns the earlier value.
    ///
    /// # Errors
    /// The errors of [`GrantTable::read`]; [`Refusal::Malformed`] if `addr` is not a multiple of eight.
    pub fn atomic(
        &self,
        id: GrantId,
        key: GrantKey,
        addr: u64,
        atomic: Atomic,
    ) -> Result<u64, Refusal> {
        self.grants.get(&id).ok_or(Refusal::UnknownGrant)?.atomic(key, addr, atomic)
    }

    /// The files that slabs `first..first + count` are mapped from.
    ///
    /// # Errors
    /// A text for the recipient.
    pub fn slab_files(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        let entry = self.grants.get(&id).ok_or("unknown grant")?;
        entry.check_key(key).map_err(|_| "not the grant's key")?;
        let slabs = entry.slabs();
        let end = first.checked_add(count);
        let wanted = end.and_then(|end| slabs.get(first..end));
        let wanted = wanted.ok_or_else(|| {
            format!("the grant has only {} MiB", (slabs.len() as u64 * SLAB_BYTES) >> 20)
        })?;
        let files = wanted.iter().map(Slab::file).collect::<Result<_, _>>();
        let files =
            files.map_err(|error| format!("passing the slabs failed at the donor: {error}"))?;
        Ok(SlabBatch { total: slabs.len(), files })
    }
}

impl Entry {
    fn read(&self, key: GrantKey, addr: u64, into: &mut [u8]) -> Result<(), Refusal> {
        self.check_key(key)?;
        let slabs = self.slabs();
        check_range(&slabs, addr, into.len())?;
        let mut done = 0;
        for piece in pieces(addr, into.len()) {
            slabs[piece.slab].read(piece.offset, &mut into[done..done + piece.len]);
            done += piece.len;
        }
        Ok(())
    }

    /// Lends the bytes; `None`: they lie in two slabs.
    fn lend(&self, key: GrantKey, addr: u64, len: usize) -> Result<Option<Lent>, Refusal> {
        self.check_key(key)?;
        let slabs = self.slabs();
        check_range(&slabs, addr, len)?;
        let (slab, offset) = ((addr / SLAB_BYTES) as usize, (addr % SLAB_BYTES) as usize);
        let is_whole = len <= SLAB_BYTES as usize - offset;
        Ok(is_whole.then(|| slabs[slab].lend(offset..offset + len)))
    }

    fn write(&self, key: GrantKey, addr: u64, from: &[u8]) -> Result<(), Refusal> {
        self.check_key(key)?;
        let slabs = self.slabs();
        check_range(&slabs, addr, from.len())?;
        let mut done = 0;
        for piece in pieces(addr, from.len()) {
            slabs[piece.slab].write(piece.offset, &from[done..done + piece.len]);
            done += piece.len;
        }
        Ok(())
    }

    fn atomic(&self, key: GrantKey, addr: u64, atomic: Atomic) -> Result<u64, Refusal> {
        self.check_key(key)?;
        let slabs = self.slabs();
        check_range(&slabs, addr, Atomic::BYTES)?;
        if !addr.is_multiple_of(Atomic::BYTES as u64) {
            return Err(Refusal::Malformed);
        }
        let (slab, offset) = (addr / SLAB_BYTES, addr % SLAB_BYTES);
        Ok(slabs[slab as usize].atomic(offset as usize, atomic))
    }

    fn slabs(&self) -> RwLockReadGuard<'_, Vec<Slab>> {
        self.slabs.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares the keys in a time that does not depend on the position of a difference.
    fn check_key(&self, key: GrantKey) -> Result<(), Refusal> {
        match std::hint::black_box(self.key.0 ^ key.0) {
            0 => Ok(()),
            _ => {
                self.wrong_keys.fetch_add(1, Ordering::Relaxed);
                Err(Refusal::WrongKey)
            }
        }
    }

    /// The number of wrong keys since the last call, if any.
    fn take_wrong_keys(&self) -> Option<u64> {
        Some(self.wrong_keys.swap(0, Ordering::Relaxed)).filter(|count| *count > 0)
    }
}

fn check_range(slabs: &[Slab], addr: u64, len: usize) -> Result<(), Refusal> {
    if slabs.is_empty() {
        return Err(Refusal::UnknownGrant);
    }
    let end = addr.checked_add(len as u64).ok_or(Refusal::OutOfRange)?;
    if end > slabs.len() as u64 * SLAB_BYTES {
        return Err(Refusal::OutOfRange);
    }
    Ok(())
}

/// A part of a range that lies within one slab.
struct Piece {
    slab: usize,
    offset: usize,
    len: usize,
}

/// Splits a range of a grant's addresses at the slabs' boundaries.
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

/// The table shared by the agent's threads: the ports read and write, the control plane inserts and
/// ends grants.
///
/// Each thread of the data plane has a clone. It looks grants up in its own copy, which it
/// refreshes when the table has changed, and locks only the grant that it accesses.
#[derive(Debug)]
pub struct SharedGrants {
    table: Arc<Mutex<GrantTable>>,
    generation: Arc<AtomicU64>,
    copy: BTreeMap<GrantId, Arc<Entry>>,
    /// The table's generation at the copy.
    copied: Option<u64>,
}

impl Default for SharedGrants {
    fn default() -> Self {
        let table = GrantTable::default();
        let generation = Arc::clone(&table.generation);
        let table = Arc::new(Mutex::new(table));
        Self { table, generation, copy: BTreeMap::new(), copied: None }
    }
}

impl Clone for SharedGrants {
    fn clone(&self) -> Self {
        let (table, generation) = (Arc::clone(&self.table), Arc::clone(&self.generation));
        Self { table, generation, copy: BTreeMap::new(), copied: None }
    }
}

impl SharedGrants {
    /// Locks the table, for the control plane.
    ///
    /// # Panics
    /// If another thread panicked with the lock held.
    pub fn lock(&self) -> MutexGuard<'_, GrantTable> {
        self.table.lock().expect("grant table not poisoned")
    }

    /// The number of changes of the table.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn entry(&mut self, id: GrantId) -> Result<&Entry, Refusal> {
        let generation = self.generation();
        if self.copied != Some(generation) {
            // A change in between makes the copy newer than its number. The copy is then made
            // again.
            let copy = self.lock().grants.clone();
            self.copy = copy;
            self.copied = Some(generation);
        }
        self.copy.get(&id).map(|entry| &**entry).ok_or(Refusal::UnknownGrant)
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
        self.lock().slab_files(id, key, first, count)
    }
}

/// The table for a port whose recipients get the slab files themselves, and may map them.
#[derive(Debug, Clone)]
pub struct HandedOutGrants(pub SharedGrants);

impl SlabSource for HandedOutGrants {
    fn slabs(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        self.0.lock().hand_out(id, key, first, count)
    }
}

impl GrantedMemory for SharedGrants {
    fn recipient(&mut self, grant: GrantId) -> RecipientId {
        self.entry(grant).map_or(RecipientId(grant.0), |entry| entry.recipient)
    }

    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        self.entry(grant)?.read(key, addr, into)
    }

    fn lend(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        len: usize,
    ) -> Result<Option<Lent>, Refusal> {
        self.entry(grant)?.lend(key, addr, len)
    }

    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        self.entry(grant)?.write(key, addr, from)
    }

    fn atomic(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        atomic: Atomic,
    ) -> Result<u64, Refusal> {
        self.entry(grant)?.atomic(key, addr, atomic)
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
    fn refuses_access_outside_grant() {
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
            assert_eq!(table.atomic(id, key, addr, Atomic::FetchAdd(1)), Err(refusal));
        }
        assert_eq!(byte, [9]);
        table.write(ID, KEY, SLAB_BYTES - 1, &[7]).unwrap();
        let last = SLAB_BYTES - 8;
        assert_eq!(table.atomic(ID, KEY, last, Atomic::FetchAdd(1)), Ok(7 << 56));
        assert_eq!(table.atomic(ID, KEY, 4, Atomic::FetchAdd(1)), Err(Refusal::Malformed));
        assert_eq!(table.end(ID).unwrap().len(), 1);
        assert_eq!(table.read(ID, KEY, 0, &mut byte), Err(Refusal::UnknownGrant));
        assert!(table.slab_files(ID, KEY, 0, 1).is_err());
    }

    #[test]
    fn passes_existing_slab_files_only() {
        let table = table(2);
        let batch = table.slab_files(ID, KEY, 1, 1).unwrap();
        assert_eq!((batch.total, batch.files.len()), (2, 1));
        assert!(table.slab_files(ID, KEY, 1, 2).is_err());
        assert!(table.slab_files(ID, KEY, usize::MAX, 2).is_err());
        assert!(table.slab_files(ID, GrantKey(0), 0, 1).is_err());
    }

    #[test]
    fn held_grant_hands_out_no_files() {
        let table = table(1);
        assert!(table.hold_files(ID, u64::MAX));
        assert!(table.hand_out(ID, KEY, 0, 1).unwrap_err().contains("being transferred"));
        assert!(table.slab_files(ID, KEY, 0, 1).is_ok(), "a port that keeps them may");
        assert!(table.hold_files(ID, 0));
        assert!(table.hand_out(ID, GrantKey(0), 0, 1).is_err());
        assert!(table.hold_files(ID, 0), "a refused recipient got none");
        table.hand_out(ID, KEY, 0, 1).unwrap();
        assert!(!table.hold_files(ID, u64::MAX));
        assert!(table.hand_out(ID, KEY, 0, 1).is_ok());
    }

    #[test]
    fn cloned_table_follows_changes() {
        let shared = SharedGrants::default();
        let mut mine = shared.clone();
        assert_eq!(mine.write(ID, KEY, 0, &[1]), Err(Refusal::UnknownGrant));
        shared.lock().insert(ID, KEY, vec![Slab::new().unwrap()]);
        mine.write(ID, KEY, 5, &[7]).unwrap();
        let kept = Arc::clone(&mine.copy[&ID]);
        assert_eq!(shared.lock().end(ID).unwrap().len(), 1);
        assert_eq!(mine.read(ID, KEY, 5, &mut [0]), Err(Refusal::UnknownGrant));
        // Even one looked up before.
        assert_eq!(kept.read(KEY, 5, &mut [0]), Err(Refusal::UnknownGrant));
    }

    #[test]
    fn grants_report_their_recipient() {
        let mut mine = SharedGrants::default();
        let one = RecipientId(77);
        for id in [1, 2] {
            mine.lock().insert_of(one, GrantId(id), KEY, Vec::new());
        }
        mine.lock().insert(GrantId(3), KEY, Vec::new());
        let of = [1, 2, 3].map(|id| mine.recipient(GrantId(id)));
        assert_eq!(of, [one, one, RecipientId(3)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// Reads and writes around the border of two slabs, against a plain array.
        #[test]
        fn slab_boundary_behaves_like_array(
            ops in proptest::collection::vec((0u64..16_000, 1usize..5000, any::<u8>()), 1..40)
        ) {
            let base = SLAB_BYTES - 8000;
            let table = table(2);
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
