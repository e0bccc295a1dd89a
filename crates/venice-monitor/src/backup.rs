//! Backup of a Monitor Node: its authority, the choice of its store, and the store's records, in one
//! file.
//!
//! The first line names the kind of the file, its format and the SHA-256 of the rest, which is JSON.
//! [`Backup::read`] takes a stopped Monitor Node's state; a running one hands out its records at its
//! socket.

mod restore;

pub use restore::Restored;

use crate::error::MonitorError;
use crate::init::recorded_address;
use crate::records;
use crate::store_choice::StoreChoice;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::spawn_blocking;
use venice_control::identity::{Authority, Fingerprint, IdentityError};
use venice_rack::monitor::RecordKey;
use venice_store::{EtcdStore, RedbStore, Store, StoreError, StoreLocation};

const MAGIC: &str = "venice-backup";
const FORMAT: u32 = 1;

/// A backup. It contains the private key of the rack's authority.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backup {
    venice: String,
    made_s: u64,
    host: String,
    authority: String,
    store: StoreChoice,
    /// Address that the rack was made with.
    address: Option<String>,
    /// Files of the authority's directory, by name.
    identity: BTreeMap<String, String>,
    /// Records of the store, by key: JSON.
    records: BTreeMap<String, String>,
}

/// The contents of a backup, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackupInfo {
    /// Format of the file.
    pub format: u32,
    /// Version of Venice that made it.
    pub venice: String,
    /// Time of the backup, in seconds since 1970.
    pub made_s: u64,
    /// Name of the machine on which it was made.
    pub host: String,
    /// Fingerprint of the rack's authority.
    pub authority: String,
    /// Address that the rack was made with, if it is recorded.
    pub address: Option<String>,
    /// Store of the tables, where it is not the file in the state directory.
    pub store: Option<String>,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of grants.
    pub grants: usize,
    /// Number of quotas.
    pub quotas: usize,
    /// Number of revoked nodes.
    pub revocations: usize,
    /// Number of join tokens, used ones included.
    pub tokens: usize,
}

/// Keys and values of the records of a running Monitor Node, from its socket.
pub type GivenRecords = Vec<(String, Vec<u8>)>;

