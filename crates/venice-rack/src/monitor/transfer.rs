//! Transfers: grants change hands, all of a set or none (decision 0085).
//!
//! 1. *Prepare.* Every donor promises that it can, and keeps the grant alive meanwhile.
//! 2. *Record.* One transaction ends the grants and begins their successors, on condition that every
//!    grant is as last seen. It decides: before it nothing has happened, after it the transfer is
//!    finished, by this Monitor Node, by a restarted one, or by another with the same store.
//! 3. *Commit.* Every donor ends the old number and key and begins the new ones in one step. Calls
//!    are repeated until it answers; a donor that lost the grant has lost it for the new owner too.
//!
//! The new owner gets no key before step 3 is over for the whole set. Until then a donor may answer
//! the old owner, and no donor answers the new one.

mod check;
mod claim;

use super::{CallError, Change, Event, MonitorCore, Token};
use crate::caller::User;
use crate::monitor_node::{DonorCall, Reply};
use crate::rat::{GrantRecord, GrantState, Origin};
use crate::transfer::{TransferRequest, TransferState, TransferStep, Transferred};
use crate::types::{DonorStatus, HeldGrant, HeldState, Identity, RackError, Refusal};
use std::collections::BTreeMap;
use venice_wire::{GrantId, GrantKey};

/// A transfer without an answer yet.
pub(super) struct PendingTransfer {
    request: TransferRequest,
    by: User,
    pub(super) deadline_ns: u64,
    /// The calls to answer.
    tokens: Vec<Token>,
    /// By grant.
    parts: BTreeMap<GrantId, Part>,
}

/// One grant of a transfer.
struct Part {
    to: GrantId,
    key: GrantKey,
    donor: Identity,
    ownership: u64,
    state: PartState,
    /// The donor's revision when it promised.
    revision: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartState {
    Preparing,
    Prepared,
    /// Recorded: the successor in the table has the progress.
    Recorded,
}

impl PendingTransfer {
    fn is_recorded(&self) -> bool {
        self.parts.values().all(|part| part.state == PartState::Recorded)
    }

    fn step(&self, from: GrantId, part: &Part) -> TransferStep {
        TransferStep {
            from,
            grant: part.to,
            key: part.key,
            donor_epoch: part.donor.epoch,
            ownership: part.ownership,
            claim_ms: self.request.claim_ms,
            owner: self.request.to.clone(),
        }
    }
}

impl MonitorCore {
    /// Transfers grants to a new owner, for their owner or an administrator. Answered by
    /// [`Reply::Transferred`], with an error only if nothing was transferred by this call; a
    /// repetition under the same number gets the same answer.
    pub fn handle_transfer(
        &mut self,
        now_ns: u64,
        token: Token,
        by: User,
        request: TransferRequest,
    ) {
        if let Err(error) = self.start_transfer(now_ns, token, by, request) {
            self.reply(token, Reply::Transferred(Err(error)));
        }
    }

    fn start_transfer(
        &mut self,
        now_ns: u64,
        token: Token,
        by: User,
        request: TransferRequest,
    ) -> Result<(), RackError> {
        let client_id = request.client_id;
        if let Some(pending) = self.transfers.get_mut(&client_id) {
            if (&pending.request, &pending.by) != (&request, &by) {
                return Err(super::requests::another_request());
            }
            pending.tokens.push(token);
            return Ok(());
        }
        let deadline_ns = now_ns.saturating_add(self.settings.request_timeout_ns);
        let tokens = vec![token];
        if self.has_request(client_id) {
            let parts = self.recorded_parts(&request)?;
            let pending = PendingTransfer { request, by, deadline_ns, tokens, parts };
            self.transfers.insert(client_id, pending);
            self.send_transfers_again();
            self.answer_transfer_if_over(now_ns, client_id);
            return Ok(());
        }
        self.check_transfer(&by, &request)?;
        let mut parts = BTreeMap::new();
        for from in &request.grants {
            let Some(record) = self.rat.get(*from) else { continue };
            let (donor, ownership) = (record.lender(), record.ownership.saturating_add(1));
            let (to, key) = (self.fresh_grant_number(), self.keys.next_key());
            let state = PartState::Preparing;
            parts.insert(*from, Part { to, key, donor, ownership, state, revision: 0 });
        }
        let pending = PendingTransfer { request, by, deadline_ns, tokens, parts };
        for (from, part) in &pending.parts {
            let (donor, step) = (part.donor, pending.step(*from, part));
            self.call_donor(donor, DonorCall::PrepareTransfer(step));
        }
        self.transfers.insert(client_id, pending);
        Ok(())
    }

