//! Tests of etcd with members that die, stall and return, under several writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use venice_store::{
    Condition, Entry, EtcdLocation, EtcdStore, EtcdTls, Outcome, Revision, Store, StoreChange,
    StoreError, StoreLocation, Transaction,
};
use venice_testkit::etcd::Etcd;

const PATIENCE: Duration = Duration::from_secs(120);
const WRITERS: usize = 3;

fn location(text: &str) -> EtcdLocation {
    match text.parse().unwrap() {
        StoreLocation::Etcd(location) => location,
        StoreLocation::File(path) => panic!("{path:?}"),
    }
}

async fn connect(addresses: &str) -> Result<EtcdStore, StoreError> {
    EtcdStore::connect(&location(&format!("etcd://{addresses}")), &EtcdTls::default()).await
}

fn number(entry: &Entry) -> usize {
    std::str::from_utf8(&entry.value).unwrap().parse().unwrap()
}

/// Increments a shared record again and again; returns the number of acknowledged increments. Each
/// transaction also increments a record of this writer. The two counts must agree: after a long
/// time without an answer, that record tells whether the transaction was made, perhaps only later.
async fn count(
    store: EtcdStore,
    own: String,
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
) -> usize {
    let (mut own_count, mut in_doubt) = (0, false);
    while in_doubt || !stop.load(Ordering::Relaxed) {
        let Ok(all) = store.load().await else { continue };
        let entry = all.entries.iter().find(|entry| entry.key == "count").unwrap();
        let next = number(entry) + 1;
        let on_record = all.entries.iter().find(|entry| entry.key == own).map_or(0, number);
        if on_record != own_count {
            assert!(in_doubt && on_record == own_count + 1, "{own_count}, on record {on_record}");
            own_count = on_record;
        }
        let conditions = vec![Condition::is_as_at("count", entry.changed_at)];
        let changes = vec![
            StoreChange::put("count", next.to_string()),
            StoreChange::put(own.as_str(), (own_count + 1).to_string()),
        ];
        match store.commit(Transaction { conditions, changes }).await {
            Ok(Outcome::Committed(_)) => {
                own_count += 1;
                in_doubt = false;
                made.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Outcome::Conflict(_)) => {}
            Err(StoreError::Unreachable { .. }) => in_doubt = true,
            Err(error) => panic!("{error}"),
        }
    }
    own_count
}

