//! Requests for devices, with the same handshake as those for memory: prepared at the donor, then
//! recorded and committed, then recorded and answered; or undone completely. A request is for one
//! device of one donor, so it has one share at a time.

mod offered;
mod plan;
mod quotas;
mod shared;
mod table;

pub(super) use offered::{check_offered, reports_of};
pub(super) use table::Offered;

use super::queue::{Place, Waiter, Wanted};
use super::{Action, CallError, Change, MonitorCore};
use crate::caller::Owner;
use crate::rat::{GrantRecord, GrantState, Origin};
use crate::resource::MAX_CAPABILITIES;
use crate::types::{
    DeviceRequest, DeviceShare, DonorStatus, Grant, Identity, MAX_NAME_BYTES, PrepareRequest,
    RackError, Refusal, ResourceKind, drained_text,
};
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::{GrantId, GrantKey, NodeId};

/// A request for a device in its handshake.
pub(super) struct PendingDevice {
    pub(super) owner: Owner,
    request: DeviceRequest,
    /// The donors named; `None` for any.
    named: Option<BTreeSet<NodeId>>,
    tried: Tried,
    /// Its place in the queue.
    pub(super) place: Place,
    /// The queue entry it returns to if the handshake fails. `None`: its client gets the error.
    waiter: Option<Box<Waiter>>,
    pub(super) deadline_ns: u64,
    part: Option<Part>,
}

/// Failed attempts with donors.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Devices that their donors refused, with the reasons: by node, kind and address.
    refused: BTreeMap<(NodeId, ResourceKind, String), String>,
    /// Donors that did not answer.
    silent: BTreeSet<NodeId>,
}

impl Tried {
    /// True if no donor has refused or stayed silent.
    pub(super) fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.silent.is_empty()
    }
}

/// A search for a device.
pub(super) struct Sought<'a> {
    pub(super) request: &'a DeviceRequest,
    /// The donors named; `None` for any.
    pub(super) named: Option<&'a BTreeSet<NodeId>>,
    /// Its place in the queue: requests ahead of it come first.
    pub(super) place: Place,
    pub(super) tried: &'a Tried,
}

impl PendingDevice {
    fn sought(&self) -> Sought<'_> {
        let Self { request, named, place, tried, .. } = self;
        Sought { request, named: named.as_ref(), place: *place, tried }
    }
}

/// The device being prepared.
struct Part {
    grant: GrantId,
    donor: Identity,
    key: GrantKey,
    share: DeviceShare,
    /// True once the intent is recorded and the commit on its way.
    is_committing: bool,
    /// The donor's revision when it confirmed the last step.
    confirmed_revision: u64,
}

impl MonitorCore {
    /// Takes a request for a device of `owner`, which may wait. Answered by
    /// [`Action::ReplyRequest`] with one grant, or until then by [`Action::ReplyStanding`]; a
    /// repetition of a request in its handshake gets the same answer.
    ///
    /// # Errors
    /// They are for this caller alone, whoever else waits under the same number.
    /// [`RackError::Forbidden`]: the request belongs to another owner. [`RackError::BadRequest`]:
    /// it is invalid, or differs from the request made under this number before.
    /// [`RackError::OverDeviceQuota`], if it does not wait.
    pub fn handle_device_request(
        &mut self,
        now_ns: u64,
        owner: Owner,
        request: DeviceRequest,
    ) -> Result<(), RackError> {
        let client_id = request.client_id;
        if self.owners_of_request(client_id).any(|other| *other != owner) {
            let reason = "this request was made by somebody else: draw another number for it";
            return Err(RackError::Forbidden(reason.to_owned()));
        }
        if let Some(asked) = self.ask_again_for_device(now_ns, &request) {
            return asked;
        }
        let named = self.check_device_request(&owner, &request)?;
        let before = self.device_granted_before(&request)?;
        if self.is_answering(client_id) {
            return Ok(());
        }
        if let Some(grants) = before {
            self.actions.push_back(Action::ReplyRequest { client_id, result: Ok(grants) });
            return Ok(());
        }
        if request.queueing.left_ms() > 0 {
            self.enter_queue_for_device(now_ns, owner, request, named);
            return Ok(());
        }
        self.check_device_quota(&owner, &request)?;
        self.call_off_rivals(client_id);
        let place = self.queue.place(request.queueing.priority);
        self.begin_device(now_ns, owner, (request, named), place, None);
        Ok(())
    }

