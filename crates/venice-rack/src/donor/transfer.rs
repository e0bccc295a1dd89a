//! Grants that change hands: the old key ends and the new one begins in one step.
//!
//! The commit is sent only after the record that decides the transfer, and carries all that the
//! step needs: a donor executes it whether it remembers the prepare or not. A prepare shows that
//! the donor can, and keeps the grant alive until the commit is due.

use super::recipients::recipient_number;
use super::{DonorCore, GrantView, Held};
use crate::NS_PER_MS;
use crate::transfer::TransferStep;
use crate::types::{DonorStatus, HeldState, PrepareRequest, Refusal};
use venice_wire::GrantId;

/// The outcome of a transfer's commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switched {
    /// The grant is the new owner's from now on. The agent gives its memory to the successor in one
    /// step.
    New(DonorStatus),
    /// It was before.
    Repeated(DonorStatus),
}

impl Switched {
    /// Returns the slab counts.
    pub fn status(self) -> DonorStatus {
        match self {
            Self::New(status) | Self::Repeated(status) => status,
        }
    }
}

impl DonorCore {
    /// Promises to transfer a grant. It stays its owner's, and does not end for want of a renewal
    /// before the promise does. A later promise replaces it; a repetition changes nothing.
    ///
    /// # Errors
    /// [`Refusal::UnknownGrant`] if the grant is not lent (any more); [`Refusal::StaleOwnership`]
    /// if the grant has an ownership epoch as high; [`Refusal::Conflict`] if the successor's number
    /// is in use; [`Refusal::WrongEpoch`].
    pub fn handle_prepare_transfer(
        &mut self,
        now_ns: u64,
        step: &TransferStep,
    ) -> Result<DonorStatus, Refusal> {
        self.handle_timeout(now_ns);
        if self.has_switched(step)? {
            return Ok(self.status());
        }
        if step.donor_epoch != self.epoch {
            return Err(self.wrong_epoch(step.donor_epoch));
        }
        let until_ns = now_ns.saturating_add(self.settings.prepare_timeout_ns);
        let held = self.transferable(step)?;
        held.promised = Some(step.grant);
        held.deadline_ns = held.deadline_ns.max(until_ns);
        Ok(self.status())
    }

    /// Withdraws the promise to this successor. Any other is left alone.
    pub fn handle_abort_transfer(
        &mut self,
        now_ns: u64,
        from: GrantId,
        grant: GrantId,
    ) -> DonorStatus {
        self.handle_timeout(now_ns);
        if let Some(held) = self.held.get_mut(&from)
            && held.promised == Some(grant)
        {
            held.promised = None;
        }
        self.status()
    }

    /// Transfers a grant: its number and key are good for nothing from now on, those of its
    /// successor are. Notices stay. The new owner's lease starts. A repetition changes nothing.
    ///
    /// # Errors
    /// As [`Self::handle_prepare_transfer`], but for [`Refusal::WrongEpoch`]: a grant that is lent
    /// is of this epoch.
    pub fn handle_transfer(
        &mut self,
        now_ns: u64,
        step: &TransferStep,
    ) -> Result<Switched, Refusal> {
        self.handle_timeout(now_ns);
        if self.has_switched(step)? {
            return Ok(Switched::Repeated(self.status()));
        }
        self.transferable(step)?;
        let held = self.held.remove(&step.from).ok_or(Refusal::UnknownGrant)?;
        self.ended.note_transferred(step.from, held.request.key, step.owner.clone());
        let lease_ns = held.lease_ns().max(step.claim_ms.saturating_mul(NS_PER_MS));
        let request = PrepareRequest {
            grant: step.grant,
            key: step.key,
            owner: Some(step.owner.clone()),
            recipient: String::new(),
            ..held.request
        };
        let deadline_ns = now_ns.saturating_add(lease_ns);
        let (ownership, promised) = (step.ownership, None);
        let held = Held { request, ownership, promised, deadline_ns, ..held };
        self.held.insert(step.grant, held);
        self.revision += 1;
        self.assert_count();
        Ok(Switched::New(self.status()))
    }

