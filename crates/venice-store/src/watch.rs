//! Watch on the changes of a store.

use crate::error::StoreError;
use crate::store::{Revision, StoreChange};
use tokio::sync::mpsc;

/// Most batches that wait to be taken; a watcher further behind must load anew.
pub(crate) const WATCH_QUEUE: usize = 1024;

/// Changes of one transaction, or of a lease's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Revision of the store after them.
    pub revision: Revision,
    /// Changes; their leases are not included.
    pub changes: Vec<StoreChange>,
}

/// Yields the changes of a store, in order, without a gap.
#[derive(Debug)]
pub struct Watch {
    batches: mpsc::Receiver<Result<Batch, StoreError>>,
}

impl Watch {
    pub(crate) fn new() -> (mpsc::Sender<Result<Batch, StoreError>>, Self) {
        let (sender, batches) = mpsc::channel(WATCH_QUEUE);
        (sender, Self { batches })
    }

    /// Waits for the next batch.
    ///
    /// # Errors
    /// [`StoreError::Behind`] if there is a gap: the changes in between are no longer known. Load
    /// anew and watch from there. Others if the store is unusable.
    pub async fn next(&mut self) -> Result<Batch, StoreError> {
        self.batches.recv().await.unwrap_or(Err(StoreError::Behind))
    }
}
