//! The handshake of a request: placed, prepared, committed, or undone completely.

use super::pending::{CheckedRequest, Part, PartState, PendingRequest, SentPrepare, WantedMemory};
use super::weighing::Weighing;
use super::{Action, CallError, Change, Event, MonitorCore};
use crate::monitor_node::DonorCall;
use crate::placement::{Donor, Policy, place};
use crate::rat::{GrantRecord, GrantState, Origin};
use crate::resource::Share;
use crate::rrt::{NodeEntry, Reach, Room};
use crate::transfer::FIRST_OWNERSHIP;
use crate::types::{
    AllocationRequest, DonorStatus, Grant, Identity, PrepareRequest, RackError, Refusal,
};
use std::collections::BTreeMap;
use venice_wire::{GrantId, NodeId};

/// Time a request waits for memory that donors are about to free.
const ROOM_PATIENCE_NS: u64 = 2_000_000_000;
/// Most placements of a request before it fails.
const MAX_ATTEMPTS: u32 = 16;
/// Grant numbers recorded at a time.
pub(super) const GRANT_NUMBERS_AT_ONCE: u64 = 256;

/// Returns the slabs that donors can give together.
pub(super) fn room(donors: impl IntoIterator<Item = Donor>) -> u64 {
    donors.into_iter().map(|donor| u64::from(donor.can_give())).sum()
}

/// A share chosen for a request, not yet prepared.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    /// The index of the want it is for.
    pub(super) want: usize,
    pub(super) donor: NodeId,
    pub(super) share: Share,
}

/// The reason why no shares are chosen.
enum Unplaced {
    /// The donors lack slabs, or the quota has no room.
    NoRoom,
    /// Anything else.
    Refused,
}

/// Returns the nodes of the devices of a request: those it has, and those just chosen.
fn sites_of(pending: &PendingRequest, chosen: &[Chosen]) -> Vec<NodeId> {
    let parts = pending.parts.values().filter(|part| part.share.device().is_some());
    let chosen = chosen.iter().filter(|chosen| chosen.share.device().is_some());
    parts.map(|part| part.donor.node).chain(chosen.map(|chosen| chosen.donor)).collect()
}

/// Marks a donor on the node of one of the devices.
pub(super) fn beside(sites: &[NodeId], donor: Donor) -> Donor {
    Donor { is_beside: sites.contains(&donor.node), ..donor }
}

impl MonitorCore {
    /// Advances a request as far as possible without another answer.
    pub(super) fn advance(&mut self, now_ns: u64, client_id: u128) {
        self.drop_lost_parts(client_id);
        let Some(pending) = self.requests.get(&client_id) else { return };
        if pending.any_part(PartState::Preparing) {
            return;
        }
        if !pending.is_placed() {
            self.place(now_ns, client_id);
        } else if pending.any_part(PartState::Prepared) {
            self.commit(now_ns, client_id);
        } else if !pending.any_part(PartState::Committing) {
            self.finish(now_ns, client_id);
        }
    }