    /// Returns the successor promised for a grant.
    pub fn promised(&self, grant: GrantId) -> Option<GrantId> {
        self.held.get(&grant)?.promised
    }

    /// True if the step is done already.
    fn has_switched(&self, step: &TransferStep) -> Result<bool, Refusal> {
        if self.freeing.contains_key(&step.grant) {
            return Err(Refusal::UnknownGrant);
        }
        match self.held.get(&step.grant) {
            None => Ok(false),
            Some(held) if held.request.key == step.key => Ok(true),
            Some(_) => Err(Refusal::Conflict),
        }
    }

    fn transferable(&mut self, step: &TransferStep) -> Result<&mut Held, Refusal> {
        let held = self.held.get_mut(&step.from);
        let held = held.filter(|held| held.state == HeldState::Committed);
        let held = held.ok_or(Refusal::UnknownGrant)?;
        if step.ownership <= held.ownership {
            let (asked, current) = (step.ownership, held.ownership);
            return Err(Refusal::StaleOwnership { asked, current });
        }
        Ok(held)
    }
}

impl GrantView {
    pub(super) fn of(held: &Held) -> Self {
        let Held { request, state, ownership, .. } = held;
        Self {
            key: request.key,
            slabs: request.share.slabs(),
            state: *state,
            recipient: recipient_number(request),
            ownership: *ownership,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DonorAction, DonorSettings, EndReason};
    use super::*;
    use crate::caller::Owner;
    use crate::queueing::DEFAULT_PRIORITY;
    use crate::types::{CalledBack, LeaseState, Share};
    use venice_wire::GrantKey;

    const S: u64 = 1_000_000_000;

    /// Creates a donor of 8 slabs with grant 1 of two slabs, lent for ten seconds.
    fn donor() -> DonorCore {
        let settings = DonorSettings { total_slabs: 8, prepare_timeout_ns: 5 * S };
        let mut donor = DonorCore::new(settings);
        donor.set_epoch(1);
        donor.handle_prepare(0, request(1)).unwrap();
        donor.handle_commit(0, GrantId(1), 1).unwrap();
        donor
    }

    fn request(grant: u64) -> PrepareRequest {
        PrepareRequest {
            grant: GrantId(grant),
            key: GrantKey(grant * 7),
            share: Share::of_slabs(2),
            donor_epoch: 1,
            lease_ms: 10_000,
            owner: Some(Owner { node: "n1".into(), user: "ada".into(), is_bound: false }),
            recipient: "r".into(),
            purpose: "p".into(),
            priority: DEFAULT_PRIORITY,
            at_once: false,
        }
    }

    fn step(from: u64, grant: u64, ownership: u64) -> TransferStep {
        TransferStep {
            from: GrantId(from),
            grant: GrantId(grant),
            key: GrantKey(grant * 7),
            donor_epoch: 1,
            ownership,
            claim_ms: 0,
            owner: Owner { node: "n2".into(), user: "bob".into(), is_bound: false },
        }
    }

    fn renew(donor: &mut DonorCore, now_ns: u64, grant: u64) -> bool {
        let state = donor.handle_renew(now_ns, GrantId(grant), GrantKey(grant * 7));
        matches!(state, LeaseState::Live { .. })
    }

    fn ended(donor: &mut DonorCore) -> Vec<(u64, EndReason)> {
        let actions = std::iter::from_fn(|| donor.poll_action());
        actions.map(|DonorAction::FreeSlabs { grant, reason, .. }| (grant.0, reason)).collect()
    }

    #[test]
    fn key_changes_in_one_step() {
        let mut donor = donor();
        donor.handle_prepare_transfer(S, &step(1, 2, 2)).unwrap();
        assert!(renew(&mut donor, S, 1) && !renew(&mut donor, S, 2), "not yet valid");
        let free = donor.status().free_slabs;
        let switched = donor.handle_transfer(2 * S, &step(1, 2, 2)).unwrap();
        assert!(matches!(switched, Switched::New(status) if status.free_slabs == free));
        assert!(!renew(&mut donor, 2 * S, 1) && renew(&mut donor, 2 * S, 2));
        assert_eq!(donor.grant(GrantId(2)).unwrap().ownership, 2);
        let again = donor.handle_transfer(2 * S, &step(1, 2, 2)).unwrap();
        assert!(matches!(again, Switched::Repeated(_)));
        let report = donor.report();
        assert_eq!(report.held.len(), 1);
        assert_eq!(report.held[0].owner.as_ref().unwrap().user, "bob");
        assert!(ended(&mut donor).is_empty(), "nothing was freed");
    }

    #[test]
    fn old_key_gets_new_owner() {
        let mut donor = donor();
        donor.handle_transfer(S, &step(1, 2, 2)).unwrap();
        let to = "bob@n2".to_owned();
        assert_eq!(donor.handle_renew(S, GrantId(1), GrantKey(7)), LeaseState::Transferred { to });
        let stranger = donor.handle_renew(S, GrantId(1), GrantKey(8));
        assert_eq!(stranger, LeaseState::Unknown, "the key shows who held it");
    }

    #[test]
    fn commit_needs_no_prepare() {
        let mut donor = donor();
        assert!(matches!(donor.handle_transfer(S, &step(1, 2, 2)), Ok(Switched::New(_))));
    }

    #[test]
    fn lower_ownership_is_refused() {
        let mut donor = donor();
        donor.handle_transfer(S, &step(1, 2, 2)).unwrap();
        let stale = Refusal::StaleOwnership { asked: 2, current: 2 };
        assert_eq!(donor.handle_prepare_transfer(S, &step(2, 3, 2)), Err(stale.clone()));
        assert_eq!(donor.handle_transfer(S, &step(2, 3, 2)), Err(stale));
        assert_eq!(donor.handle_transfer(S, &step(1, 3, 3)), Err(Refusal::UnknownGrant));
        assert!(donor.handle_transfer(S, &step(2, 3, 3)).is_ok());
        // A late repetition of an earlier step.
        assert_eq!(donor.handle_transfer(S, &step(1, 2, 2)), Err(Refusal::UnknownGrant));
        let late = PrepareRequest { at_once: true, ..request(1) };
        assert_eq!(donor.handle_prepare(S, late), Err(Refusal::UnknownGrant));
    }

    #[test]
    fn promise_outlives_lease() {
        let mut donor = donor();
        donor.handle_prepare_transfer(9 * S, &step(1, 2, 2)).unwrap();
        donor.handle_timeout(12 * S);
        assert!(ended(&mut donor).is_empty());
        donor.handle_timeout(14 * S);
        assert_eq!(ended(&mut donor), [(1, EndReason::LeaseExpired)]);
        assert_eq!(donor.handle_transfer(14 * S, &step(1, 2, 2)), Err(Refusal::UnknownGrant));
    }

    #[test]
    fn aborted_promise_changes_nothing() {
        let mut donor = donor();
        donor.handle_prepare_transfer(S, &step(1, 2, 2)).unwrap();
        donor.handle_prepare_transfer(S, &step(1, 3, 2)).unwrap();
        donor.handle_abort_transfer(S, GrantId(1), GrantId(2));
        assert_eq!(donor.promised(GrantId(1)), Some(GrantId(3)), "another's promise stays");
        donor.handle_abort_transfer(S, GrantId(1), GrantId(3));
        assert_eq!(donor.promised(GrantId(1)), None);
        assert!(renew(&mut donor, S, 1));
    }

    #[test]
    fn claim_time_extends_first_lease() {
        let mut donor = donor();
        let step = TransferStep { claim_ms: 60_000, ..step(1, 2, 2) };
        donor.handle_transfer(0, &step).unwrap();
        assert_eq!(donor.poll_timeout(), Some(60 * S));
        assert!(renew(&mut donor, 50 * S, 2));
        assert_eq!(donor.poll_timeout(), Some(60 * S), "the usual lease from then on");
    }

    #[test]
    fn notices_follow_transferred_grant() {
        let mut donor = donor();
        donor.handle_called_back(0, &[CalledBack { grant: GrantId(1), within_ms: 8_000 }]);
        donor.handle_transfer(S, &step(1, 2, 2)).unwrap();
        donor.handle_timeout(8 * S);
        assert_eq!(ended(&mut donor), [(2, EndReason::TakenBack)]);
    }
}
