//! A Monitor Node with another authority than the rack of its store.

use crate::ANY_PORT;
use crate::kit::{Agent, Monitor, StartingMonitor, config, request};
use std::path::Path;
use venice_control::identity::Authority;
use venice_monitor::{IDENTITY_DIR, MonitorConfig, MonitorError};
use venice_store::{
    Entry, EtcdStore, EtcdTls, RedbStore, Store, StoreChange, StoreLocation, Transaction,
};
use venice_testkit::etcd::Etcd;

/// Key of the owner record in the store.
const OWNER_KEY: &str = "monitor/authority";

/// Another rack's Monitor Node, with the same store.
struct ForeignMonitor {
    dir: tempfile::TempDir,
    authority: String,
}

impl ForeignMonitor {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join(IDENTITY_DIR)).unwrap();
        Self { dir, authority: authority.fingerprint().to_string() }
    }

    /// Checks that the Monitor Node is refused with the reason.
    async fn is_refused(&self, state_dir: &Path, store: &str) {
        let own = config(state_dir, ANY_PORT);
        let config = MonitorConfig {
            store: Some(store.to_owned()),
            state_dir: self.dir.path().to_owned(),
            ..own
        };
        let refused = venice_monitor::run(config, std::future::pending()).await.unwrap_err();
        assert!(matches!(refused, MonitorError::OtherRack { .. }), "{refused:?}");
        let said = refused.to_string();
        let theirs = venice_testkit::identity::authority().fingerprint().to_string();
        for part in [store, &theirs, &self.authority, "--store", "`identity`"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

async fn entries(store: &impl Store) -> Vec<Entry> {
    store.load().await.unwrap().entries
}

async fn remove_owner(store: &impl Store) {
    let removal = Transaction::of(vec![StoreChange::remove(OWNER_KEY)]);
    store.commit(removal).await.unwrap();
}

fn has_owner(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.key == OWNER_KEY)
}

/// Serves, lends memory once, and stops.
async fn serve(config: MonitorConfig) {
    let monitor: Monitor = StartingMonitor::of(config).ready().await;
    let agent = Agent::start("node1", &monitor.addr, 2).await;
    let grants = monitor.client().await.allocate(request(1, 1, &[])).await.unwrap();
    assert_eq!(grants.len(), 1);
    drop(agent);
    monitor.stop().await;
}

#[tokio::test]
async fn foreign_monitor_cannot_use_etcd() {
    let (etcd, dir, foreign) =
        (Etcd::start(1), tempfile::tempdir().unwrap(), ForeignMonitor::new());
    let at = format!("etcd://{}/rack", etcd.addresses());
    let own = || MonitorConfig { store: Some(at.clone()), ..config(dir.path(), ANY_PORT) };
    serve(own()).await;
    let StoreLocation::Etcd(location) = at.parse().unwrap() else { panic!("it is etcd") };
    let store = EtcdStore::connect(&location, &EtcdTls::default()).await.unwrap();
    let before = store.load().await.unwrap();
    assert!(has_owner(&before.entries));
    foreign.is_refused(dir.path(), &at).await;
    assert_eq!(store.load().await.unwrap(), before, "not even for a moment");
    // A store without an owner record gets one.
    remove_owner(&store).await;
    let monitor = StartingMonitor::of(own()).ready().await;
    assert!(has_owner(&entries(&store).await));
    foreign.is_refused(dir.path(), &at).await;
    monitor.stop().await;
}

#[tokio::test]
async fn foreign_monitor_cannot_use_file() {
    let (dir, foreign) = (tempfile::tempdir().unwrap(), ForeignMonitor::new());
    let path = dir.path().join("rack.redb");
    let at = path.display().to_string();
    serve(config(dir.path(), ANY_PORT)).await;
    let before = entries(&RedbStore::open(&path).unwrap()).await;
    assert!(has_owner(&before));
    foreign.is_refused(dir.path(), &at).await;
    let store = RedbStore::open(&path).unwrap();
    assert_eq!(entries(&store).await, before);
    remove_owner(&store).await;
    drop(store);
    StartingMonitor::of(config(dir.path(), ANY_PORT)).ready().await.stop().await;
    assert!(has_owner(&entries(&RedbStore::open(&path).unwrap()).await));
    foreign.is_refused(dir.path(), &at).await;
}
