//! The core's records in the store: a line of JSON under a readable key.

use crate::error::MonitorError;
use crate::file_store::FileStore;
use crate::shared_store::SharedStore;
use venice_control::QuotaFor;
use venice_rack::monitor::{Change, Record, RecordKey};
use venice_store::{CHANGES_AT_ONCE, Entry, StoreChange};
use venice_wire::{GrantId, NodeId};

/// A transaction of the core leaves room for one more condition, that of the member's record.
const _: () = assert!(venice_rack::monitor::CHANGES_AT_ONCE < CHANGES_AT_ONCE);

/// The records, in one of the two kinds of store.
pub(crate) enum RecordStore {
    /// A file that only this Monitor Node uses.
    File(FileStore),
    /// etcd, which other Monitor Nodes use too.
    Shared(Box<SharedStore>),
}

/// The result of a transaction.
pub(crate) enum Applied {
    Made,
    /// A record was not as expected; nothing was changed. `news` has the changes of other Monitor
    /// Nodes received meanwhile.
    Conflict {
        failed: Vec<Change>,
        news: Vec<Change>,
    },
    /// The disk is full; nothing was changed.
    NoRoom {
        unmade: Vec<Change>,
        why: String,
    },
}

impl RecordStore {
    /// Makes the changes durable.
    pub(crate) async fn apply(&mut self, changes: Vec<Change>) -> Result<Applied, MonitorError> {
        match self {
            Self::File(file) => file.apply(changes).await,
            Self::Shared(shared) => shared.apply(changes).await,
        }
    }

    /// Waits for changes of other Monitor Nodes. Cancel-safe.
    pub(crate) async fn news(&mut self) -> Result<Vec<Change>, MonitorError> {
        match self {
            Self::File(_) => std::future::pending().await,
            Self::Shared(shared) => shared.news().await,
        }
    }

    pub(crate) fn shared(&self) -> Option<&SharedStore> {
        match self {
            Self::File(_) => None,
            Self::Shared(shared) => Some(shared),
        }
    }
}

pub(crate) fn record(entry: &Entry) -> Result<Record, MonitorError> {
    parse(&entry.key, &entry.value)
}

fn parse(key: &str, value: &[u8]) -> Result<Record, MonitorError> {
    serde_json::from_slice(value)
        .map_err(|source| MonitorError::Record { key: key.to_owned(), source })
}

pub(crate) fn store_change(change: Change) -> StoreChange {
    let key = key_text(&change.key());
    match change.into_record() {
        Some(record) => {
            let value = serde_json::to_vec(&record).expect("records are plain data");
            StoreChange::put(key, value)
        }
        None => StoreChange::remove(key),
    }
}

/// Decodes another Monitor Node's change; `None` for a removal that no Monitor Node makes.
pub(crate) fn change(change: &StoreChange) -> Result<Option<Change>, MonitorError> {
    match &change.value {
        Some(value) => Ok(Some(Change::from(parse(&change.key, value)?))),
        None => Ok(record_key(&change.key).and_then(Change::removal)),
    }
}

/// Returns the key as text. Numbers have leading zeros, so that keys sort by number.
pub(crate) fn key_text(key: &RecordKey) -> String {
    match key {
        RecordKey::Node(node) => format!("node/{:010}", node.0),
        RecordKey::Newcomer => "newcomer".to_owned(),
        RecordKey::Grant(id) => format!("grant/{:020}", id.0),
        RecordKey::GrantLimit => "grant-limit".to_owned(),
        RecordKey::LastRequest(user) => format!("last-request/{user}"),
        RecordKey::LastPromise => "last-promise".to_owned(),
        RecordKey::Token(id) => format!("token/{id:016x}"),
        RecordKey::Revocation(node) => format!("revocation/{node}"),
        RecordKey::CertificateLife => "certificate-life".to_owned(),
        RecordKey::Quota(QuotaFor::User(user)) => format!("quota/of/{user}"),
        RecordKey::Quota(QuotaFor::Others) => "quota/default".to_owned(),
    }
}

