//! The grants of one donor that windows lead to: what makes the mapping tables of both ends agree.
//!
//! The donor enters a grant when the first access to it succeeds, and takes it out when it is told
//! that no window leads there any more ([`Opcode::Unmap`](venice_wire::Opcode::Unmap)). If it stops
//! sharing a grant, it asks to be told. The word travels in order with the accesses, so that one
//! given afterwards cannot be taken for one given before.

use std::collections::{BTreeMap, VecDeque};

use venice_wire::GrantId;

use crate::ramt::GrantSlot;

#[derive(Debug, Default)]
pub(crate) struct Grants {
    slots: Vec<Slot>,
    by_id: BTreeMap<GrantId, GrantSlot>,
    free: Vec<GrantSlot>,
    /// Those the donor is to be told of that no window leads there.
    unmaps: VecDeque<GrantSlot>,
    /// Those the donor has stopped sharing and nothing is on its way to any more.
    drained: VecDeque<GrantSlot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    grant: GrantId,
    windows: u32,
    /// Requests without an answer.
    outstanding: u32,
    /// The donor has an entry for it.
    is_open: bool,
    is_revoked: bool,
    /// Is in `unmaps` or in `drained`.
    is_queued: bool,
}

/// The donor has stopped sharing the grant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IsRevoked;

impl Grants {
    /// One more window leads to `grant`.
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
                // So that nothing allocates once a window is there.
                self.free.reserve(self.slots.len());
                self.unmaps.reserve(self.slots.len());
                self.drained.reserve(self.slots.len());
            }
        }
        self.by_id.insert(grant, at);
        Ok(at)
    }

    /// `windows` windows fewer lead to it.
    pub(crate) fn unmap(&mut self, at: GrantSlot, windows: u32) {
        let slot = self.slot(at);
        slot.windows = slot.windows.checked_sub(windows).expect("each window was counted once");
        self.settle(at);
    }

    /// A request to it is on its way.
    pub(crate) fn issued(&mut self, at: GrantSlot) {
        self.slot(at).outstanding += 1;
    }

    /// A request to it is over; `opened`: so that the donor has an entry for it now.
    pub(crate) fn finished(&mut self, at: GrantSlot, opened: bool) {
        let slot = self.slot(at);
        slot.outstanding = slot.outstanding.checked_sub(1).expect("each request is over once");
        slot.is_open |= opened;
        if slot.outstanding == 0 && (slot.windows == 0 || slot.is_revoked) {
            self.settle(at);
        }
    }

    /// The donor has stopped sharing `grant`. If it is not known here, the donor has been told, or
    /// is being told, that no window leads there.
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

    /// The donor has forgotten all it knew, or is down.
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

    /// The next grant the donor is to be told of that no window leads there; the request for it is
    /// taken to be on its way.
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

    /// Whether the donor waits to be told.
    pub(crate) fn has_unmaps(&self) -> bool {
        !self.unmaps.is_empty()
    }

    /// The next grant the donor has stopped sharing and nothing is on its way to any more: take its
    /// windows away, and say how many there were to [`Grants::windows_gone`].
    pub(crate) fn next_drained(&mut self) -> Option<(GrantSlot, GrantId)> {
        let at = self.drained.pop_front()?;
        Some((at, self.slot(at).grant))
    }

    /// All windows to a grant that [`Grants::next_drained`] gave are gone. From here on it is like
    /// any other grant without windows: the donor is told.
    pub(crate) fn windows_gone(&mut self, at: GrantSlot, windows: u32) {
        let slot = self.slot(at);
        assert!(slot.is_revoked && slot.outstanding == 0, "it was drained");
        assert_eq!(slot.windows, windows, "the mapping table and the grants agree");
        (slot.windows, slot.is_revoked, slot.is_queued) = (0, false, false);
        self.settle(at);
    }

    /// Decides what a grant waits for.
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
    fn the_donor_is_told_once_nothing_is_on_its_way() {
        let mut grants = Grants::default();
        let at = grants.map(GRANT).unwrap();
        assert_eq!(grants.map(GRANT), Ok(at));
        grants.issued(at);
        grants.unmap(at, 1);
        grants.unmap(at, 1);
        assert_eq!(grants.next_unmap(), None, "an access is on its way");
        grants.finished(at, true);
        assert_eq!(grants.next_unmap(), Some((at, GRANT)));
        grants.issued(at);
        assert_eq!(grants.map(GRANT), Ok(at), "mapped again before the answer");
        grants.finished(at, false);
        grants.unmap(at, 1);
        assert_eq!(grants.next_unmap(), None, "the donor has no entry");
        assert_eq!(grants.map(GrantId(1)), Ok(at), "its place is free");
    }

    #[test]
    fn a_revoked_grant_takes_no_windows_drains_and_is_unmapped() {
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
        grants.windows_gone(at, 1);
        assert_eq!(grants.next_drained(), None);
        assert_eq!(grants.next_unmap(), Some((at, GRANT)));
        grants.issued(at);
        grants.finished(at, false);
        grants.revoke(GRANT);
        assert_eq!((grants.next_drained(), grants.next_unmap()), (None, None));
    }

    /// The windows went first, then came the donor's word, and then the last answer.
    #[test]
    fn unmapped_and_revoked_at_once_is_unmapped_once() {
        let mut grants = Grants::default();
        let at = grants.map(GRANT).unwrap();
        grants.issued(at);
        grants.unmap(at, 1);
        grants.revoke(GRANT);
        grants.finished(at, true);
        assert_eq!(grants.next_unmap(), None);
        assert_eq!(grants.next_drained(), Some((at, GRANT)));
        grants.windows_gone(at, 0);
        // Revoked again before there was room to say so.
        assert!(grants.has_unmaps());
        grants.revoke(GRANT);
        assert_eq!(grants.next_unmap(), None);
        assert_eq!(grants.next_drained(), Some((at, GRANT)));
        grants.windows_gone(at, 0);
        assert_eq!(grants.next_unmap(), Some((at, GRANT)));
        assert_eq!(grants.next_unmap(), None);
    }

    /// Mapped again while the donor waits to be told: it asks once more.
    #[test]
    fn a_grant_mapped_again_is_not_unmapped() {
        let mut grants = Grants::default();
        let at = grants.map(GRANT).unwrap();
        grants.issued(at);
        grants.finished(at, true);
        grants.revoke(GRANT);
        assert_eq!(grants.next_drained(), Some((at, GRANT)));
        grants.windows_gone(at, 1);
        assert_eq!(grants.map(GRANT), Ok(at));
        assert_eq!(grants.next_unmap(), None);
        grants.revoke(GRANT);
        assert_eq!(grants.next_drained(), Some((at, GRANT)));
        grants.windows_gone(at, 1);
        assert_eq!(grants.next_unmap(), Some((at, GRANT)));
    }
}
