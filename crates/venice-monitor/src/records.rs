//! The core's records in the store: a line of JSON under a readable key.

use crate::error::MonitorError;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::spawn_blocking;
use venice_control::QuotaFor;
use venice_control::store::{RedbStore, Store, StoreChange};
use venice_rack::monitor::{Change, Record};
use venice_wire::GrantId;

/// The store, used from async code without blocking it.
pub(crate) struct RecordStore {
    store: Arc<Mutex<RedbStore>>,
}

impl RecordStore {
    /// Opens the file and reads what is in it.
    pub(crate) async fn open(path: PathBuf) -> Result<(Self, Vec<Record>), MonitorError> {
        let (store, entries) = spawn_blocking(move || {
            let store = RedbStore::open(&path)?;
            let entries = store.load()?;
            Ok::<_, MonitorError>((store, entries))
        })
        .await
        .map_err(MonitorError::Driver)??;
        let records = entries.into_iter().map(|(key, value)| {
            serde_json::from_slice(&value).map_err(|source| MonitorError::Record { key, source })
        });
        let records = records.collect::<Result<_, _>>()?;
        Ok((Self { store: Arc::new(Mutex::new(store)) }, records))
    }

    /// Makes the changes durable.
    pub(crate) async fn apply(&self, changes: Vec<Change>) -> Result<(), MonitorError> {
        let store = Arc::clone(&self.store);
        let changes: Vec<_> = changes.into_iter().map(store_change).collect();
        spawn_blocking(move || store.lock().unwrap_or_else(PoisonError::into_inner).apply(&changes))
            .await
            .map_err(MonitorError::Driver)?
            .map_err(MonitorError::Store)
    }
}

fn store_change(change: Change) -> StoreChange {
    let put = |key: String, record: Record| {
        let value = serde_json::to_vec(&record).expect("records are plain data");
        StoreChange { key, value: Some(value) }
    };
    match change {
        Change::PutNode(node) => {
            put(format!("node/{:010}", node.identity.node.0), Record::Node(node))
        }
        Change::PutGrant(grant) => put(grant_key(grant.id), Record::Grant(grant)),
        Change::DeleteGrant(id) => StoreChange { key: grant_key(id), value: None },
        Change::PutToken(token) => put(token_key(token.id), Record::Token(token)),
        Change::DeleteToken(id) => StoreChange { key: token_key(id), value: None },
        Change::PutRevocation(revocation) => {
            put(format!("revocation/{}", revocation.node), Record::Revocation(revocation))
        }
        Change::DeleteRevocation(node) => {
            StoreChange { key: format!("revocation/{node}"), value: None }
        }
        Change::PutCertificateLife(life_ms) => {
            put("certificate-life".to_owned(), Record::CertificateLife(life_ms))
        }
        Change::PutQuota(quota) => put(quota_key(&quota.of), Record::Quota(quota)),
        Change::DeleteQuota(of) => StoreChange { key: quota_key(&of), value: None },
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
        let old =
            OLD.map(|(key, value)| StoreChange { key: key.into(), value: Some(value.into()) });
        RedbStore::open(&path).unwrap().apply(&old).unwrap();
        let (_, records) = RecordStore::open(path).await.unwrap();
        match &records[..] {
            [Record::GrantLimit(257), Record::Grant(grant)] => {
                assert_eq!((grant.id, grant.slabs, &grant.owner), (GrantId(7), 3, &None));
            }
            other => panic!("{other:?}"),
        }
    }
}
