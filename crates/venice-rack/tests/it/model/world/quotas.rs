//! Checks of quotas against the donors' grants, independent of the Monitor Node.

use super::etcd::PendingCall;
use super::{DEVICES, World};
use crate::model::USERS;
use std::collections::BTreeMap;
use venice_rack::donor::DonorCore;
use venice_rack::monitor::Change;
use venice_rack::quota::{Limit, Limits, QuotaFor, QuotaRecord};
use venice_rack::rows::{QuotaRow, QuotaTable};
use venice_rack::types::{Grant, HeldState, Identity, PrepareRequest, ResourceKind};
use venice_wire::{GrantId, NodeId, SLAB_BYTES};

/// The quotas and the amounts that count. Memory and storage count in bytes, other devices by
/// number.
#[derive(Default)]
pub(super) struct QuotaChecker {
    /// Durable quotas.
    stored: BTreeMap<QuotaFor, Limits>,
    /// The highest limit that any check of a recipient's request can have used.
    checked_by: BTreeMap<(String, ResourceKind), u64>,
    /// Prepares sent to donors.
    asked: BTreeMap<GrantId, PrepareRequest>,
    /// Grants that donors were told to lend.
    counted: BTreeMap<GrantId, Counted>,
}

struct Counted {
    user: String,
    kind: ResourceKind,
    amount: u64,
    donor: Identity,
    limit: u64,
    /// True once the donor has lent it.
    is_lent: bool,
    /// True once the store has it.
    is_recorded: bool,
}

impl QuotaChecker {
    fn limit_of(&self, user: &str, kind: ResourceKind) -> u64 {
        let limit_for = |of: &QuotaFor| self.stored.get(of).and_then(|limits| limits.of(kind));
        let limit =
            limit_for(&QuotaFor::User(user.to_owned())).or_else(|| limit_for(&QuotaFor::Others));
        limit.and_then(Limit::at_most).unwrap_or(u64::MAX)
    }

    /// Notes that a recipient's request may be checked now, against the durable or another limit.
    fn check(&mut self, (recipient, user): (&str, &str), kind: ResourceKind, other: u64) {
        let limit = self.limit_of(user, kind).max(other);
        let most = self.checked_by.entry((recipient.to_owned(), kind)).or_default();
        *most = limit.max(*most);
    }

    pub(super) fn prepare(&mut self, request: &PrepareRequest) {
        self.asked.insert(request.grant, request.clone());
    }

    pub(super) fn commit(&mut self, donor: Identity, grant: GrantId) {
        let Some(request) = self.asked.get(&grant) else { return };
        let user = request.owner.clone().expect("it has an owner").user;
        let (kind, amount) = (request.share.kind, request.share.amount());
        let limit = self.checked_by[&(request.recipient.clone(), kind)];
        let (is_lent, is_recorded) = (false, false);
        let counted = Counted { user, kind, amount, donor, limit, is_lent, is_recorded };
        self.counted.insert(grant, counted);
    }

    /// Drops the grants of a node that may be dead.
    pub(super) fn node_down(&mut self, node: NodeId) {
        self.counted.retain(|_, counted| counted.donor.node != node);
    }

    /// Drops grants without a record at a crash: no recipient has them.
    pub(super) fn crash(&mut self) {
        self.counted.retain(|_, counted| counted.is_recorded);
    }

