//! The format of the store's records, and their conversion from the format of an earlier release.
//!
//! The record [`FORMAT_KEY`] has the number of the format; a store without it has format 1. A
//! Monitor Node converts an older store once, when it opens it. Each record is converted by itself,
//! and a converted one is left alone, so a conversion that was cut off goes on at the next start.

use crate::error::MonitorError;
use crate::owner_record::OWNER_KEY;
use crate::peers::MEMBER_PREFIX;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use venice_store::{
    CHANGES_AT_ONCE, Condition, Entry, Outcome, Store, StoreChange, StoreError, Transaction,
};
use venice_wire::SLAB_BYTES;

/// The key of the record with the format's number.
pub(crate) const FORMAT_KEY: &str = "format";
/// The format that this release reads and writes. 1: grants have slabs or a device, quotas a field
/// per kind. 2: grants have a share, quotas their limits by kind.
const FORMAT: u32 = 2;

/// Converts the records of an earlier format.
///
/// # Errors
/// [`MonitorError::NewerFormat`]; [`MonitorError::OtherFormat`] if a Monitor Node of an earlier
/// release serves from this store; [`MonitorError::Unreadable`]; those of the store.
pub(crate) async fn migrate(store: &impl Store) -> Result<(), MonitorError> {
    let entries = store.load().await?.entries;
    let format = entries.iter().find(|entry| entry.key == FORMAT_KEY);
    match format.map_or(Ok(1), format_of)? {
        FORMAT => return Ok(()),
        found @ ..FORMAT => check_alone(&entries, found)?,
        found => return Err(MonitorError::NewerFormat { found, known: FORMAT }),
    }
    let mut changed = Vec::new();
    for entry in &entries {
        if let Some(value) = converted(entry)? {
            changed.push((entry, value));
        }
    }
    if !changed.is_empty() {
        tracing::info!(records = changed.len(), format = FORMAT, "converting the store");
    }
    for some in changed.chunks(CHANGES_AT_ONCE) {
        let unchanged = |(entry, _): &(&Entry, String)| {
            Condition::is_as_at(entry.key.clone(), entry.changed_at)
        };
        let conditions = some.iter().map(unchanged).collect();
        let put =
            |(entry, value): &(&Entry, String)| StoreChange::put(entry.key.clone(), value.clone());
        commit(store, Transaction { conditions, changes: some.iter().map(put).collect() }).await?;
    }
    let number = StoreChange::put(FORMAT_KEY, FORMAT.to_string());
    match commit(store, Transaction::of(vec![number])).await {
        // Nothing was converted: the next start marks it.
        Err(MonitorError::Store(error @ StoreError::Full { .. })) if changed.is_empty() => {
            tracing::warn!(%error, "the store is not marked with its format yet");
            Ok(())
        }
        done => done,
    }
}

/// Checks that this release can read a store of the format of this number.
///
/// # Errors
/// [`MonitorError::NewerFormat`]; [`MonitorError::Unreadable`].
pub(crate) fn check_format(number: &[u8]) -> Result<(), MonitorError> {
    match parse_format(number)? {
        ..=FORMAT => Ok(()),
        found => Err(MonitorError::NewerFormat { found, known: FORMAT }),
    }
}

async fn commit(store: &impl Store, transaction: Transaction) -> Result<(), MonitorError> {
    match store.commit(transaction).await? {
        Outcome::Committed(_) => Ok(()),
        Outcome::Conflict(found) => {
            let key = found.into_iter().next().map(|entry| entry.key).unwrap_or_default();
            Err(MonitorError::Meddled { key })
        }
    }
}

fn format_of(entry: &Entry) -> Result<u32, MonitorError> {
    parse_format(&entry.value)
}

fn parse_format(value: &[u8]) -> Result<u32, MonitorError> {
    let text = String::from_utf8_lossy(value);
    text.parse().map_err(|_| MonitorError::Unreadable {
        key: FORMAT_KEY.to_owned(),
        why: format!("{text:?} is not a number"),
    })
}

