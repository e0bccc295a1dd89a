//! Restoration of a backup into a state directory.
//!
//! Everything is checked before anything is written. The authority's certificate is written last, as
//! by `venice init`: without it there is no rack, and a restoration that broke off is repeated with
//! `--force`.

use super::{Backup, BackupInfo, GivenRecords};
use crate::error::MonitorError;
use crate::init::record_address;
use crate::migration::{FORMAT_KEY, check_format, converted};
use crate::owner_record::OWNER_KEY;
use crate::records::{self, record_key};
use crate::store_choice::{STORE_CHOICE_FILE, StoreChoice};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;
use venice_control::identity::{Authority, Place, chown_like_directory, write_private};
use venice_rack::monitor::{Change, JoinTokenRecord, Record, RecordKey};
use venice_store::{
    CHANGES_AT_ONCE, Entry, EtcdStore, RedbStore, Store, StoreChange, StoreError, StoreLocation,
    Transaction,
};

/// Grant numbers that are skipped: grants made since the backup may have the next ones.
const SKIPPED_GRANTS: u64 = 1 << 20;

/// The result of a restoration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Contents of the backup.
    pub info: BackupInfo,
    /// Location of the store.
    pub store: String,
    /// True if etcd still had the rack's tables: they were left as they are.
    pub has_kept_tables: bool,
    /// Join tokens that were not used at the time of the backup: they are void.
    pub dropped_tokens: usize,
    /// Directory to which former state was moved.
    pub moved_to: Option<PathBuf>,
}

impl Backup {
    /// Restores the Monitor Node in `state_dir`. `choice` overrides the backup's store. With `force`,
    /// what is there is moved to a directory beside it.
    ///
    /// Join tokens that were unused at the time of the backup are dropped: they may have been used
    /// since. A store in etcd that has this rack's tables is left alone.
    ///
    /// # Errors
    /// [`MonitorError::Backup`] where the directory has state; [`MonitorError::NotFree`],
    /// [`MonitorError::Store`], [`MonitorError::Identity`]. Nothing is changed where the backup is
    /// damaged or the directory has state.
    pub async fn restore(
        &self,
        state_dir: &Path,
        choice: &StoreChoice,
        force: bool,
    ) -> Result<Restored, MonitorError> {
        let state_dir = &resolved(state_dir);
        let choice = choice.clone().or(self.store.clone());
        choice.check()?;
        let location = choice.location(state_dir)?;
        self.check_identity()?;
        self.check_records()?;
        let (entries, dropped_tokens) = self.entries_to_restore()?;
        let etcd = match &location {
            StoreLocation::File(_) => None,
            StoreLocation::Etcd(etcd) => Some(EtcdStore::connect(etcd, &choice.tls()).await?),
        };
        let mut old: Vec<PathBuf> = [crate::IDENTITY_DIR, STORE_CHOICE_FILE, crate::ADDRESS_FILE]
            .map(|name| state_dir.join(name))
            .into();
        if let StoreLocation::File(path) = &location {
            check_unused(path)?;
            let log = path.with_file_name(format!("{}.wal", name_of(path)));
            old.extend([path.clone(), log]);
        }
        old.retain(|path| path.symlink_metadata().is_ok());
        if let (Some(found), false) = (old.first(), force) {
            return Err(MonitorError::Backup(format!(
                "{} is there already: restore into an empty --state-dir, or move what is there aside \
                 with --force",
                found.display()
            )));
        }
        Place::prepare(state_dir)?.keep();
        let moved_to = (!old.is_empty()).then(|| set_aside(state_dir, &old)).transpose()?;
        let has_kept_tables = match (&location, &etcd) {
            (StoreLocation::File(path), _) => restore_file(path, entries).await.map(|()| false)?,
            (StoreLocation::Etcd(_), Some(store)) => {
                self.restore_etcd(store, &location, entries).await?
            }
            (StoreLocation::Etcd(_), None) => unreachable!("connected to above"),
        };
        if choice.store.is_some() {
            choice.save(state_dir)?;
        }
        if let Some(address) = &self.address {
            record_address(state_dir, address)?;
        }
        let identity = state_dir.join(crate::IDENTITY_DIR);
        for name in Authority::FILES {
            let Some(text) = self.identity.get(name) else { continue };
            write_private(&identity.join(name), text.as_bytes())?;
        }
        let info = self.info();
        let dropped_tokens = if has_kept_tables { 0 } else { dropped_tokens };
        Ok(Restored {
            info,
            store: location.to_string(),
            has_kept_tables,
            dropped_tokens,
            moved_to,
        })
    }

    /// Checks that this release can read every record, or convert it as the first start does.
    fn check_records(&self) -> Result<(), MonitorError> {
        if let Some(text) = self.records.get(FORMAT_KEY) {
            check_format(text.as_bytes())?;
        }
        for key in self.records.keys().filter(|key| record_key(key).is_some()) {
            let entry = self.entry(key);
            let value = converted(&entry)?.map_or(entry.value.clone(), String::into_bytes);
            records::record(&Entry { value, ..entry })?;
        }
        Ok(())
    }

    /// Checks that the backup has a complete and sound authority, and no other files.
    fn check_identity(&self) -> Result<(), MonitorError> {
        let has = |name: &&str| self.identity.contains_key(*name);
        let is_complete = Authority::REQUIRED_FILES.iter().all(has);
        let is_known = |name: &String| Authority::FILES.contains(&name.as_str());
        if !is_complete || !self.identity.keys().all(is_known) {
            return Err(MonitorError::Backup(
                "the backup does not have the files of an authority: it was made by another release"
                    .to_owned(),
            ));
        }
        let failed =
            |error: io::Error| MonitorError::Backup(format!("a directory for trial: {error}"));
        let trial = tempfile::tempdir().map_err(failed)?;
        for (name, text) in &self.identity {
            write_private(&trial.path().join(name), text.as_bytes())?;
        }
        let opened = Authority::open(trial.path());
        match opened.is_ok_and(|authority| authority.fingerprint().to_string() == self.authority) {
            true => Ok(()),
            false => Err(MonitorError::Backup(
                "the backup's authority is damaged: its key and certificates cannot be used; use \
                 another backup"
                    .to_owned(),
            )),
        }
    }

