//! Operations of a store, independent of its back end.

use crate::error::StoreError;
use crate::watch::Watch;
use std::future::Future;
use std::time::Duration;

/// Most changes and most conditions of one transaction. etcd's default limit is 128
/// (`--max-txn-ops`); a Monitor Node with many donors writes more at once.
pub const CHANGES_AT_ONCE: usize = 1024;

/// Revision of a store: grows with every transaction that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Revision(pub u64);

/// Number of a lease in its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease(pub i64);

/// Returns a lease's time in whole seconds, rounded up: at least one.
pub(crate) fn lease_s(time_to_live: Duration) -> u64 {
    let whole_s = time_to_live.as_secs() + u64::from(time_to_live.subsec_nanos() > 0);
    whole_s.max(1)
}

/// A record in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// Revision of its last change.
    pub changed_at: Revision,
}

/// All records at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Revision of that moment.
    pub revision: Revision,
    /// The records, in the order of their keys.
    pub entries: Vec<Entry>,
}

/// One change of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreChange {
    /// The record's key.
    pub key: String,
    /// New value; `None` removes the record.
    pub value: Option<Vec<u8>>,
    /// Lease that the record ends with; `None`: it stays.
    pub lease: Option<Lease>,
}

impl StoreChange {
    /// Returns the change that writes a record that stays until it is removed.
    pub fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), value: Some(value.into()), lease: None }
    }

    /// Returns the change that writes a record that ends with a lease.
    pub fn put_leased(key: impl Into<String>, value: impl Into<Vec<u8>>, lease: Lease) -> Self {
        Self { lease: Some(lease), ..Self::put(key, value) }
    }

    /// Returns the change that removes a record.
    pub fn remove(key: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, lease: None }
    }
}

/// Condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The record's key.
    pub key: String,
    /// Required state of the record.
    pub is: Standing,
}

/// State of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The record is absent.
    Absent,
    /// The record is unchanged since this revision.
    AsAt(Revision),
    /// The record exists, with any value, and ends with this lease.
    EndsWith(Lease),
}

impl Condition {
    /// Requires that the record is absent.
    pub fn is_absent(key: impl Into<String>) -> Self {
        Self { key: key.into(), is: Standing::Absent }
    }

    /// Requires that the record is unchanged since `changed_at`.
    pub fn is_as_at(key: impl Into<String>, changed_at: Revision) -> Self {
        Self { key: key.into(), is: Standing::AsAt(changed_at) }
    }

    /// Requires that the record exists and ends with this lease. A new store counts revisions from
    /// the beginning, and another record may have the same one; a lease is never granted twice.
    pub fn ends_with(key: impl Into<String>, lease: Lease) -> Self {
        Self { key: key.into(), is: Standing::EndsWith(lease) }
    }
}

/// Changes that are made together, if all conditions hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// Conditions, all of which must hold; without any the transaction is made in any case.
    pub conditions: Vec<Condition>,
    /// Changes in order: of several of one record the last counts.
    pub changes: Vec<StoreChange>,
}

impl Transaction {
    /// Returns a transaction without conditions.
    pub fn of(changes: Vec<StoreChange>) -> Self {
        Self { conditions: Vec::new(), changes }
    }

    /// Returns the effective changes: one for each record.
    pub(crate) fn last_changes(&self) -> Vec<&StoreChange> {
        let mut seen = std::collections::BTreeSet::new();
        let mut last: Vec<_> =
            self.changes.iter().rev().filter(|change| seen.insert(&change.key)).collect();
        last.reverse();
        last
    }

    pub(crate) fn check_length(&self) -> Result<(), StoreError> {
        let length = self.changes.len().max(self.conditions.len());
        if length > CHANGES_AT_ONCE {
            return Err(StoreError::TooLarge { length });
        }
        Ok(())
    }
}

/// Result of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Made, and durable: it outlives a crash of the process and of the machine. Contains the
    /// store's revision with it: the `changed_at` of every record that it wrote.
    Committed(Revision),
    /// A condition did not hold, and nothing was changed. Contains the records of the conditions
    /// that exist, as they are.
    Conflict(Vec<Entry>),
}

/// Durable records by key. A clone is the same store.
///
/// All calls may wait for a disk or a network; failed ones may be repeated. A call that is dropped
/// before its end may have had its effect or not.
pub trait Store: Clone + Send + Sync + 'static {
    /// Returns every record.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    fn load(&self) -> impl Future<Output = Result<Snapshot, StoreError>> + Send;

    /// Makes a transaction: all of it or nothing, and once, also if a connection broke over it.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] beyond [`CHANGES_AT_ONCE`]; [`StoreError::LeaseOver`] if a lease of
    /// the changes is over; others if the store cannot be written. Only after
    /// [`StoreError::Unreachable`] is it unknown whether the transaction was made.
    fn commit(
        &self,
        transaction: Transaction,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send;

    /// Watches the changes after `after`: one [`crate::Batch`] for each transaction, this process's
    /// own included.
    fn watch(&self, after: Revision) -> Watch;

    /// Grants a lease that ends unless it is kept alive within `time_to_live`: at least a second,
    /// rounded up to whole ones; a store may give more.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be written.
    fn grant_lease(
        &self,
        time_to_live: Duration,
    ) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// Restarts the lease's time.
    ///
    /// # Errors
    /// [`StoreError::LeaseOver`] if it is over.
    fn keep_alive(&self, lease: Lease) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a lease, and its records. One that is over already is not an error.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be written.
    fn end_lease(&self, lease: Lease) -> impl Future<Output = Result<(), StoreError>> + Send;
}
