//! Windows: mapped, taken away, revoked by their donor.

use venice_wire::{GrantId, GrantKey};

use super::{Initiator, PeerIndex};
use crate::{FabricError, RamtStats, peer::IsRevoked, ramt::Mapping};

/// A window, as the recipient's table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedWindow {
    /// Its first address.
    pub window_addr: u64,
    /// Its length.
    pub len_bytes: u64,
    /// The donor.
    pub peer: PeerIndex,
    /// The grant it leads to.
    pub grant: GrantId,
    /// The address there.
    pub remote_addr: u64,
    /// Whether the donor has a matching entry: from the first access that succeeded on.
    pub is_open: bool,
}

/// A donor has stopped sharing a grant: the windows that led there are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The donor.
    pub peer: PeerIndex,
    /// The grant.
    pub grant: GrantId,
    /// How many windows led there.
    pub windows: u32,
}

impl Initiator {
    /// Maps `len_bytes` from `window_addr` on to a grant of `peer`, from `remote_addr` on.
    ///
    /// # Errors
    /// [`FabricError::BadLength`], [`FabricError::Overlap`], [`FabricError::TableFull`],
    /// [`FabricError::Revoked`] while windows to a grant that was revoked are going away.
    ///
    /// # Panics
    /// If the peer is not of this initiator.
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

    /// Takes a window away. Accesses already taken go on; of bulk transfers, chunks not yet issued
    /// fail with [`crate::AccessError::NotMapped`]. When the last window to a grant is gone, and
    /// the accesses through it are over, the donor is told and takes its entry away too.
    ///
    /// # Errors
    /// [`FabricError::NotMapped`] if no window starts at `window_addr`.
    pub fn unmap_window(&mut self, window_addr: u64) -> Result<(), FabricError> {
        let Mapping { peer, slot, .. } = self.ramt.unmap(window_addr)?;
        self.peers[peer.0 as usize].grants.unmap(slot, 1);
        self.tidy_grants(peer);
        Ok(())
    }

    /// The windows there are, by address: the Remote Address Mapping Table.
    pub fn mappings(&self) -> impl Iterator<Item = MappedWindow> {
        self.ramt.windows().map(|(window_addr, len_bytes, at_start)| {
            let Mapping { peer, slot, grant, remote_addr, .. } = *at_start;
            let is_open = self.peers[peer.0 as usize].grants.is_open(slot);
            MappedWindow { window_addr, len_bytes, peer, grant, remote_addr, is_open }
        })
    }

    /// How full the mapping table is, and how well its cache (TLTLB) does.
    pub fn ramt_stats(&self) -> RamtStats {
        self.ramt.stats()
    }

    /// The next grant that a donor has stopped sharing. By then every access to it has completed,
    /// the windows are gone, and the donor is told so.
    pub fn poll_revoked(&mut self) -> Option<Revocation> {
        self.revoked.pop_front()
    }

    /// Whether the donor has stopped sharing what lies behind `mapping`.
    pub(super) fn is_revoked(&self, mapping: &Mapping) -> bool {
        self.peers[mapping.peer.0 as usize].grants.is_revoked(mapping.slot)
    }

    /// Does what became possible by the end of an access: takes the windows of revoked grants away,
    /// tells the donor of grants that are not mapped any more.
    pub(super) fn tidy_grants(&mut self, peer: PeerIndex) {
        let at = peer.0 as usize;
        // May find that one of them has been revoked meanwhile.
        self.peers[at].send_unmaps(&self.channels.qpairs);
        while let Some((slot, grant)) = self.peers[at].grants.next_drained() {
            let windows = self.ramt.unmap_grant(peer, slot);
            self.peers[at].grants.windows_gone(slot, windows);
            if windows > 0 {
                self.revoked.push_back(Revocation { peer, grant, windows });
            }
        }
        self.peers[at].send_unmaps(&self.channels.qpairs);
    }
}
