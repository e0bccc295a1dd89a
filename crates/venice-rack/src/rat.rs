//! The Resource Allocation Table: all grants, with donor and recipient.

use crate::caller::Owner;
use crate::queueing::DEFAULT_PRIORITY;
use crate::transfer::FIRST_OWNERSHIP;
use crate::types::{Identity, Share};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::{GrantId, GrantKey, NodeId};

/// The progress of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantState {
    /// Prepared at its donor; the commit is on its way. The recipient has no answer yet, unless the
    /// grant was lent in one call ([`Origin::at_once`]).
    Committing,
    /// Lent.
    Committed,
    /// Transferred from another owner; its donor has not confirmed that yet, and may still answer
    /// the predecessor.
    Transferring,
    /// Returned by the recipient; the donor has not confirmed that yet.
    Releasing,
}

/// A grant, as it survives a restart of the Monitor Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantRecord {
    /// Its number.
    pub id: GrantId,
    /// The request it answers; `None` for a grant adopted from a donor's report.
    pub origin: Option<Origin>,
    /// The owner, as proved by a certificate; `None` for grants from before owners were recorded,
    /// or adopted from a donor without that information.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// The recipient's own description of itself.
    pub recipient: String,
    /// The node whose relay the recipient sends through, if any.
    #[serde(default)]
    pub home: Option<NodeId>,
    /// The purpose, in words for users.
    pub purpose: String,
    /// The priority of its request; the default for grants from before priorities, or adopted from
    /// a donor without that information.
    #[serde(default = "default_priority")]
    pub priority: u8,
    /// The donor.
    pub donor: NodeId,
    /// The donor's epoch; at any other epoch of the donor the memory is gone.
    pub donor_epoch: u64,
    /// The share it holds.
    pub share: Share,
    /// Bandwidth promised to it, in bits a second; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bandwidth_bps: u64,
    /// The lease in milliseconds.
    pub lease_ms: u64,
    /// Time of the grant, in nanoseconds.
    pub granted_ns: u64,
    /// The progress.
    pub state: GrantState,
    /// The donor's revision when it confirmed the grant. After a restart of the Monitor Node, an
    /// older report of the donor says nothing about the grant.
    pub confirmed_revision: u64,
    /// The ownership epoch: 1 for the first owner, and one more for each that followed.
    #[serde(default = "first_ownership", skip_serializing_if = "is_first")]
    pub ownership: u64,
    /// The grant it was transferred from, which is over; `None`: it was not transferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<GrantId>,
    /// Milliseconds that its new owner has before its first renewal, while it is
    /// [`GrantState::Transferring`]; else 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub claim_ms: u64,
    /// The former owner, which is charged for it until the new one claims it; `None`: its owner is
    /// charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged: Option<Owner>,
}

fn first_ownership() -> u64 {
    FIRST_OWNERSHIP
}

fn is_first(ownership: &u64) -> bool {
    *ownership == FIRST_OWNERSHIP
}

fn default_priority() -> u8 {
    DEFAULT_PRIORITY
}

/// The request a grant answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The client's number for the request.
    pub client_id: u128,
    /// The grant's key.
    pub key: GrantKey,
    /// True if the grant is the whole answer and its donor lends it in one call: the recipient may
    /// have it already while it is [`GrantState::Committing`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_once: bool,
}

fn is_zero(it: &u64) -> bool {
    *it == 0
}

fn is_false(it: &bool) -> bool {
    !it
}

/// The grants, by number, donor, request, user and charged user.
#[derive(Debug, Default)]
pub struct Rat {
    grants: BTreeMap<GrantId, GrantRecord>,
    by_donor: BTreeMap<NodeId, BTreeSet<GrantId>>,
    by_client: BTreeMap<u128, BTreeSet<GrantId>>,
    by_user: BTreeMap<String, BTreeSet<GrantId>>,
    by_charged: BTreeMap<String, BTreeSet<GrantId>>,
}

