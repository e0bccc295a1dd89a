//! Incoming requests for memory, and their answers.

use super::handshake::room;
use super::pending::PendingRequest;
use super::{Action, MonitorCore};
use crate::NS_PER_S;
use crate::caller::Owner;
use crate::queueing::InLine;
use crate::rat::{GrantRecord, GrantState};
use crate::types::{
    Grant, MAX_COPIES, MAX_NAME_BYTES, MemoryRequest, RackError, drained_text, pool_text,
};
use std::collections::BTreeSet;
use venice_wire::{KeyName, NodeId, SLAB_BYTES};

impl MonitorCore {
    /// Takes a request for memory of `owner`. Answered by [`Action::ReplyRequest`]; a repetition of
    /// a request in its handshake gets the same answer.
    ///
    /// # Errors
    /// [`RackError::Forbidden`]: the request belongs to another owner, whose answer this caller
    /// must not see.
    pub fn handle_request(
        &mut self,
        now_ns: u64,
        owner: Owner,
        request: MemoryRequest,
    ) -> Result<(), RackError> {
        let client_id = request.client_id;
        self.check_owner_of_request(&owner, client_id)?;
        if self.is_asked_for_device(client_id) {
            // This error is for this caller alone: others wait for the device under the same
            // number.
            let reason = "this request was made for a device: use another request number";
            return Err(RackError::BadRequest(reason.to_owned()));
        }
        if self.repeat_in_queue(now_ns, &request)
            || self.requests.contains_key(&client_id)
            || self.is_answering(client_id)
        {
            return Ok(());
        }
        let checked = self.check_request(&owner, &request);
        let answer = match &checked {
            Ok((slabs, _)) => self.answer_at_once(&owner, &request, *slabs),
            Err(error) => Some(Err(error.clone())),
        };
        match (answer, checked) {
            (Some(result), _) => {
                self.actions.push_back(Action::ReplyRequest { client_id, result });
            }
            (None, Ok(wanted)) if request.queueing.left_ms() > 0 => {
                self.enter_queue(now_ns, owner, request, wanted);
            }
            (None, Ok((slabs, named))) => {
                self.call_off_rivals(client_id);
                let place = self.queue.place(request.queueing.priority);
                let deadline_ns = now_ns.saturating_add(self.settings.request_timeout_ns);
                let pending = PendingRequest::new(owner, request, slabs, named, place, deadline_ns);
                self.requests.insert(client_id, pending);
                self.advance(now_ns, client_id);
            }
            (None, Err(_)) => unreachable!("an error is an answer"),
        }
        Ok(())
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
    pub(super) fn owners_of_request(&self, client_id: u128) -> impl Iterator<Item = &Owner> {
        let asking = self.requests.get(&client_id).map(|pending| &pending.owner);
        let asking = asking.or_else(|| self.queue.owner_of(client_id));
        let for_device = self.device_requests.get(&client_id).map(|pending| &pending.owner);
        asking
            .into_iter()
            .chain(for_device)
            .chain(self.rat.of_client(client_id).filter_map(|it| it.owner.as_ref()))
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

    pub(super) fn check_request(
        &self,
        owner: &Owner,
        request: &MemoryRequest,
    ) -> Result<(u32, Option<BTreeSet<NodeId>>), RackError> {
        let bad = |reason: &str| Err(RackError::BadRequest(reason.to_owned()));
        self.check_may_borrow(owner)?;
        if request.recipient.len() > MAX_NAME_BYTES || request.purpose.len() > MAX_NAME_BYTES {
            return bad("the recipient's name or purpose is too long");
        }
        if owner.user.len() > MAX_NAME_BYTES || owner.node.len() > MAX_NAME_BYTES {
            return bad("the user's name is too long");
        }
        if request.copies == 0 || request.copies > MAX_COPIES {
            return bad("a request is for one copy, or for up to eleven shares");
        }
        if request.bytes.0 == 0 {
            return bad("a request for no memory at all");
        }
        let mut named = BTreeSet::new();
        for name in &request.donors {
            let node =
                self.rrt.by_name(name).ok_or_else(|| RackError::UnknownNode(name.clone()))?;
            named.insert(node.record.identity.node);
        }
        if let Some(name) = request.donors.first()
            && named.iter().all(|node| self.rrt.is_draining(*node))
        {
            return bad(&drained_text(name));
        }
        if !request.home.is_empty() {
            let home = self.rrt.by_name(&request.home);
            let home = home.ok_or_else(|| RackError::UnknownNode(request.home.clone()))?;
            if home.record.is_pool {
                return bad(&pool_text(&request.home));
            }
        }
        let named = if request.donors.is_empty() { None } else { Some(named) };
        // Too many slabs to count exceed any donor's memory.
        let slabs = u32::try_from(request.bytes.0.div_ceil(SLAB_BYTES)).unwrap_or(u32::MAX);
        Ok((slabs, named))
    }

    /// Returns the answer to a valid request that needs no call to a donor: it was granted before,
    /// or exceeds its owner's quota.
    fn answer_at_once(
        &self,
        owner: &Owner,
        request: &MemoryRequest,
        slabs: u32,
    ) -> Option<Result<Vec<Grant>, RackError>> {
        if self.has_doubtful(request.client_id) {
            return Some(Err(RackError::HandshakeFailed));
        }
        let before = self.granted_before(request.client_id, slabs.saturating_mul(request.copies));
        // A queued request may also wait for its user's quota.
        if before.is_some() || request.queueing.left_ms() > 0 {
            return before;
        }
        before.or_else(|| {
            let all_slabs = u64::from(slabs) * u64::from(request.copies);
            self.check_quota(owner, all_slabs).err().map(Err)
        })
    }

    /// Returns the answer to a request that was answered before.
    pub(super) fn granted_before(
        &self,
        client_id: u128,
        slabs: u32,
    ) -> Option<Result<Vec<Grant>, RackError>> {
        let is_granted = |grant: &&GrantRecord| grant.state == GrantState::Committed;
        let grants: Vec<_> = self.rat.of_client(client_id).filter(is_granted).collect();
        if grants.is_empty() {
            return None;
        }
        let held: u32 = grants.iter().map(|grant| grant.slabs).sum();
        let lost = grants.iter().any(|grant| self.lost_since_ns(grant).is_some());
        if lost || held != slabs {
            let reason = "this request was granted before and part of that is gone: ask anew";
            return Some(Err(RackError::BadRequest(reason.to_owned())));
        }
        Some(Ok(grants.iter().filter_map(|grant| self.grant_for_recipient(grant)).collect()))
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
            bytes: grant.bytes(),
            device: grant.device.clone(),
            key: grant.origin?.key,
            control_addr: node.control_addr.clone(),
            udp_addr: node.udp_addr.clone(),
            shm_socket: node.shm_socket.clone(),
            seal_key,
            lease_s: grant.lease_ms as f64 * 1e6 / NS_PER_S,
        })
    }

    /// Explains why the missing part of a request has no donors.
    pub(super) fn why_not_placed(&self, client_id: u128, missing: u32) -> RackError {
        if let Err(error) = self.check_quota_again(client_id) {
            return error;
        }
        let pending = &self.requests[&client_id];
        let donors = self.available(client_id, true);
        let is_room = room(donors.iter().copied()) >= u64::from(missing);
        if is_room && self.leaves_enough_after(client_id, missing) {
            return match self.bandwidth_of(client_id) {
                Some(ways) if self.placed(client_id, missing, &donors).is_none() => {
                    self.no_bandwidth(&pending.request, &ways, &donors)
                }
                _ => RackError::HandshakeFailed,
            };
        }
        let named = pending.named.as_ref();
        let before = self.before(pending.place, named);
        let waited_ms = pending.request.queueing.waited_ms;
        let line = InLine { waited_ms, before, most_bytes: None };
        let asked_bytes = u64::from(pending.slabs) * SLAB_BYTES;
        let mut free = self.free_by_node(named);
        let kept = self.reserved_from(&pending.owner.user, &pending.request);
        subtract(&mut free, kept.saturating_mul(SLAB_BYTES));
        RackError::NoRoom { asked_bytes, free, line }
    }
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
