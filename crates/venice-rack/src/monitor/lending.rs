//! A request that one donor can fill takes one call and one wait for the store (decision 0055), both at
//! a time (decision 0067): the donor sets aside and lends in one step while the intent is recorded, the
//! recipient hears of it after both, and that it was lent is recorded after that.
//!
//! So after a crash the record may not say whether it was lent, and the recipient may hold it. Such a
//! grant is *in doubt*: its donor is told once more to lend it, which changes nothing where it has. An
//! answer settles it; no heartbeat's silence does, since that may be older than the first call. Without
//! a record nobody holds it: its donor lends it for the rest of one lease, to nobody.
//!
//! Where several Monitor Nodes have the store this is not done: there the donor sets aside first, and
//! the order of the records settles who may have it lent.

use super::pending::{PartState, PendingRequest, SentPrepare};
use super::{Action, CallError, Change, MonitorCore};
use crate::rat::{GrantRecord, GrantState};
use crate::types::{DonorStatus, HeldGrant, HeldState, Identity, PrepareRequest, RackError};
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::{GrantId, NodeId};

impl MonitorCore {
    /// One donor has all of it, and nobody else has the store.
    pub(super) fn may_lend_at_once(&self, client_id: u128, shares: &BTreeMap<NodeId, u32>) -> bool {
        let is_whole = |pending: &PendingRequest| pending.parts.is_empty();
        self.shared.is_none()
            && shares.len() == 1
            && self.requests.get(&client_id).is_some_and(is_whole)
    }

    /// Has the donor lend, and records the intent before anybody can hear of it: what is done with the
    /// answer comes after the record.
    pub(super) fn lend_at_once(&mut self, now_ns: u64, client_id: u128, donor: NodeId, slabs: u32) {
        let part = self.new_part(client_id, donor, slabs, PartState::Committing);
        let Some((donor, request)) = part else { return };
        let record = self.record_of(now_ns, client_id, request.grant);
        let addr = self.control_addr(donor.node);
        self.actions.push_back(Action::SendPrepare { donor, addr, request });
        self.change_together(record.map(Change::PutGrant).into_iter().collect());
    }

    /// What came of that.
    pub(super) fn lent_at_once(
        &mut self,
        now_ns: u64,
        donor: Identity,
        grant: GrantId,
        result: Result<DonorStatus, CallError>,
    ) {
        if let Some(client_id) = self.parts.get(&grant).copied() {
            // The record may have waited for room on the disk for longer than the donor lends.
            if self.requests.get(&client_id).is_some_and(|pending| pending.is_late(now_ns)) {
                return self.fail(now_ns, client_id, RackError::HandshakeFailed);
            }
            self.hear_lent(now_ns, (donor, grant), client_id, result);
        } else if self.is_in_doubt(grant) {
            self.settle_doubt(now_ns, grant, result);
        } else if result.is_ok() && !self.is_lent(grant) {
            // It was called off meanwhile; the release may have come too early.
            let addr = self.control_addr(donor.node);
            self.actions.push_back(Action::SendRelease { donor, addr, grants: vec![grant] });
        }
    }

    fn is_lent(&self, grant: GrantId) -> bool {
        self.rat.get(grant).is_some_and(|grant| grant.state == GrantState::Committed)
    }

    /// Nobody here knows whether its donor has lent it.
    pub(super) fn is_in_doubt(&self, grant: GrantId) -> bool {
        self.rat.get(grant).is_some_and(GrantRecord::is_lent_at_once)
            && !self.parts.contains_key(&grant)
    }

    /// What a request was lent at once, and nobody here knows whether it was.
    pub(super) fn has_doubtful(&self, client_id: u128) -> bool {
        self.rat.of_client(client_id).any(|grant| self.is_in_doubt(grant.id))
    }

    /// Asks the donors of all grants in doubt.
    pub(super) fn ask_in_doubt(&mut self) {
        let in_doubt = self.rat.iter().filter(|grant| self.is_in_doubt(grant.id));
        let in_doubt: Vec<GrantId> = in_doubt.map(|grant| grant.id).collect();
        in_doubt.into_iter().for_each(|grant| self.ask_once_more(grant));
    }

    /// A donor reports: what it has lent it has lent; for what it does not know of it is asked.
    pub(super) fn settle_by_report(
        &mut self,
        now_ns: u64,
        donor: Identity,
        status: DonorStatus,
        held: &[HeldGrant],
    ) {
        let is_lent = |grant: &GrantId| {
            held.iter().any(|held| held.id == *grant && held.state == HeldState::Committed)
        };
        let of_donor = self.rat.of_donor(donor.node);
        let (lent, unknown): (BTreeSet<GrantId>, BTreeSet<GrantId>) = of_donor
            .filter(|grant| grant.donor_epoch == donor.epoch && self.is_in_doubt(grant.id))
            .map(|grant| grant.id)
            .partition(is_lent);
        for grant in lent {
            self.settle_doubt(now_ns, grant, Ok(status));
        }
        for grant in unknown {
            self.ask_once_more(grant);
        }
    }

    fn ask_once_more(&mut self, grant: GrantId) {
        if self.sent_prepares.contains_key(&grant) {
            return;
        }
        let Some(record) = self.rat.get(grant) else { return };
        let Some(origin) = record.origin else { return };
        let request = PrepareRequest {
            grant,
            key: origin.key,
            slabs: record.slabs,
            device: None,
            donor_epoch: record.donor_epoch,
            lease_ms: record.lease_ms,
            owner: record.owner.clone(),
            recipient: record.recipient.clone(),
            purpose: record.purpose.clone(),
            priority: record.priority,
            at_once: true,
        };
        let donor = Identity { node: record.donor, epoch: record.donor_epoch };
        // The record stands for its slabs.
        self.sent_prepares.insert(grant, SentPrepare { donor, slabs: 0, at_once: true });
        let addr = self.control_addr(donor.node);
        self.actions.push_back(Action::SendPrepare { donor, addr, request });
    }

    fn settle_doubt(
        &mut self,
        now_ns: u64,
        grant: GrantId,
        result: Result<DonorStatus, CallError>,
    ) {
        match result {
            Ok(status) => {
                let Some(record) = self.rat.get(grant).cloned() else { return };
                self.change(Change::PutGrant(GrantRecord {
                    state: GrantState::Committed,
                    granted_ns: now_ns,
                    confirmed_revision: status.revision,
                    ..record
                }));
            }
            Err(CallError::Refused(_)) => self.change(Change::DeleteGrant(grant)),
            // Its donor's next report has it asked again; if it is dead, the grant is lost with it.
            Err(CallError::NoAnswer | CallError::Gone) => {}
        }
    }
}
