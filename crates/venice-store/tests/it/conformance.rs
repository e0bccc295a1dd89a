//! Conformance tests of every store: the same on a file and on etcd.

use crate::suite::{leases, model, transactions, watching};
use venice_store::{EtcdStore, EtcdTls, RedbStore, StoreLocation};
use venice_testkit::etcd::Etcd;

/// Runs a test on new stores, each empty.
macro_rules! holds_for_both {
    ($($name:ident: $test:path;)*) => {
        mod redb_file {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                let number = std::sync::atomic::AtomicUsize::new(0);
                let next = async || {
                    let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    RedbStore::open(&folder.path().join(format!("{number}.redb"))).unwrap()
                };
                $test(next).await;
            })*
        }

        mod etcd {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let etcd = Etcd::start(1);
                let number = std::sync::atomic::AtomicUsize::new(0);
                let next = async || {
                    let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    connect(&etcd, &format!("test/{number}")).await
                };
                $test(next).await;
            })*
        }
    };
}

holds_for_both! {
    transaction_is_atomic: transactions::made_as_a_whole;
    conditions_decide: transactions::conditions_decide;
    one_of_two_contenders_wins: transactions::one_of_many_gets_it;
    oversized_transaction_is_refused: transactions::too_large;
    operations_match_model: model::as_the_model;
    watch_reports_all_in_order: watching::all_in_order;
    lagging_watch_is_reported: watching::behind;
    records_end_with_lease: leases::end_with_it;
    kept_alive_lease_stays: leases::kept_alive;
}

async fn connect(etcd: &Etcd, prefix: &str) -> EtcdStore {
    let location = format!("etcd://{}/{prefix}", etcd.addresses());
    let StoreLocation::Etcd(location) = location.parse().unwrap() else { unreachable!() };
    EtcdStore::connect(&location, &EtcdTls::default()).await.unwrap()
}
