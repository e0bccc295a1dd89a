//! Memory that an accepting end lends: the landing regions of its adaptive streams.

use std::collections::BTreeMap;

use venice_fabric::{GrantedMemory, Refusal};
use venice_wire::{GrantId, GrantKey};

/// Landing regions, each a grant with a key of its own. An end that only sends messages has none.
#[derive(Default)]
pub(crate) struct Landings {
    regions: BTreeMap<GrantId, Region>,
    /// Grants made so far. Numbers are never reused: late accesses to a region that was removed are
    /// refused.
    given: u64,
}

struct Region {
    key: GrantKey,
    bytes: Box<[u8]>,
}

impl Landings {
    /// Makes a region; holders of its `key` may read and write it.
    pub(super) fn add(&mut self, key: GrantKey, len_bytes: u64) -> GrantId {
        self.given += 1;
        let grant = GrantId(self.given);
        // Only pages that are written become resident.
        let bytes = vec![0; len_bytes as usize].into_boxed_slice();
        self.regions.insert(grant, Region { key, bytes });
        grant
    }

    pub(super) fn remove(&mut self, grant: GrantId) {
        self.regions.remove(&grant);
    }

    /// Copies from `offset` of an existing region, within its bounds.
    pub(super) fn copy(&self, grant: GrantId, offset: u64, into: &mut [u8]) {
        let region = &self.regions[&grant];
        into.copy_from_slice(&region.bytes[offset as usize..][..into.len()]);
    }

    fn range(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        len_bytes: usize,
    ) -> Result<&mut [u8], Refusal> {
        let region = self.regions.get_mut(&grant).ok_or(Refusal::UnknownGrant)?;
        if region.key != key {
            return Err(Refusal::WrongKey);
        }
        let start = usize::try_from(addr).map_err(|_| Refusal::OutOfRange)?;
        let end = start.checked_add(len_bytes).ok_or(Refusal::OutOfRange)?;
        region.bytes.get_mut(start..end).ok_or(Refusal::OutOfRange)
    }
}

impl GrantedMemory for Landings {
    fn read(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        into.copy_from_slice(self.range(grant, key, addr, into.len())?);
        Ok(())
    }

    fn write(
        &mut self,
        grant: GrantId,
        key: GrantKey,
        addr: u64,
        from: &[u8],
    ) -> Result<(), Refusal> {
        self.range(grant, key, addr, from.len())?.copy_from_slice(from);
        Ok(())
    }
}

impl std::fmt::Debug for Landings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landings").field("regions", &self.regions.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_requires_key_and_existence() {
        let mut landings = Landings::default();
        let (key, other) = (GrantKey(7), GrantKey(8));
        let grant = landings.add(key, 128);
        let second = landings.add(other, 64);
        assert_eq!(landings.write(grant, key, 120, &[9; 8]), Ok(()));
        assert_eq!(landings.write(grant, key, 121, &[9; 8]), Err(Refusal::OutOfRange));
        assert_eq!(landings.write(grant, key, u64::MAX, &[9; 8]), Err(Refusal::OutOfRange));
        assert_eq!(landings.write(grant, other, 0, &[9; 8]), Err(Refusal::WrongKey));
        assert_eq!(landings.write(second, key, 0, &[9; 8]), Err(Refusal::WrongKey));
        let mut back = [0; 8];
        landings.copy(grant, 120, &mut back);
        assert_eq!(back, [9; 8]);
        landings.remove(grant);
        assert_eq!(landings.write(grant, key, 0, &[9; 8]), Err(Refusal::UnknownGrant));
        assert_ne!(landings.add(key, 64), grant, "the number is not reused");
    }
}
