//! The Remote Address Mapping Table: the donor, grant and remote address of each mapping; with its
//! look-aside cache, the TLTLB.

use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use crate::{FabricError, PeerIndex};

/// A donor's grant, by its index in the recipient's list of that donor's grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GrantSlot(pub u32);

/// The translation of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// The donor.
    pub peer: PeerIndex,
    /// Its index in the donor's list of grants.
    pub slot: GrantSlot,
    /// The address in the grant.
    pub remote_addr: u64,
    /// Bytes from there to the end of the mapping.
    pub room_bytes: u64,
    /// The grant it belongs to.
    pub grant: GrantId,
    /// The key of the grant.
    pub key: GrantKey,
}

/// The counters of the table and its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RamtStats {
    /// Mappings.
    pub windows: u32,
    /// Addresses found in the TLTLB.
    pub hits: u64,
    /// Addresses looked up in the table.
    pub misses: u64,
    /// Times the TLTLB was emptied because the table changed.
    pub flushes: u64,
}

/// The table, with one entry for each mapping. Mappings do not overlap.
#[derive(Debug)]
pub(crate) struct Ramt {
    /// Sorted by address.
    entries: Vec<Entry>,
    limit: u32,
    tltlb: Tltlb,
    stats: RamtStats,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    window_addr: u64,
    len_bytes: u64,
    at_start: Mapping,
}

/// Caches the entry in which an address was found, by slab: direct-mapped, emptied whenever the
/// table changes.
#[derive(Debug)]
struct Tltlb {
    lines: Box<[Option<u32>; TLTLB_LINES]>,
}

const TLTLB_LINES: usize = 64;

impl Ramt {
    /// Returns an empty table for at most `limit` mappings.
    pub fn new(limit: u32) -> Self {
        Self { entries: Vec::new(), limit, tltlb: Tltlb::default(), stats: RamtStats::default() }
    }

    pub fn stats(&self) -> RamtStats {
        RamtStats { windows: self.entries.len() as u32, ..self.stats }
    }

    /// Returns all mappings: address, length in bytes, and the translation of the start.
    pub fn windows(&self) -> impl Iterator<Item = (u64, u64, &Mapping)> {
        self.entries.iter().map(|entry| (entry.window_addr, entry.len_bytes, &entry.at_start))
    }

    /// Maps `len_bytes` from `window_addr` on to the memory that `start` names; its `room_bytes` is
    /// ignored.
    ///
    /// # Errors
    /// [`FabricError::BadLength`] if the mapping is empty or either range runs past 2⁶⁴,
    /// [`FabricError::Overlap`] if it overlaps another, [`FabricError::TableFull`].
    pub fn map(
        &mut self,
        window_addr: u64,
        len_bytes: u64,
        start: Mapping,
    ) -> Result<(), FabricError> {
        let fits = |addr: u64| addr.checked_add(len_bytes).is_some();
        if len_bytes == 0 || !fits(window_addr) || !fits(start.remote_addr) {
            return Err(FabricError::BadLength { window_addr, len_bytes });
        }
        let at = self.entries.partition_point(|entry| entry.window_addr < window_addr);
        let before = at.checked_sub(1).map(|before| &self.entries[before]);
        let in_the_way = before
            .filter(|entry| entry.end() > window_addr)
            .or(self.entries.get(at).filter(|entry| entry.window_addr < window_addr + len_bytes));
        if let Some(entry) = in_the_way {
            return Err(FabricError::Overlap { window_addr: entry.window_addr });
        }
        if self.entries.len() as u32 >= self.limit {
            return Err(FabricError::TableFull { limit: self.limit });
        }
        let at_start = Mapping { room_bytes: len_bytes, ..start };
        self.entries.insert(at, Entry { window_addr, len_bytes, at_start });
        self.flush();
        Ok(())
    }

    /// Removes the mapping that starts at `window_addr`; returns the translation of its start.
    ///
    /// # Errors
    /// [`FabricError::NotMapped`] if none starts there.
    pub fn unmap(&mut self, window_addr: u64) -> Result<Mapping, FabricError> {
        let at = self
            .entries
            .binary_search_by_key(&window_addr, |entry| entry.window_addr)
            .map_err(|_| FabricError::NotMapped { window_addr, len_bytes: 0 })?;
        let entry = self.entries.remove(at);
        self.flush();
        Ok(entry.at_start)
    }

    /// Removes all mappings of one grant; returns their number.
    pub fn unmap_grant(&mut self, peer: PeerIndex, slot: GrantSlot) -> u32 {
        let before = self.entries.len();
        self.entries.retain(|entry| (entry.at_start.peer, entry.at_start.slot) != (peer, slot));
        self.flush();
        (before - self.entries.len()) as u32
    }

    fn flush(&mut self) {
        self.tltlb.clear();
        self.stats.flushes += 1;
    }

