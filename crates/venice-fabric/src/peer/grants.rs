//! The mapped grants of one donor: keeps the mapping tables of both ends in agreement.
//!
//! The donor enters a grant when the first access to it succeeds, and removes it on notice that it
//! is no longer mapped ([`Opcode::Unmap`](venice_wire::Opcode::Unmap)). A donor that revokes a
//! grant requests that notice. The notice travels in order with the accesses, so accesses before
//! and after it cannot be confused.

use std::collections::{BTreeMap, VecDeque};

use venice_wire::GrantId;

use crate::ramt::GrantSlot;

#[derive(Debug, Default)]
pub(crate) struct Grants {
    slots: Vec<Slot>,
    by_id: BTreeMap<GrantId, GrantSlot>,
    free: Vec<GrantSlot>,
    /// Grants of whose unmapping the donor must be notified.
    unmaps: VecDeque<GrantSlot>,
    /// Grants that the donor has revoked and that have no outstanding requests.
    drained: VecDeque<GrantSlot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    grant: GrantId,
    windows: u32,
    /// Requests without an answer.
    outstanding: u32,
    /// True if the donor has an entry for the grant.
    is_open: bool,
    is_revoked: bool,
    /// True if the slot is in `unmaps` or in `drained`.
    is_queued: bool,
}

/// The donor has revoked the grant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IsRevoked;

impl Grants {
    /// Counts one more mapping of `grant`.
    pub(crate) fn map(&mut self, grant: GrantId) -> Result<GrantSlot, IsRevoked> {
        if let Some(&at) = self.by_id.get(&grant) {
            let slot = self.slot(at);
            if slot.is_revoked {
                return Err(IsRevoked);
            }
            slot.windows += 1;
            return Ok(at);
        }
        let fresh = Slot {
            grant,
            windows: 1,
            outstanding: 0,
            is_open: false,
            is_revoked: false,
            is_queued: false,
        };
        let at = self.free.pop().unwrap_or(GrantSlot(self.slots.len() as u32));
        match self.slots.get_mut(at.0 as usize) {
            Some(slot) => *slot = fresh,
            None => {
                self.slots.push(fresh);
                // Reserves here, so that nothing allocates once a mapping exists.
                self.free.reserve(self.slots.len());
                self.unmaps.reserve(self.slots.len());
                self.drained.reserve(self.slots.len());
            }
        }
        self.by_id.insert(grant, at);
        Ok(at)
    }

    /// Removes `windows` mappings from the count.
    pub(crate) fn unmap(&mut self, at: GrantSlot, windows: u32) {
        let slot = self.slot(at);
        slot.windows = slot.windows.checked_sub(windows).expect("each window was counted once");
        self.settle(at);
    }

    /// Counts a request to the grant as outstanding.
    pub(crate) fn issued(&mut self, at: GrantSlot) {
        self.slot(at).outstanding += 1;
    }

    /// Ends a request to the grant; `opened`: the donor has an entry for it now.
    pub(crate) fn finished(&mut self, at: GrantSlot, opened: bool) {
        let slot = self.slot(at);
        slot.outstanding = slot.outstanding.checked_sub(1).expect("each request is over once");
        slot.is_open |= opened;
        if slot.outstanding == 0 && (slot.windows == 0 || slot.is_revoked) {
            self.settle(at);
        }
    }

    /// Marks `grant` as revoked by the donor. An unknown grant needs no action: the notice of its
    /// unmapping was sent, or is being sent.
    pub(crate) fn revoke(&mut self, grant: GrantId) {
        if let Some(&at) = self.by_id.get(&grant) {
            self.slot(at).is_revoked = true;
            self.settle(at);
        }
    }

    pub(crate) fn is_revoked(&self, at: GrantSlot) -> bool {
        self.slots[at.0 as usize].is_revoked
    }

    pub(crate) fn is_open(&self, at: GrantSlot) -> bool {
        self.slots[at.0 as usize].is_open
    }

    /// Clears the donor's entries, because it has forgotten them or is down.
    pub(crate) fn close_all(&mut self) {
        for at in 0..self.slots.len() as u32 {
            self.slot(GrantSlot(at)).is_open = false;
        }
        for _ in 0..self.unmaps.len() {
            let at = self.unmaps.pop_front().expect("counted");
            self.slot(at).is_queued = false;
            self.settle(at);
        }
    }

    /// Returns the next grant of whose unmapping the donor must be notified; the request for it
    /// counts as outstanding.
    pub(crate) fn next_unmap(&mut self) -> Option<(GrantSlot, GrantId)> {
        while let Some(at) = self.unmaps.pop_front() {
            let slot = self.slot(at);
            slot.is_queued = false;
            if slot.windows == 0 && slot.outstanding == 0 && slot.is_open && !slot.is_revoked {
                slot.is_open = false;
                return Some((at, slot.grant));
            }
            self.settle(at);
        }
        None
    }

    /// True if the donor must be notified of an unmapping.
    pub(crate) fn has_unmaps(&self) -> bool {
        !self.unmaps.is_empty()
    }

