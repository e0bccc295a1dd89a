//! Tests of leases.

use super::watching::next_of;
use super::{change, put, texts};
use std::time::Duration;
use venice_store::{Store, StoreChange, StoreError, Transaction};

const SHORT: Duration = Duration::from_secs(1);

pub async fn end_with_it<S: Store>(next: impl AsyncFn() -> S) {
    let store = next().await;
    let long = store.grant_lease(Duration::from_secs(600)).await.unwrap();
    let short = store.grant_lease(SHORT).await.unwrap();
    let leased = |key: &str, lease| StoreChange::put_leased(key, "x", lease);
    let changes = [leased("a", short), leased("b", short), leased("c", long), put("d", "x")];
    change(&store, &changes).await;
    // A record written without the lease stays.
    let before = change(&store, &[put("b", "y")]).await;
    let mut watch = store.watch(before);
    assert_eq!(next_of(&mut watch).await.unwrap().changes, [StoreChange::remove("a")]);
    let left = [("b", "y"), ("c", "x"), ("d", "x")];
    assert_eq!(texts(&store.load().await.unwrap()), left);
    assert!(matches!(store.keep_alive(short).await, Err(StoreError::LeaseOver)));
    let late = store.commit(Transaction::of(vec![put("d", "z"), leased("e", short)])).await;
    assert!(matches!(late, Err(StoreError::LeaseOver)), "{late:?}");
    assert_eq!(texts(&store.load().await.unwrap()), left, "a transaction is atomic");
    // By request, and once more.
    store.end_lease(long).await.unwrap();
    store.end_lease(long).await.unwrap();
    assert_eq!(next_of(&mut watch).await.unwrap().changes, [StoreChange::remove("c")]);
    assert_eq!(texts(&store.load().await.unwrap()), [("b", "y"), ("d", "x")]);
}

pub async fn kept_alive<S: Store>(next: impl AsyncFn() -> S) {
    let store = next().await;
    let kept = store.grant_lease(Duration::from_secs(5)).await.unwrap();
    let left_alone = store.grant_lease(SHORT).await.unwrap();
    change(&store, &[StoreChange::put_leased("kept", "x", kept)]).await;
    let before =
        change(&store, &[StoreChange::put_leased("not kept alive", "x", left_alone)]).await;
    let mut watch = store.watch(before);
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    loop {
        tokio::select! {
            told = next_of(&mut watch) => {
                assert_eq!(told.unwrap().changes, [StoreChange::remove("not kept alive")]);
                break;
            }
            _ = ticks.tick() => store.keep_alive(kept).await.unwrap(),
        }
    }
    assert_eq!(texts(&store.load().await.unwrap()), [("kept", "x")]);
    store.keep_alive(kept).await.unwrap();
}