/// Checks that no Monitor Node serves by the earlier format.
fn check_alone(entries: &[Entry], found: u32) -> Result<(), MonitorError> {
    let mut members = entries.iter().filter(|entry| entry.key != OWNER_KEY);
    let member = members.find(|entry| entry.key.starts_with(MEMBER_PREFIX));
    member.map_or(Ok(()), |entry| {
        let record: Option<Value> = serde_json::from_slice(&entry.value).ok();
        let addr = record.and_then(|it| it["addr"].as_str().map(str::to_owned));
        let addr = addr.unwrap_or_else(|| entry.key.clone());
        Err(MonitorError::OtherFormat { addr, found, known: FORMAT })
    })
}

/// Returns a record in the present format; `None`: it has that already.
pub(crate) fn converted(entry: &Entry) -> Result<Option<String>, MonitorError> {
    if entry.key == OWNER_KEY || entry.key.starts_with(MEMBER_PREFIX) {
        return Ok(None);
    }
    let failed = |source| MonitorError::Record { key: entry.key.clone(), source };
    let value: &RawValue = serde_json::from_slice(&entry.value).map_err(failed)?;
    let Ok(outer) = serde_json::from_str::<Fields>(value.get()) else { return Ok(None) };
    for (kind, convert) in [("Grant", convert_grant as fn(_) -> _), ("Quota", convert_quota)] {
        let Some(record) = outer.get(kind) else { continue };
        let fields: Fields = serde_json::from_str(record.get()).map_err(failed)?;
        let record = convert(fields).map_err(failed)?;
        return Ok(record.map(|record| json(&BTreeMap::from([(kind, record)]))));
    }
    Ok(None)
}

/// A record's fields as they are written: a [`serde_json::Value`] would round numbers of more than
/// 64 bits, as client ids are.
type Fields = BTreeMap<String, Box<RawValue>>;

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("maps with names as keys are JSON")
}

