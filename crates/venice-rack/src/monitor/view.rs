//! The store's state, as a Monitor Node last saw it. Of several with one store, each makes its
//! changes on condition that the records are unchanged.

use super::{Change, Record};
use crate::quota::QuotaFor;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use venice_wire::{GrantId, NodeId};

/// The key of a record in the store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// A node.
    Node(NodeId),
    /// The node that was new last.
    Newcomer,
    /// A grant.
    Grant(GrantId),
    /// The limit of used grant numbers.
    GrantLimit,
    /// A user's last request.
    LastRequest(String),
    /// The last request that was promised bandwidth.
    LastPromise,
    /// A join token.
    Token(u64),
    /// A revoked node.
    Revocation(String),
    /// The longest lifetime of certificates.
    CertificateLife,
    /// A quota.
    Quota(QuotaFor),
}

impl Change {
    /// Returns the key of the record that it changes.
    pub fn key(&self) -> RecordKey {
        match self {
            Change::PutNode(node) => RecordKey::Node(node.identity.node),
            Change::PutNewcomer(_) => RecordKey::Newcomer,
            Change::PutGrant(grant) => RecordKey::Grant(grant.id),
            Change::DeleteGrant(id) | Change::TransferGrant(id) => RecordKey::Grant(*id),
            Change::PutGrantLimit(_) => RecordKey::GrantLimit,
            Change::PutLastRequest { user, .. } => RecordKey::LastRequest(user.clone()),
            Change::PutLastPromise { .. } => RecordKey::LastPromise,
            Change::PutToken(token) => RecordKey::Token(token.id),
            Change::DeleteToken(id) => RecordKey::Token(*id),
            Change::PutRevocation(revocation) => RecordKey::Revocation(revocation.node.clone()),
            Change::DeleteRevocation(node) => RecordKey::Revocation(node.clone()),
            Change::PutCertificateLife(_) => RecordKey::CertificateLife,
            Change::PutQuota(quota) => RecordKey::Quota(quota.of.clone()),
            Change::DeleteQuota(of) => RecordKey::Quota(of.clone()),
        }
    }

    /// Returns the record afterwards; `None`: there is none.
    pub fn into_record(self) -> Option<Record> {
        Some(match self {
            Change::PutNode(node) => Record::Node(node),
            Change::PutNewcomer(node) => Record::Newcomer(node),
            Change::PutGrant(grant) => Record::Grant(grant),
            Change::PutGrantLimit(limit) => Record::GrantLimit(limit),
            Change::PutLastRequest { user, client_id } => Record::LastRequest { user, client_id },
            Change::PutLastPromise { client_id } => Record::LastPromise { client_id },
            Change::PutToken(token) => Record::Token(token),
            Change::PutRevocation(revocation) => Record::Revocation(revocation),
            Change::PutCertificateLife(life_ms) => Record::CertificateLife(life_ms),
            Change::PutQuota(quota) => Record::Quota(quota),
            Change::DeleteGrant(_)
            | Change::TransferGrant(_)
            | Change::DeleteToken(_)
            | Change::DeleteRevocation(_)
            | Change::DeleteQuota(_) => return None,
        })
    }

    /// Returns the removal of a record; `None`: it is never removed.
    pub fn removal(key: RecordKey) -> Option<Self> {
        match key {
            RecordKey::Grant(id) => Some(Change::DeleteGrant(id)),
            RecordKey::Token(id) => Some(Change::DeleteToken(id)),
            RecordKey::Revocation(node) => Some(Change::DeleteRevocation(node)),
            RecordKey::Quota(of) => Some(Change::DeleteQuota(of)),
            RecordKey::Node(_)
            | RecordKey::Newcomer
            | RecordKey::GrantLimit
            | RecordKey::LastRequest(_)
            | RecordKey::LastPromise
            | RecordKey::CertificateLife => None,
        }
    }

    /// True if the change holds whoever makes it. The end of a grant is final: its donor has
    /// confirmed it, or is dead. All other changes depend on the records before.
    fn is_certain(&self) -> bool {
        matches!(self, Change::DeleteGrant(_))
    }
}

impl Record {
    /// Returns its key.
    pub fn key(&self) -> RecordKey {
        Change::from(self.clone()).key()
    }
}

