//! Mapping table: the RAMT of the ports that reach memory without frames.

use venice_fabric::{FabricError, PeerIndex};

/// Target of a mapped address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub peer: PeerIndex,
    /// Address within the grant.
    pub remote_addr: u64,
    /// Bytes from there to the end of the mapping.
    pub room_bytes: u64,
}

/// Mappings in the order of their addresses, without overlap.
#[derive(Debug, Default)]
pub(crate) struct MappingTable(Vec<Mapping>);

#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: u64,
    target: Target,
}

impl Mapping {
    fn end(&self) -> u64 {
        self.start + self.target.room_bytes
    }
}

impl MappingTable {
    /// Adds a mapping of `target.room_bytes`.
    pub(crate) fn map(&mut self, start: u64, target: Target) -> Result<(), FabricError> {
        let len_bytes = target.room_bytes;
        if len_bytes == 0 || start.checked_add(len_bytes).is_none() {
            return Err(FabricError::BadLength { window_addr: start, len_bytes });
        }
        let at = self.0.partition_point(|mapping| mapping.end() <= start);
        if let Some(next) = self.0.get(at).filter(|next| next.start < start + len_bytes) {
            return Err(FabricError::Overlap { window_addr: next.start });
        }
        self.0.insert(at, Mapping { start, target });
        Ok(())
    }

    /// Removes the mapping that starts there; returns false if none does.
    pub(crate) fn unmap(&mut self, start: u64) -> bool {
        let found = self.0.binary_search_by_key(&start, |mapping| mapping.start);
        found.map(|at| self.0.remove(at)).is_ok()
    }

    /// Removes all mappings of `peer`.
    pub(crate) fn unmap_all_of(&mut self, peer: PeerIndex) {
        self.0.retain(|mapping| mapping.target.peer != peer);
    }

    /// Returns the target of an address.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<Target> {
        let at = self.0.partition_point(|mapping| mapping.end() <= addr);
        let mapping = self.0.get(at).filter(|mapping| mapping.start <= addr)?;
        let into = addr - mapping.start;
        let Target { peer, remote_addr, room_bytes } = mapping.target;
        Some(Target { peer, remote_addr: remote_addr + into, room_bytes: room_bytes - into })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Mappings of up to 40 bytes in 200, against an array of the target of each byte.
        #[test]
        fn behaves_like_an_array(
            ops in proptest::collection::vec((any::<bool>(), 0u64..200, 0u64..40), 1..80)
        ) {
            let mut mappings = MappingTable::default();
            let mut model = [None; 250];
            for (number, (put, start, len)) in ops.into_iter().enumerate() {
                let span = start as usize..(start + len) as usize;
                if put {
                    let peer = PeerIndex(number as u32);
                    let target = Target { peer, remote_addr: 1000, room_bytes: len };
                    let free = len > 0 && model[span.clone()].iter().all(Option::is_none);
                    prop_assert_eq!(mappings.map(start, target).is_ok(), free);
                    for at in span.filter(|_| free) {
                        let into = at as u64 - start;
                        let remote_addr = 1000 + into;
                        model[at] = Some(Target { peer, remote_addr, room_bytes: len - into });
                    }
                } else {
                    let there = model[start as usize].filter(|target| target.remote_addr == 1000);
                    prop_assert_eq!(mappings.unmap(start), there.is_some());
                    if let Some(target) = there {
                        model[start as usize..][..target.room_bytes as usize].fill(None);
                    }
                }
                for (addr, expected) in model.iter().enumerate() {
                    prop_assert_eq!(mappings.find(addr as u64), *expected);
                }
            }
        }
    }

    #[test]
    fn unmaps_all_mappings_of_peer() {
        let mut mappings = MappingTable::default();
        let to = |peer| Target { peer: PeerIndex(peer), remote_addr: 0, room_bytes: 10 };
        for (start, peer) in [(0, 1), (10, 2), (20, 1)] {
            mappings.map(start, to(peer)).unwrap();
        }
        mappings.unmap_all_of(PeerIndex(1));
        let there = |addr| mappings.find(addr).map(|target| target.peer.0);
        assert_eq!((there(5), there(15), there(25)), (None, Some(2), None));
    }

    #[test]
    fn mapping_rejects_address_overflow() {
        let mut mappings = MappingTable::default();
        let target = Target { peer: PeerIndex(0), remote_addr: 0, room_bytes: 2 };
        assert!(matches!(mappings.map(u64::MAX, target), Err(FabricError::BadLength { .. })));
        mappings.map(u64::MAX - 2, target).unwrap();
        assert_eq!(mappings.find(u64::MAX), None);
    }
}
