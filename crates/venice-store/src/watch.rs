//! What others change in a store.

use crate::error::StoreError;
use crate::store::{Revision, StoreChange};
use tokio::sync::mpsc;

/// Batches that wait to be taken; who is further behind has to load anew.
pub(crate) const WATCH_QUEUE: usize = 1024;

/// The changes of one transaction, or of a lease's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The store's revision with them.
    pub revision: Revision,
    /// What was changed; leases are not told.
    pub changes: Vec<StoreChange>,
}

/// Tells what is changed in a store, in order, without a gap.
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
    /// [`StoreError::Behind`] when there is a gap: what was changed is not known any more. Load anew and
    /// watch from there. Others when the store cannot be used.
    pub async fn next(&mut self) -> Result<Batch, StoreError> {
        self.batches.recv().await.unwrap_or(Err(StoreError::Behind))
    }
}
