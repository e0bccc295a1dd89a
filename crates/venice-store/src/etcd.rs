//! A store in etcd, for any number of processes at once.

mod api;
mod members;
mod watching;
mod writer;

use crate::error::StoreError;
use crate::location::{EtcdLocation, EtcdTls};
use crate::store::{
    CHANGES_AT_ONCE, Entry, Lease, Outcome, Revision, Snapshot, Store, Transaction, lease_s,
};
use crate::watch::Watch;
use api::{KeyValue, RangeRequest, TxnRequest};
use members::Members;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use writer::Writer;

const FORMAT: u64 = 1;
/// Records read in one request: etcd's messages are limited to a few MiB.
const RECORDS_AT_ONCE: i64 = 1000;
/// Operations of a transaction: its changes or conditions, and the writer's record.
const TXN_OPS: usize = CHANGES_AT_ONCE + 1;

/// A [`Store`] in etcd 3.4 or later.
#[derive(Debug, Clone)]
pub struct EtcdStore {
    members: Arc<Members>,
    keys: Arc<Keys>,
    writer: Arc<Mutex<Writer>>,
}

/// Names of this store's records in etcd.
#[derive(Debug)]
struct Keys {
    prefix: String,
}

impl EtcdStore {
    /// Finds a member that answers, and checks that the records there are of a supported format.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`], [`StoreError::Format`], [`StoreError::TxnLimit`],
    /// [`StoreError::Tls`], [`StoreError::Address`].
    pub async fn connect(location: &EtcdLocation, tls: &EtcdTls) -> Result<Self, StoreError> {
        let members = Arc::new(Members::new(location, tls)?);
        let keys = Arc::new(Keys { prefix: location.prefix.clone() });
        let writer = Arc::new(Mutex::new(Writer::new(&keys)?));
        let store = Self { members, keys, writer };
        store.check_txn_limit().await?;
        store.check_format().await?;
        Ok(store)
    }

    /// Checks the members' transaction limit, with that many operations without effect.
    async fn check_txn_limit(&self) -> Result<(), StoreError> {
        let success = vec![api::get(self.keys.format()); TXN_OPS];
        let request = TxnRequest { success, ..TxnRequest::default() };
        match self.members.txn(request).await {
            Err(StoreError::Refused { place, reason })
                if reason.contains("too many operations") =>
            {
                Err(StoreError::TxnLimit { place, needed: TXN_OPS.next_power_of_two() })
            }
            other => other.map(drop),
        }
    }

    async fn check_format(&self) -> Result<(), StoreError> {
        let key = self.keys.format();
        let ours = FORMAT.to_string().into_bytes();
        let request = TxnRequest {
            compare: vec![api::is_changed_at(key.clone(), 0)],
            success: vec![api::put(key.clone(), ours.clone(), 0)],
            failure: vec![api::get(key)],
        };
        let answer = self.members.txn(request).await?;
        let Some(found) = api::found(answer).into_iter().next() else { return Ok(()) };
        if found.value != ours {
            let (place, found) = (self.members.place(), String::from_utf8_lossy(&found.value));
            let found = found.into_owned();
            return Err(StoreError::Format { place, found, understood: FORMAT });
        }
        Ok(())
    }
}

impl Keys {
    fn format(&self) -> Vec<u8> {
        format!("{}/format", self.prefix).into_bytes()
    }

    fn record(&self, key: &str) -> Vec<u8> {
        format!("{}/records/{key}", self.prefix).into_bytes()
    }

    /// Returns the range of all records: from the first key to before the second. `0` comes after
    /// `/`.
    fn records(&self) -> (Vec<u8>, Vec<u8>) {
        let bound = |end| format!("{}/records{end}", self.prefix).into_bytes();
        (bound('/'), bound('0'))
    }

    fn writer(&self, id: u64) -> Vec<u8> {
        format!("{}/writers/{id:016x}", self.prefix).into_bytes()
    }

    /// Returns the record's key; `None` for a writer's own record.
    fn name(&self, key: &[u8]) -> Option<String> {
        let name = key.strip_prefix(format!("{}/records/", self.prefix).as_bytes())?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    fn entry(&self, found: KeyValue) -> Option<Entry> {
        let changed_at = revision(found.mod_revision);
        Some(Entry { key: self.name(&found.key)?, value: found.value, changed_at })
    }
}

fn revision(of: i64) -> Revision {
    Revision(u64::try_from(of).unwrap_or(0))
}

impl Store for EtcdStore {
    async fn load(&self) -> Result<Snapshot, StoreError> {
        let (mut key, range_end) = self.keys.records();
        let mut snapshot = Snapshot::default();
        loop {
            let request = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                limit: RECORDS_AT_ONCE,
                // The first page's revision: all pages are of one moment.
                revision: snapshot.revision.0.cast_signed(),
            };
            let page = self.members.range(request).await?;
            if snapshot.revision == Revision(0) {
                snapshot.revision = revision(page.header.unwrap_or_default().revision);
            }
            if let Some(last) = page.kvs.last() {
                key = [&last.key[..], &[0]].concat();
            }
            snapshot
                .entries
                .extend(page.kvs.into_iter().filter_map(|found| self.keys.entry(found)));
            if !page.more {
                return Ok(snapshot);
            }
        }
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        transaction.check_length()?;
        // In sequence: each transaction depends on the writer's last one.
        let mut writer = self.writer.lock().await;
        writer.commit(&self.members, &self.keys, &transaction).await
    }

    fn watch(&self, after: Revision) -> Watch {
        let (watcher, watch) = Watch::new();
        let (members, keys) = (Arc::clone(&self.members), Arc::clone(&self.keys));
        tokio::spawn(watching::watch(members, keys, after, watcher));
        watch
    }

    async fn grant_lease(&self, time_to_live: Duration) -> Result<Lease, StoreError> {
        let ttl = i64::try_from(lease_s(time_to_live)).unwrap_or(i64::MAX);
        self.members.grant_lease(ttl).await.map(Lease)
    }

    async fn keep_alive(&self, lease: Lease) -> Result<(), StoreError> {
        let left_s = self.members.keep_alive(lease.0).await?;
        if left_s > 0 { Ok(()) } else { Err(StoreError::LeaseOver) }
    }

    async fn end_lease(&self, lease: Lease) -> Result<(), StoreError> {
        self.members.end_lease(lease.0).await
    }
}
