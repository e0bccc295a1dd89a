//! A Monitor Node whose authority is another than that of the rack whose tables it is given.

use crate::ANY_PORT;
use crate::kit::{Agent, Beginning, Monitor, config, request};
use std::path::Path;
use venice_control::identity::Authority;
use venice_etcd_test::Etcd;
use venice_monitor::{IDENTITY_DIR, MonitorConfig, MonitorError};
use venice_store::{
    Entry, EtcdStore, EtcdTls, RedbStore, Store, StoreChange, StoreLocation, Transaction,
};

/// Where the mark is, as it is written.
const MARK: &str = "monitor/authority";

/// Another rack's Monitor Node, with the same store.
struct WrongPeer {
    dir: tempfile::TempDir,
    authority: String,
}

impl WrongPeer {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join(IDENTITY_DIR)).unwrap();
        Self { dir, authority: authority.fingerprint().to_string() }
    }

    /// It is turned away, and told why.
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
        let theirs = venice_identity_test::authority().fingerprint().to_string();
        for part in [store, &theirs, &self.authority, "--store", "`identity`"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

async fn entries(store: &impl Store) -> Vec<Entry> {
    store.load().await.unwrap().entries
}

async fn forget_mark(store: &impl Store) {
    let removal = Transaction::of(vec![StoreChange::remove(MARK)]);
    store.commit(removal).await.unwrap();
}

fn is_marked(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.key == MARK)
}

/// Serves, and lends something, and ends.
async fn serve(config: MonitorConfig) {
    let monitor: Monitor = Beginning::of(config).ready().await;
    let agent = Agent::start("node1", &monitor.addr, 2).await;
    let grants = monitor.client().await.request_memory(request(1, 1, &[])).await.unwrap();
    assert_eq!(grants.len(), 1);
    drop(agent);
    monitor.stop().await;
}

#[tokio::test]
async fn another_racks_monitor_node_changes_nothing_in_etcd() {
    let (etcd, dir, stranger) = (Etcd::start(1), tempfile::tempdir().unwrap(), WrongPeer::new());
    let at = format!("etcd://{}/rack", etcd.addresses());
    let own = || MonitorConfig { store: Some(at.clone()), ..config(dir.path(), ANY_PORT) };
    serve(own()).await;
    let StoreLocation::Etcd(location) = at.parse().unwrap() else { panic!("it is etcd") };
    let store = EtcdStore::connect(&location, &EtcdTls::default()).await.unwrap();
    let before = store.load().await.unwrap();
    assert!(is_marked(&before.entries));
    stranger.is_refused(dir.path(), &at).await;
    assert_eq!(store.load().await.unwrap(), before, "not even for a moment");
    // Whoever had the store before there were marks puts one there.
    forget_mark(&store).await;
    let monitor = Beginning::of(own()).ready().await;
    assert!(is_marked(&entries(&store).await));
    stranger.is_refused(dir.path(), &at).await;
    monitor.stop().await;
}

#[tokio::test]
async fn another_racks_monitor_node_changes_nothing_in_a_file() {
    let (dir, stranger) = (tempfile::tempdir().unwrap(), WrongPeer::new());
    let path = dir.path().join("rack.redb");
    let at = path.display().to_string();
    serve(config(dir.path(), ANY_PORT)).await;
    let before = entries(&RedbStore::open(&path).unwrap()).await;
    assert!(is_marked(&before));
    stranger.is_refused(dir.path(), &at).await;
    let store = RedbStore::open(&path).unwrap();
    assert_eq!(entries(&store).await, before);
    forget_mark(&store).await;
    drop(store);
    Beginning::of(config(dir.path(), ANY_PORT)).ready().await.stop().await;
    assert!(is_marked(&entries(&RedbStore::open(&path).unwrap()).await));
    stranger.is_refused(dir.path(), &at).await;
}
