//! Image of all records in memory: transactions are checked against it, and reads are served from
//! it.

use super::log::Entry as LogEntry;
use crate::store::{
    Condition, Entry, Lease, Revision, Snapshot, Standing, StoreChange, Transaction,
};
use std::collections::BTreeMap;

/// The records after the last transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Image {
    pub(super) revision: Revision,
    pub(super) records: BTreeMap<String, StoredRecord>,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredRecord {
    pub(super) value: Vec<u8>,
    pub(super) changed_at: Revision,
    pub(super) lease: Option<Lease>,
}

impl Image {
    pub(super) fn snapshot(&self) -> Snapshot {
        let entries = self.records.iter().map(|(key, held)| held.entry(key)).collect();
        Snapshot { revision: self.revision, entries }
    }

    pub(super) fn all_hold(&self, conditions: &[Condition]) -> bool {
        conditions.iter().all(|condition| {
            let held = self.records.get(&condition.key);
            match condition.is {
                Standing::Absent => held.is_none(),
                Standing::AsAt(at) => held.is_some_and(|held| held.changed_at == at),
                Standing::EndsWith(lease) => held.is_some_and(|held| held.lease == Some(lease)),
            }
        })
    }

    /// Returns the records of the conditions that exist.
    pub(super) fn found(&self, conditions: &[Condition]) -> Vec<Entry> {
        let found = |condition: &Condition| {
            let (key, held) = self.records.get_key_value(&condition.key)?;
            Some(held.entry(key))
        };
        conditions.iter().filter_map(found).collect()
    }

    /// Returns the log entry of a transaction: its effective changes.
    pub(super) fn entry_of(&self, transaction: &Transaction) -> LogEntry {
        let changes = transaction.last_changes().into_iter();
        let changes = changes.filter(|it| it.value.is_some() || self.records.contains_key(&it.key));
        self.next(changes.cloned().collect())
    }

    /// Returns the log entry of the end of leases.
    pub(super) fn end_of_leases(&self, is_over: impl Fn(Lease) -> bool) -> LogEntry {
        let over = self.records.iter().filter(|(_, held)| held.lease.is_some_and(&is_over));
        self.next(over.map(|(key, _)| StoreChange::remove(key)).collect())
    }

    fn next(&self, changes: Vec<StoreChange>) -> LogEntry {
        LogEntry { revision: Revision(self.revision.0 + u64::from(!changes.is_empty())), changes }
    }

    pub(super) fn apply(&mut self, entry: LogEntry) {
        self.revision = entry.revision;
        for StoreChange { key, value, lease } in entry.changes {
            match value {
                Some(value) => {
                    drop(
                        self.records
                            .insert(key, StoredRecord { value, changed_at: self.revision, lease }),
                    );
                }
                None => drop(self.records.remove(&key)),
            }
        }
    }
}

impl StoredRecord {
    fn entry(&self, key: &str) -> Entry {
        Entry { key: key.to_owned(), value: self.value.clone(), changed_at: self.changed_at }
    }
}