impl From<Record> for Change {
    fn from(record: Record) -> Self {
        match record {
            Record::Node(node) => Change::PutNode(node),
            Record::Newcomer(node) => Change::PutNewcomer(node),
            Record::Grant(grant) => Change::PutGrant(grant),
            Record::GrantLimit(limit) => Change::PutGrantLimit(limit),
            Record::LastRequest { user, client_id } => Change::PutLastRequest { user, client_id },
            Record::LastPromise { client_id } => Change::PutLastPromise { client_id },
            Record::Token(token) => Change::PutToken(token),
            Record::Revocation(revocation) => Change::PutRevocation(revocation),
            Record::CertificateLife(life_ms) => Change::PutCertificateLife(life_ms),
            Record::Quota(quota) => Change::PutQuota(quota),
        }
    }
}

/// The store's state, as last seen. Revisions are the store's.
#[derive(Debug, Default)]
pub struct View {
    seen: BTreeMap<RecordKey, Seen>,
    /// Records removed by this Monitor Node, with the revision, until all before it is seen.
    removed: VecDeque<(u64, RecordKey)>,
}

#[derive(Debug)]
struct Seen {
    revision: u64,
    record: Option<Record>,
}

/// A record's key and the revision of its last change; `None`: it is not there.
pub type Sight = (RecordKey, Option<u64>);

impl View {
    /// Creates a view of all records of one moment, with the revisions of their last change.
    pub fn new(all: impl IntoIterator<Item = (u64, Record)>) -> Self {
        let seen = |(revision, record): (u64, Record)| {
            (record.key(), Seen { revision, record: Some(record) })
        };
        Self { seen: all.into_iter().map(seen).collect(), removed: VecDeque::new() }
    }

    /// Returns the conditions for making these changes together.
    pub fn conditions(&self, changes: &[Change]) -> Vec<Sight> {
        let last: BTreeMap<RecordKey, &Change> =
            changes.iter().map(|change| (change.key(), change)).collect();
        let uncertain = last.into_iter().filter(|(_, change)| !change.is_certain());
        uncertain.map(|(key, _)| (key.clone(), self.revision(&key))).collect()
    }

    /// Returns the revision of the last change, as far as is known; `None`: it is not there.
    pub fn revision(&self, key: &RecordKey) -> Option<u64> {
        let seen = self.seen.get(key)?;
        seen.record.as_ref().map(|_| seen.revision)
    }

    /// Returns the record.
    pub fn get(&self, key: &RecordKey) -> Option<&Record> {
        self.seen.get(key)?.record.as_ref()
    }

    /// Applies this Monitor Node's own changes, made at that revision.
    pub fn made(&mut self, revision: u64, changes: Vec<Change>) {
        for change in changes {
            let key = change.key();
            let record = change.into_record();
            if record.is_none() {
                self.removed.push_back((revision, key.clone()));
            }
            self.seen.insert(key, Seen { revision, record });
        }
    }

    /// Applies changes made at that revision, by any Monitor Node, in the order of revisions.
    /// Returns those that are new.
    pub fn learn(&mut self, revision: u64, changes: Vec<Change>) -> Vec<Change> {
        let mut news = Vec::new();
        for change in changes {
            let key = change.key();
            if self.seen.get(&key).is_some_and(|seen| seen.revision >= revision) {
                continue;
            }
            match change.clone().into_record() {
                Some(record) => {
                    self.seen.insert(key, Seen { revision, record: Some(record) });
                }
                None => drop(self.seen.remove(&key)),
            }
            news.push(change);
        }
        while self.removed.front().is_some_and(|(at, _)| *at <= revision) {
            let Some((_, key)) = self.removed.pop_front() else { break };
            if self.seen.get(&key).is_some_and(|seen| seen.record.is_none()) {
                self.seen.remove(&key);
            }
        }
        news
    }

    /// True if all of these sights that were stale against `found` have been updated since.
    pub fn has_moved_on(&self, sights: &[Sight], found: &BTreeMap<RecordKey, u64>) -> bool {
        let were_wrong = sights.iter().filter(|(key, at)| found.get(key) != at.as_ref());
        let keys: BTreeSet<_> = were_wrong.collect();
        keys.into_iter().all(|(key, at)| self.revision(key) != *at)
    }
}
