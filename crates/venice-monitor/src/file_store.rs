//! The records in a file that nobody else has.

use crate::error::MonitorError;
use crate::mark::{Claim, MARK};
use crate::records::{self, Applied};
use std::path::PathBuf;
use tokio::task::spawn_blocking;
use venice_rack::monitor::{Change, Record};
use venice_store::{Outcome, RedbStore, Snapshot, Store, StoreError, Transaction};

pub(crate) struct FileStore {
    path: PathBuf,
    /// `None`: it failed, and is to be opened again.
    store: Option<RedbStore>,
}

impl FileStore {
    /// The file there, which is opened when it is wanted.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path, store: None }
    }

    /// Opens the file, where it is this rack's, and reads what is in it.
    pub(crate) async fn open(
        path: PathBuf,
        claim: &Claim,
    ) -> Result<(Self, Vec<Record>), MonitorError> {
        let mut file = Self::at(path);
        match claim.make(file.opened().await?).await {
            Err(MonitorError::Store(error @ StoreError::Full { .. })) => {
                tracing::warn!(%error, "whose tables these are is not written down yet");
                file.store = None;
            }
            made => made?,
        }
        let records = file.records().await?;
        Ok((file, records))
    }

    /// What is in it.
    pub(crate) async fn records(&mut self) -> Result<Vec<Record>, MonitorError> {
        let Snapshot { entries, .. } = self.opened().await?.load().await?;
        entries.iter().filter(|entry| entry.key != MARK).map(records::record).collect()
    }

    /// Makes the changes durable, or says that there is no room.
    pub(crate) async fn apply(&mut self, changes: Vec<Change>) -> Result<Applied, MonitorError> {
        match self.commit(transaction(changes.clone())).await {
            Ok(_) => Ok(Applied::Made),
            Err(error @ StoreError::Full { .. }) => {
                self.store = None;
                Ok(Applied::NoRoom { unmade: changes, why: error.to_string() })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn commit(&mut self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.opened().await?.commit(transaction).await
    }

    /// A database that has failed to write once wants to be opened anew.
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
