//! Incoming requests, and their answers.

use super::handshake::room;
use super::pending::{CheckedRequest, PendingRequest, WantedMemory};
use super::queue::Waiter;
use super::{Action, MonitorCore};
use crate::NS_PER_S;
use crate::caller::Owner;
use crate::label::{LABEL_RULE, is_label, is_printable};
use crate::queueing::InLine;
use crate::rat::{GrantRecord, GrantState};
use crate::request::{MAX_PIECES, MAX_WANTS};
use crate::resource::{MAX_CAPABILITIES, ResourceKind};
use crate::types::{
    AllocationRequest, Endpoint, Grant, MAX_COPIES, MAX_NAME_BYTES, RackError, drained_text,
    pool_text,
};
use crate::want::Want;
use std::collections::BTreeSet;
use venice_wire::{ByteSize, KeyName, NodeId, SLAB_BYTES};

/// Most memory of a request: its slabs are counted in 32 bits.
const MOST_MEMORY_BYTES: u64 = (1 << 31) * SLAB_BYTES;

impl MonitorCore {
    /// Takes a request of `owner`. Answered by [`Action::ReplyRequest`], or until then by
    /// [`Action::ReplyStanding`] if it waits; a repetition of a request in its handshake gets the
    /// same answer.
    ///
    /// # Errors
    /// They are for this caller alone, whoever else waits under the same number.
    /// [`RackError::Forbidden`]: the request belongs to another owner. [`RackError::BadRequest`]:
    /// it differs from the request made under this number before.
    pub fn handle_request(
        &mut self,
        now_ns: u64,
        owner: Owner,
        request: AllocationRequest,
    ) -> Result<(), RackError> {
        let client_id = request.client_id;
        self.check_owner_of_request(&owner, client_id)?;
        if self.repeat(now_ns, &request)? {
            return Ok(());
        }
        let granted = self.granted_before(&request)?;
        if self.is_answering(client_id) {
            return Ok(());
        }
        if let Some(grants) = granted {
            self.answer(client_id, Ok(grants));
            return Ok(());
        }
        let checked = match self.check_request(owner, request) {
            Ok(checked) => checked,
            Err(error) => {
                self.answer(client_id, Err(error));
                return Ok(());
            }
        };
        if let Err(error) = self.check_before_donors(&checked) {
            self.answer(client_id, Err(error));
        } else if checked.request.queueing.left_ms() > 0 {
            self.enter_queue(now_ns, checked);
        } else {
            self.call_off_rivals(client_id);
            let place = self.queue.place(checked.request.queueing.priority);
            self.begin(now_ns, checked, place, None);
        }
        Ok(())
    }

    /// Begins the handshake of a request.
    pub(super) fn begin(
        &mut self,
        now_ns: u64,
        checked: CheckedRequest,
        place: super::queue::Place,
        waiter: Option<Waiter>,
    ) {
        let client_id = checked.request.client_id;
        let deadline_ns = now_ns.saturating_add(self.settings.request_timeout_ns);
        let mut pending = PendingRequest::new(checked, place, deadline_ns);
        pending.waiter = waiter.map(Box::new);
        self.requests.insert(client_id, pending);
        self.advance(now_ns, client_id);
    }

    fn answer(&mut self, client_id: u128, result: Result<Vec<Grant>, RackError>) {
        self.actions.push_back(Action::ReplyRequest { client_id, result });
    }

    /// Handles the repetition of a request that is in its handshake, or queued; returns false if
    /// there is none.
    fn repeat(&mut self, now_ns: u64, request: &AllocationRequest) -> Result<bool, RackError> {
        let (before, waiter) = match self.requests.get_mut(&request.client_id) {
            Some(pending) => {
                (pending.checked.request.is_same(request), pending.waiter.as_deref_mut())
            }
            None => {
                let Some(waiter) = self.queue.of_client(request.client_id) else {
                    return Ok(false);
                };
                (waiter.checked.request.is_same(request), Some(waiter))
            }
        };
        if !before {
            return Err(another_request());
        }
        if let Some(waiter) = waiter {
            waiter.ask(now_ns, request.queueing);
        }
        Ok(true)
    }

    /// True if the answer to a request is on its way out.
    pub(super) fn is_answering(&self, asked: u128) -> bool {
        let is_it = |action: &Action| matches!(action, Action::ReplyRequest { client_id, .. } if *client_id == asked);
        self.actions.iter().any(is_it)
    }

    pub(super) fn check_owner_of_request(
        &self,
        owner: &Owner,
        client_id: u128,
    ) -> Result<(), RackError> {
        if self.owners_of_request(client_id).any(|other| other != owner) {
            let reason = "this request was made by somebody else: use another request number";
            return Err(RackError::Forbidden(reason.to_owned()));
        }
        Ok(())
    }

    /// Returns the owners of the request with this number, as far as they are known.
    fn owners_of_request(&self, client_id: u128) -> impl Iterator<Item = &Owner> {
        let asking = self.requests.get(&client_id).map(|pending| &pending.checked.owner);
        let asking = asking.or_else(|| self.queue.owner_of(client_id));
        let granted = self.rat.of_client(client_id).filter_map(|it| it.owner.as_ref());
        asking.into_iter().chain(granted)
    }

