//! Checks of a transfer: who may, and what.

use super::MonitorCore;
use crate::caller::{Owner, User};
use crate::rat::{GrantRecord, GrantState};
use crate::resource::{MAX_DEVICE_GRANTS_OF_USER, ResourceKind};
use crate::transfer::{MAX_CLAIM_MS, MAX_TRANSFER_GRANTS, TransferRequest};
use crate::types::{MAX_NAME_BYTES, RackError};
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::GrantId;

impl MonitorCore {
    /// Checks a transfer by the present tables; called before the prepares, and again before the
    /// record.
    pub(super) fn check_transfer(
        &self,
        by: &User,
        request: &TransferRequest,
    ) -> Result<(), RackError> {
        check_form(request)?;
        self.check_new_owner(by, &request.to)?;
        let grants: Vec<&GrantRecord> =
            request.grants.iter().map(|id| self.transferable(by, *id)).collect::<Result<_, _>>()?;
        if grants.iter().any(|grant| grant.owner != grants[0].owner) {
            return bad("the grants have several owners: transfer those of each by themselves");
        }
        if grants[0].owner.as_ref() == Some(&request.to) {
            return bad(&format!("the grants are {}'s already", request.to));
        }
        self.check_sets(&grants)?;
        self.check_quota_ever_of(&request.to, &grants)
    }

    /// Checks that the new owner's node exists. Users of the Monitor Node's own machine need no
    /// agent there.
    fn check_new_owner(&self, by: &User, to: &Owner) -> Result<(), RackError> {
        let Some(node) = self.rrt.by_name(&to.node) else {
            let has_owner =
                |it: &GrantRecord| it.owner.as_ref().is_some_and(|it| it.node == to.node);
            return match by.node == to.node || self.rat.iter().any(has_owner) {
                true => Ok(()),
                false => Err(RackError::UnknownNode(to.node.clone())),
            };
        };
        match node.record.is_revoked {
            true => bad(&format!("{} is revoked: its users own nothing", to.node)),
            false => self.check_may_borrow(to),
        }
    }

    fn transferable(&self, by: &User, id: GrantId) -> Result<&GrantRecord, RackError> {
        let Some(grant) = self.rat.get(id) else {
            return bad(&format!("there is no grant {id}: `venice grants` shows those there are"));
        };
        let is_owner = grant.owner.as_ref().is_some_and(|it| it.is(by));
        if !is_owner && !by.is_admin {
            if grant.owner.as_ref().is_some_and(|owner| owner.is_bound) {
                return Err(RackError::Forbidden(format!(
                    "grant {id} is of a swap device, where pages of any program may lie: only root on \
                     the Monitor Node's machine may transfer it"
                )));
            }
            let owner = grant.owner.as_ref().map_or("nobody".to_owned(), Owner::to_string);
            return Err(RackError::Forbidden(format!(
                "grant {id} is {owner}'s: only its owner, or root on the Monitor Node's machine, may \
                 transfer it"
            )));
        }
        let why = match grant.state {
            _ if self.lost_since_ns(grant).is_some() => "is lost: its donor is dead",
            GrantState::Committing => "is being granted: try again",
            GrantState::Releasing => "is being released",
            GrantState::Transferring => "is being transferred to its owner: try again",
            GrantState::Committed if self.is_being_transferred(id) => {
                "is being transferred already"
            }
            GrantState::Committed if self.preempted_in_s(0, id).is_some() => {
                "is preempted for a request of higher priority: release it"
            }
            GrantState::Committed => return Ok(grant),
        };
        bad(&format!("grant {id} {why}"))
    }

    /// Checks that memory requested together goes together: copies and fragments are of no use by
    /// themselves.
    fn check_sets(&self, grants: &[&GrantRecord]) -> Result<(), RackError> {
        let ids: BTreeSet<GrantId> = grants.iter().map(|grant| grant.id).collect();
        let requests = grants.iter().filter(|grant| grant.share.kind == ResourceKind::Memory);
        let requests: BTreeSet<u128> =
            requests.filter_map(|grant| grant.origin).map(|origin| origin.client_id).collect();
        for client_id in requests {
            let is_left = |it: &&GrantRecord| {
                it.share.kind == ResourceKind::Memory
                    && it.state != GrantState::Releasing
                    && self.lost_since_ns(it).is_none()
                    && !ids.contains(&it.id)
            };
            let left = self.rat.of_client(client_id).filter(is_left);
            let left: Vec<String> = left.map(|grant| grant.id.0.to_string()).collect();
            if !left.is_empty() {
                return bad(&format!(
                    "memory that was requested together is transferred together: name also {}",
                    left.join(" ")
                ));
            }
        }
        Ok(())
    }

    /// Checks that the grants alone do not exceed a quota of the new owner, who could never claim
    /// them. What else it has is checked at the claim.
    fn check_quota_ever_of(&self, to: &Owner, grants: &[&GrantRecord]) -> Result<(), RackError> {
        amounts_new_to(to, grants)
            .into_iter()
            .try_for_each(|(kind, amount)| self.check_quota_of(&to.user, kind, amount, 0))
    }

    /// Checks that grants may be charged to their new owner.
    pub(super) fn check_charge(
        &self,
        to: &Owner,
        grants: &[&GrantRecord],
    ) -> Result<(), RackError> {
        let is_new = |it: &&&GrantRecord| it.share.device().is_some() && it.charged() != Some(to);
        let (devices, held) = (grants.iter().filter(is_new).count(), self.devices_charged_to(to));
        if devices > 0 && held + devices > MAX_DEVICE_GRANTS_OF_USER {
            return Err(RackError::NoDevice(format!(
                "{to} may have {MAX_DEVICE_GRANTS_OF_USER} grants of devices at a time and has {held}"
            )));
        }
        amounts_new_to(to, grants).into_iter().try_for_each(|(kind, amount)| {
            self.check_quota_of(&to.user, kind, amount, self.used_of(&to.user, kind))
        })
    }
}

/// Returns the amounts, by kind, of the grants that are not charged to this user. Equal names mean
/// one user.
fn amounts_new_to(to: &Owner, grants: &[&GrantRecord]) -> BTreeMap<ResourceKind, u64> {
    let is_new = |it: &&&GrantRecord| it.charged().map(|it| &it.user) != Some(&to.user);
    let mut amounts: BTreeMap<ResourceKind, u64> = BTreeMap::new();
    for grant in grants.iter().filter(is_new) {
        let amount = amounts.entry(grant.share.kind).or_default();
        *amount = amount.saturating_add(grant.share.amount());
    }
    amounts
}

fn check_form(request: &TransferRequest) -> Result<(), RackError> {
    let TransferRequest { grants, to, claim_ms, .. } = request;
    let is_name = |name: &str| {
        !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(char::is_control)
    };
    let distinct: BTreeSet<_> = grants.iter().collect();
    match () {
        () if grants.is_empty() || grants.len() > MAX_TRANSFER_GRANTS => {
            bad(&format!("a transfer is of 1 to {MAX_TRANSFER_GRANTS} grants"))
        }
        () if distinct.len() < grants.len() => bad("a grant is named twice"),
        () if !is_name(&to.user) || !is_name(&to.node) => bad(&format!(
            "a user's and a node's name have 1 to {MAX_NAME_BYTES} printable characters"
        )),
        () if *claim_ms > MAX_CLAIM_MS => {
            bad(&format!("a new owner has up to {} s to claim", MAX_CLAIM_MS / 1000))
        }
        () => Ok(()),
    }
}

fn bad<T>(reason: &str) -> Result<T, RackError> {
    Err(RackError::BadRequest(reason.to_owned()))
}