impl Backup {
    /// Makes a backup of the Monitor Node with this state directory. `choice` overrides the store
    /// that `venice init` recorded there. Records in a file come from `given`; without it the file is
    /// opened, and no Monitor Node may run. Records in etcd are read there, all of one moment.
    ///
    /// # Errors
    /// [`MonitorError::Identity`] without an authority; [`MonitorError::Backup`] without a store;
    /// [`MonitorError::Store`], with [`StoreError::Locked`] where a Monitor Node runs.
    pub async fn read(
        state_dir: &Path,
        choice: &StoreChoice,
        given: Option<GivenRecords>,
    ) -> Result<Self, MonitorError> {
        let dir = state_dir.join(crate::IDENTITY_DIR);
        let authority = Authority::open(&dir)?.fingerprint();
        let store = choice.clone().or(StoreChoice::load(state_dir)?);
        store.check()?;
        let read = |name: &str| {
            let path = dir.join(name);
            let text = fs::read_to_string(&path);
            let text = text.map_err(|source| IdentityError::File { path, source })?;
            Ok((name.to_owned(), text))
        };
        let identity = Authority::files_in(&dir).into_iter().map(read);
        let identity = identity.collect::<Result<_, IdentityError>>()?;
        let entries = match (store.location(state_dir)?, given) {
            (StoreLocation::File(_), Some(given)) => given,
            (StoreLocation::File(path), None) => read_file(path).await?,
            (StoreLocation::Etcd(etcd), _) => {
                records::kept(EtcdStore::connect(&etcd, &store.tls()).await?.load().await?.entries)
            }
        };
        let text = |(key, value): (String, Vec<u8>)| match String::from_utf8(value) {
            Ok(value) => Ok((key, value)),
            Err(_) => Err(MonitorError::Unreadable { key, why: "it is no text".to_owned() }),
        };
        Ok(Self {
            venice: env!("CARGO_PKG_VERSION").to_owned(),
            made_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            authority: authority.to_string(),
            store,
            address: recorded_address(state_dir)?,
            identity,
            records: entries.into_iter().map(text).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the file's contents.
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = serde_json::to_vec(self).expect("a backup is plain data");
        let sum = Fingerprint::of(&body);
        [format!("{MAGIC} {FORMAT} sha256:{sum}\n").as_bytes(), &body, b"\n"].concat()
    }

    /// Parses and checks a file's contents.
    ///
    /// # Errors
    /// [`MonitorError::Backup`]: it is no backup, is damaged, or has a later format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MonitorError> {
        let wrong = |why: &str| MonitorError::Backup(why.to_owned());
        let at = bytes.iter().position(|byte| *byte == b'\n');
        let (head, body) = bytes.split_at(at.ok_or_else(|| wrong(NO_BACKUP))?);
        let head: Vec<&str> = std::str::from_utf8(head).unwrap_or("").split(' ').collect();
        let [MAGIC, format, sum] = head[..] else { return Err(wrong(NO_BACKUP)) };
        if format != FORMAT.to_string() {
            return Err(MonitorError::Backup(format!(
                "the file is a backup of format {format}, and this Venice knows format {FORMAT}: \
                 restore it with the release that made it, or a later one"
            )));
        }
        let body = body.strip_prefix(b"\n").and_then(|body| body.strip_suffix(b"\n"));
        let body = body.ok_or_else(|| wrong(DAMAGED))?;
        if sum != format!("sha256:{}", Fingerprint::of(body)) {
            return Err(wrong(DAMAGED));
        }
        serde_json::from_slice(body).map_err(|error| {
            MonitorError::Backup(format!("the file is a backup with unknown contents: {error}"))
        })
    }

    /// Returns its contents, without secrets.
    pub fn info(&self) -> BackupInfo {
        let count = |is_it: fn(&RecordKey) -> bool| {
            let keys = self.records.keys().filter_map(|key| records::record_key(key));
            keys.filter(is_it).count()
        };
        BackupInfo {
            format: FORMAT,
            venice: self.venice.clone(),
            made_s: self.made_s,
            host: self.host.clone(),
            authority: self.authority.clone(),
            address: self.address.clone(),
            store: self.store.store.clone(),
            nodes: count(|key| matches!(key, RecordKey::Node(_))),
            grants: count(|key| matches!(key, RecordKey::Grant(_))),
            quotas: count(|key| matches!(key, RecordKey::Quota(_))),
            revocations: count(|key| matches!(key, RecordKey::Revocation(_))),
            tokens: count(|key| matches!(key, RecordKey::Token(_))),
        }
    }
}

const NO_BACKUP: &str = "the file is no backup of a Monitor Node: give one of `venice backup`";
const DAMAGED: &str = "the backup is damaged or cut short: its checksum is wrong; use another one";

impl std::fmt::Debug for Backup {
    /// Omits keys and records.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.info().fmt(f)
    }
}

async fn read_file(path: std::path::PathBuf) -> Result<GivenRecords, MonitorError> {
    // Opening would create it.
    if !path.exists() {
        let path = path.display();
        return Err(MonitorError::Backup(format!(
            "there is no store at {path}: give the Monitor Node's --state-dir, and its --store if it \
             has one"
        )));
    }
    let opened = spawn_blocking(move || RedbStore::open(&path)).await;
    let store = opened.map_err(StoreError::BrokeOff)??;
    let entries = store.load().await?.entries;
    spawn_blocking(move || drop(store)).await.map_err(StoreError::BrokeOff)?;
    Ok(records::kept(entries))
}

#[cfg(test)]
mod tests;