    /// Handles the repetition of a request that is in its handshake, or queued; `None`: there is
    /// none.
    fn ask_again_for_device(
        &mut self,
        now_ns: u64,
        request: &DeviceRequest,
    ) -> Option<Result<(), RackError>> {
        let (before, waiter) = match self.device_requests.get_mut(&request.client_id) {
            Some(pending) => (&pending.request, pending.waiter.as_deref_mut()),
            None => {
                let waiter = self.queue.of_client(request.client_id)?;
                if !waiter.as_device().is_some_and(|device| device.request.is_same(request)) {
                    return Some(Err(another_request()));
                }
                waiter.ask(now_ns, request.queueing);
                return Some(Ok(()));
            }
        };
        if !before.is_same(request) {
            return Some(Err(another_request()));
        }
        if let Some(waiter) = waiter {
            waiter.ask(now_ns, request.queueing);
        }
        Some(Ok(()))
    }

    /// True if a device request has this number, in its handshake or in the queue.
    pub(super) fn is_asked_for_device(&self, client_id: u128) -> bool {
        let is_in_line = matches!(self.queue.wanted_by(client_id), Some(Wanted::Device(_)));
        is_in_line || self.device_requests.contains_key(&client_id)
    }

    /// Begins the handshake for a device.
    pub(super) fn begin_device(
        &mut self,
        now_ns: u64,
        owner: Owner,
        (request, named): (DeviceRequest, Option<BTreeSet<NodeId>>),
        place: Place,
        waiter: Option<Waiter>,
    ) {
        let client_id = request.client_id;
        let pending = PendingDevice {
            owner,
            request,
            named,
            tried: Tried::default(),
            place,
            waiter: waiter.map(Box::new),
            deadline_ns: now_ns.saturating_add(self.settings.request_timeout_ns),
            part: None,
        };
        self.device_requests.insert(client_id, pending);
        self.place_device(now_ns, client_id);
    }

    fn check_device_request(
        &self,
        owner: &Owner,
        request: &DeviceRequest,
    ) -> Result<Option<BTreeSet<NodeId>>, RackError> {
        let bad = |reason: &str| Err(RackError::BadRequest(reason.to_owned()));
        self.check_may_borrow(owner)?;
        if !request.kind.is_device() {
            return bad("a device is an accelerator, a network card or storage");
        }
        if request.kind == ResourceKind::Storage && request.bytes.0 == 0 {
            return bad("a request for no storage at all");
        }
        if self.requests.contains_key(&request.client_id) {
            return bad("this request was made for memory: draw another number for it");
        }
        let DeviceRequest { recipient, purpose, capabilities, .. } = request;
        let names = [recipient, purpose, &owner.user, &owner.node].into_iter().chain(capabilities);
        if names.map(String::len).any(|len| len > MAX_NAME_BYTES) {
            return bad("a name, the purpose or a capability is too long");
        }
        if capabilities.len() > MAX_CAPABILITIES {
            return bad(&format!("a request names up to {MAX_CAPABILITIES} capabilities"));
        }
        let mut named = BTreeSet::new();
        for name in &request.donors {
            let node = self.rrt.by_name(name);
            let node = node.ok_or_else(|| RackError::UnknownNode(name.clone()))?;
            named.insert(node.record.identity.node);
        }
        if let Some(name) = request.donors.first()
            && named.iter().all(|node| self.rrt.is_draining(*node))
        {
            return bad(&drained_text(name));
        }
        Ok(if named.is_empty() { None } else { Some(named) })
    }

    /// Returns the answer to a request that was granted before.
    pub(super) fn device_granted_before(
        &self,
        request: &DeviceRequest,
    ) -> Result<Option<Vec<Grant>>, RackError> {
        let mut grants = self.rat.of_client(request.client_id);
        let grant = grants.find(|grant| grant.state == GrantState::Committed);
        let Some(grant) = grant else { return Ok(None) };
        if !grant.device.as_ref().is_some_and(|share| share.answers(request)) {
            return Err(another_request());
        }
        if self.lost_since_ns(grant).is_some() {
            let reason = "this request was granted before and that is gone: ask anew";
            return Err(RackError::BadRequest(reason.to_owned()));
        }
        Ok(Some(self.grant_for_recipient(grant).into_iter().collect()))
    }

