//! The Resource Allocation Table: who borrowed what of whom.

use crate::caller::Owner;
use crate::queueing::DEFAULT_PRIORITY;
use crate::types::DeviceShare;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::{GrantId, GrantKey, NodeId, SLAB_BYTES};

/// How far a grant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantState {
    /// Prepared at its donor; the commit is on its way. Its recipient does not know of it yet, unless it
    /// was lent at once ([`Origin::at_once`]).
    Committing,
    /// Lent.
    Committed,
    /// Given back; the donor has not said yet that it has it.
    Releasing,
}

/// A grant, as it outlives a restart of the Monitor Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantRecord {
    /// Its number.
    pub id: GrantId,
    /// The request it answers; `None` when it was learnt from its donor.
    pub origin: Option<Origin>,
    /// Whose it is, as a certificate has proved; `None`: it was granted before that was written
    /// down, or was learnt from a donor that did not know.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Who borrowed, in its own words.
    pub recipient: String,
    /// The node whose relay the recipient sends through, if it does.
    #[serde(default)]
    pub home: Option<NodeId>,
    /// What for.
    pub purpose: String,
    /// Its request's priority; the usual one where it was granted before there were any, or was
    /// learnt from a donor that was not told.
    #[serde(default = "usual_priority")]
    pub priority: u8,
    /// The donor.
    pub donor: NodeId,
    /// The donor's epoch; when the donor has another, the memory is gone.
    pub donor_epoch: u64,
    /// How many slabs; 0 of a device.
    pub slabs: u32,
    /// What was promised to it of the bandwidth of its way, in bits a second; 0: nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bandwidth_bps: u64,
    /// Which device; `None`: it is slabs.
    #[serde(default)]
    pub device: Option<DeviceShare>,
    /// Its lease in milliseconds.
    pub lease_ms: u64,
    /// When it was granted.
    pub granted_ns: u64,
    /// How far it is.
    pub state: GrantState,
    /// The donor's revision when it confirmed the grant: after a restart of the Monitor Node, an
    /// older report has nothing to say about it.
    pub confirmed_revision: u64,
}

fn usual_priority() -> u8 {
    DEFAULT_PRIORITY
}

/// The request a grant answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The client's number for it.
    pub client_id: u128,
    /// The grant's key.
    pub key: GrantKey,
    /// It is all that the request was for, and its donor was told to lend it at once: while it is
    /// [`GrantState::Committing`] its recipient may know of it already.
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_once: bool,
}

fn is_zero(it: &u64) -> bool {
    *it == 0
}

fn is_false(it: &bool) -> bool {
    !it
}

/// The grants, by number, by donor, by request and by user.
#[derive(Debug, Default)]
pub struct Rat {
    grants: BTreeMap<GrantId, GrantRecord>,
    by_donor: BTreeMap<NodeId, BTreeSet<GrantId>>,
    by_client: BTreeMap<u128, BTreeSet<GrantId>>,
    by_user: BTreeMap<String, BTreeSet<GrantId>>,
}

impl GrantRecord {
    /// How much it is.
    pub fn bytes(&self) -> u64 {
        match &self.device {
            Some(device) => device.bytes,
            None => u64::from(self.slabs) * SLAB_BYTES,
        }
    }
}

impl GrantRecord {
    /// Its donor was told to lend it at once, and what became of that is not recorded.
    pub fn is_lent_at_once(&self) -> bool {
        self.state == GrantState::Committing && self.origin.is_some_and(|origin| origin.at_once)
    }
}

impl Rat {
    /// The grant of this number.
    pub fn get(&self, id: GrantId) -> Option<&GrantRecord> {
        self.grants.get(&id)
    }

    /// Every grant, by number.
    pub fn iter(&self) -> impl Iterator<Item = &GrantRecord> {
        self.grants.values()
    }

    /// The grants of a donor, of any epoch.
    pub fn of_donor(&self, donor: NodeId) -> impl Iterator<Item = &GrantRecord> {
        self.listed(self.by_donor.get(&donor))
    }

    /// The grants that answer a request.
    pub fn of_client(&self, client_id: u128) -> impl Iterator<Item = &GrantRecord> {
        self.listed(self.by_client.get(&client_id))
    }

    /// The grants of a user, on whatever nodes.
    pub fn of_user(&self, user: &str) -> impl Iterator<Item = &GrantRecord> {
        self.listed(self.by_user.get(user))
    }

    /// The users who have grants.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.by_user.keys().map(|user| &**user)
    }

    fn listed<'a>(
        &'a self,
        ids: Option<&'a BTreeSet<GrantId>>,
    ) -> impl Iterator<Item = &'a GrantRecord> {
        ids.into_iter().flatten().map(|id| &self.grants[id])
    }

    /// Adds a grant or changes it; donor, request and owner of a grant never change.
    pub(crate) fn put(&mut self, grant: GrantRecord) {
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
