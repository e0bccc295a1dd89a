//! Mappings of the recipient: created, removed, or revoked by their donor.

use venice_wire::{GrantId, GrantKey};

use super::{Initiator, PeerIndex};
use crate::{FabricError, RamtStats, peer::IsRevoked, ramt::Mapping};

/// A mapping, as listed in the recipient's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedWindow {
    /// Its first address.
    pub window_addr: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The donor.
    pub peer: PeerIndex,
    /// The grant it maps.
    pub grant: GrantId,
    /// The address in the grant.
    pub remote_addr: u64,
    /// True if the donor has a matching entry: from the first successful access on.
    pub is_open: bool,
}

/// A grant revoked by its donor, whose mappings have been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The donor.
    pub peer: PeerIndex,
    /// The grant.
    pub grant: GrantId,
    /// Number of mappings removed.
    pub windows: u32,
}

impl Initiator {
    /// Maps `len_bytes` from `window_addr` on to a grant of `peer`, from `remote_addr` on.
    ///
    /// # Errors
    /// [`FabricError::BadLength`], [`FabricError::Overlap`], [`FabricError::TableFull`],
    /// [`FabricError::Revoked`] while mappings of a revoked grant are being removed.
    ///
    /// # Panics
    /// Panics if the peer is not of this initiator.
    pub fn map_window(
        &mut self,
        window_addr: u64,
        len_bytes: u64,
        peer: PeerIndex,
        remote_addr: u64,
        grant: GrantId,
        key: GrantKey,
    ) -> Result<(), FabricError> {
        let grants = &mut self.peers[peer.0 as usize].grants;
        let slot = grants.map(grant).map_err(|IsRevoked| FabricError::Revoked { window_addr })?;
        let start = Mapping { peer, slot, remote_addr, room_bytes: len_bytes, grant, key };
        let mapped = self.ramt.map(window_addr, len_bytes, start);
        match mapped {
            Ok(()) => self.revoked.reserve(self.ramt.stats().windows as usize),
            Err(_) => grants.unmap(slot, 1),
        }
        mapped
    }

    /// Removes a mapping. Accesses already accepted continue; chunks of bulk transfers not yet
    /// issued fail with [`crate::AccessError::NotMapped`]. When the last mapping of a grant is
    /// gone, and the accesses through it have completed, the donor is notified and removes its
    /// entry too.
    ///
    /// # Errors
    /// [`FabricError::NotMapped`] if no mapping starts at `window_addr`.
    pub fn unmap_window(&mut self, window_addr: u64) -> Result<(), FabricError> {
        let Mapping { peer, slot, .. } = self.ramt.unmap(window_addr)?;
        self.peers[peer.0 as usize].grants.unmap(slot, 1);
        self.tidy_grants(peer);
        Ok(())
    }

    /// Returns all mappings by address: the Remote Address Mapping Table.
    pub fn mappings(&self) -> impl Iterator<Item = MappedWindow> {
        self.ramt.windows().map(|(window_addr, len_bytes, at_start)| {
            let Mapping { peer, slot, grant, remote_addr, .. } = *at_start;
            let is_open = self.peers[peer.0 as usize].grants.is_open(slot);
            MappedWindow { window_addr, len_bytes, peer, grant, remote_addr, is_open }
        })
    }

    /// Returns the counters of the mapping table and its cache (TLTLB).
    pub fn ramt_stats(&self) -> RamtStats {
        self.ramt.stats()
    }

    /// Returns the next revoked grant. By then every access to it has completed, its mappings are
    /// gone, and the donor is notified of that.
    pub fn poll_revoked(&mut self) -> Option<Revocation> {
        self.revoked.pop_front()
    }

    /// True if the donor has revoked the grant behind `mapping`.
    pub(super) fn is_revoked(&self, mapping: &Mapping) -> bool {
        self.peers[mapping.peer.0 as usize].grants.is_revoked(mapping.slot)
    }

    /// Follows up the end of an access: removes the mappings of revoked grants, and notifies the
    /// donor of grants that are no longer mapped.
    pub(super) fn tidy_grants(&mut self, peer: PeerIndex) {
        let at = peer.0 as usize;
        // This may find that one of them has been revoked meanwhile.
        self.peers[at].send_unmaps(&self.channels.qpairs);
        while let Some((slot, grant)) = self.peers[at].grants.next_drained() {
            let windows = self.ramt.unmap_grant(peer, slot);
            self.peers[at].grants.mappings_removed(slot, windows);
            if windows > 0 {
                self.revoked.push_back(Revocation { peer, grant, windows });
            }
        }
        self.peers[at].send_unmaps(&self.channels.qpairs);
    }
}
