//! The records in etcd, which several Monitor Nodes change at once: each transaction is made on
//! condition that what it changes is as it was last seen.

use crate::company::{Company, SERVES_ALONE, SIGNS};
use crate::error::MonitorError;
use crate::mark::{Claim, MARK, serves_alone};
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
    company: Company,
}

impl SharedStore {
    /// Reads what is there, and hears of what is changed from then on.
    pub(crate) async fn open(
        store: EtcdStore,
        claim: &Claim,
    ) -> Result<(RecordStore, Vec<Record>), MonitorError> {
        claim.make(&store).await?;
        let mut company = Company::join(&store, claim.addr.clone()).await?;
        let all = store.load().await?;
        let mut seen = Vec::with_capacity(all.entries.len());
        for entry in all.entries {
            if entry.key == SERVES_ALONE {
                return Err(serves_alone(&entry));
            }
            if entry.key == MARK {
                continue;
            }
            if entry.key.starts_with(SIGNS) {
                company.hear(entry.key, Some(&entry.value));
            } else {
                seen.push((entry.changed_at.0, records::record(&entry)?));
            }
        }
        let records = seen.iter().map(|(_, record)| record.clone()).collect();
        let (view, watch) = (View::new(seen), store.watch(all.revision));
        Ok((RecordStore::Shared(Box::new(Self { store, view, watch, company })), records))
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn etcd(&self) -> &EtcdStore {
        &self.store
    }

    pub(crate) fn company(&self) -> &Company {
        &self.company
    }

    pub(crate) async fn apply(&mut self, changes: Vec<Change>) -> Result<Applied, MonitorError> {
        let sights = self.view.conditions(&changes);
        let transaction = Transaction {
            conditions: sights.iter().map(condition).chain([self.company.condition()]).collect(),
            changes: changes.iter().cloned().map(records::store_change).collect(),
        };
        match self.store.commit(transaction).await? {
            Outcome::Committed(revision) => {
                self.view.made(revision.0, changes);
                Ok(Applied::Made)
            }
            Outcome::Conflict(found) if !self.company.is_among(&found) => Err(MonitorError::CutOff),
            Outcome::Conflict(found) => {
                let news = self.catch_up(&sights, found).await?;
                tracing::debug!(changes = changes.len(), "another Monitor Node was first");
                Ok(Applied::Conflict { failed: changes, news })
            }
        }
    }

    /// Hears of what stood in the way, and all before it.
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
            if change.key == MARK {
                continue;
            }
            if change.key.starts_with(SIGNS) {
                self.company.hear(change.key, change.value.as_deref());
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