    /// True if a request or a transfer of this number was made before.
    fn has_request(&self, client_id: u128) -> bool {
        let is_asking =
            self.requests.contains_key(&client_id) || self.queue.owner_of(client_id).is_some();
        is_asking || self.rat.of_client(client_id).next().is_some()
    }

    /// Returns the parts of a transfer that is recorded.
    fn recorded_parts(
        &self,
        request: &TransferRequest,
    ) -> Result<BTreeMap<GrantId, Part>, RackError> {
        let mut parts = BTreeMap::new();
        for record in self.rat.of_client(request.client_id) {
            let from = record.from.filter(|from| request.grants.contains(from));
            let is_its = record.owner.as_ref() == Some(&request.to);
            let (Some(from), Some(origin), true) = (from, record.origin, is_its) else {
                return Err(super::requests::another_request());
            };
            let part = Part {
                to: record.id,
                key: origin.key,
                donor: record.lender(),
                ownership: record.ownership,
                state: PartState::Recorded,
                revision: record.confirmed_revision,
            };
            parts.insert(from, part);
        }
        match parts.is_empty() {
            true => Err(super::requests::another_request()),
            false => Ok(parts),
        }
    }

    /// True if a transfer of the grant is being prepared.
    fn is_being_transferred(&self, grant: GrantId) -> bool {
        self.transfers.values().any(|it| it.parts.contains_key(&grant))
    }

    /// Handles the result of [`DonorCall::PrepareTransfer`].
    pub fn handle_transfer_prepared(
        &mut self,
        now_ns: u64,
        donor: Identity,
        (from, grant): (GrantId, GrantId),
        result: Result<DonorStatus, CallError>,
    ) {
        self.note_result(now_ns, donor, &result);
        let is_its = |it: &PendingTransfer| it.parts.get(&from).is_some_and(|it| it.to == grant);
        let found = self.transfers.iter_mut().find(|(_, it)| is_its(it));
        let Some((client_id, pending)) = found else {
            // It was called off meanwhile; the abort may have come too early.
            return self.abort_promise(donor, from, grant);
        };
        let client_id = *client_id;
        let Some(part) = pending.parts.get_mut(&from) else { return };
        match result {
            Ok(status) if part.state == PartState::Preparing => {
                (part.state, part.revision) = (PartState::Prepared, status.revision);
                if pending.parts.values().all(|part| part.state == PartState::Prepared) {
                    self.record_transfer(now_ns, client_id);
                }
            }
            Ok(_) => {}
            Err(error) => {
                let why = self.why_not_promised(donor, from, &error);
                self.fail_transfer(client_id, RackError::TransferFailed(why));
            }
        }
    }

    fn why_not_promised(&self, donor: Identity, from: GrantId, error: &CallError) -> String {
        let name = self.name_of(donor.node);
        match error {
            CallError::Refused(Refusal::UnknownGrant) => {
                format!("grant {from} has ended at its donor {name}")
            }
            CallError::Refused(Refusal::Failed(why)) => format!("grant {from} at {name}: {why}"),
            CallError::Refused(refusal) => format!("grant {from} at {name}: {refusal}"),
            CallError::NoAnswer => {
                format!("grant {from}: its donor {name} does not answer; try again")
            }
            CallError::Gone => format!("grant {from}: the agent of its donor {name} is down"),
        }
    }

    /// Records the transfer once every donor has promised, then sends the commits.
    fn record_transfer(&mut self, now_ns: u64, client_id: u128) {
        let Some(pending) = self.transfers.remove(&client_id) else { return };
        // What the tables say may have changed meanwhile.
        if let Err(error) = self.check_transfer(&pending.by, &pending.request) {
            self.transfers.insert(client_id, pending);
            return self.fail_transfer(client_id, error);
        }
        let mut pending = pending;
        let (mut changes, mut steps) = (Vec::new(), Vec::new());
        let mut is_promised = false;
        for (from, part) in &pending.parts {
            let Some(record) = self.rat.get(*from).cloned() else { continue };
            is_promised |= record.bandwidth_bps > 0;
            steps.push((part.donor, pending.step(*from, part)));
            changes.push(Change::TransferGrant(*from));
            changes.push(Change::PutGrant(self.successor_of(now_ns, &pending, record, part)));
        }
        if self.shared.is_some() {
            changes.extend(is_promised.then_some(Change::PutLastPromise { client_id }));
        }
        pending.parts.values_mut().for_each(|part| part.state = PartState::Recorded);
        self.transfers.insert(client_id, pending);
        self.change_together(changes);
        for (donor, step) in steps {
            self.send_commit(donor, step);
        }
    }

