//! The records in a file that only this Monitor Node uses.

use crate::error::MonitorError;
use crate::migration;
use crate::owner_record::Claim;
use crate::records;
use std::path::PathBuf;
use tokio::task::spawn_blocking;
use venice_rack::monitor::{Change, Record};
use venice_rack::monitor_node::Written;
use venice_store::{Entry, Outcome, RedbStore, Store, StoreError, Transaction};

pub(crate) struct FileStore {
    path: PathBuf,
    /// `None` after a failure: the file is opened again.
    store: Option<RedbStore>,
}

impl FileStore {
    /// Creates a handle for the file at `path`, which is opened on first use.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path, store: None }
    }

    /// Opens the file, checks that it belongs to this rack, and reads its records.
    pub(crate) async fn open(
        path: PathBuf,
        claim: &Claim,
    ) -> Result<(Self, Vec<Record>), MonitorError> {
        let mut file = Self::at(path);
        match claim.make(file.opened().await?).await {
            Err(MonitorError::Store(error @ StoreError::Full { .. })) => {
                tracing::warn!(%error, "the store is not marked as this rack's yet");
                file.store = None;
            }
            made => made?,
        }
        migration::migrate(file.opened().await?).await?;
        let records = file.records().await?;
        Ok((file, records))
    }

    /// Reads all records.
    pub(crate) async fn records(&mut self) -> Result<Vec<Record>, MonitorError> {
        let entries = self.entries().await?;
        let records = entries.iter().filter(|entry| !records::is_mark(&entry.key));
        records.map(records::record).collect()
    }

    /// Reads all entries.
    pub(crate) async fn entries(&mut self) -> Result<Vec<Entry>, MonitorError> {
        Ok(self.opened().await?.load().await?.entries)
    }

    /// Makes the changes durable, or reports that there is no room.
    pub(crate) async fn apply(&mut self, changes: Vec<Change>) -> Result<Written, MonitorError> {
        match self.commit(transaction(changes)).await {
            Ok(_) => Ok(Written::Made { revision: 0 }),
            Err(error @ StoreError::Full { .. }) => {
                self.store = None;
                Ok(Written::NoRoom { why: error.to_string() })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn commit(&mut self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.opened().await?.commit(transaction).await
    }

    /// Returns the database, reopened after a failed write.
    async fn opened(&mut self) -> Result<&RedbStore, StoreError> {
        let store = match self.store.take() {
            Some(store) => store,
            None => {
                let path = self.path.clone();
                let opening = spawn_blocking(move || RedbStore::open(&path));
                opening.await.map_err(StoreError::BrokeOff)??
            }
        };
        Ok(self.store.insert(store))
    }
}

fn transaction(changes: Vec<Change>) -> Transaction {
    Transaction::of(changes.into_iter().map(records::store_change).collect())
}