    pub(super) fn store(&mut self, change: &Change) {
        match change {
            Change::PutQuota(QuotaRecord { of, limits }) => {
                self.stored.insert(of.clone(), limits.clone());
            }
            Change::DeleteQuota(of) => drop(self.stored.remove(of)),
            Change::PutGrant(record) => {
                if let Some(counted) = self.counted.get_mut(&record.id) {
                    counted.is_recorded = true;
                }
            }
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
        self.put(PendingCall::SetQuota(QuotaRecord { of, limits: Limits::of_memory(bytes) }));
    }

    pub(super) fn set_device_quota(&mut self, whose: usize, which: usize, most: Option<u64>) {
        let (kind, ..) = DEVICES[which];
        let unit = kind.spec().unit_bytes.max(1);
        let limit = most.map_or(Limit::Unlimited, |most| Limit::AtMost(most * unit));
        let limits = Limits::from_iter([(kind, limit)]);
        self.put(PendingCall::SetQuota(QuotaRecord { of: quota_for(whose), limits }));
    }

    pub(super) fn remove_quota(&mut self, whose: usize) {
        self.put(PendingCall::RemoveQuota(quota_for(whose)));
    }

    /// Notes all limits in force: a request may be re-placed, and is then checked by the limits of
    /// any of the Monitor Nodes.
    pub(super) fn note_limits(&mut self) {
        let tables: Vec<_> = self.monitors.iter().map(|it| it.core.quota_table()).collect();
        let waiting = self.monitors.iter().flat_map(|monitor| monitor.requests.iter());
        let asking: Vec<_> = waiting.flat_map(|id| self.asking(*id)).collect();
        for (recipient, user, kind) in asking {
            let limits = tables.iter().map(|table| limit_by(table, &user, kind));
            let most = limits.max().unwrap_or(u64::MAX);
            self.quotas.check((&recipient, &user), kind, most);
        }
    }

    /// Returns recipient, user and kinds of a request.
    fn asking(&self, client_id: u128) -> Vec<(String, String, ResourceKind)> {
        let recipient = &self.recipients[client_id as usize - 1];
        let name = || recipient.request.recipient.clone();
        let wants = recipient.request.wants.iter();
        wants.map(|want| (name(), recipient.owner.user.clone(), want.kind)).collect()
    }

    /// Checks that the donors have lent a user no more than its limit at the time of the last
    /// request.
    pub(super) fn check_quotas(&mut self) {
        let donors = &self.donors;
        let core_of = |donor: Identity| -> Option<&DonorCore> {
            let found = &donors[donor.node.0 as usize - 1];
            (found.alive && found.identity == Some(donor)).then_some(&found.core)
        };
        self.quotas.counted.retain(|grant, counted| {
            let Some(core) = core_of(counted.donor) else { return false };
            let is_lent = core.grant(*grant).is_some_and(|it| it.state == HeldState::Committed);
            let was_lent = std::mem::replace(&mut counted.is_lent, is_lent);
            is_lent || !was_lent
        });
        let mut users: BTreeMap<(&str, ResourceKind), (u64, u64)> = BTreeMap::new();
        for counted in self.quotas.counted.values().filter(|counted| counted.is_lent) {
            let (amount, limit) = users.entry((&counted.user, counted.kind)).or_default();
            *amount += counted.amount;
            *limit = counted.limit.max(*limit);
        }
        for ((user, kind), (amount, limit)) in users {
            assert!(amount <= limit, "{user} has {amount} of {kind}, of a quota of {limit}");
        }
    }

    /// Checks at quiescence that the table has the exact use and limit of each user.
    pub(super) fn check_quota_table(&self) {
        let mut used: BTreeMap<(&str, ResourceKind), u64> = BTreeMap::new();
        for recipient in &self.recipients {
            for Grant { share, .. } in &recipient.held {
                *used.entry((&recipient.owner.user, share.kind)).or_default() += share.amount();
            }
        }
        let recovered = self.recovered();
        let cores = self.monitors.iter().map(|monitor| &monitor.core).chain([&recovered]);
        for table in cores.map(|core| core.quota_table()) {
            for user in USERS {
                let of = QuotaFor::User(user.to_owned());
                let used = |kind| used.get(&(user, kind)).copied().unwrap_or(0);
                let quota = |kind| {
                    let limit = self.quotas.limit_of(user, kind);
                    (limit != u64::MAX).then_some((kind, limit))
                };
                let expected = QuotaRow {
                    user: user.to_owned(),
                    is_own: self.quotas.stored.contains_key(&of),
                    used: ResourceKind::granted().map(|kind| (kind, used(kind))).collect(),
                    quota: ResourceKind::granted().filter_map(quota).collect(),
                };
                let row = table.users.iter().find(|row| row.user == user);
                let is_listed = expected.is_own || expected.used.values().any(|used| *used > 0);
                assert_eq!(row, is_listed.then_some(&expected));
            }
        }
    }
}

/// Returns a user's limit of a kind by a Monitor Node's table.
fn limit_by(table: &QuotaTable, user: &str, kind: ResourceKind) -> u64 {
    let own = table.users.iter().find(|row| row.user == user);
    let limits = own.map_or(&table.default, |row| &row.quota);
    limits.get(&kind).copied().unwrap_or(u64::MAX)
}

/// Returns one of the users, or the default.
fn quota_for(whose: usize) -> QuotaFor {
    USERS.get(whose).map_or(QuotaFor::Others, |user| QuotaFor::User((*user).to_owned()))
}