    /// Checks that the owner's node is no pool node: those lend, and none of their programs
    /// borrows, through whichever agent they come.
    pub(super) fn check_may_borrow(&self, owner: &Owner) -> Result<(), RackError> {
        let node = self.rrt.by_name(&owner.node);
        match node.is_some_and(|node| node.record.is_pool) {
            true => Err(RackError::Forbidden(format!(
                "{}: run this on another node, or start its agent without --pool",
                pool_text(&owner.node)
            ))),
            false => Ok(()),
        }
    }

    /// Checks a request, and resolves its names.
    pub(super) fn check_request(
        &self,
        owner: Owner,
        request: AllocationRequest,
    ) -> Result<CheckedRequest, RackError> {
        self.check_may_borrow(&owner)?;
        check_words(&owner, &request)?;
        check_wants(&request.wants)?;
        let named = self.nodes_named(&request.donors)?;
        self.check_home(&request.home)?;
        Ok(CheckedRequest { owner, request, named })
    }

    fn nodes_named(&self, donors: &[String]) -> Result<Option<BTreeSet<NodeId>>, RackError> {
        let mut named = BTreeSet::new();
        for name in donors {
            let node = self.rrt.by_name(name);
            let node = node.ok_or_else(|| RackError::UnknownNode(name.clone()))?;
            named.insert(node.record.identity.node);
        }
        match donors.first() {
            Some(name) if named.iter().all(|node| self.rrt.is_draining(*node)) => {
                Err(RackError::BadRequest(drained_text(name)))
            }
            Some(_) => Ok(Some(named)),
            None => Ok(None),
        }
    }

    fn check_home(&self, home: &str) -> Result<(), RackError> {
        if home.is_empty() {
            return Ok(());
        }
        let node = self.rrt.by_name(home);
        match node.ok_or_else(|| RackError::UnknownNode(home.to_owned()))?.record.is_pool {
            true => Err(RackError::BadRequest(pool_text(home))),
            false => Ok(()),
        }
    }

    /// Checks what needs no call to a donor.
    fn check_before_donors(&self, checked: &CheckedRequest) -> Result<(), RackError> {
        if self.has_doubtful(checked.request.client_id) {
            return Err(RackError::HandshakeFailed);
        }
        // A queued request may also wait for its user's quota.
        match checked.request.queueing.left_ms() > 0 {
            true => Ok(()),
            false => self.check_quota(checked),
        }
    }

    /// Returns the grants of a request that was answered before.
    ///
    /// # Errors
    /// [`RackError::BadRequest`]: another request was granted under this number, or a part of it is
    /// gone.
    pub(super) fn granted_before(
        &self,
        request: &AllocationRequest,
    ) -> Result<Option<Vec<Grant>>, RackError> {
        let is_granted = |grant: &&GrantRecord| grant.state == GrantState::Committed;
        let grants: Vec<_> = self.rat.of_client(request.client_id).filter(is_granted).collect();
        if grants.is_empty() {
            return Ok(None);
        }
        if grants.iter().any(|grant| !is_part_of(request, grant)) {
            return Err(another_request());
        }
        let held = |kind: ResourceKind| -> u64 {
            let shares = grants.iter().map(|grant| &grant.share);
            shares.filter(|share| share.kind == kind).map(|share| share.amount()).sum()
        };
        let is_whole = request.wants.iter().all(|it| held(it.kind) == request.amount_of(it.kind));
        if !is_whole || grants.iter().any(|grant| self.lost_since_ns(grant).is_some()) {
            let reason = "this request was granted before and part of that is gone: ask anew";
            return Err(RackError::BadRequest(reason.to_owned()));
        }
        Ok(Some(grants.iter().filter_map(|grant| self.grant_for_recipient(grant)).collect()))
    }

    /// Builds the grant sent to the recipient.
    pub(super) fn grant_for_recipient(&self, grant: &GrantRecord) -> Option<Grant> {
        let node = &self.rrt.get(grant.donor)?.record;
        // The secret belongs to the donor's present epoch; a grant of an earlier one is lost.
        let name = KeyName::Grant(grant.id);
        let seal_key = node.secret.map(|secret| self.keys.seal_key(&secret, name));
        Some(Grant {
            id: grant.id,
            donor: node.name.clone(),
            donor_node: grant.donor,
            donor_epoch: grant.donor_epoch,
            share: grant.share.clone(),
            key: grant.origin?.key,
            control_addr: node.control_addr.clone(),
            endpoints: Endpoint::of_memory(&node.udp_addr, seal_key, &node.shm_socket),
            lease_s: grant.lease_ms as f64 * 1e6 / NS_PER_S,
        })
    }

    /// Explains why the missing part of a request has no donors.
    pub(super) fn why_not_placed(&self, client_id: u128) -> RackError {
        if let Err(error) = self.check_quota_again(client_id) {
            return error;
        }
        let pending = &self.requests[&client_id];
        let search = self.device_search(pending);
        if let Err(shortage) = self.choose_devices(&search, pending.missing_devices()) {
            return self.no_device(&search, &shortage);
        }
        match pending.checked.memory() {
            Some(memory) if pending.missing_slabs() > 0 => self.why_no_memory(client_id, &memory),
            _ => RackError::HandshakeFailed,
        }
    }

