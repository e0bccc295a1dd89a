//! Lending in one call: a request that one share of one donor fills takes one call and one wait for the store
//! (decision 0055), both at the same time (decision 0067). The donor sets aside and lends in one
//! step while the intent is recorded. The recipient gets the answer after both, and the completion
//! is recorded after that.
//!
//! After a crash the record may thus leave open whether it was lent, and the recipient may have it.
//! A grant of that kind is *in doubt*: the call to its donor is repeated, which changes nothing where it
//! was lent. An answer settles it; its absence from a heartbeat does not, since that may be older
//! than the first call. Without a record no recipient has it: its donor lends it for the rest of
//! one lease, unused.
//!
//! With several Monitor Nodes on one store this is not done: there the donor sets aside first, and
//! the order of the records decides which request is lent.

use super::handshake::Chosen;
use super::pending::{PartState, PendingRequest, SentPrepare};
use super::{CallError, Change, Event, MonitorCore};
use crate::monitor_node::DonorCall;
use crate::rat::{GrantRecord, GrantState};
use crate::types::{DonorStatus, HeldGrant, HeldState, Identity, PrepareRequest, RackError};
use std::collections::BTreeSet;
use venice_wire::GrantId;

impl MonitorCore {
    /// True if one donor has all of it, and no other Monitor Node has the store.
    pub(super) fn may_lend_at_once(&self, client_id: u128, shares: &[Chosen]) -> bool {
        let is_whole = |pending: &PendingRequest| pending.parts.is_empty();
        self.shared.is_none()
            && shares.len() == 1
            && self.requests.get(&client_id).is_some_and(is_whole)
    }

    /// Calls the donor, and records the intent before any recipient can have the answer: the result
    /// is handled after the record.
    pub(super) fn lend_at_once(&mut self, now_ns: u64, client_id: u128, chosen: Chosen) {
        let part = self.new_part(client_id, chosen, PartState::Committing);
        let Some((donor, request)) = part else { return };
        let record = self.record_of(now_ns, client_id, request.grant);
        self.call_donor(donor, DonorCall::Prepare(request));
        self.change_together(record.map(Change::PutGrant).into_iter().collect());
    }

    /// Handles the result of lending in one call.
    pub(super) fn lent_at_once(
        &mut self,
        now_ns: u64,
        donor: Identity,
        grant: GrantId,
        result: Result<DonorStatus, CallError>,
    ) {
        if let Some(client_id) = self.parts.get(&grant).copied() {
            // The record may have waited for disk space for longer than the donor lends.
            if self.requests.get(&client_id).is_some_and(|pending| pending.is_late(now_ns)) {
                return self.fail(now_ns, client_id, RackError::HandshakeFailed);
            }
            self.note_lent(now_ns, (donor, grant), client_id, result);
        } else if self.is_in_doubt(grant) {
            self.settle_doubt(now_ns, grant, result);
        } else if result.is_ok() && !self.is_lent(grant) {
            // It was aborted meanwhile; the release may have come too early.
            self.call_donor(donor, DonorCall::Release(vec![grant]));
        }
    }

    fn is_lent(&self, grant: GrantId) -> bool {
        self.rat.get(grant).is_some_and(|grant| grant.state == GrantState::Committed)
    }

    /// True if it is unknown whether its donor has lent it.
    pub(super) fn is_in_doubt(&self, grant: GrantId) -> bool {
        self.rat.get(grant).is_some_and(GrantRecord::is_lent_at_once)
            && !self.parts.contains_key(&grant)
    }

    /// True if a request has a grant in doubt.
    pub(super) fn has_doubtful(&self, client_id: u128) -> bool {
        self.rat.of_client(client_id).any(|grant| self.is_in_doubt(grant.id))
    }

    /// Repeats the calls to the donors of all grants in doubt.
    pub(super) fn settle_grants_in_doubt(&mut self) {
        let in_doubt = self.rat.iter().filter(|grant| self.is_in_doubt(grant.id));
        let in_doubt: Vec<GrantId> = in_doubt.map(|grant| grant.id).collect();
        in_doubt.into_iter().for_each(|grant| self.repeat_call(grant));
    }

    /// Settles grants in doubt by a donor's report: listed ones are lent; for the others the call
    /// is repeated.
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
            self.repeat_call(grant);
        }
    }

    fn repeat_call(&mut self, grant: GrantId) {
        if self.sent_prepares.contains_key(&grant) {
            return;
        }
        let Some(record) = self.rat.get(grant) else { return };
        let Some(origin) = record.origin else { return };
        let request = PrepareRequest {
            grant,
            key: origin.key,
            share: record.share.clone(),
            donor_epoch: record.donor_epoch,
            lease_ms: record.lease_ms,
            owner: record.owner.clone(),
            recipient: record.recipient.clone(),
            purpose: record.purpose.clone(),
            priority: record.priority,
            at_once: true,
        };
        let donor = record.lender();
        // The record already counts its slabs.
        self.sent_prepares.insert(grant, SentPrepare { donor, slabs: 0, at_once: true });
        self.call_donor(donor, DonorCall::Prepare(request));
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
                let began = Event::GrantBegan(self.facts_of(&record));
                self.change(Change::PutGrant(GrantRecord {
                    state: GrantState::Committed,
                    granted_ns: now_ns,
                    confirmed_revision: status.revision,
                    ..record
                }));
                self.note(began);
            }
            Err(CallError::Refused(_)) => self.change(Change::DeleteGrant(grant)),
            // Its donor's next report repeats the call; if the donor is dead, the grant is lost
            // with it.
            Err(CallError::NoAnswer | CallError::Gone) => {}
        }
    }
}