    /// Drops shares whose donor died meanwhile.
    fn drop_lost_parts(&mut self, client_id: u128) {
        let Some(pending) = self.requests.get(&client_id) else { return };
        let settled =
            |part: &Part| matches!(part.state, PartState::Prepared | PartState::Committed);
        let lost: Vec<_> = pending
            .parts
            .iter()
            .filter(|(_, part)| settled(part) && !self.is_up(part.donor))
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            self.take_part(id);
            if self.rat.get(id).is_some() {
                self.take_back_grant(id);
            }
        }
    }

    /// Finds donors for the missing parts, and calls them.
    fn place(&mut self, now_ns: u64, client_id: u128) {
        let shares = match self.choose_shares(client_id) {
            Ok(shares) => shares,
            Err(Unplaced::NoRoom) if self.may_wait_for_room(now_ns, client_id) => return,
            Err(Unplaced::NoRoom | Unplaced::Refused) => {
                let error = self.why_not_placed(client_id);
                self.note_refused(client_id, &error);
                return self.fail(now_ns, client_id, error);
            }
        };
        self.count_passing(client_id, &shares);
        let at_once = self.may_lend_at_once(client_id, &shares);
        for chosen in shares {
            if at_once {
                self.lend_at_once(now_ns, client_id, chosen);
            } else {
                self.prepare(client_id, chosen);
            }
        }
    }

    /// Chooses shares for all missing parts: devices first, then memory near them.
    fn choose_shares(&mut self, client_id: u128) -> Result<Vec<Chosen>, Unplaced> {
        let pending = self.requests.get_mut(&client_id).ok_or(Unplaced::Refused)?;
        let missing = pending.missing_slabs();
        pending.attempts += u32::from(missing > 0);
        let is_given_up = pending.attempts > MAX_ATTEMPTS;
        let pending = &self.requests[&client_id];
        if is_given_up || !self.leaves_enough(&pending.checked, missing) {
            return Err(Unplaced::Refused);
        }
        // What counts against it may be on its way back.
        self.check_quota_again(client_id).map_err(|_| Unplaced::NoRoom)?;
        let search = self.device_search(pending);
        let devices = self.choose_devices(&search, pending.missing_devices());
        let mut shares = devices.map_err(|_| Unplaced::Refused)?;
        let Some(memory) = pending.checked.memory().filter(|_| missing > 0) else {
            return Ok(shares);
        };
        let able = self
            .open(pending, &memory)
            .map(|(node, free)| pending.as_asked(&memory, Donor::direct(node, free.free_slabs)));
        if room(able) < u64::from(missing) {
            return Err(Unplaced::NoRoom);
        }
        let sites = sites_of(pending, &shares);
        let placed = self.placed_near(client_id, &memory, &sites).or_else(|| {
            self.placed(client_id, &memory, &self.with_room(client_id, &memory, &sites))
        });
        let placed = placed.ok_or(Unplaced::NoRoom)?;
        shares.extend(placed.into_iter().map(|(donor, slabs)| Chosen {
            want: memory.want,
            donor,
            share: Share::of_slabs(slabs),
        }));
        Ok(shares)
    }

    /// True while memory on its way back to the donors will make room. Waiting does not count as an
    /// attempt.
    fn may_wait_for_room(&mut self, now_ns: u64, client_id: u128) -> bool {
        // A queued request need not wait here; and this looks at every node.
        let pending = &self.requests[&client_id];
        let Some(memory) = pending.checked.memory().filter(|_| pending.waiter.is_none()) else {
            return false;
        };
        let prepared = self.prepared_slabs();
        let returning = |donor: Donor| {
            let returning = self.returning_slabs(donor.node, &prepared);
            Donor { free_slabs: donor.free_slabs.saturating_add(returning), ..donor }
        };
        let soon = self.available(client_id, &memory, false).into_iter().map(returning);
        if self.placed(client_id, &memory, &soon.collect::<Vec<_>>()).is_none() {
            return false;
        }
        let Some(pending) = self.requests.get_mut(&client_id) else { return false };
        let patience_ns = ROOM_PATIENCE_NS.min(pending.deadline_ns.saturating_sub(now_ns) / 2);
        let until_ns = *pending.room_until_ns.get_or_insert(now_ns.saturating_add(patience_ns));
        let waits = now_ns < until_ns;
        if waits {
            pending.attempts = pending.attempts.saturating_sub(1);
        }
        waits
    }

    /// Returns the slabs that donors have set aside for requests not yet granted.
    pub(super) fn prepared_slabs(&self) -> BTreeMap<NodeId, u32> {
        let mut slabs = BTreeMap::new();
        for part in self.requests.values().flat_map(|pending| pending.parts.values()) {
            if part.state == PartState::Prepared {
                let slabs = slabs.entry(part.donor.node).or_insert(0_u32);
                *slabs = slabs.saturating_add(part.slabs());
            }
        }
        slabs
    }

    /// Returns the slabs of a donor that are neither free nor lent nor `prepared` for a request:
    /// those of an ended grant, about to be freed.
    pub(super) fn returning_slabs(&self, donor: NodeId, prepared: &BTreeMap<NodeId, u32>) -> u32 {
        let Some(entry) = self.rrt.get(donor).filter(|entry| entry.up) else { return 0 };
        let epoch = entry.record.identity.epoch;
        let is_lent = |grant: &&GrantRecord| {
            grant.donor_epoch == epoch && grant.state != GrantState::Releasing
        };
        let lent = self.rat.of_donor(donor).filter(is_lent).map(|grant| grant.share.slabs());
        let prepared = prepared.get(&donor).copied();
        let left = entry.status.total_slabs.saturating_sub(entry.status.free_slabs);
        // Donors may report anything.
        lent.chain(prepared).fold(left, u32::saturating_sub)
    }

    /// Retries requests that wait for room, queued ones first, after something has become free or
    /// (`is_more` false) may be about to.
    pub(super) fn note_room(&mut self, now_ns: u64, is_more: bool) {
        if is_more {
            self.serve_queue(now_ns);
        }
        let waiting: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, pending)| pending.room_until_ns.is_some())
            .map(|(client_id, _)| *client_id)
            .collect();
        for client_id in waiting {
            self.advance(now_ns, client_id);
        }
    }

    /// Returns what the request may take from each donor, or could if no donor had failed. Prices are
    /// left out where only the room counts.
    pub(super) fn available(
        &self,
        client_id: u128,
        memory: &WantedMemory,
        with_excluded: bool,
    ) -> Vec<Donor> {
        let pending = &self.requests[&client_id];
        let closed = self.closed_to(pending.place, memory.slabs);
        let sites = sites_of(pending, &[]);
        let weighing = self.weigh_from(&pending.checked, &sites);
        self.rrt
            .iter()
            .filter(|(id, _)| pending.checked.may_use(*id) && !closed.has(*id))
            .filter(|(id, _)| with_excluded || !pending.excluded.contains(id))
            .map(|(node, entry)| match memory.bandwidth_bps {
                0 => Donor::direct(node, entry.available_slabs()),
                _ => weighing.donor(node, entry),
            })
            .map(|donor| pending.as_asked(memory, donor))
            .map(|donor| beside(&sites, donor))
            .collect()
    }

    /// Iterates over the donors with room that the request may use: with thousands not each is looked
    /// at.
    pub(super) fn open(
        &self,
        pending: &PendingRequest,
        memory: &WantedMemory,
    ) -> impl Iterator<Item = (NodeId, Room)> {
        let closed = self.closed_to(pending.place, memory.slabs);
        self.rrt.with_room().filter(move |(id, _)| {
            pending.checked.may_use(*id) && !closed.has(*id) && !pending.excluded.contains(id)
        })
    }

    /// Returns what the request may take from each of them.
    fn with_room(&self, client_id: u128, memory: &WantedMemory, sites: &[NodeId]) -> Vec<Donor> {
        let pending = &self.requests[&client_id];
        let weighing = self.weigh_from(&pending.checked, sites);
        let open = self.open(pending, memory);
        let donors = open.filter_map(|(node, room)| weighing.donor_with(node, room));
        let donors = donors.map(|donor| pending.as_asked(memory, donor));
        donors.map(|donor| beside(sites, donor)).collect()
    }

    /// Returns the view for the placement of memory: from its devices' nodes, or else from the
    /// recipient's.
    pub(super) fn weigh_from(&self, checked: &CheckedRequest, sites: &[NodeId]) -> Weighing<'_> {
        let home = sites.first().copied().or_else(|| self.home_of(&checked.request));
        let own = self.rrt.by_name(&checked.owner.node).map(|entry| entry.record.identity.node);
        self.weigh(home).tested_by(own.or(home))
    }

    /// Returns the shares of `donors` in the missing slabs.
    pub(super) fn placed(
        &self,
        client_id: u128,
        memory: &WantedMemory,
        donors: &[Donor],
    ) -> Option<BTreeMap<NodeId, u32>> {
        let pending = &self.requests[&client_id];
        let missing = pending.missing_slabs();
        let policy = self.policy_of(&pending.checked);
        match self.bandwidth(&pending.checked, memory) {
            None => place(policy, missing, donors),
            Some(bandwidth) => bandwidth.place(policy, missing, donors),
        }
    }

    pub(super) fn policy_of(&self, checked: &CheckedRequest) -> Policy {
        checked.request.placement.unwrap_or(self.settings.placement)
    }

    /// Returns the node whose relay the recipient sends through, if any.
    pub(super) fn home_of(&self, request: &AllocationRequest) -> Option<NodeId> {
        let home = self.rrt.by_name(&request.home)?;
        Some(home.record.identity.node)
    }

    fn prepare(&mut self, client_id: u128, chosen: Chosen) {
        let part = self.new_part(client_id, chosen, PartState::Preparing);
        let Some((donor, request)) = part else { return };
        self.call_donor(donor, DonorCall::Prepare(request));
    }

    /// Adds a share, and returns the message to its donor.
    pub(super) fn new_part(
        &mut self,
        client_id: u128,
        chosen: Chosen,
        state: PartState,
    ) -> Option<(Identity, PrepareRequest)> {
        let Chosen { want, donor, share } = chosen;
        let grant = self.fresh_grant_number();
        let key = self.keys.next_key();
        let mut entry = self.rrt.get_mut(donor)?;
        let slabs = share.slabs();
        entry.reserved_slabs += slabs;
        let donor = entry.record.identity;
        drop(entry);
        let pending = self.requests.get_mut(&client_id)?;
        let at_once = state == PartState::Committing;
        let CheckedRequest { owner, request, .. } = &pending.checked;
        let prepare = PrepareRequest {
            grant,
            key,
            share: share.clone(),
            donor_epoch: donor.epoch,
            lease_ms: self.settings.lease_ms(),
            owner: Some(owner.clone()),
            recipient: request.recipient.clone(),
            purpose: request.purpose.clone(),
            priority: request.queueing.priority,
            at_once,
        };
        let part = Part { want, donor, share, key, at_once, state, confirmed_revision: 0 };
        pending.parts.insert(grant, part);
        self.parts.insert(grant, client_id);
        self.sent_prepares.insert(grant, SentPrepare { donor, slabs, at_once });
        Some((donor, prepare))
    }

    /// Handles the result of [`DonorCall::Prepare`].
    pub fn handle_prepared(
        &mut self,
        now_ns: u64,
        donor: Identity,
        grant: GrantId,
        result: Result<DonorStatus, CallError>,
    ) {
        let at_once = self.settle_prepare(grant);
        self.note_result(now_ns, donor, &result);
        if at_once {
            return self.lent_at_once(now_ns, donor, grant, result);
        }
        let client_id = self.parts.get(&grant).copied();
        match result {
            Ok(status) => match self.part_mut(grant) {
                Some(part) => {
                    part.state = PartState::Prepared;
                    part.confirmed_revision = status.revision;
                }
                // The request was aborted meanwhile; the first abort may have come too early.
                None => self.abort(donor, grant),
            },
            Err(error) => {
                if error == CallError::NoAnswer {
                    self.abort(donor, grant);
                }
                self.drop_refused_part(donor.node, grant, &error);
            }
        }
        if let Some(client_id) = client_id {
            self.advance(now_ns, client_id);
        }
    }

    /// Returns the room reserved for an answered prepare. Returns true if it was to be lent in one
    /// call.
    pub(super) fn settle_prepare(&mut self, grant: GrantId) -> bool {
        let Some(sent) = self.sent_prepares.remove(&grant) else { return false };
        if let Some(mut entry) = self.rrt.get_mut(sent.donor.node)
            && entry.record.identity == sent.donor
        {
            entry.reserved_slabs = entry.reserved_slabs.saturating_sub(sent.slabs);
        }
        sent.at_once
    }

    /// Updates the donor's state by any answer, or by its absence.
    pub(super) fn note_result(
        &mut self,
        now_ns: u64,
        donor: Identity,
        result: &Result<DonorStatus, CallError>,
    ) {
        let is_unreachable = self.rrt.get(donor.node).is_some_and(NodeEntry::is_unreachable);
        if result == &Err(CallError::Gone) && !is_unreachable {
            self.mark_down(now_ns, donor);
        }
        let Some(mut entry) = self.rrt.get_mut(donor.node) else { return };
        if entry.record.identity != donor {
            return;
        }
        if matches!(result, Ok(_) | Err(CallError::Refused(_))) && entry.reach == Reach::Unknown {
            entry.reach = Reach::Answers;
        }
        match result {
            Ok(status) => {
                entry.update_status(*status);
            }
            Err(CallError::Refused(Refusal::NoRoom { free_slabs })) => {
                entry.status.free_slabs = *free_slabs;
            }
            // A closed port may drop what is sent to it.
            Err(CallError::NoAnswer) if entry.reach == Reach::Answers => {
                entry.reach = Reach::Unknown;
            }
            Err(_) => {}
        }
    }

    /// Drops a share that a donor refused, so that it is re-placed.
    fn drop_refused_part(&mut self, donor: NodeId, grant: GrantId, error: &CallError) {
        let client_id = self.parts.get(&grant).copied();
        let Some(part) = self.take_part(grant) else { return };
        let Some(pending) = client_id.and_then(|id| self.requests.get_mut(&id)) else { return };
        if let Some(device) = part.share.device() {
            return pending.tried.note(donor, device, error);
        }
        let may_ask_again = match error {
            // It may still have room for less.
            CallError::Refused(Refusal::NoRoom { free_slabs }) => *free_slabs < part.slabs(),
            // The commit came too late for the prepare.
            CallError::Refused(Refusal::UnknownGrant) => true,
            _ => false,
        };
        if !may_ask_again {
            pending.excluded.insert(donor);
        }
    }

    /// Records the intent once every share is prepared, then sends the commits.
    fn commit(&mut self, now_ns: u64, client_id: u128) {
        if !self.is_ours_to_commit(now_ns, client_id) {
            return;
        }
        let Some(pending) = self.requests.get_mut(&client_id) else { return };
        let mut prepared = Vec::new();
        for (id, part) in &mut pending.parts {
            if part.state == PartState::Prepared {
                part.state = PartState::Committing;
                prepared.push(*id);
            }
        }
        let user = pending.checked.owner.user.clone();
        let is_promised = pending.checked.memory().is_some_and(|it| it.bandwidth_bps > 0);
        let records: Vec<_> =
            prepared.into_iter().filter_map(|id| self.record_of(now_ns, client_id, id)).collect();
        let mut intent = Vec::with_capacity(records.len() + 2);
        if self.shared.is_some() {
            intent.push(Change::PutLastRequest { user, client_id });
            intent.extend(is_promised.then_some(Change::PutLastPromise { client_id }));
        }
        intent.extend(records.iter().cloned().map(Change::PutGrant));
        self.change_together(intent);
        for record in records {
            let donor = Identity { node: record.donor, epoch: record.donor_epoch };
            self.call_donor(
                donor,
                DonorCall::Commit { grant: record.id, donor_epoch: donor.epoch },
            );
        }
    }

    /// Returns the record of a share before it is lent.
    pub(super) fn record_of(
        &self,
        now_ns: u64,
        client_id: u128,
        id: GrantId,
    ) -> Option<GrantRecord> {
        let pending = self.requests.get(&client_id)?;
        let part = pending.parts.get(&id)?;
        Some(self.record_of_part(now_ns, pending, (id, part)))
    }

    pub(super) fn record_of_part(
        &self,
        now_ns: u64,
        pending: &PendingRequest,
        (id, part): (GrantId, &Part),
    ) -> GrantRecord {
        let CheckedRequest { owner, request, .. } = &pending.checked;
        let AllocationRequest { client_id, .. } = *request;
        GrantRecord {
            id,
            origin: Some(Origin { client_id, key: part.key, at_once: part.at_once }),
            owner: Some(owner.clone()),
            recipient: request.recipient.clone(),
            home: self.home_of(request),
            purpose: request.purpose.clone(),
            priority: request.queueing.priority,
            donor: part.donor.node,
            donor_epoch: part.donor.epoch,
            share: part.share.clone(),
            bandwidth_bps: pending.share_bps(part),
            lease_ms: self.settings.lease_ms(),
            granted_ns: now_ns,
            state: GrantState::Committing,
            confirmed_revision: part.confirmed_revision,
            ownership: FIRST_OWNERSHIP,
            from: None,
            claim_ms: 0,
            charged: None,
        }
    }

    /// Handles the result of [`DonorCall::Commit`].
    pub fn handle_committed(
        &mut self,
        now_ns: u64,
        donor: Identity,
        grant: GrantId,
        result: Result<DonorStatus, CallError>,
    ) {
        self.note_result(now_ns, donor, &result);
        // Without a request it was aborted meanwhile, and its release is on the way.
        let Some(client_id) = self.parts.get(&grant).copied() else { return };
        self.note_lent(now_ns, (donor, grant), client_id, result);
    }

    /// Handles the outcome of lending a share.
    pub(super) fn note_lent(
        &mut self,
        now_ns: u64,
        (donor, grant): (Identity, GrantId),
        client_id: u128,
        result: Result<DonorStatus, CallError>,
    ) {
        match result {
            Ok(status) => {
                if let Some(part) = self.part_mut(grant) {
                    part.state = PartState::Committed;
                    part.confirmed_revision = status.revision;
                }
            }
            Err(error) => {
                self.drop_refused_part(donor.node, grant, &error);
                match error {
                    CallError::Refused(_) => self.change(Change::DeleteGrant(grant)),
                    CallError::NoAnswer | CallError::Gone => self.take_back_grant(grant),
                }
            }
        }
        self.advance(now_ns, client_id);
    }

    /// Records that every share is lent, then answers the recipient. For a grant lent in one call,
    /// the records and the donor suffice: the recipient need not wait.
    fn finish(&mut self, now_ns: u64, client_id: u128) {
        let Some(pending) = self.requests.remove(&client_id) else { return };
        let (mut grants, mut changes, mut events) = (Vec::new(), Vec::new(), Vec::new());
        let at_once = pending.parts.values().all(|part| part.at_once);
        for (id, part) in &pending.parts {
            self.parts.remove(id);
            let Some(record) = self.rat.get(*id) else { continue };
            let record = GrantRecord {
                state: GrantState::Committed,
                granted_ns: now_ns,
                confirmed_revision: part.confirmed_revision,
                ..record.clone()
            };
            grants.extend(self.grant_for_recipient(&record));
            events.push(Event::GrantBegan(self.facts_of(&record)));
            changes.push(Change::PutGrant(record));
        }
        let reply = Action::ReplyRequest { client_id, result: Ok(grants) };
        self.finished.insert(client_id, pending);
        if at_once {
            self.actions.push_back(reply);
            self.change_together(changes);
        } else {
            self.change_together(changes);
            self.actions.push_back(reply);
        }
        events.into_iter().for_each(|event| self.note(event));
    }

    pub(super) fn fail_late_requests(&mut self, now_ns: u64) {
        let late: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, pending)| pending.is_late(now_ns))
            .map(|(client_id, _)| *client_id)
            .collect();
        for client_id in late {
            self.fail(now_ns, client_id, RackError::HandshakeFailed);
        }
    }

    /// Aborts a request and takes back every share. One that may wait goes on waiting.
    pub(super) fn fail(&mut self, now_ns: u64, client_id: u128, error: RackError) {
        let waiter = self.requests.get_mut(&client_id).and_then(|pending| {
            let mut waiter = pending.waiter.take()?;
            waiter.tried = std::mem::take(&mut pending.tried);
            Some((pending.place, waiter))
        });
        let Some((place, waiter)) = waiter else { return self.withdraw(client_id, Err(error)) };
        self.take_back(client_id);
        self.wait_again(now_ns, place, *waiter, &error);
    }

    /// Aborts a request with `result` as the answer, also if it may wait.
    pub(super) fn withdraw(&mut self, client_id: u128, result: Result<Vec<Grant>, RackError>) {
        if self.take_back(client_id) {
            self.actions.push_back(Action::ReplyRequest { client_id, result });
        }
    }

    /// Takes a request out of its handshake, and back every share; returns false if it is in none.
    pub(super) fn take_back(&mut self, client_id: u128) -> bool {
        let Some(pending) = self.requests.remove(&client_id) else { return false };
        for (id, part) in pending.parts {
            self.parts.remove(&id);
            match part.state {
                PartState::Preparing | PartState::Prepared => self.abort(part.donor, id),
                PartState::Committing | PartState::Committed => self.take_back_grant(id),
            }
        }
        true
    }

    pub(super) fn abort(&mut self, donor: Identity, grant: GrantId) {
        self.call_donor(donor, DonorCall::Abort(grant));
    }

    /// Handles the result of [`DonorCall::Abort`]. Without an answer the time limit of the prepare
    /// frees the slabs.
    pub fn handle_aborted(
        &mut self,
        now_ns: u64,
        donor: Identity,
        result: Result<DonorStatus, CallError>,
    ) {
        self.note_result(now_ns, donor, &result);
        self.note_room(now_ns, true);
    }

    /// True while the grant is not in the table because its handshake goes on.
    pub(super) fn in_handshake(&self, grant: GrantId) -> bool {
        self.parts.contains_key(&grant) || self.sent_prepares.contains_key(&grant)
    }

    pub(super) fn part_mut(&mut self, grant: GrantId) -> Option<&mut Part> {
        let client_id = self.parts.get(&grant)?;
        self.requests.get_mut(client_id)?.parts.get_mut(&grant)
    }

    pub(super) fn take_part(&mut self, grant: GrantId) -> Option<Part> {
        let client_id = self.parts.remove(&grant)?;
        self.requests.get_mut(&client_id)?.parts.remove(&grant)
    }

    pub(super) fn fresh_grant_number(&mut self) -> GrantId {
        if self.next_grant >= self.range_end {
            let (from, to) =
                (self.grant_limit, self.grant_limit.saturating_add(GRANT_NUMBERS_AT_ONCE));
            (self.next_grant, self.range_end) = (from, to);
            self.own_numbers(from..to);
            self.change(Change::PutGrantLimit(to));
        }
        let number = self.next_grant;
        self.next_grant += 1;
        GrantId(number)
    }

    /// Skips grant numbers up to this one.
    pub(super) fn skip_grant_numbers_to(&mut self, taken: GrantId) {
        let above = taken.0.saturating_add(1);
        self.next_grant = self.next_grant.max(above);
        if above > self.grant_limit {
            self.change(Change::PutGrantLimit(above));
        }
    }
}
