//! Tests of transactions: atomic and conditional.

use super::{change, change_if, put, texts, value};
use std::time::Duration;
use venice_store::{
    CHANGES_AT_ONCE, Condition, Outcome, Revision, Store, StoreChange, StoreError, Transaction,
};

/// Time of a lease that does not end within a test.
const LONG: Duration = Duration::from_secs(600);

pub async fn made_as_a_whole<S: Store>(next: impl AsyncFn() -> S) {
    let store = next().await;
    let empty = store.load().await.unwrap();
    assert!(empty.entries.is_empty());
    let first = change(&store, &[put("b", "2"), put("a", "1"), put("c", "3")]).await;
    assert!(first > empty.revision);
    let second = change(&store, &[put("a", "one"), StoreChange::remove("c")]).await;
    assert!(second > first);
    let all = store.load().await.unwrap();
    assert_eq!((all.revision, texts(&all)), (second, vec![("a", "one"), ("b", "2")]));
    assert_eq!([second, first], [all.entries[0].changed_at, all.entries[1].changed_at]);
    // Of several changes of one record the last counts.
    change(&store, &[put("a", "x"), put("b", "y"), StoreChange::remove("b"), put("a", "z")]).await;
    assert_eq!(texts(&store.load().await.unwrap()), [("a", "z")]);
    // A change without effect does not count.
    let before = store.load().await.unwrap();
    change(&store, &[]).await;
    change(&store, &[StoreChange::remove("b")]).await;
    assert_eq!(store.load().await.unwrap().entries, before.entries);
}

pub async fn conditions_decide<S: Store>(next: impl AsyncFn() -> S) {
    let store = next().await;
    let absent = [Condition::is_absent("a")];
    let Outcome::Committed(first) = change_if(&store, &absent, &[put("a", "1")]).await else {
        panic!("it was not there");
    };
    let Outcome::Conflict(found) = change_if(&store, &absent, &[put("a", "2")]).await else {
        panic!("it is there");
    };
    assert_eq!((found.len(), value(&found[0]), found[0].changed_at), (1, "1", first));
    let as_first = [Condition::is_as_at("a", first), Condition::is_absent("b")];
    let both = [put("a", "3"), put("b", "3")];
    assert!(matches!(change_if(&store, &as_first, &both).await, Outcome::Committed(_)));
    assert!(matches!(change_if(&store, &as_first, &[put("c", "4")]).await, Outcome::Conflict(_)));
    assert_eq!(texts(&store.load().await.unwrap()), [("a", "3"), ("b", "3")]);
    // Removed and made anew it is another record.
    change(&store, &[StoreChange::remove("a")]).await;
    change(&store, &[put("a", "1")]).await;
    let as_before = [Condition::is_as_at("a", first)];
    assert!(matches!(change_if(&store, &as_before, &[]).await, Outcome::Conflict(_)));
    let gone = [Condition::is_as_at("nobody", Revision(1))];
    assert_eq!(change_if(&store, &gone, &[put("a", "5")]).await, Outcome::Conflict(Vec::new()));
    // A condition on the lease counts too.
    let lease = store.grant_lease(LONG).await.unwrap();
    let other = store.grant_lease(LONG).await.unwrap();
    change(&store, &[StoreChange::put_leased("d", "1", lease)]).await;
    let under = |lease| [Condition::ends_with("d", lease)];
    let refused = change_if(&store, &under(other), &[put("e", "1")]).await;
    assert!(matches!(&refused, Outcome::Conflict(found) if found.len() == 1), "{refused:?}");
    let made = change_if(&store, &under(lease), &[put("e", "1")]).await;
    assert!(matches!(made, Outcome::Committed(_)), "{made:?}");
    change(&store, &[StoreChange::put_leased("d", "2", lease)]).await;
    let changed_since = change_if(&store, &under(lease), &[put("e", "2")]).await;
    assert!(matches!(changed_since, Outcome::Committed(_)), "{changed_since:?}");
    change(&store, &[StoreChange::remove("d")]).await;
    let gone = change_if(&store, &under(lease), &[put("e", "3")]).await;
    assert_eq!(gone, Outcome::Conflict(Vec::new()));
}

pub async fn one_of_many_gets_it<S: Store>(next: impl AsyncFn() -> S) {
    const ROUNDS: usize = 8;
    const CLIENTS: usize = 4;
    let store = next().await;
    change(&store, &[put("count", "0")]).await;
    let count = |store: S| async move {
        let mut lost = 0;
        for _ in 0..ROUNDS {
            loop {
                let all = store.load().await.unwrap();
                let entry = all.entries.iter().find(|entry| entry.key == "count").unwrap();
                let next = value(entry).parse::<usize>().unwrap() + 1;
                let condition = [Condition::is_as_at("count", entry.changed_at)];
                match change_if(&store, &condition, &[put("count", &next.to_string())]).await {
                    Outcome::Committed(_) => break,
                    Outcome::Conflict(found) => assert!(found[0].changed_at > entry.changed_at),
                }
                lost += 1;
            }
        }
        lost
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(count(store.clone()))).collect();
    for client in clients {
        client.await.unwrap();
    }
    let total = (ROUNDS * CLIENTS).to_string();
    assert_eq!(texts(&store.load().await.unwrap()), [("count", total.as_str())]);
}

pub async fn too_large<S: Store>(next: impl AsyncFn() -> S) {
    let store = next().await;
    let many = |count| (0..count).map(|number| put(&format!("{number:04}"), "x")).collect();
    assert!(matches!(
        store.commit(Transaction::of(many(CHANGES_AT_ONCE + 1))).await,
        Err(StoreError::TooLarge { .. })
    ));
    assert!(store.load().await.unwrap().entries.is_empty());
    // The most changes with the most conditions; also more records than one read returns.
    let changes: Vec<StoreChange> = many(CHANGES_AT_ONCE);
    let conditions = changes.iter().map(|change| Condition::is_absent(change.key.as_str()));
    let (conditions, changes) = (conditions.collect(), changes.clone());
    let outcome = store.commit(Transaction { conditions, changes }).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)));
    let all = store.load().await.unwrap();
    assert_eq!(all.entries.len(), CHANGES_AT_ONCE);
    assert!(all.entries.is_sorted_by_key(|entry| entry.key.clone()));
}
