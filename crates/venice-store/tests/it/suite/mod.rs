//! Test suite for any store.

pub mod leases;
pub mod model;
pub mod transactions;
pub mod watching;

use venice_store::{
    Condition, Entry, Outcome, Revision, Snapshot, Store, StoreChange, Transaction,
};

/// Makes changes without conditions.
pub async fn change(store: &impl Store, changes: &[StoreChange]) -> Revision {
    match store.commit(Transaction::of(changes.to_vec())).await.unwrap() {
        Outcome::Committed(revision) => revision,
        Outcome::Conflict(found) => panic!("a conflict without a condition: {found:?}"),
    }
}

pub async fn change_if(
    store: &impl Store,
    conditions: &[Condition],
    changes: &[StoreChange],
) -> Outcome {
    let (conditions, changes) = (conditions.to_vec(), changes.to_vec());
    store.commit(Transaction { conditions, changes }).await.unwrap()
}

pub fn put(key: &str, value: &str) -> StoreChange {
    StoreChange::put(key, value)
}

pub fn texts(all: &Snapshot) -> Vec<(&str, &str)> {
    all.entries.iter().map(|entry| (entry.key.as_str(), value(entry))).collect()
}

pub fn value(entry: &Entry) -> &str {
    std::str::from_utf8(&entry.value).unwrap()
}
