//! What users may have, checked against what the donors hold, whatever the Monitor Node believes.

use super::World;
use super::etcd::Question;
use crate::model::USERS;
use std::collections::BTreeMap;
use venice_rack::donor::DonorCore;
use venice_rack::monitor::Change;
use venice_rack::quota::{QuotaFor, QuotaRecord};
use venice_rack::rows::{QuotaRow, QuotaTable};
use venice_rack::types::{HeldState, Identity, PrepareRequest};
use venice_wire::{GrantId, NodeId, SLAB_BYTES};

/// Quotas by whom they are for, in slabs; `None`: unlimited.
type Limits = BTreeMap<QuotaFor, Option<u64>>;

/// What the world knows of quotas and of what counts.
#[derive(Default)]
pub(super) struct Ledger {
    /// Durable.
    stored: Limits,
    /// The most that any check of a recipient's request can have gone by.
    checked_by: BTreeMap<String, u64>,
    /// Shares that donors were asked for.
    asked: BTreeMap<GrantId, PrepareRequest>,
    /// Grants that donors were told to lend.
    counted: BTreeMap<GrantId, Counted>,
}

struct Counted {
    user: String,
    slabs: u64,
    donor: Identity,
    limit: u64,
    /// The donor has lent it.
    is_lent: bool,
}

impl Ledger {
    fn limit_of(&self, user: &str) -> u64 {
        let own = self.stored.get(&QuotaFor::User(user.to_owned()));
        own.or(self.stored.get(&QuotaFor::Others)).copied().flatten().unwrap_or(u64::MAX)
    }

    /// A recipient's request may be checked now, by what is durable or another limit.
    fn check(&mut self, recipient: &str, user: &str, other: u64) {
        let limit = self.limit_of(user).max(other);
        let most = self.checked_by.entry(recipient.to_owned()).or_default();
        *most = limit.max(*most);
    }

    pub(super) fn prepare(&mut self, request: &PrepareRequest) {
        self.asked.insert(request.grant, request.clone());
    }

    pub(super) fn commit(&mut self, donor: Identity, grant: GrantId) {
        // Devices count for no quota.
        let Some(request) = self.asked.get(&grant) else { return };
        let user = request.owner.clone().expect("it has an owner").user;
        let (slabs, limit) = (request.slabs.into(), self.checked_by[&request.recipient]);
        self.counted.insert(grant, Counted { user, slabs, donor, limit, is_lent: false });
    }

    /// Who is silent for so long may be dead, and is not asked any more.
    pub(super) fn node_down(&mut self, node: NodeId) {
        self.counted.retain(|_, counted| counted.donor.node != node);
    }

    pub(super) fn store(&mut self, change: &Change) {
        match change {
            Change::PutQuota(QuotaRecord { of, bytes }) => {
                self.stored.insert(of.clone(), bytes.map(|bytes| bytes / SLAB_BYTES));
            }
            Change::DeleteQuota(of) => drop(self.stored.remove(of)),
            _ => {}
        }
    }
}

impl World {
    pub(super) fn set_quota(&mut self, whose: usize, slabs: Option<u64>) {
        let of = quota_for(whose);
        if of == QuotaFor::Others && slabs.is_none() {
            return;
        }
        let bytes = slabs.map(|slabs| slabs * SLAB_BYTES);
        self.put(Question::SetQuota(QuotaRecord { of, bytes }));
    }

    pub(super) fn remove_quota(&mut self, whose: usize) {
        self.put(Question::RemoveQuota(quota_for(whose)));
    }

    /// What is asked for may be placed anew, and is checked by what is in force then at any of the
    /// Monitor Nodes.
    pub(super) fn note_limits(&mut self) {
        let tables: Vec<_> = self.monitors.iter().map(|it| it.core.quota_table()).collect();
        let limit_by = |table: &QuotaTable, user: &str| {
            let own = table.users.iter().find(|row| row.user == user && row.is_own);
            let bytes = own.map_or(table.default_bytes, |own| own.quota_bytes);
            bytes.map_or(u64::MAX, |bytes| bytes / SLAB_BYTES)
        };
        let asking = |id: &u128| self.recipients.get(usize::try_from(*id).ok()? - 1);
        let waiting = self.monitors.iter().flat_map(|monitor| monitor.requests.iter());
        for recipient in waiting.filter_map(asking) {
            let limits = tables.iter().map(|table| limit_by(table, &recipient.owner.user));
            let most = limits.max().unwrap_or(u64::MAX);
            self.ledger.check(&recipient.request.recipient, &recipient.owner.user, most);
        }
    }

    /// What the donors have lent to a user is never more than that user might have when the last of
    /// it was asked for.
    pub(super) fn check_quotas(&mut self) {
        let donors = &self.donors;
        let core_of = |donor: Identity| -> Option<&DonorCore> {
            let found = &donors[donor.node.0 as usize - 1];
            (found.alive && found.identity == Some(donor)).then_some(&found.core)
        };
        self.ledger.counted.retain(|grant, counted| {
            let Some(core) = core_of(counted.donor) else { return false };
            let is_lent = core.grant(*grant).is_some_and(|it| it.state == HeldState::Committed);
            let was_lent = std::mem::replace(&mut counted.is_lent, is_lent);
            is_lent || !was_lent
        });
        let mut users: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for counted in self.ledger.counted.values().filter(|counted| counted.is_lent) {
            let (slabs, limit) = users.entry(&counted.user).or_default();
            *slabs += counted.slabs;
            *limit = counted.limit.max(*limit);
        }
        for (user, (slabs, limit)) in users {
            assert!(slabs <= limit, "{user} has {slabs} slabs of a quota of {limit}");
        }
    }

    /// In peace the table has just what each user has and may have.
    pub(super) fn check_quota_table(&self) {
        let mut used_bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for recipient in &self.recipients {
            let held: u64 = recipient.held.iter().map(|grant| grant.bytes).sum();
            *used_bytes.entry(&recipient.owner.user).or_default() += held;
        }
        let recovered = self.recovered();
        let cores = self.monitors.iter().map(|monitor| &monitor.core).chain([&recovered]);
        for table in cores.map(|core| core.quota_table()) {
            for user in USERS {
                let of = QuotaFor::User(user.to_owned());
                let quota_bytes = Some(self.ledger.limit_of(user)).filter(|it| *it != u64::MAX);
                let expected = QuotaRow {
                    user: user.to_owned(),
                    used_bytes: used_bytes.get(user).copied().unwrap_or(0),
                    quota_bytes: quota_bytes.map(|slabs| slabs * SLAB_BYTES),
                    is_own: self.ledger.stored.contains_key(&of),
                };
                let row = table.users.iter().find(|row| row.user == user);
                let is_listed = expected.is_own || expected.used_bytes > 0;
                assert_eq!(row, is_listed.then_some(&expected));
            }
        }
    }
}

/// One of the users, or all others.
fn quota_for(whose: usize) -> QuotaFor {
    USERS.get(whose).map_or(QuotaFor::Others, |user| QuotaFor::User((*user).to_owned()))
}