    /// Returns the next revoked grant without outstanding requests: remove its mappings, and pass
    /// their number to [`Grants::mappings_removed`].
    pub(crate) fn next_drained(&mut self) -> Option<(GrantSlot, GrantId)> {
        let at = self.drained.pop_front()?;
        Some((at, self.slot(at).grant))
    }

    /// Records that all mappings of a grant from [`Grants::next_drained`] are gone. From here on it
    /// is an unmapped grant like any other: the donor is notified.
    pub(crate) fn mappings_removed(&mut self, at: GrantSlot, windows: u32) {
        let slot = self.slot(at);
        assert!(slot.is_revoked && slot.outstanding == 0, "it was drained");
        assert_eq!(slot.windows, windows, "the mapping table and the grants agree");
        (slot.windows, slot.is_revoked, slot.is_queued) = (0, false, false);
        self.settle(at);
    }

    /// Queues a grant for its next step.
    fn settle(&mut self, at: GrantSlot) {
        let slot = self.slot(at);
        if slot.outstanding > 0 || slot.is_queued {
            return;
        }
        match (slot.windows, slot.is_revoked, slot.is_open) {
            (_, true, _) => {
                slot.is_queued = true;
                self.drained.push_back(at);
            }
            (0, false, true) => {
                slot.is_queued = true;
                self.unmaps.push_back(at);
            }
            (0, false, false) => self.remove(at),
            (1.., false, _) => {}
        }
    }

    fn remove(&mut self, at: GrantSlot) {
        let grant = self.slot(at).grant;
        self.by_id.remove(&grant);
        self.free.push(at);
    }

    fn slot(&mut self, at: GrantSlot) -> &mut Slot {
        &mut self.slots[at.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: GrantId = GrantId(9);

    #[test]
    fn unmap_waits_for_outstanding_requests() {
        let mut grants = Grants::default();
        let at = grants.map(GRANT).unwrap();
        assert_eq!(grants.map(GRANT), Ok(at));
        grants.issued(at);
        grants.unmap(at, 1);
        grants.unmap(at, 1);
        assert_eq!(grants.next_unmap(), None, "an access is outstanding");
        grants.finished(at, true);
        assert_eq!(grants.next_unmap(), Some((at, GRANT)));
        grants.issued(at);
        assert_eq!(grants.map(GRANT), Ok(at), "mapped again before the answer");
        grants.finished(at, false);
        grants.unmap(at, 1);
        assert_eq!(grants.next_unmap(), None, "the donor has no entry");
        assert_eq!(grants.map(GrantId(1)), Ok(at), "its slot is free");
    }

    #[test]
    fn revoked_grant_drains_and_unmaps() {
        let mut grants = Grants::default();
        grants.revoke(GRANT);
        let at = grants.map(GRANT).unwrap();
        grants.issued(at);
        grants.revoke(GRANT);
        assert!(grants.is_revoked(at));
        assert_eq!(grants.map(GRANT), Err(IsRevoked));
        assert_eq!(grants.next_drained(), None);
        grants.finished(at, true);
        grants.revoke(GRANT);
        assert_eq!(grants.next_drained(), Some((at, GRANT)));
        grants.mappings_removed(at, 1);
        assert_eq!(grants.next_drained(), None);
        assert_eq!(grants.next_unmap(), Some((at, GRANT)));
        grants.issued(at);
        grants.finished(at, false);
        grants.revoke(GRANT);
        assert_eq!((grants.next_drained(), grants.next_unmap()), (None, None));
    }

    /// The mappings were removed first, then came the revocation, and then the last answer.
    #[test]
    fn unmapped_revoked_grant_unmaps_once() {
        let mut grants = Grants::default();
        let at = grants.map(GRANT).unwrap();
        grants.issued(at);
        grants.unmap(at, 1);
        grants.revoke(GRANT);
        grants.finished(at, true);
        assert_eq!(grants.next_unmap(), None);
        assert_eq!(grants.next_drained(), Some((at, GRANT)));
        grants.mappings_removed(at, 0);
        // Revoked again before there was room to send the notice.
        assert!(grants.has_unmaps());
        grants.revoke(GRANT);
        assert_eq!(grants.next_unmap(), None);
        assert_eq!(grants.next_drained(), Some((at, GRANT)));
        grants.mappings_removed(at, 0);
        assert_eq!(grants.next_unmap(), Some((at, GRANT)));
        assert_eq!(grants.next_unmap(), None);
    }

    /// Mapped again while the donor waits for the notice: the donor requests it once more.
    #[test]
    fn remapped_grant_is_not_unmapped() {
        let mut grants = Grants::default();
        let at = grants.map(GRANT).unwrap();
        grants.issued(at);
        grants.finished(at, true);
        grants.revoke(GRANT);
        assert_eq!(grants.next_drained(), Some((at, GRANT)));
        grants.mappings_removed(at, 1);
        assert_eq!(grants.map(GRANT), Ok(at));
        assert_eq!(grants.next_unmap(), None);
        grants.revoke(GRANT);
        assert_eq!(grants.next_drained(), Some((at, GRANT)));
        grants.mappings_removed(at, 1);
        assert_eq!(grants.next_unmap(), Some((at, GRANT)));
    }
}
