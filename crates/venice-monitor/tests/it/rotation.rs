//! Rotation of the authority: the end waits for nodes and programs, and other Monitor Nodes need the
//! same authority.

use crate::ANY_PORT;
use crate::kit::{Agent, Monitor, StartingMonitor, config};
use std::fs;
use std::path::Path;
use std::time::Duration;
use venice_control::ControlError;
use venice_control::client::EnrolmentClient;
use venice_control::server::RotationStep;
use venice_monitor::{IDENTITY_DIR, MonitorConfig, MonitorError};
use venice_testkit::etcd::Etcd;
use venice_testkit::identity::access;

const FINISH: RotationStep = RotationStep::Finish { is_sure: false };
/// Tries while the Monitor Node begins its next session.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

async fn try_rotate(addr: &str, step: RotationStep) -> Result<(), ControlError> {
    let mut gate = EnrolmentClient::connect(&access(addr)).await?;
    gate.rotate(step).await.map(drop)
}

/// Rotates; returns the reason of a refusal.
async fn rotate(addr: &str, step: RotationStep) -> Result<(), String> {
    for _ in 0..TRIES {
        match try_rotate(addr, step).await {
            Err(ControlError::Rack(refusal)) => return Err(refusal.to_string()),
            Err(ControlError::Unreachable { .. }) => tokio::time::sleep(PAUSE).await,
            done => return done.map_err(|error| error.to_string()),
        }
    }
    panic!("the Monitor Node begins no session");
}

#[tokio::test]
async fn finish_waits_for_nodes_and_programs() {
    let dir = tempfile::tempdir().unwrap();
    let config = MonitorConfig { certificate_s: 5.0, ..config(dir.path(), ANY_PORT) };
    let monitor: Monitor = StartingMonitor::of(config).ready().await;
    // It reports like agents of earlier releases, and never renews.
    let _agent = Agent::start("node1", &monitor.addr, 4).await;
    rotate(&monitor.addr, RotationStep::Begin).await.unwrap();
    let why = rotate(&monitor.addr, FINISH).await.unwrap_err();
    assert!(why.contains("not renewed yet: node1"), "{why}");
    // One that will not return.
    let mut gate = EnrolmentClient::connect(&access(&monitor.addr)).await.unwrap();
    gate.revoke("node1", false).await.unwrap();
    let why = rotate(&monitor.addr, FINISH).await.unwrap_err();
    assert!(why.contains("programs may still hold"), "{why}");
    for _ in 0..TRIES {
        if rotate(&monitor.addr, FINISH).await.is_ok() {
            assert!(!dir.path().join(IDENTITY_DIR).join("rotation.pem").exists());
            return monitor.stop().await;
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("the last certificate of the former authority does not end");
}

fn copy_identity(from: &Path, to: &Path) {
    for entry in fs::read_dir(from.join(IDENTITY_DIR)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(IDENTITY_DIR).join(entry.file_name())).unwrap();
    }
}

#[tokio::test]
async fn other_monitors_need_new_authority() {
    let etcd = Etcd::start(1);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let store = format!("etcd://{}/rack", etcd.addresses());
    let config = |at: usize| MonitorConfig {
        store: Some(store.clone()),
        ..config(dirs[at].path(), ANY_PORT)
    };
    let first = StartingMonitor::of(config(0)).ready().await;
    let second = StartingMonitor::of(config(1)).ready().await;
    let why = rotate(&second.addr, RotationStep::Begin).await.unwrap_err();
    assert!(why.contains(&first.addr), "{why}");
    assert!(why.contains("copy the folder"), "{why}");
    second.stop().await;
    for _ in 0..TRIES {
        if rotate(&first.addr, RotationStep::Begin).await.is_ok() {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    // The next session has taken the store over.
    let again = rotate(&first.addr, RotationStep::Begin).await.unwrap_err();
    assert!(again.contains("is being rotated"), "{again}");
    // `config` puts the former authority there.
    let old = venice_monitor::run(config(1), std::future::pending()).await.unwrap_err();
    assert!(matches!(old, MonitorError::OtherRack { .. }), "{old:?}");
    let joining = config(1);
    copy_identity(dirs[0].path(), dirs[1].path());
    StartingMonitor::of(joining).ready().await.stop().await;
    first.stop().await;
}