fn raw(value: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("maps with names as keys are JSON")
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

fn convert_grant(mut fields: Fields) -> Result<Option<Fields>, serde_json::Error> {
    let Some(slabs) = fields.remove("slabs") else { return Ok(None) };
    let share = match fields.remove("device").filter(|device| !is_null(device)) {
        Some(device) => device,
        None => {
            let slabs: u64 = serde_json::from_str(slabs.get())?;
            let bytes = slabs.saturating_mul(SLAB_BYTES);
            raw(&json!({ "kind": "memory", "bytes": bytes }))
        }
    };
    fields.insert("share".to_owned(), share);
    Ok(Some(fields))
}

fn convert_quota(mut fields: Fields) -> Result<Option<Fields>, serde_json::Error> {
    let Some(bytes) = fields.remove("bytes") else { return Ok(None) };
    let mut limits = Fields::new();
    if fields.remove("no_memory").is_none_or(|it| it.get() != "true") {
        let limit = match is_null(&bytes) {
            true => raw(&"unlimited"),
            false => raw(&BTreeMap::from([("at_most", bytes)])),
        };
        limits.insert("memory".to_owned(), limit);
    }
    let kinds = [("accelerators", "accelerator"), ("nics", "nic"), ("storage_bytes", "storage")];
    for (field, kind) in kinds {
        limits.extend(fields.remove(field).map(|limit| (kind.to_owned(), limit)));
    }
    fields.insert("limits".to_owned(), raw(&limits));
    Ok(Some(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::record;
    use venice_control::{Limit, Limits, QuotaFor, ResourceKind, Share};
    use venice_rack::monitor::Record;
    use venice_store::RedbStore;
    use venice_wire::GrantId;

    /// Records of format 1: without an owner, of a device, and quotas. The client id is the largest.
    const OLD: [(&str, &str); 6] = [
        (
            "grant/00000000000000000007",
            r#"{"Grant":{"id":7,"origin":{"client_id":340282366920938463463374607431768211455,"key":6},"recipient":"h/1","home":null,
                "purpose":"run","donor":1,"donor_epoch":2,"slabs":3,"lease_ms":10000,
                "granted_ns":4,"state":"committed","confirmed_revision":8}}"#,
        ),
        (
            "grant/00000000000000000008",
            r#"{"Grant":{"id":8,"origin":null,"owner":{"node":"n","user":"ada"},"recipient":"h/1",
                "home":null,"purpose":"run","priority":90,"donor":1,"donor_epoch":2,"slabs":0,
                "device":{"kind":"storage","address":"/srv","bytes":1048576,
                "capabilities":["ssd"]},"lease_ms":10000,"granted_ns":4,"state":"committed",
                "confirmed_revision":8}}"#,
        ),
        ("grant-limit", r#"{"GrantLimit":257}"#),
        ("quota/default", r#"{"Quota":{"of":"Others","bytes":9}}"#),
        ("quota/of/ada", r#"{"Quota":{"of":{"User":"ada"},"bytes":null}}"#),
        (
            "quota/of/bob",
            r#"{"Quota":{"of":{"User":"bob"},"bytes":null,"no_memory":true,
                "accelerators":{"at_most":2},"storage_bytes":"unlimited"}}"#,
        ),
    ];

    async fn store_with(records: &[(&str, &str)]) -> (tempfile::TempDir, RedbStore) {
        let directory = tempfile::tempdir().unwrap();
        let store = RedbStore::open(&directory.path().join("rack.redb")).unwrap();
        let records = records.iter().map(|(key, value)| StoreChange::put(*key, *value));
        store.commit(Transaction::of(records.collect())).await.unwrap();
        (directory, store)
    }

    async fn records_of(store: &RedbStore) -> Vec<Record> {
        let entries = store.load().await.unwrap().entries.into_iter();
        let entries = entries.filter(|entry| entry.key != FORMAT_KEY);
        entries.map(|entry| record(&entry).unwrap()).collect()
    }

    #[tokio::test]
    async fn old_records_are_converted_once() {
        let (_directory, store) = store_with(&OLD).await;
        migrate(&store).await.unwrap();
        let records = records_of(&store).await;
        let shares = records.iter().filter_map(|record| match record {
            Record::Grant(grant) => Some((grant.id, grant.share.clone())),
            _ => None,
        });
        let storage = Share {
            kind: ResourceKind::Storage,
            address: "/srv".to_owned(),
            bytes: 1 << 20,
            capabilities: vec!["ssd".to_owned()],
        };
        let origin = records.iter().find_map(|record| match record {
            Record::Grant(grant) => grant.origin,
            _ => None,
        });
        assert_eq!(origin.map(|origin| origin.client_id), Some(u128::MAX));
        assert!(shares.eq([(GrantId(7), Share::of_slabs(3)), (GrantId(8), storage)]));
        let quotas = records.iter().filter_map(|record| match record {
            Record::Quota(quota) => Some((quota.of.clone(), quota.limits.clone())),
            _ => None,
        });
        let user = |name: &str| QuotaFor::User(name.to_owned());
        let bob = [
            (ResourceKind::Accelerator, Limit::AtMost(2)),
            (ResourceKind::Storage, Limit::Unlimited),
        ];
        assert!(quotas.eq([
            (QuotaFor::Others, Limits::of_memory(Some(9))),
            (user("ada"), Limits::of_memory(None)),
            (user("bob"), Limits::from_iter(bob)),
        ]));
        let before = store.load().await.unwrap();
        migrate(&store).await.unwrap();
        assert_eq!(store.load().await.unwrap(), before, "the second time changes nothing");
    }

    #[tokio::test]
    async fn interrupted_conversion_goes_on() {
        let (_directory, store) = store_with(&OLD).await;
        migrate(&store).await.unwrap();
        let converted = records_of(&store).await;
        // As if only a part had been converted.
        let some = OLD.iter().take(3).map(|(key, value)| StoreChange::put(*key, *value));
        let some = some.chain([StoreChange::remove(FORMAT_KEY)]).collect();
        store.commit(Transaction::of(some)).await.unwrap();
        migrate(&store).await.unwrap();
        assert_eq!(records_of(&store).await, converted);
    }

    #[tokio::test]
    async fn newer_store_is_refused() {
        let (_directory, store) = store_with(&[(FORMAT_KEY, "3")]).await;
        let error = migrate(&store).await.unwrap_err().to_string();
        assert!(error.contains("format 3") && error.contains("newer release"), "{error}");
    }

    #[tokio::test]
    async fn serving_older_monitor_is_named() {
        let member = ("monitor/0000000000000001", r#"{"addr":"n2:7","number":1,"silent":[]}"#);
        let (_directory, store) = store_with(&[OLD[0], member]).await;
        let error = migrate(&store).await.unwrap_err().to_string();
        assert!(error.contains("n2:7") && error.contains("stop it"), "{error}");
        let before = store.load().await.unwrap().entries;
        assert!(before.iter().all(|entry| entry.key != FORMAT_KEY));
    }
}
