//! The records in etcd, which several Monitor Nodes change concurrently. Each transaction is
//! conditional on the last seen revision of the records that it changes.

use crate::error::MonitorError;
use crate::migration;
use crate::owner_record::{Claim, sole_monitor};
use crate::peers::{MEMBER_PREFIX, Membership, SOLE_MONITOR_KEY};
use crate::records::{self, Applied, RecordStore};
use std::collections::BTreeMap;
use venice_rack::monitor::{Change, Record, RecordKey, Sight, View};
use venice_store::{
    Batch, Condition, Entry, EtcdStore, Outcome, Revision, Store, Transaction, Watch,
};

pub(crate) struct SharedStore {
    store: EtcdStore,
    view: View,
    watch: Watch,
    membership: Membership,
}

impl SharedStore {
    /// Reads all records, and watches for changes from then on.
    pub(crate) async fn open(
        store: EtcdStore,
        claim: &Claim,
    ) -> Result<(RecordStore, Vec<Record>), MonitorError> {
        claim.make(&store).await?;
        migration::migrate(&store).await?;
        let mut membership = Membership::join(&store, claim.addr.clone()).await?;
        let all = store.load().await?;
        let mut seen = Vec::with_capacity(all.entries.len());
        for entry in all.entries {
            if entry.key == SOLE_MONITOR_KEY {
                return Err(sole_monitor(&entry));
            }
            if records::is_mark(&entry.key) {
                continue;
            }
            if entry.key.starts_with(MEMBER_PREFIX) {
                membership.handle_record(entry.key, Some(&entry.value));
            } else {
                seen.push((entry.changed_at.0, records::record(&entry)?));
            }
        }
        let records = seen.iter().map(|(_, record)| record.clone()).collect();
        let (view, watch) = (View::new(seen), store.watch(all.revision));
        Ok((RecordStore::Shared(Box::new(Self { store, view, watch, membership })), records))
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn etcd(&self) -> &EtcdStore {
        &self.store
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    pub(crate) async fn apply(&mut self, changes: Vec<Change>) -> Result<Applied, MonitorError> {
        let sights = self.view.conditions(&changes);
        let transaction = Transaction {
            conditions: sights.iter().map(condition).chain([self.membership.condition()]).collect(),
            changes: changes.iter().cloned().map(records::store_change).collect(),
        };
        match self.store.commit(transaction).await? {
            Outcome::Committed(revision) => {
                self.view.made(revision.0, changes);
                Ok(Applied::Made)
            }
            Outcome::Conflict(found) if !self.membership.is_current(&found) => {
                Err(MonitorError::CutOff)
            }
            Outcome::Conflict(found) => {
                let news = self.catch_up(&sights, found).await?;
                tracing::debug!(changes = changes.len(), "conflict with another Monitor Node");
                Ok(Applied::Conflict { failed: changes, news })
            }
        }
    }

    /// Receives changes up to those that caused the conflict.
    async fn catch_up(
        &mut self,
        sights: &[Sight],
        found: Vec<Entry>,
    ) -> Result<Vec<Change>, MonitorError> {
        let found = found.into_iter();
        let found = found.filter_map(|it| Some((records::record_key(&it.key)?, it.changed_at.0)));
        let found: BTreeMap<RecordKey, u64> = found.collect();
        let mut news = Vec::new();
        while !self.view.has_moved_on(sights, &found) {
            news.extend(self.news().await?);
        }
        Ok(news)
    }

    pub(crate) async fn news(&mut self) -> Result<Vec<Change>, MonitorError> {
        let Batch { revision, changes } = self.watch.next().await?;
        let mut told = Vec::with_capacity(changes.len());
        for change in changes {
            if records::is_mark(&change.key) {
                continue;
            }
            if change.key.starts_with(MEMBER_PREFIX) {
                self.membership.handle_record(change.key, change.value.as_deref());
                continue;
            }
            let Some(change) = records::change(&change)? else {
                return Err(MonitorError::Meddled { key: change.key });
            };
            told.push(change);
        }
        Ok(self.view.learn(revision.0, told))
    }
}

fn condition((key, seen): &Sight) -> Condition {
    let key = records::key_text(key);
    match seen {
        Some(revision) => Condition::is_as_at(key, Revision(*revision)),
        None => Condition::is_absent(key),
    }
}