    fn successor_of(
        &self,
        now_ns: u64,
        pending: &PendingTransfer,
        record: GrantRecord,
        part: &Part,
    ) -> GrantRecord {
        let TransferRequest { client_id, to, claim_ms, .. } = &pending.request;
        let home = self.rrt.by_name(&to.node).map(|node| node.record.identity.node);
        GrantRecord {
            id: part.to,
            origin: Some(Origin { client_id: *client_id, key: part.key, at_once: false }),
            owner: Some(to.clone()),
            // Until it is claimed.
            recipient: String::new(),
            // Only where nodes relay.
            home: record.home.and(home),
            granted_ns: now_ns,
            state: GrantState::Transferring,
            confirmed_revision: part.revision,
            ownership: part.ownership,
            from: Some(record.id),
            claim_ms: *claim_ms,
            charged: record.charged().cloned(),
            ..record
        }
    }

    fn send_commit(&mut self, donor: Identity, step: TransferStep) {
        if self.sent_transfers.insert(step.grant) {
            self.call_donor(donor, DonorCall::CommitTransfer(step));
        }
    }

    /// Handles the result of [`DonorCall::CommitTransfer`].
    pub fn handle_transfer_committed(
        &mut self,
        now_ns: u64,
        donor: Identity,
        grant: GrantId,
        result: Result<DonorStatus, CallError>,
    ) {
        self.sent_transfers.remove(&grant);
        self.note_result(now_ns, donor, &result);
        self.settle_transfer(now_ns, grant, result);
        self.answer_transfers_that_are_over(now_ns);
    }

    fn settle_transfer(
        &mut self,
        now_ns: u64,
        grant: GrantId,
        result: Result<DonorStatus, CallError>,
    ) {
        let record = self.rat.get(grant).filter(|it| it.state == GrantState::Transferring);
        let Some(record) = record.cloned() else { return };
        let from = record.from.unwrap_or_default();
        match result {
            Ok(status) => {
                let (to, former) = (self.facts_of(&record), record.charged.clone());
                self.change(Change::PutGrant(GrantRecord {
                    state: GrantState::Committed,
                    granted_ns: now_ns,
                    confirmed_revision: status.revision,
                    claim_ms: 0,
                    ..record
                }));
                self.note(Event::GrantTransferred { from, to, former });
            }
            Err(CallError::Refused(_)) => {
                let to = self.facts_of(&record);
                self.change(Change::DeleteGrant(grant));
                self.note(Event::GrantLostInTransfer { from, to });
            }
            // Its donor's next report repeats the call; if the donor is dead, the grant is lost
            // with it.
            Err(CallError::NoAnswer | CallError::Gone) => {}
        }
    }

    /// Settles transfers by a donor's report: listed successors are lent; for the others the call is
    /// repeated.
    pub(super) fn settle_transfers_by_report(
        &mut self,
        now_ns: u64,
        donor: Identity,
        status: DonorStatus,
        held: &[HeldGrant],
    ) {
        let of_donor = self.rat.of_donor(donor.node);
        let is_open = |it: &&GrantRecord| {
            it.donor_epoch == donor.epoch && it.state == GrantState::Transferring
        };
        let open: Vec<GrantId> = of_donor.filter(is_open).map(|grant| grant.id).collect();
        for grant in open {
            let is_lent = |held: &HeldGrant| held.id == grant && held.state == HeldState::Committed;
            match held.iter().any(is_lent) {
                true => self.settle_transfer(now_ns, grant, Ok(status)),
                false => self.send_transfer_again(grant),
            }
        }
        self.answer_transfers_that_are_over(now_ns);
    }

    /// True if the donor is to give the grant to another: it is over by the record.
    pub(super) fn is_being_replaced(&self, donor: Identity, grant: GrantId) -> bool {
        let mut of_donor = self.rat.of_donor(donor.node);
        of_donor.any(|it| it.from == Some(grant) && it.state == GrantState::Transferring)
    }