/// Waits until `more` further increments were counted.
async fn progress(made: &AtomicUsize, more: usize) {
    let (began, from) = (Instant::now(), made.load(Ordering::Relaxed));
    while made.load(Ordering::Relaxed) < from + more {
        assert!(began.elapsed() < PATIENCE, "no progress");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_happen_once_despite_failures() {
    let mut etcd = Etcd::start(3);
    let store = connect(&etcd.addresses()).await.unwrap();
    store.commit(Transaction::of(vec![StoreChange::put("count", "0")])).await.unwrap();
    let began = store.load().await.unwrap().revision;
    let mut watch = store.watch(began);
    let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let store = connect(&etcd.addresses()).await.unwrap();
        let (stop, made) = (stop.clone(), made.clone());
        writers.push(tokio::spawn(count(store, format!("of {writer}"), stop, made)));
    }
    for round in 0..4 {
        progress(&made, 20).await;
        let leader = etcd.leader().unwrap_or(round % 3);
        if round % 2 == 0 {
            etcd.kill(leader);
            progress(&made, 20).await;
            etcd.restart(leader);
        } else {
            etcd.stall(leader);
            progress(&made, 20).await;
            etcd.go_on(leader);
        }
    }
    progress(&made, 20).await;
    stop.store(true, Ordering::Relaxed);
    let mut total = 0;
    let all_of =
        |all: &[Entry], key: &str| all.iter().find(|entry| entry.key == key).map_or(0, number);
    for (writer, counted) in writers.into_iter().enumerate() {
        let counted = counted.await.unwrap();
        let all = store.load().await.unwrap().entries;
        assert_eq!(all_of(&all, &format!("of {writer}")), counted);
        total += counted;
    }
    let last = store.load().await.unwrap();
    assert_eq!(all_of(&last.entries, "count"), total);
    // A watcher received each of them, in order.
    for expected in 1..=total {
        let batch = watch.next().await.unwrap();
        let count = batch.changes.iter().find(|change| change.key == "count").unwrap();
        assert_eq!(count.value.as_deref(), Some(expected.to_string().as_bytes()));
    }
}

#[tokio::test]
async fn watch_leaves_silent_member() {
    let etcd = Etcd::start(3);
    let store = connect(&etcd.addresses()).await.unwrap();
    let put = |value: &str| Transaction::of(vec![StoreChange::put("a", value)]);
    let mut watch = store.watch(store.load().await.unwrap().revision);
    let mut slowest = Duration::ZERO;
    // Each member stops once, whichever serves the watch.
    for member in 0..3 {
        etcd.stall(member);
        for round in 0..2 {
            let value = format!("{member}-{round}");
            let began = Instant::now();
            while let Err(error) = store.commit(put(&value)).await {
                assert!(began.elapsed() < PATIENCE, "{error}");
            }
            let committed = Instant::now();
            loop {
                let told = tokio::time::timeout(PATIENCE, watch.next());
                let batch = told.await.expect("no event").unwrap();
                if batch.changes.iter().any(|it| it.value.as_deref() == Some(value.as_bytes())) {
                    break;
                }
            }
            slowest = slowest.max(committed.elapsed());
        }
        etcd.go_on(member);
        let began = Instant::now();
        while store.load().await.is_err() {
            assert!(began.elapsed() < PATIENCE);
        }
    }
    println!("latest event {:.1} s after the commit", slowest.as_secs_f64());
}

#[tokio::test]
async fn lost_majority_fails_then_recovers() {
    let mut etcd = Etcd::start(3);
    let store = connect(&etcd.addresses()).await.unwrap();
    let put = |value: &str| Transaction::of(vec![StoreChange::put("a", value)]);
    store.commit(put("1")).await.unwrap();
    etcd.kill(0);
    etcd.kill(1);
    let refused = store.commit(put("2")).await;
    assert!(matches!(refused, Err(StoreError::Unreachable { .. })), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains(&etcd.addresses()));
    etcd.restart(0);
    let began = Instant::now();
    while let Err(error) = store.commit(put("3")).await {
        assert!(began.elapsed() < PATIENCE, "{error}");
    }
    assert_eq!(store.load().await.unwrap().entries[0].value, b"3");
}

#[tokio::test]
async fn compacted_history_is_reported() {
    let etcd = Etcd::start(1);
    let store = connect(&etcd.addresses()).await.unwrap();
    let mut revisions = Vec::new();
    for value in ["1", "2", "3", "4"] {
        store.commit(Transaction::of(vec![StoreChange::put("a", value)])).await.unwrap();
        revisions.push(store.load().await.unwrap().revision);
    }
    etcd.compact(revisions[2].0);
    let mut watch = store.watch(revisions[0]);
    assert!(matches!(watch.next().await, Err(StoreError::Behind)));
    let mut watch = store.watch(revisions[2]);
    assert_eq!(watch.next().await.unwrap().revision, revisions[3]);
}

#[tokio::test]
async fn invalid_setups_fail_at_once() {
    let nobody = connect("127.0.0.1:1").await;
    assert!(matches!(nobody, Err(StoreError::Unreachable { .. })), "{nobody:?}");
    let etcd = Etcd::start_with(1, 128);
    let error = connect(&etcd.addresses()).await.unwrap_err().to_string();
    assert!(error.contains("start each with --max-txn-ops 2048"), "{error}");
    let etcd = Etcd::start(1);
    connect(&etcd.addresses()).await.unwrap();
    etcd.put("venice/format", "99");
    let error = connect(&etcd.addresses()).await.unwrap_err().to_string();
    assert!(error.contains("has format 99, this Venice understands 1"), "{error}");
    let tls = location(&format!("etcds://{}", etcd.addresses()));
    let error = EtcdStore::connect(&tls, &EtcdTls::default()).await.unwrap_err().to_string();
    assert!(error.contains("--store-ca"), "{error}");
}

/// Writes a record with a lease; returns the conditions that hold while it is this one.
async fn write_leased(store: &EtcdStore) -> (Vec<Condition>, Revision) {
    let lease = store.grant_lease(PATIENCE).await.unwrap();
    let conditions = vec![Condition::is_absent("turn")];
    let changes = vec![StoreChange::put_leased("turn", "mine", lease)];
    match store.commit(Transaction { conditions, changes }).await.unwrap() {
        Outcome::Committed(at) => {
            (vec![Condition::is_as_at("turn", at), Condition::ends_with("turn", lease)], at)
        }
        Outcome::Conflict(found) => panic!("{found:?}"),
    }
}

#[tokio::test]
async fn recreated_store_is_another() {
    let mut etcd = Etcd::start(1);
    let first = connect(&etcd.addresses()).await.unwrap();
    let (ours, at) = write_leased(&first).await;
    let mut watch = first.watch(at);
    let changes = vec![StoreChange::put("a", "1")];
    let whole = Transaction { conditions: ours, changes };
    assert!(matches!(first.commit(whole.clone()).await.unwrap(), Outcome::Committed(_)));
    watch.next().await.unwrap();

    etcd.begin_anew();
    let second = connect(&etcd.addresses()).await.unwrap();
    let (_theirs, again) = write_leased(&second).await;
    assert_eq!(again, at, "the revision alone distinguishes nothing");
    let late = first.commit(whole).await.unwrap();
    assert!(matches!(late, Outcome::Conflict(_)), "{late:?}");
    let told = tokio::time::timeout(PATIENCE, watch.next()).await.expect("no event");
    assert!(matches!(told, Err(StoreError::Behind)), "{told:?}");
}