/// Parses a key; `None` if it is not a record's.
pub(crate) fn record_key(text: &str) -> Option<RecordKey> {
    let (kind, of) = text.split_once('/').unwrap_or((text, ""));
    Some(match kind {
        "node" => RecordKey::Node(NodeId(of.parse().ok()?)),
        "newcomer" => RecordKey::Newcomer,
        "grant" => RecordKey::Grant(GrantId(of.parse().ok()?)),
        "grant-limit" => RecordKey::GrantLimit,
        "last-request" => RecordKey::LastRequest(of.to_owned()),
        "last-promise" => RecordKey::LastPromise,
        "token" => RecordKey::Token(u64::from_str_radix(of, 16).ok()?),
        "revocation" => RecordKey::Revocation(of.to_owned()),
        "certificate-life" => RecordKey::CertificateLife,
        "quota" if of == "default" => RecordKey::Quota(QuotaFor::Others),
        "quota" => RecordKey::Quota(QuotaFor::User(of.strip_prefix("of/")?.to_owned())),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_control::{Limit, Limits, QuotaRecord};
    use venice_store::{RedbStore, Store, Transaction};

    /// Records as written by a Monitor Node without owners.
    const OLD: [(&str, &str); 2] = [
        (
            "grant/00000000000000000007",
            r#"{"Grant":{"id":7,"origin":{"client_id":5,"key":6},"recipient":"h/1","home":null,
                "purpose":"run","donor":1,"donor_epoch":2,"slabs":3,"lease_ms":10000,
                "granted_ns":4,"state":"committed","confirmed_revision":8}}"#,
        ),
        ("grant-limit", r#"{"GrantLimit":257}"#),
    ];

    #[test]
    fn record_keys_round_trip() {
        let user = |name: &str| QuotaFor::User(name.to_owned());
        let keys = [
            RecordKey::Node(NodeId(7)),
            RecordKey::Newcomer,
            RecordKey::Grant(GrantId(u64::MAX)),
            RecordKey::GrantLimit,
            RecordKey::LastRequest("a/b".to_owned()),
            RecordKey::LastPromise,
            RecordKey::Token(0xabc),
            RecordKey::Revocation("of/x/y".to_owned()),
            RecordKey::CertificateLife,
            RecordKey::Quota(QuotaFor::Others),
            RecordKey::Quota(user("default")),
            RecordKey::Quota(user("of/x")),
        ];
        for key in keys {
            let text = key_text(&key);
            assert_eq!(record_key(&text), Some(key), "{text}");
        }
        assert_eq!(record_key("monitor/1"), None);
    }

    #[tokio::test]
    async fn old_grants_without_owner_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rack.redb");
        let old = OLD.map(|(key, value)| StoreChange::put(key, value)).to_vec();
        RedbStore::open(&path).unwrap().commit(Transaction::of(old)).await.unwrap();
        let records = FileStore::at(path).records().await.unwrap();
        match &records[..] {
            [Record::GrantLimit(257), Record::Grant(grant)] => {
                assert_eq!((grant.id, grant.slabs, &grant.owner), (GrantId(7), 3, &None));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn old_quota_without_devices_round_trips() {
        let ada = || QuotaFor::User("ada".to_owned());
        let old = r#"{"Quota":{"of":{"User":"ada"},"bytes":9}}"#;
        let written = |limits| Record::Quota(QuotaRecord { of: ada(), limits });
        let record = parse("quota/of/ada", old.as_bytes()).unwrap();
        assert_eq!(record, written(Limits::of_memory(Some(9))));
        assert_eq!(serde_json::to_string(&record).unwrap(), old);
        let free = r#"{"Quota":{"of":{"User":"ada"},"bytes":null}}"#;
        let record = parse("quota/of/ada", free.as_bytes()).unwrap();
        assert_eq!(record, written(Limits::of_memory(None)));
        let nics = Some(Limit::AtMost(1));
        let record = written(Limits { nics, ..Limits::default() });
        let text = serde_json::to_vec(&record).unwrap();
        assert_eq!(parse("quota/of/ada", &text).unwrap(), record);
    }
}