    /// Finds a device for the request, and sends the prepare to its donor.
    fn place_device(&mut self, now_ns: u64, client_id: u128) {
        if let Err(error) = self.check_device_quota_again(client_id) {
            return self.fail_device(now_ns, client_id, error);
        }
        let Some(pending) = self.device_requests.get(&client_id) else { return };
        let Some((donor, spec)) = self.choose_device(&pending.sought()) else {
            let error = RackError::NoDevice(self.why_no_device(&pending.sought()));
            return self.fail_device(now_ns, client_id, error);
        };
        let (spec, place) = (spec.clone(), pending.place);
        let share = spec.share(pending.request.bytes.0);
        self.count_passing_device(place, donor.node, &spec, share.amount());
        let (grant, key) = (self.fresh_grant_number(), self.keys.next_key());
        let Some(pending) = self.device_requests.get_mut(&client_id) else { return };
        let request = PrepareRequest {
            grant,
            key,
            slabs: 0,
            device: Some(share.clone()),
            donor_epoch: donor.epoch,
            lease_ms: self.settings.lease_ms(),
            owner: Some(pending.owner.clone()),
            recipient: pending.request.recipient.clone(),
            purpose: pending.request.purpose.clone(),
            priority: pending.request.queueing.priority,
            at_once: false,
        };
        pending.part =
            Some(Part { grant, donor, key, share, is_committing: false, confirmed_revision: 0 });
        self.device_parts.insert(grant, client_id);
        let addr = self.control_addr(donor.node);
        self.actions.push_back(Action::SendPrepare { donor, addr, request });
    }

    /// Handles the result of a prepare of a device. Returns false if the grant belongs to no device
    /// request.
    pub(super) fn device_prepared(
        &mut self,
        now_ns: u64,
        donor: Identity,
        grant: GrantId,
        result: &Result<DonorStatus, CallError>,
    ) -> bool {
        let Some(client_id) = self.device_parts.get(&grant).copied() else { return false };
        match result {
            Ok(status) => {
                let pending = self.device_requests.get_mut(&client_id);
                if let Some(part) = pending.and_then(|pending| pending.part.as_mut()) {
                    part.confirmed_revision = status.revision;
                }
                self.commit_device(now_ns, client_id);
            }
            Err(error) => {
                if *error == CallError::NoAnswer {
                    self.abort(donor, grant);
                }
                self.drop_device_part(client_id, error);
                self.place_device(now_ns, client_id);
            }
        }
        true
    }

    /// Records the intent for a device that is set aside, then sends the commit.
    fn commit_device(&mut self, now_ns: u64, client_id: u128) {
        if !self.is_ours_to_commit_device(now_ns, client_id) {
            return;
        }
        let lease_ms = self.settings.lease_ms();
        let Some(pending) = self.device_requests.get_mut(&client_id) else { return };
        let Some(part) = &mut pending.part else { return };
        part.is_committing = true;
        let (grant, donor) = (part.grant, part.donor);
        let record = GrantRecord {
            id: grant,
            origin: Some(Origin { client_id, key: part.key, at_once: false }),
            owner: Some(pending.owner.clone()),
            recipient: pending.request.recipient.clone(),
            home: None,
            purpose: pending.request.purpose.clone(),
            priority: pending.request.queueing.priority,
            donor: donor.node,
            donor_epoch: donor.epoch,
            slabs: 0,
            bandwidth_bps: 0,
            device: Some(part.share.clone()),
            lease_ms,
            granted_ns: now_ns,
            state: GrantState::Committing,
            confirmed_revision: part.confirmed_revision,
        };
        let user = pending.owner.user.clone();
        let last_request =
            self.shared.is_some().then_some(Change::PutLastRequest { user, client_id });
        self.change_together(last_request.into_iter().chain([Change::PutGrant(record)]).collect());
        let addr = self.control_addr(donor.node);
        self.actions.push_back(Action::SendCommit { donor, addr, grant });
    }