    /// Returns the records to write, and the number of tokens that are left out.
    fn entries_to_restore(&self) -> Result<(GivenRecords, usize), MonitorError> {
        let (mut kept, mut dropped) = (Vec::with_capacity(self.records.len()), 0);
        for (key, value) in &self.records {
            let mut value = value.as_bytes().to_vec();
            match record_key(key) {
                Some(RecordKey::Token(_)) if is_unused(&self.parse(key)?) => {
                    dropped += 1;
                    continue;
                }
                Some(RecordKey::GrantLimit) => {
                    let Record::GrantLimit(limit) = self.parse(key)? else { continue };
                    let limit = Change::PutGrantLimit(limit.saturating_add(SKIPPED_GRANTS));
                    value = records::store_change(limit).value.unwrap_or_default();
                }
                _ => {}
            }
            kept.push((key.clone(), value));
        }
        // Last, so that a store with an owner is complete.
        kept.sort_by_key(|(key, _)| key == OWNER_KEY);
        Ok((kept, dropped))
    }

    fn parse(&self, key: &str) -> Result<Record, MonitorError> {
        records::record(&self.entry(key))
    }

    fn entry(&self, key: &str) -> Entry {
        let value = self.records[key].clone().into_bytes();
        Entry { key: key.to_owned(), value, changed_at: venice_store::Revision(0) }
    }

    /// Writes the records to etcd, unless it has this rack's tables: then returns true.
    async fn restore_etcd(
        &self,
        store: &EtcdStore,
        location: &StoreLocation,
        entries: GivenRecords,
    ) -> Result<bool, MonitorError> {
        let found = store.load().await?.entries;
        if found.is_empty() {
            return write(store, entries).await.map(|()| false);
        }
        let owner = found.iter().find(|entry| entry.key == OWNER_KEY);
        let is_ours = |entry: &Entry| {
            String::from_utf8_lossy(&entry.value).contains(&format!("\"{}\"", self.authority))
        };
        match owner.is_some_and(is_ours) {
            true => Ok(true),
            false => Err(MonitorError::NotFree { store: location.to_string() }),
        }
    }
}

/// Follows a link in place of the state directory that root or this user has made: systemd makes one
/// for services with dynamic users.
fn resolved(state_dir: &Path) -> PathBuf {
    let own = [0, rustix::process::geteuid().as_raw()];
    let found = state_dir.symlink_metadata().ok();
    let is_trusted = found.is_some_and(|it| it.is_symlink() && own.contains(&it.uid()));
    let target = is_trusted.then(|| state_dir.canonicalize().ok()).flatten();
    target.unwrap_or_else(|| state_dir.to_owned())
}

fn is_unused(record: &Record) -> bool {
    matches!(record, Record::Token(JoinTokenRecord { used_by, .. }) if used_by.is_empty())
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Checks that no Monitor Node has the store open.
fn check_unused(path: &Path) -> Result<(), MonitorError> {
    use rustix::fs::{FlockOperation, flock};
    let Ok(file) = fs::File::open(path) else { return Ok(()) };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(StoreError::Locked { path: path.to_owned() }.into())
        }
        _ => Ok(()),
    }
}

/// Moves files to a new directory in the state directory.
fn set_aside(state_dir: &Path, files: &[PathBuf]) -> Result<PathBuf, MonitorError> {
    let failed = |path: &Path, error: &io::Error| {
        MonitorError::Backup(format!("cannot move {} aside: {error}", path.display()))
    };
    let number = (1..).map(|number| state_dir.join(format!("before-restore-{number}")));
    let aside = number.into_iter().find(|path| !path.exists()).expect("numbers do not end");
    Place::prepare(&aside)?.keep();
    for file in files {
        fs::rename(file, aside.join(name_of(file))).map_err(|error| failed(file, &error))?;
    }
    Ok(aside)
}

/// Writes a new store, under another name until it is complete.
async fn restore_file(path: &Path, entries: GivenRecords) -> Result<(), MonitorError> {
    let half = path.with_file_name(format!("{}.restoring", name_of(path)));
    let remove_half = || {
        for left in [half.clone(), half.with_extension("restoring.wal")] {
            let _ = fs::remove_file(left);
        }
    };
    remove_half();
    if let Err(error) = write_file(half.clone(), entries).await {
        remove_half();
        return Err(error);
    }
    fs::rename(&half, path).map_err(|error| {
        MonitorError::Backup(format!("cannot rename {}: {error}", half.display()))
    })?;
    Ok(chown_like_directory(path)?)
}

async fn write_file(path: PathBuf, entries: GivenRecords) -> Result<(), MonitorError> {
    let store = spawn_blocking(move || RedbStore::open(&path)).await;
    let store = store.map_err(StoreError::BrokeOff)??;
    let written = write(&store, entries).await;
    spawn_blocking(move || drop(store)).await.map_err(StoreError::BrokeOff)?;
    written
}

async fn write(store: &impl Store, entries: GivenRecords) -> Result<(), MonitorError> {
    for some in entries.chunks(CHANGES_AT_ONCE) {
        let puts = some.iter().map(|(key, value)| StoreChange::put(key.clone(), value.clone()));
        store.commit(Transaction::of(puts.collect())).await?;
    }
    Ok(())
}
