//! The records in etcd, which several Monitor Nodes change concurrently. Each transaction is
//! conditional on the last seen revision of the records that it changes.

use crate::error::MonitorError;
use crate::migration;
use crate::owner_record::{Claim, sole_monitor};
use crate::peers::{MEMBER_PREFIX, Member, SOLE_MONITOR_KEY};
use crate::records::{self, RecordStore};
use venice_rack::monitor::{Change, Record, Sight};
use venice_rack::monitor_node::Written;
use venice_store::{
    Batch, Condition, Entry, EtcdStore, Outcome, Revision, Store, Transaction, Watch,
};

pub(crate) struct SharedStore {
    store: EtcdStore,
    watch: Watch,
    member: Member,
}

impl SharedStore {
    /// Reads all records with their revisions, and watches for changes from then on.
    pub(crate) async fn open(
        store: EtcdStore,
        claim: &Claim,
    ) -> Result<(RecordStore, Vec<(u64, Record)>), MonitorError> {
        claim.make(&store).await?;
        migration::migrate(&store).await?;
        let mut member = Member::join(&store, claim.addr.clone()).await?;
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
                member.handle_record(entry.key, Some(&entry.value));
            } else {
                seen.push((entry.changed_at.0, records::record(&entry)?));
            }
        }
        let watch = store.watch(all.revision);
        Ok((RecordStore::Shared(Box::new(Self { store, watch, member })), seen))
    }

    pub(crate) fn etcd(&self) -> &EtcdStore {
        &self.store
    }

    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    pub(crate) async fn apply(
        &mut self,
        conditions: &[Sight],
        changes: Vec<Change>,
    ) -> Result<Written, MonitorError> {
        let count = changes.len();
        let conditions = conditions.iter().map(condition).chain([self.member.condition()]);
        let transaction = Transaction {
            conditions: conditions.collect(),
            changes: changes.into_iter().map(records::store_change).collect(),
        };
        match self.store.commit(transaction).await? {
            Outcome::Committed(revision) => Ok(Written::Made { revision: revision.0 }),
            Outcome::Conflict(found) if !self.member.is_current(&found) => {
                Err(MonitorError::CutOff)
            }
            Outcome::Conflict(found) => {
                tracing::debug!(changes = count, "conflict with another Monitor Node");
                let revision = |it: Entry| Some((records::record_key(&it.key)?, it.changed_at.0));
                Ok(Written::Conflict { found: found.into_iter().filter_map(revision).collect() })
            }
        }
    }

    pub(crate) async fn news(&mut self) -> Result<(u64, Vec<Change>), MonitorError> {
        let Batch { revision, changes } = self.watch.next().await?;
        let mut told = Vec::with_capacity(changes.len());
        for change in changes {
            if records::is_mark(&change.key) {
                continue;
            }
            if change.key.starts_with(MEMBER_PREFIX) {
                self.member.handle_record(change.key, change.value.as_deref());
                continue;
            }
            let Some(change) = records::change(&change)? else {
                return Err(MonitorError::Meddled { key: change.key });
            };
            told.push(change);
        }
        Ok((revision.0, told))
    }
}

fn condition((key, seen): &Sight) -> Condition {
    let key = records::key_text(key);
    match seen {
        Some(revision) => Condition::is_as_at(key, Revision(*revision)),
        None => Condition::is_absent(key),
    }
}
