//! The core's records in the store: a line of JSON under a readable key.

use crate::error::MonitorError;
use crate::turn::{SERVING_KEY, Turn};
use std::path::PathBuf;
use tokio::task::spawn_blocking;
use venice_control::QuotaFor;
use venice_rack::monitor::{Change, Record};
use venice_store::{
    CHANGES_AT_ONCE, Condition, EtcdStore, Outcome, RedbStore, Snapshot, Store, StoreChange,
    Transaction,
};
use venice_wire::GrantId;

/// The core never has more changes made as one.
const _: () = assert!(venice_rack::monitor::CHANGES_AT_ONCE <= CHANGES_AT_ONCE);

/// The records, in one of the stores.
pub(crate) enum RecordStore {
    /// A file that nobody else has.
    File(RedbStore),
    /// etcd, where others may write as soon as our turn is over.
    Shared {
        store: EtcdStore,
        /// It is still our turn.
        our_turn: Condition,
    },
}

impl RecordStore {
    /// Opens the file and reads what is in it.
    pub(crate) async fn open(path: PathBuf) -> Result<(Self, Vec<Record>), MonitorError> {
        let store = spawn_blocking(move || RedbStore::open(&path)).await;
        let store = store.map_err(MonitorError::Driver)??;
        let records = records(store.load().await?)?;
        Ok((Self::File(store), records))
    }

    /// Reads what those before us have left.
    pub(crate) async fn take_over(turn: &Turn) -> Result<(Self, Vec<Record>), MonitorError> {
        let store = turn.store().clone();
        let records = records(store.load().await?)?;
        Ok((Self::Shared { store, our_turn: turn.condition() }, records))
    }

    /// Makes the changes durable.
    pub(crate) async fn apply(&self, changes: Vec<Change>) -> Result<(), MonitorError> {
        let changes = changes.into_iter().map(store_change).collect();
        let outcome = match self {
            Self::File(store) => store.commit(Transaction::of(changes)).await?,
            Self::Shared { store, our_turn } => {
                let conditions = vec![our_turn.clone()];
                store.commit(Transaction { conditions, changes }).await?
            }
        };
        match outcome {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict(_) => Err(MonitorError::TurnOver),
        }
    }
}

fn records(all: Snapshot) -> Result<Vec<Record>, MonitorError> {
    let of_tables = all.entries.into_iter().filter(|entry| entry.key != SERVING_KEY);
    let record = |entry: venice_store::Entry| {
        let key = entry.key;
        serde_json::from_slice(&entry.value).map_err(|source| MonitorError::Record { key, source })
    };
    of_tables.map(record).collect()
}

fn store_change(change: Change) -> StoreChange {
    let put = |key: String, record: Record| {
        let value = serde_json::to_vec(&record).expect("records are plain data");
        StoreChange::put(key, value)
    };
    match change {
        Change::PutNode(node) => {
            put(format!("node/{:010}", node.identity.node.0), Record::Node(node))
        }
        Change::PutGrant(grant) => put(grant_key(grant.id), Record::Grant(grant)),
        Change::DeleteGrant(id) => StoreChange::remove(grant_key(id)),
        Change::PutToken(token) => put(token_key(token.id), Record::Token(token)),
        Change::DeleteToken(id) => StoreChange::remove(token_key(id)),
        Change::PutRevocation(revocation) => {
            put(format!("revocation/{}", revocation.node), Record::Revocation(revocation))
        }
        Change::DeleteRevocation(node) => StoreChange::remove(format!("revocation/{node}")),
        Change::PutCertificateLife(life_ms) => {
            put("certificate-life".to_owned(), Record::CertificateLife(life_ms))
        }
        Change::PutQuota(quota) => put(quota_key(&quota.of), Record::Quota(quota)),
        Change::DeleteQuota(of) => StoreChange::remove(quota_key(&of)),
        Change::PutGrantLimit(limit) => put("grant-limit".to_owned(), Record::GrantLimit(limit)),
    }
}

/// With leading zeros, so that the order of keys is that of numbers.
fn grant_key(id: GrantId) -> String {
    format!("grant/{:020}", id.0)
}

fn quota_key(of: &QuotaFor) -> String {
    match of {
        QuotaFor::User(user) => format!("quota/of/{user}"),
        QuotaFor::Others => "quota/default".to_owned(),
    }
}

fn token_key(id: u64) -> String {
    format!("token/{id:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a Monitor Node wrote them that did not know owners.
    const OLD: [(&str, &str); 2] = [
        (
            "grant/00000000000000000007",
            r#"{"Grant":{"id":7,"origin":{"client_id":5,"key":6},"recipient":"h/1","home":null,
                "purpose":"run","donor":1,"donor_epoch":2,"slabs":3,"lease_ms":10000,
                "granted_ns":4,"state":"committed","confirmed_revision":8}}"#,
        ),
        ("grant-limit", r#"{"GrantLimit":257}"#),
    ];

    #[tokio::test]
    async fn a_store_from_before_owners_opens_and_its_grants_are_nobodys() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rack.redb");
        let old = OLD.map(|(key, value)| StoreChange::put(key, value)).to_vec();
        RedbStore::open(&path).unwrap().commit(Transaction::of(old)).await.unwrap();
        let (_, records) = RecordStore::open(path).await.unwrap();
        match &records[..] {
            [Record::GrantLimit(257), Record::Grant(grant)] => {
                assert_eq!((grant.id, grant.slabs, &grant.owner), (GrantId(7), 3, &None));
            }
            other => panic!("{other:?}"),
        }
    }
}
