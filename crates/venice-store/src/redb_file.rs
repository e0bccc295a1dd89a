//! A store in one redb file, for one process at a time.

mod database;
mod failed;
mod file_guard;

use crate::error::StoreError;
use crate::store::{Lease, Outcome, Revision, Snapshot, Store, Transaction, lease_s};
use crate::watch::{Batch, Watch};
use database::RedbDatabase;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

type Watcher = mpsc::Sender<Result<Batch, StoreError>>;

/// A [`Store`] in one file. Nobody but this process has it, so its leases end with the process.
#[derive(Debug, Clone)]
pub struct RedbStore {
    open: Arc<Mutex<Open>>,
}

#[derive(Debug)]
struct Open {
    database: RedbDatabase,
    watchers: Vec<Watcher>,
    /// Until when each lives.
    leases: BTreeMap<Lease, (Instant, Duration)>,
    last_lease: i64,
}

impl RedbStore {
    /// Opens the store at `path`; makes it, and the directory it lies in, where there is none. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::Corrupt`], [`StoreError::Format`], [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let database = RedbDatabase::open(path)?;
        let open = Open { database, watchers: Vec::new(), leases: BTreeMap::new(), last_lease: 0 };
        Ok(Self { open: Arc::new(Mutex::new(open)) })
    }

    /// Does what has to wait for the disk where that holds nobody up.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Open) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let open = Arc::clone(&self.open);
        spawn_blocking(move || work(&mut lock(&open))).await.map_err(StoreError::BrokeOff)?
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    // A transaction that panicked was not made.
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for RedbStore {
    async fn load(&self) -> Result<Snapshot, StoreError> {
        self.with(|open| open.database.load()).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.with(move |open| open.commit(&transaction)).await
    }

    fn watch(&self, after: Revision) -> Watch {
        let (watcher, watch) = Watch::new();
        let mut open = lock(&self.open);
        // The file has no history.
        if open.database.load().is_ok_and(|all| all.revision == after) {
            open.watchers.push(watcher);
        }
        watch
    }

    async fn grant_lease(&self, time_to_live: Duration) -> Result<Lease, StoreError> {
        let time_to_live = Duration::from_secs(lease_s(time_to_live));
        let lease = {
            let mut open = lock(&self.open);
            open.last_lease += 1;
            let lease = Lease(open.last_lease);
            open.leases.insert(lease, (Instant::now() + time_to_live, time_to_live));
            lease
        };
        tokio::spawn(end_when_over(Arc::downgrade(&self.open), lease));
        Ok(lease)
    }

    async fn keep_alive(&self, lease: Lease) -> Result<(), StoreError> {
        let mut open = lock(&self.open);
        let (until, time_to_live) = open.leases.get_mut(&lease).ok_or(StoreError::LeaseOver)?;
        *until = Instant::now() + *time_to_live;
        Ok(())
    }

    async fn end_lease(&self, lease: Lease) -> Result<(), StoreError> {
        self.with(move |open| open.end(lease)).await
    }
}

impl Open {
    fn commit(&mut self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let leases = transaction.changes.iter().filter_map(|change| change.lease);
        if leases.into_iter().any(|lease| !self.leases.contains_key(&lease)) {
            return Err(StoreError::LeaseOver);
        }
        let (outcome, changes) = self.database.commit(transaction)?;
        if let Outcome::Committed(revision) = outcome {
            self.tell(Batch { revision, changes });
        }
        Ok(outcome)
    }

    /// Tells the watchers; one that is too far behind is told no more, and finds that out.
    fn tell(&mut self, batch: Batch) {
        if !batch.changes.is_empty() {
            self.watchers.retain(|watcher| watcher.try_send(Ok(batch.clone())).is_ok());
        }
    }

    fn end(&mut self, lease: Lease) -> Result<(), StoreError> {
        self.leases.remove(&lease);
        let batch = self.database.drop_leased(|of| of == lease)?;
        self.tell(batch);
        Ok(())
    }
}

/// Ends the lease once nobody has kept it alive.
async fn end_when_over(open: Weak<Mutex<Open>>, lease: Lease) {
    loop {
        let until = {
            let Some(open) = open.upgrade() else { return };
            let Some((until, _)) = lock(&open).leases.get(&lease).copied() else { return };
            until
        };
        if until > Instant::now() {
            tokio::time::sleep_until(until).await;
            continue;
        }
        let Some(open) = open.upgrade() else { return };
        let store = RedbStore { open };
        match store.end_lease(lease).await {
            Ok(()) => return,
            Err(error) => {
                tracing::error!(%error, "the records of a lease that is over cannot be removed");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