    /// Handles the result of the commit of a device. Returns false if the grant belongs to no
    /// device request.
    pub(super) fn device_committed(
        &mut self,
        now_ns: u64,
        donor: Identity,
        grant: GrantId,
        result: &Result<DonorStatus, CallError>,
    ) -> bool {
        let Some(client_id) = self.device_parts.get(&grant).copied() else { return false };
        match result {
            Ok(status) if self.is_up(donor) => {
                self.finish_device(now_ns, client_id, grant, status.revision);
            }
            // It died after its answer.
            Ok(_) => {
                self.drop_device_part(client_id, &CallError::Gone);
                self.take_back_grant(grant);
                self.place_device(now_ns, client_id);
            }
            Err(error) => {
                self.drop_device_part(client_id, error);
                match error {
                    CallError::Refused(_) => self.change(Change::DeleteGrant(grant)),
                    CallError::NoAnswer | CallError::Gone => self.take_back_grant(grant),
                }
                self.place_device(now_ns, client_id);
            }
        }
        true
    }

    /// Records that the device is lent, then answers the recipient.
    fn finish_device(&mut self, now_ns: u64, client_id: u128, grant: GrantId, revision: u64) {
        self.device_parts.remove(&grant);
        let pending = self.device_requests.remove(&client_id);
        let Some(record) = self.rat.get(grant) else { return };
        let record = GrantRecord {
            state: GrantState::Committed,
            granted_ns: now_ns,
            confirmed_revision: revision,
            ..record.clone()
        };
        let granted = self.grant_for_recipient(&record).into_iter().collect();
        self.change(Change::PutGrant(record));
        if let Some(mut pending) = pending {
            if let Some(part) = &mut pending.part {
                part.confirmed_revision = revision;
            }
            self.finished_devices.insert(client_id, pending);
        }
        self.actions.push_back(Action::ReplyRequest { client_id, result: Ok(granted) });
    }

    /// Drops a share that its donor refused, so that another device is chosen.
    fn drop_device_part(&mut self, client_id: u128, error: &CallError) {
        let Some(pending) = self.device_requests.get_mut(&client_id) else { return };
        let Some(part) = pending.part.take() else { return };
        self.device_parts.remove(&part.grant);
        match error {
            // The commit came too late for the prepare.
            CallError::Refused(Refusal::UnknownGrant) => {}
            CallError::Refused(refusal) => {
                let (kind, address) = (part.share.kind, part.share.address);
                let why = match refusal {
                    Refusal::NoDevice(why) => why.clone(),
                    other => other.to_string(),
                };
                pending.tried.refused.insert((part.donor.node, kind, address), why);
            }
            CallError::NoAnswer | CallError::Gone => {
                pending.tried.silent.insert(part.donor.node);
            }
        }
    }

    pub(super) fn fail_late_device_requests(&mut self, now_ns: u64) {
        let late = self.device_requests.iter().filter(|(_, it)| it.deadline_ns <= now_ns);
        let late: Vec<u128> = late.map(|(client_id, _)| *client_id).collect();
        for client_id in late {
            self.fail_device(now_ns, client_id, RackError::HandshakeFailed);
        }
    }

    /// Aborts a request and takes back its share. One that may wait goes on waiting.
    fn fail_device(&mut self, now_ns: u64, client_id: u128, error: RackError) {
        let Some(pending) = self.device_requests.get_mut(&client_id) else { return };
        let (place, tried) = (pending.place, std::mem::take(&mut pending.tried));
        let Some(mut waiter) = pending.waiter.take() else {
            return self.withdraw_device(client_id, Err(error));
        };
        self.take_back_device(client_id);
        if let Wanted::Device(device) = &mut waiter.wanted {
            device.tried = tried;
        }
        self.wait_again(now_ns, place, *waiter, &error);
    }

    /// Aborts a request with `result` as the answer, also if it may wait.
    fn withdraw_device(&mut self, client_id: u128, result: Result<Vec<Grant>, RackError>) {
        if self.take_back_device(client_id) {
            self.actions.push_back(Action::ReplyRequest { client_id, result });
        }
    }

    /// Takes a request out of its handshake, and its share back; returns false if it is in none.
    pub(super) fn take_back_device(&mut self, client_id: u128) -> bool {
        let Some(pending) = self.device_requests.remove(&client_id) else { return false };
        if let Some(part) = pending.part {
            self.device_parts.remove(&part.grant);
            match part.is_committing {
                true => self.take_back_grant(part.grant),
                false => self.abort(part.donor, part.grant),
            }
        }
        true
    }
}

fn another_request() -> RackError {
    let reason = "another request was made with this number: draw another number for it";
    RackError::BadRequest(reason.to_owned())
}
