//! Tests of watches.

use super::{change, put};
use std::time::Duration;
use venice_store::{Batch, Revision, Store, StoreChange, StoreError, Watch};

/// Time-out, for slow machines.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn next_of(watch: &mut Watch) -> Result<Batch, StoreError> {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("a batch comes")
}

pub async fn all_in_order<S: Store>(next: impl AsyncFn() -> S) {
    let store = next().await;
    let before = change(&store, &[put("before", "0")]).await;
    let mut watch = store.watch(before);
    let first = [put("a", "1"), put("b", "2")];
    let second = [StoreChange::remove("a"), put("b", "3")];
    let revisions = [change(&store, &first).await, change(&store, &second).await];
    for (revision, changes) in revisions.into_iter().zip([first, second]) {
        let mut batch = next_of(&mut watch).await.unwrap();
        batch.changes.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(batch, Batch { revision, changes: changes.to_vec() });
    }
    // Removing an absent record is no change.
    change(&store, &[StoreChange::remove("a")]).await;
    let last = change(&store, &[put("c", "4")]).await;
    assert_eq!(next_of(&mut watch).await.unwrap().revision, last);
}

pub async fn behind<S: Store>(next: impl AsyncFn() -> S) {
    let store = next().await;
    // A revision without history, or with all of it.
    let mut revision = Revision(0);
    for number in 0..3 {
        revision = change(&store, &[put("a", &number.to_string())]).await;
    }
    let mut watch = store.watch(Revision(revision.0 - 2));
    match next_of(&mut watch).await {
        Ok(batch) => assert!(batch.revision > Revision(revision.0 - 2)),
        Err(StoreError::Behind) => {}
        Err(error) => panic!("{error}"),
    }
}
