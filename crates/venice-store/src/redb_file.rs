//! A store in a redb file and the log beside it, for one process at a time.

mod failed;
mod file_guard;
mod image;
mod ledger;
mod log;
mod tables;

use crate::error::StoreError;
use crate::store::{Lease, Outcome, Revision, Snapshot, Store, Transaction, lease_s};
use crate::watch::{Batch, Watch};
use ledger::Ledger;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// Longest wait for the disk that costs less than a switch to another thread.
const SHORT_WAIT: Duration = Duration::from_millis(1);

type Watcher = mpsc::Sender<Result<Batch, StoreError>>;

/// A [`Store`] in a file, `PATH`, and the log beside it, `PATH.wal`, which exists while it is open
/// and after a crash. It belongs to one process: its leases end with the process.
#[derive(Debug, Clone)]
pub struct RedbStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    open: Mutex<Open>,
    /// True if the last wait for the disk was long.
    is_slow: AtomicBool,
}

#[derive(Debug)]
struct Open {
    ledger: Ledger,
    watchers: Vec<Watcher>,
    /// End of each lease, and its time to live.
    leases: BTreeMap<Lease, (Instant, Duration)>,
    last_lease: i64,
}

impl RedbStore {
    /// Opens the store at `path`; creates it, and its directory, if absent. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::Corrupt`] (also for a log that is missing, damaged or
    /// another store's), [`StoreError::Format`], [`StoreError::Full`], [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let ledger = Ledger::open(path)?;
        let open = Open { ledger, watchers: Vec::new(), leases: BTreeMap::new(), last_lease: 0 };
        let shared = Shared { open: Mutex::new(open), is_slow: AtomicBool::new(false) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Runs work that waits for the disk: in this thread if short, else in a blocking thread.
    async fn wait_for<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Open) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        if shared.is_slow.load(Ordering::Relaxed) {
            return spawn_blocking(move || shared.time(work))
                .await
                .map_err(StoreError::BrokeOff)?;
        }
        shared.time(work)
    }
}

impl Shared {
    fn time<T>(&self, work: impl FnOnce(&mut Open) -> T) -> T {
        let mut open = self.lock();
        let began = std::time::Instant::now();
        let result = work(&mut open);
        self.is_slow.store(began.elapsed() > SHORT_WAIT, Ordering::Relaxed);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // A transaction that panicked was not made.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for RedbStore {
    async fn load(&self) -> Result<Snapshot, StoreError> {
        Ok(self.shared.lock().ledger.snapshot())
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.wait_for(move |open| open.commit(&transaction)).await
    }

    fn watch(&self, after: Revision) -> Watch {
        let (watcher, watch) = Watch::new();
        let mut open = self.shared.lock();
        // The file keeps no history.
        if open.ledger.revision() == after {
            open.watchers.push(watcher);
        }
        watch
    }

    async fn grant_lease(&self, time_to_live: Duration) -> Result<Lease, StoreError> {
        let time_to_live = Duration::from_secs(lease_s(time_to_live));
        let lease = {
            let mut open = self.shared.lock();
            open.last_lease += 1;
            let lease = Lease(open.last_lease);
            open.leases.insert(lease, (Instant::now() + time_to_live, time_to_live));
            lease
        };
        tokio::spawn(end_when_over(Arc::downgrade(&self.shared), lease));
        Ok(lease)
    }

    async fn keep_alive(&self, lease: Lease) -> Result<(), StoreError> {
        let mut open = self.shared.lock();
        let (until, time_to_live) = open.leases.get_mut(&lease).ok_or(StoreError::LeaseOver)?;
        *until = Instant::now() + *time_to_live;
        Ok(())
    }

    async fn end_lease(&self, lease: Lease) -> Result<(), StoreError> {
        self.wait_for(move |open| open.end(lease)).await
    }
}

impl Open {
    fn commit(&mut self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let leases = transaction.changes.iter().filter_map(|change| change.lease);
        if leases.into_iter().any(|lease| !self.leases.contains_key(&lease)) {
            return Err(StoreError::LeaseOver);
        }
        let (outcome, changes) = self.ledger.commit(transaction)?;
        if let Outcome::Committed(revision) = outcome {
            self.tell(Batch { revision, changes });
        }
        Ok(outcome)
    }

    /// Sends a batch to the watchers; drops one that is too far behind, whose next call returns an
    /// error.
    fn tell(&mut self, batch: Batch) {
        if !batch.changes.is_empty() {
            self.watchers.retain(|watcher| watcher.try_send(Ok(batch.clone())).is_ok());
        }
    }

    fn end(&mut self, lease: Lease) -> Result<(), StoreError> {
        self.leases.remove(&lease);
        let batch = self.ledger.end_leases(|of| of == lease)?;
        self.tell(batch);
        Ok(())
    }
}

/// Ends the lease once it is no longer kept alive.
async fn end_when_over(store: Weak<Shared>, lease: Lease) {
    loop {
        let until = {
            let Some(shared) = store.upgrade() else { return };
            let Some((until, _)) = shared.lock().leases.get(&lease).copied() else { return };
            until
        };
        if until > Instant::now() {
            tokio::time::sleep_until(until).await;
            continue;
        }
        let Some(shared) = store.upgrade() else { return };
        match (RedbStore { shared }).end_lease(lease).await {
            Ok(()) => return,
            Err(error) => {
                tracing::error!(%error, "cannot remove the records of an ended lease");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
