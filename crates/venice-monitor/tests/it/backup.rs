//! Backups of racks with their tables in etcd.

use crate::ANY_PORT;
use crate::kit::{StartingMonitor, config};
use venice_control::QuotaFor;
use venice_control::{Limits, QuotaRecord};
use venice_monitor::{Backup, MonitorConfig, MonitorError, StoreChoice};
use venice_testkit::etcd::Etcd;

fn choice(etcd: &Etcd, prefix: &str) -> StoreChoice {
    let store = Some(format!("etcd://{}/{prefix}", etcd.addresses()));
    StoreChoice { store, ..StoreChoice::default() }
}

#[tokio::test]
async fn etcd_tables_are_backed_up_and_kept() {
    let (etcd, dirs) = (Etcd::start(1), tempfile::tempdir().unwrap());
    let [old, new, fresh] = ["old", "new", "fresh"].map(|name| dirs.path().join(name));
    let (rack, empty) = (choice(&etcd, "rack"), choice(&etcd, "empty"));
    let own = |store: &StoreChoice, dir| MonitorConfig {
        store: store.store.clone(),
        ..config(dir, ANY_PORT)
    };
    let monitor = StartingMonitor::of(own(&rack, &old)).ready().await;
    let of = QuotaFor::User("ada".to_owned());
    let quota = QuotaRecord { of: of.clone(), limits: Limits::of_memory(Some(1 << 30)) };
    monitor.client().await.set_quota(quota).await.unwrap();
    // While it runs: all of one moment, without the records of Monitor Nodes.
    let backup = Backup::read(&old, &rack, None).await.unwrap();
    let backup = Backup::from_bytes(&backup.to_bytes()).unwrap();
    assert_eq!(backup.info().quotas, 1);

    // etcd still has the tables, which are newer.
    monitor.client().await.remove_quota(of).await.unwrap();
    monitor.stop().await;
    let none = StoreChoice::default();
    let restored = backup.restore(&new, &none, false).await.unwrap();
    assert!(restored.has_kept_tables, "{restored:?}");
    let now = Backup::read(&new, &none, None).await.unwrap();
    assert_eq!(now.info().quotas, 0);
    // Another etcd, or another prefix, gets them.
    let restored = backup.restore(&fresh, &empty, false).await.unwrap();
    assert!(!restored.has_kept_tables, "{restored:?}");
    assert_eq!(Backup::read(&fresh, &none, None).await.unwrap().info().quotas, 1);
    // Those of another rack are left alone.
    let other = dirs.path().join("other");
    let token =
        venice_monitor::init(&other, "h:1", std::time::Duration::from_secs(60), &none).await;
    token.unwrap();
    let foreign = Backup::read(&other, &none, None).await.unwrap();
    let refused = foreign.restore(&dirs.path().join("x"), &rack, false).await;
    assert!(matches!(refused, Err(MonitorError::NotFree { .. })), "{refused:?}");
}
