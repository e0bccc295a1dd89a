//! An agent under memory pressure, simulated by a file of the test's own.

use std::fs;
use std::path::Path;

use crate::common::*;
use venice_agent::AgentConfig;
use venice_control::client::MonitorClient;
use venice_control::{LeaseState, NodeRow};
use venice_wire::{ByteSize, SLAB_BYTES};

/// Sets the machine's available memory.
fn available(proc_dir: &Path, mib: u64) {
    let text = format!("MemTotal: 8388608 kB\nMemAvailable: {} kB\n", mib << 10);
    // Atomic: a reader sees the old text or the new one.
    fs::write(proc_dir.join("new"), text).unwrap();
    fs::rename(proc_dir.join("new"), proc_dir.join("meminfo")).unwrap();
}

fn config(dir: &Path, monitor: std::net::SocketAddr, proc_dir: &Path) -> AgentConfig {
    AgentConfig {
        lend: ByteSize::mib(64),
        keep_free: Some(ByteSize::mib(1024)),
        proc_dir: proc_dir.to_owned(),
        ..agent_config(dir, "one", monitor)
    }
}

async fn node_until(
    client: &MonitorClient,
    what: &str,
    check: impl Fn(&NodeRow) -> bool,
) -> NodeRow {
    eventually(what, || async {
        let row = client.clone().nodes().await.ok()?.pop()?;
        check(&row).then_some(row)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn unlent_memory_returns_to_machine() {
    let dir = tempfile::tempdir().unwrap();
    available(dir.path(), 4000);
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    let (_agent, _) = start_agent(config(dir.path(), at, dir.path())).await;
    let mut client = rack_with(at, 1, 4 * SLAB_BYTES).await;
    let grants = client.allocate(request(2 * SLAB_BYTES, 1)).await.unwrap();
    let mut far = Far::new(&grants[0]);
    far.write(5, b"kept").unwrap();

    available(dir.path(), 900);
    let row = node_until(&client, "it gives what is free", |row| row.pressure == "high").await;
    assert_eq!((row.lent_bytes, row.free_bytes), (2 * SLAB_BYTES, 0));
    assert_eq!(row.available_bytes, Some(900 << 20));
    client.allocate(request(SLAB_BYTES, 2)).await.unwrap_err();
    assert_eq!(far.read(5, 4), Ok(b"kept".to_vec()), "what is lent stays lent");
    assert!(matches!(renew(&grants[0]).await, LeaseState::Live { .. }));
    // Memory released meanwhile goes to the machine too.
    client.release(&leases(&grants[..1])).await.unwrap();
    node_until(&client, "what came back goes too", |row| row.lent_bytes == 0).await;

    available(dir.path(), 4000);
    let row =
        node_until(&client, "all is there again", |row| row.free_bytes == 4 * SLAB_BYTES).await;
    assert_eq!(row.pressure, "none");
    let grants = client.allocate(request(4 * SLAB_BYTES, 3)).await.unwrap();
    assert_eq!(Far::new(&grants[0]).read(5, 4), Ok(vec![0; 4]));
}

#[tokio::test(flavor = "multi_thread")]
async fn lent_memory_is_reclaimed_when_configured() {
    let dir = tempfile::tempdir().unwrap();
    available(dir.path(), 4000);
    let (_monitor, at) = monitor(dir.path(), "127.0.0.1:0", 60.0).await;
    let take_back = AgentConfig { take_back_after_s: 2.0, ..config(dir.path(), at, dir.path()) };
    let (_agent, _) = start_agent(take_back).await;
    let mut client = rack_with(at, 1, 4 * SLAB_BYTES).await;
    let first = client.allocate(request(2 * SLAB_BYTES, 1)).await.unwrap();
    let second = client.allocate(request(2 * SLAB_BYTES, 2)).await.unwrap();
    let (mut far_first, mut far_second) = (Far::new(&first[0]), Far::new(&second[0]));
    far_first.write(0, b"one").unwrap();
    far_second.write(0, b"two").unwrap();

    // 20 MiB are missing: two slabs, which the newest grant has.
    available(dir.path(), 1004);
    let told = far_second.await_revocation();
    assert_eq!(told.grant, second[0].id);
    // The pressure ends before the other grant is reclaimed.
    available(dir.path(), 1030);
    assert_eq!(renew(&second[0]).await, LeaseState::Unknown);
    // On a machine that stalls for seconds it may be reclaimed all the same.
    if let LeaseState::Live { .. } = renew(&first[0]).await {
        assert_eq!(far_first.read(0, 3), Ok(b"one".to_vec()));
    }
}
