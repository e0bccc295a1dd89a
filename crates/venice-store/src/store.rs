//! What a store does, whatever it is made of.

use crate::error::StoreError;
use crate::watch::Watch;
use std::future::Future;
use std::time::Duration;

/// Most changes and most conditions of one transaction. etcd's own limit is 128 where its members
/// are not told otherwise (`--max-txn-ops`); a Monitor Node with many donors writes more at one go.
pub const CHANGES_AT_ONCE: usize = 1024;

/// How often the store has changed: grows with every transaction that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Revision(pub u64);

/// A lease's number in its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease(pub i64);

/// A lease's time in whole seconds, rounded up: at least one.
pub(crate) fn lease_s(time_to_live: Duration) -> u64 {
    let whole_s = time_to_live.as_secs() + u64::from(time_to_live.subsec_nanos() > 0);
    whole_s.max(1)
}

/// A record as it is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// When it was changed last.
    pub changed_at: Revision,
}

/// All records at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// That moment.
    pub revision: Revision,
    /// The records, in the order of their keys.
    pub entries: Vec<Entry>,
}

/// One change of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreChange {
    /// The record's key.
    pub key: String,
    /// Its new value; `None` removes the record.
    pub value: Option<Vec<u8>>,
    /// The lease that the record ends with; `None`: it stays.
    pub lease: Option<Lease>,
}

impl StoreChange {
    /// A record that stays until it is removed.
    pub fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), value: Some(value.into()), lease: None }
    }

    /// A record that ends with a lease.
    pub fn put_leased(key: impl Into<String>, value: impl Into<Vec<u8>>, lease: Lease) -> Self {
        Self { lease: Some(lease), ..Self::put(key, value) }
    }

    /// No record.
    pub fn remove(key: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, lease: None }
    }
}

/// What must hold for a transaction to change anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The record's key.
    pub key: String,
    /// How the record has to be.
    pub is: Standing,
}

/// How a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is not there.
    Absent,
    /// Nobody has changed it since.
    AsAt(Revision),
    /// It is there, whatever it says, and ends with this lease.
    EndsWith(Lease),
}

impl Condition {
    /// The record is not there.
    pub fn is_absent(key: impl Into<String>) -> Self {
        Self { key: key.into(), is: Standing::Absent }
    }

    /// Nobody has changed the record since.
    pub fn is_as_at(key: impl Into<String>, changed_at: Revision) -> Self {
        Self { key: key.into(), is: Standing::AsAt(changed_at) }
    }

    /// The record is there, and ends with this lease. A store that was begun anew counts revisions
    /// from the beginning, and another record may be at the same; a lease is never granted twice.
    pub fn ends_with(key: impl Into<String>, lease: Lease) -> Self {
        Self { key: key.into(), is: Standing::EndsWith(lease) }
    }
}

/// Changes that are made together, if all conditions hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// All of them have to hold; with none it is made in any case.
    pub conditions: Vec<Condition>,
    /// In order: of several of one record the last counts.
    pub changes: Vec<StoreChange>,
}

impl Transaction {
    /// Changes without conditions.
    pub fn of(changes: Vec<StoreChange>) -> Self {
        Self { conditions: Vec::new(), changes }
    }

    /// The changes that count: one of each record.
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

/// What became of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Made, and durable: it outlives a crash of the process and of the machine. The store's revision
    /// with it: the `changed_at` of every record that it put.
    Committed(Revision),
    /// A condition did not hold, and nothing was changed. Those of the conditions' records that are
    /// there, as they are.
    Conflict(Vec<Entry>),
}

/// Records by key, durable. A clone is the same store.
///
/// All calls may wait for a disk or a network; those that fail may be called again. A call that is
/// dropped before it has ended may have had its effect or not.
pub trait Store: Clone + Send + Sync + 'static {
    /// Every record.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    fn load(&self) -> impl Future<Output = Result<Snapshot, StoreError>> + Send;

    /// Makes a transaction: all of it or nothing, and once, also where a connection broke over it.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] beyond [`CHANGES_AT_ONCE`], [`StoreError::LeaseOver`] when a lease of
    /// the changes is no more, others when the store cannot be written: of [`StoreError::Unreachable`]
    /// alone it is not known whether the transaction was made.
    fn commit(
        &self,
        transaction: Transaction,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send;

    /// What is changed after `after`, one [`crate::Batch`] for each transaction, this process's own among
    /// them.
    fn watch(&self, after: Revision) -> Watch;

    /// A lease that ends when nobody keeps it alive for so long: at least a second, rounded up to
    /// whole ones; a store may give more.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be written.
    fn grant_lease(
        &self,
        time_to_live: Duration,
    ) -> impl Future<Output = Result<Lease, StoreError>> + Send;

    /// The lease's time begins anew.
    ///
    /// # Errors
    /// [`StoreError::LeaseOver`] when it is no more.
    fn keep_alive(&self, lease: Lease) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a lease, and its records. One that is over already is no error.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be written.
    fn end_lease(&self, lease: Lease) -> impl Future<Output = Result<(), StoreError>> + Send;
}