impl GrantRecord {
    /// Returns the agent that lends it: at any other epoch of the donor it is gone.
    pub fn lender(&self) -> Identity {
        Identity { node: self.donor, epoch: self.donor_epoch }
    }

    /// Returns the owner that is charged for it.
    pub fn charged(&self) -> Option<&Owner> {
        self.charged.as_ref().or(self.owner.as_ref())
    }

    /// True if its donor was told to lend it in one call whose outcome is not recorded.
    pub fn is_lent_at_once(&self) -> bool {
        self.state == GrantState::Committing && self.origin.is_some_and(|origin| origin.at_once)
    }
}

impl Rat {
    /// Returns the grant of this number.
    pub fn get(&self, id: GrantId) -> Option<&GrantRecord> {
        self.grants.get(&id)
    }

    /// Iterates over all grants, by number.
    pub fn iter(&self) -> impl Iterator<Item = &GrantRecord> {
        self.grants.values()
    }

    /// Iterates over the grants of a donor, of any epoch.
    pub fn of_donor(&self, donor: NodeId) -> impl Iterator<Item = &GrantRecord> {
        self.listed(self.by_donor.get(&donor))
    }

    /// Iterates over the grants of a request.
    pub fn of_client(&self, client_id: u128) -> impl Iterator<Item = &GrantRecord> {
        self.listed(self.by_client.get(&client_id))
    }

    /// Iterates over the grants of a user, on all nodes.
    pub fn of_user(&self, user: &str) -> impl Iterator<Item = &GrantRecord> {
        self.listed(self.by_user.get(user))
    }

    /// Iterates over the grants that a user is charged for, on all nodes.
    pub fn charged_to(&self, user: &str) -> impl Iterator<Item = &GrantRecord> {
        self.listed(self.by_charged.get(user))
    }

    /// Iterates over the users that are charged for grants.
    pub fn charged_users(&self) -> impl Iterator<Item = &str> {
        self.by_charged.keys().map(|user| &**user)
    }

    fn listed<'a>(
        &'a self,
        ids: Option<&'a BTreeSet<GrantId>>,
    ) -> impl Iterator<Item = &'a GrantRecord> {
        ids.into_iter().flatten().map(|id| &self.grants[id])
    }

    /// Adds or changes a grant. Its donor, request and owner never change; the charged owner does.
    pub(crate) fn put(&mut self, grant: GrantRecord) {
        if let Some(before) = self.grants.get(&grant.id)
            && before.charged() != grant.charged()
            && let Some(owner) = before.charged()
        {
            forget(&mut self.by_charged, owner.user.clone(), grant.id);
        }
        if let Some(owner) = grant.charged() {
            self.by_charged.entry(owner.user.clone()).or_default().insert(grant.id);
        }
        self.by_donor.entry(grant.donor).or_default().insert(grant.id);
        if let Some(origin) = grant.origin {
            self.by_client.entry(origin.client_id).or_default().insert(grant.id);
        }
        if let Some(owner) = &grant.owner {
            self.by_user.entry(owner.user.clone()).or_default().insert(grant.id);
        }
        self.grants.insert(grant.id, grant);
    }

    pub(crate) fn remove(&mut self, id: GrantId) -> Option<GrantRecord> {
        let grant = self.grants.remove(&id)?;
        forget(&mut self.by_donor, grant.donor, id);
        if let Some(origin) = grant.origin {
            forget(&mut self.by_client, origin.client_id, id);
        }
        if let Some(owner) = &grant.owner {
            forget(&mut self.by_user, owner.user.clone(), id);
        }
        if let Some(owner) = grant.charged() {
            forget(&mut self.by_charged, owner.user.clone(), id);
        }
        Some(grant)
    }
}

fn forget<K: Ord>(index: &mut BTreeMap<K, BTreeSet<GrantId>>, key: K, id: GrantId) {
    if let Some(ids) = index.get_mut(&key) {
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(&key);
        }
    }
}