    /// Repeats the commits of all transfers that are recorded and not confirmed.
    pub(super) fn send_transfers_again(&mut self) {
        let open = self.rat.iter().filter(|it| it.state == GrantState::Transferring);
        let open: Vec<GrantId> = open.map(|grant| grant.id).collect();
        open.into_iter().for_each(|grant| self.send_transfer_again(grant));
    }

    fn send_transfer_again(&mut self, grant: GrantId) {
        let Some(record) = self.rat.get(grant) else { return };
        let (Some(from), Some(origin), Some(owner)) =
            (record.from, record.origin, record.owner.clone())
        else {
            return;
        };
        let step = TransferStep {
            from,
            grant,
            key: origin.key,
            donor_epoch: record.donor_epoch,
            ownership: record.ownership,
            claim_ms: record.claim_ms,
            owner,
        };
        let donor = record.lender();
        self.send_commit(donor, step);
    }

    /// Calls off a transfer that is not recorded.
    fn fail_transfer(&mut self, client_id: u128, error: RackError) {
        let Some(pending) = self.transfers.remove(&client_id) else { return };
        self.abort_promises(&pending);
        for token in pending.tokens {
            self.reply(token, Reply::Transferred(Err(error.clone())));
        }
    }

    fn abort_promises(&mut self, pending: &PendingTransfer) {
        for (from, part) in &pending.parts {
            self.abort_promise(part.donor, *from, part.to);
        }
    }

    fn abort_promise(&mut self, donor: Identity, from: GrantId, grant: GrantId) {
        self.call_donor(donor, DonorCall::AbortTransfer { from, grant });
    }

    /// Handles the result of [`DonorCall::AbortTransfer`]. Without an answer the promise ends by
    /// itself.
    pub fn handle_transfer_aborted(
        &mut self,
        now_ns: u64,
        donor: Identity,
        result: Result<DonorStatus, CallError>,
    ) {
        self.note_result(now_ns, donor, &result);
    }

    /// Calls off all transfers after a conflict: the callers' calls are repeated, and find those
    /// that are recorded.
    pub(super) fn call_off_transfers(&mut self) {
        for pending in std::mem::take(&mut self.transfers).into_values() {
            if !pending.is_recorded() {
                self.abort_promises(&pending);
            }
        }
    }

    /// Ends transfers whose donors do not answer in time: unrecorded ones fail, recorded ones are
    /// answered as they are.
    pub(super) fn end_late_transfers(&mut self, now_ns: u64) {
        let late = self.transfers.iter().filter(|(_, it)| it.deadline_ns <= now_ns);
        let late: Vec<u128> = late.map(|(client_id, _)| *client_id).collect();
        for client_id in late {
            match self.transfers[&client_id].is_recorded() {
                true => self.answer_transfer(client_id),
                false => {
                    let why = "its donors did not answer in time; try again".to_owned();
                    self.fail_transfer(client_id, RackError::TransferFailed(why));
                }
            }
        }
    }

    fn answer_transfers_that_are_over(&mut self, now_ns: u64) {
        let all: Vec<u128> = self.transfers.keys().copied().collect();
        all.into_iter().for_each(|client_id| self.answer_transfer_if_over(now_ns, client_id));
    }

    fn answer_transfer_if_over(&mut self, now_ns: u64, client_id: u128) {
        let Some(pending) = self.transfers.get(&client_id) else { return };
        let is_open = |part: &Part| self.progress(part) == TransferState::Pending;
        let is_over = !pending.parts.values().any(is_open);
        if pending.is_recorded() && (is_over || pending.deadline_ns <= now_ns) {
            self.answer_transfer(client_id);
        }
    }

    fn answer_transfer(&mut self, client_id: u128) {
        let Some(pending) = self.transfers.remove(&client_id) else { return };
        let row = |(from, part): (&GrantId, &Part)| Transferred {
            from: *from,
            to: part.to,
            state: self.progress(part),
        };
        let rows: Vec<Transferred> = pending.parts.iter().map(row).collect();
        for token in pending.tokens {
            self.reply(token, Reply::Transferred(Ok(rows.clone())));
        }
    }

    /// Returns the progress of a recorded part.
    fn progress(&self, part: &Part) -> TransferState {
        match self.rat.get(part.to) {
            None => TransferState::Gone,
            Some(record) if self.lost_since_ns(record).is_some() => TransferState::Gone,
            Some(record) if record.state == GrantState::Transferring => TransferState::Pending,
            Some(_) => TransferState::Done,
        }
    }
}