    /// Returns the translation of `window_addr`, if it is mapped. Inlined: a translation read right
    /// after it was written to the stack would wait for every byte copied before it.
    #[inline]
    pub fn translate(&mut self, window_addr: u64) -> Option<Mapping> {
        let line = Tltlb::line(window_addr);
        if let Some(at) = self.tltlb.lines[line] {
            let found = self.entries[at as usize].translate(window_addr);
            if found.is_some() {
                self.stats.hits += 1;
                return found;
            }
        }
        self.stats.misses += 1;
        let after = self.entries.partition_point(|entry| entry.window_addr <= window_addr);
        let at = after.checked_sub(1)?;
        let found = self.entries[at].translate(window_addr)?;
        self.tltlb.lines[line] = Some(at as u32);
        Some(found)
    }
}

impl Entry {
    fn end(&self) -> u64 {
        self.window_addr + self.len_bytes
    }

    #[inline]
    fn translate(&self, window_addr: u64) -> Option<Mapping> {
        let offset = window_addr.checked_sub(self.window_addr)?;
        (offset < self.len_bytes).then(|| Mapping {
            remote_addr: self.at_start.remote_addr + offset,
            room_bytes: self.len_bytes - offset,
            ..self.at_start
        })
    }
}

impl Tltlb {
    fn line(window_addr: u64) -> usize {
        (window_addr / SLAB_BYTES) as usize % TLTLB_LINES
    }

    fn clear(&mut self) {
        self.lines.fill(None);
    }
}

impl Default for Tltlb {
    fn default() -> Self {
        Self { lines: Box::new([None; TLTLB_LINES]) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mapping(n: u32, remote_addr: u64) -> Mapping {
        Mapping {
            peer: PeerIndex(n),
            slot: GrantSlot(n),
            remote_addr,
            room_bytes: 0,
            grant: GrantId(u64::from(n)),
            key: GrantKey(u64::from(n)),
        }
    }

    #[test]
    fn mapping_rejects_address_overflow() {
        let mut ramt = Ramt::new(8);
        for (window_addr, len_bytes, remote_addr) in
            [(0, 0, 0), (u64::MAX, 2, 0), (0, 2, u64::MAX), (1, u64::MAX, 0)]
        {
            let refused = ramt.map(window_addr, len_bytes, mapping(0, remote_addr));
            assert_eq!(refused, Err(FabricError::BadLength { window_addr, len_bytes }));
        }
    }

    #[test]
    fn full_table_rejects_mappings() {
        let mut ramt = Ramt::new(2);
        ramt.map(0, 64, mapping(0, 0)).unwrap();
        ramt.map(64, 64, mapping(1, 0)).unwrap();
        assert_eq!(ramt.map(128, 64, mapping(2, 0)), Err(FabricError::TableFull { limit: 2 }));
        for addr in [0, 1, 2, 64] {
            assert!(ramt.translate(addr).is_some());
        }
        let expected = RamtStats { windows: 2, hits: 2, misses: 2, flushes: 2 };
        assert_eq!(ramt.stats(), expected, "both mappings share a line");
        assert_eq!(ramt.unmap_grant(PeerIndex(0), GrantSlot(0)), 1);
        assert_eq!((ramt.translate(0), ramt.windows().count()), (None, 1));
        ramt.map(128, 64, mapping(2, 0)).unwrap();
    }

    #[derive(Clone, Debug)]
    enum Op {
        Map(u64, u64),
        Unmap(u64),
        Translate(u64),
    }

    /// Addresses in units of a quarter slab, so that mappings share TLTLB lines.
    fn any_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..600u64, 1..40u64).prop_map(|(addr, len)| Op::Map(addr, len)),
            (0..600u64).prop_map(Op::Unmap),
            (0..640u64).prop_map(Op::Translate),
            (0..640u64).prop_map(Op::Translate),
        ]
    }

    proptest! {
        /// Compares against the plainest model: one slot for each unit of address.
        #[test]
        fn table_matches_flat_model(ops in prop::collection::vec(any_op(), 1..200)) {
            const UNIT: u64 = SLAB_BYTES / 4;
            let mut ramt = Ramt::new(1000);
            let mut flat: Vec<Option<(u32, u64)>> = vec![None; 640];
            for (n, op) in ops.into_iter().enumerate() {
                let n = n as u32;
                match op {
                    Op::Map(addr, len) => {
                        let range = addr as usize..(addr + len).min(640) as usize;
                        let is_free = flat[range.clone()].iter().all(Option::is_none);
                        let result = ramt.map(addr * UNIT, len * UNIT, mapping(n, 7));
                        prop_assert_eq!(result.is_ok(), is_free);
                        if is_free {
                            flat[range].fill(Some((n, addr)));
                        }
                    }
                    Op::Unmap(addr) => {
                        let starts_here = flat[addr as usize].filter(|&(_, start)| start == addr);
                        prop_assert_eq!(ramt.unmap(addr * UNIT).is_ok(), starts_here.is_some());
                        if let Some(window) = starts_here {
                            let gone = |slot: &&mut Option<(u32, u64)>| **slot == Some(window);
                            flat.iter_mut().filter(gone).for_each(|slot| *slot = None);
                        }
                    }
                    Op::Translate(addr) => {
                        let found = ramt.translate(addr * UNIT + 5);
                        let found = found.map(|m| (m.peer.0, m.remote_addr));
                        let expected =
                            flat[addr as usize].map(|(n, start)| (n, 7 + (addr - start) * UNIT + 5));
                        prop_assert_eq!(found, expected);
                    }
                }
            }
        }
    }
}