    fn why_no_memory(&self, client_id: u128, memory: &WantedMemory) -> RackError {
        let pending = &self.requests[&client_id];
        let missing = pending.missing_slabs();
        let donors = self.available(client_id, memory, true);
        let is_room = room(donors.iter().copied()) >= u64::from(missing);
        if is_room && self.leaves_enough(&pending.checked, missing) {
            return match self.bandwidth(&pending.checked, memory) {
                Some(ways) if self.placed(client_id, memory, &donors).is_none() => {
                    self.no_bandwidth(memory, &ways, &donors)
                }
                _ => RackError::HandshakeFailed,
            };
        }
        let named = pending.checked.named.as_ref();
        let before = self.before_for_memory(pending.place, named);
        let waited_ms = pending.checked.request.queueing.waited_ms;
        let line = InLine { waited_ms, before, most_bytes: None };
        let asked_bytes = u64::from(memory.slabs) * SLAB_BYTES;
        let mut free = self.free_by_node(named);
        let kept = self.reserved_from(&pending.checked);
        subtract(&mut free, kept.saturating_mul(SLAB_BYTES));
        RackError::NoRoom { asked_bytes, free, line }
    }
}

/// True if the grant could be a part of the request.
fn is_part_of(request: &AllocationRequest, grant: &GrantRecord) -> bool {
    let is_for = |want: &Want| match want.kind.is_device() {
        true => grant.share.answers(want),
        false => grant.share.kind == want.kind,
    };
    request.wants.iter().any(is_for)
}

pub(super) fn another_request() -> RackError {
    let reason = "another request was made with this number: draw another number for it";
    RackError::BadRequest(reason.to_owned())
}

fn check_words(owner: &Owner, request: &AllocationRequest) -> Result<(), RackError> {
    let AllocationRequest { recipient, purpose, wants, .. } = request;
    let labels = [("recipient", recipient), ("purpose", purpose), ("user name", &owner.user)];
    if let Some((what, _)) = labels.into_iter().find(|(_, text)| !is_label(text)) {
        return bad(&format!("invalid {what}: expected {LABEL_RULE}"));
    }
    let mut names = wants.iter().flat_map(|want| &want.capabilities).chain([&owner.node]);
    match names.any(|name| name.len() > MAX_NAME_BYTES || !is_printable(name)) {
        true => bad(&format!(
            "a node or capability is longer than {MAX_NAME_BYTES} bytes, or has control characters"
        )),
        false => Ok(()),
    }
}

fn check_wants(wants: &[Want]) -> Result<(), RackError> {
    if wants.is_empty() || wants.len() > MAX_WANTS {
        return bad(&format!("a request has 1 to {MAX_WANTS} wants"));
    }
    if wants.iter().filter(|want| want.kind == ResourceKind::Memory).count() > 1 {
        return bad("a request wants memory once: add the sizes");
    }
    wants.iter().try_for_each(check_want)
}

fn check_want(want: &Want) -> Result<(), RackError> {
    let Want { kind, bytes, count, capabilities, bandwidth_bps } = want;
    let most = if kind.is_device() { MAX_PIECES } else { MAX_COPIES };
    match () {
        () if !kind.is_granted() => bad(&format!("{kind} is listed and not granted")),
        () if kind.is_divisible() && bytes.0 == 0 => {
            bad(&format!("a request for no {} at all", kind.spec().noun))
        }
        () if *kind == ResourceKind::Memory && bytes.0 > MOST_MEMORY_BYTES => {
            let most = ByteSize(MOST_MEMORY_BYTES);
            bad(&format!("a request is for at most {most} of memory, not {bytes}"))
        }
        () if *count == 0 || *count > most => bad(&format!(
            "a request is for 1 to {most} pieces of {}, not {count}",
            kind.spec().noun
        )),
        () if capabilities.len() > MAX_CAPABILITIES => {
            bad(&format!("a request names up to {MAX_CAPABILITIES} capabilities"))
        }
        () if !capabilities.is_empty() && !kind.is_device() => {
            bad("memory is requested without capabilities")
        }
        () if *bandwidth_bps > 0 && kind.is_device() => bad("bandwidth is promised to memory only"),
        () => Ok(()),
    }
}

fn bad<T>(reason: &str) -> Result<T, RackError> {
    Err(RackError::BadRequest(reason.to_owned()))
}

/// Subtracts `bytes` from the free memory of the nodes with most: memory reserved for others is not
/// free for this request.
fn subtract(free: &mut [(String, u64)], mut bytes: u64) {
    let mut by_size: Vec<&mut u64> = free.iter_mut().map(|(_, left)| left).collect();
    by_size.sort_by_key(|left| std::cmp::Reverse(**left));
    for left in by_size {
        let taken = bytes.min(*left);
        *left -= taken;
        bytes -= taken;
    }
}
