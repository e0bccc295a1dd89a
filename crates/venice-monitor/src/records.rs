//! The core's records in the store: a line of JSON under a readable key.

use crate::error::MonitorError;
use crate::file_store::FileStore;
use crate::migration::FORMAT_KEY;
use crate::owner_record::OWNER_KEY;
use crate::shared_store::SharedStore;
use crate::tenure::Tenure;
use venice_control::QuotaFor;
use venice_rack::monitor::{Change, Record, RecordKey, Sight};
use venice_rack::monitor_node::Written;
use venice_store::{CHANGES_AT_ONCE, Entry, Store as _, StoreChange};
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

impl RecordStore {
    /// Makes the changes durable if the conditions hold; a file has none.
    pub(crate) async fn apply(
        &mut self,
        conditions: &[Sight],
        changes: Vec<Change>,
    ) -> Result<Written, MonitorError> {
        match self {
            Self::File(file) => file.apply(changes).await,
            Self::Shared(shared) => shared.apply(conditions, changes).await,
        }
    }

    /// Returns keys and values of all records that a backup holds.
    pub(crate) async fn entries(&mut self) -> Result<Vec<(String, Vec<u8>)>, MonitorError> {
        let entries = match self {
            Self::File(file) => file.entries().await?,
            Self::Shared(shared) => shared.etcd().load().await?.entries,
        };
        Ok(kept(entries))
    }

    /// Waits for the changes of the next revision. Cancel-safe.
    pub(crate) async fn news(&mut self) -> Result<(u64, Vec<Change>), MonitorError> {
        match self {
            Self::File(_) => std::future::pending().await,
            Self::Shared(shared) => shared.news().await,
        }
    }

    pub(crate) fn tenure(&self) -> Tenure {
        self.shared().map_or_else(Tenure::for_ever, |it| it.member().tenure())
    }

    pub(crate) fn shared(&self) -> Option<&SharedStore> {
        match self {
            Self::File(_) => None,
            Self::Shared(shared) => Some(shared),
        }
    }
}

/// Returns the entries that outlive their Monitor Nodes, for a backup.
pub(crate) fn kept(entries: Vec<Entry>) -> Vec<(String, Vec<u8>)> {
    let entries = entries.into_iter().map(|Entry { key, value, .. }| (key, value));
    entries.filter(|(key, _)| is_mark(key) || record_key(key).is_some()).collect()
}

/// True for the records of the store itself: its rack and its format.
pub(crate) fn is_mark(key: &str) -> bool {
    key == OWNER_KEY || key == FORMAT_KEY
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
}
