//! Crashes and restarts of the Monitor Node and of agents.

use crate::ANY_PORT;
use crate::kit::{Agent, Monitor, keep, leases, request, states, until};
use venice_control::client::MonitorClient;
use venice_control::{ControlError, GrantRow, Limits, NodeRow, QuotaFor, QuotaRecord};
use venice_rack::types::RackError;
use venice_testkit::tables::Tables;
use venice_wire::SLAB_BYTES;

/// Returns the grants' rows without the age, which changes by itself.
async fn grants(client: &mut MonitorClient) -> Vec<GrantRow> {
    let rows = client.grants().await.unwrap().into_iter();
    rows.map(|row| GrantRow { age_s: 0.0, ..row }).collect()
}

async fn tables(monitor: &Monitor) -> Tables {
    Tables::of(&venice_testkit::identity::access(&monitor.addr)).await.unwrap()
}

async fn node(client: &MonitorClient, name: &str) -> NodeRow {
    let rows = client.clone().nodes().await.unwrap();
    rows.into_iter().find(|row| row.name == name).unwrap()
}

#[tokio::test]
async fn restart_restores_all_tables() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let one = Agent::start("node1", &monitor.addr, 4).await;
    let two = Agent::start("node2", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    let lent = client.allocate(request(1, 4, &[])).await.unwrap();
    let _kept = keep(&lent);
    let rows = grants(&mut client).await;
    let owners = rows.iter().map(|row| (&*row.owner_user, &*row.owner_node, &*row.purpose));
    assert_eq!(owners.collect::<Vec<_>>(), [("root", "test", "test"); 2]);
    let of = QuotaFor::User("root".to_owned());
    client
        .set_quota(QuotaRecord { of, limits: Limits::of_memory(Some(100 * SLAB_BYTES)) })
        .await
        .unwrap();
    // The donors have reported their free slabs.
    let free = |row: &NodeRow| row.free_bytes == 2 * SLAB_BYTES;
    until(|| node(&client, "node1"), free).await;
    until(|| node(&client, "node2"), free).await;
    let before = tables(&monitor).await;

    let addr = monitor.addr.clone();
    monitor.kill().await;
    let monitor = Monitor::start(directory.path(), &addr).await;
    let mut client = monitor.client().await;
    before.recorded().assert_same(&tables(&monitor).await.recorded(), "after a crash");
    assert_eq!(client.allocate(request(1, 4, &[])).await.unwrap(), lent);

    monitor.stop().await;
    let monitor = Monitor::start(directory.path(), &addr).await;
    let mut client = monitor.client().await;
    // The agents reconnect by themselves, and their reports change nothing.
    for name in ["node1", "node2"] {
        until(|| node(&client, name), |row| row.last_heartbeat_ms.is_some()).await;
    }
    before.assert_same(&tables(&monitor).await, "after a stop");
    let more = client.allocate(request(2, 4, &[])).await.unwrap();
    assert!(more.iter().all(|grant| grant.id > lent[1].id), "grant numbers are unique");
    assert_eq!(one.held().len() + two.held().len(), 4);
}

#[tokio::test]
async fn lost_store_is_rebuilt_from_donors() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let agent = Agent::start("node1", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    let lent = client.allocate(request(1, 3, &[])).await.unwrap();
    let _kept = keep(&lent);
    let before = grants(&mut client).await;
    let addr = monitor.addr.clone();
    monitor.kill().await;

    let empty = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(empty.path(), &addr).await;
    let client = monitor.client().await;
    until(|| async { grants(&mut client.clone()).await }, |rows| *rows == before).await;
    let row = node(&client, "node1").await;
    assert_eq!((row.node_id, row.epoch), (agent.identity.node.0, agent.identity.epoch));
    assert_eq!(row.free_bytes, SLAB_BYTES);
}

#[tokio::test]
async fn duplicate_agent_name_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let first = Agent::start("node1", &monitor.addr, 4).await;
    match Agent::try_start("node1", &monitor.addr, 4).await.map(|agent| agent.identity) {
        Err(ControlError::Rack(RackError::NameTaken { name, .. })) => assert_eq!(name, "node1"),
        other => panic!("{other:?}"),
    }
    let client = monitor.client().await;
    assert_eq!(node(&client, "node1").await.epoch, first.identity.epoch);
}

#[tokio::test]
async fn dead_agent_loses_its_grants() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let dying = Agent::start("node1", &monitor.addr, 4).await;
    let _living = Agent::start("node2", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    let lent = client.allocate(request(1, 4, &[])).await.unwrap();
    let _kept = keep(&lent);
    dying.kill().await;

    until(|| node(&client, "node1"), |row| row.state == "down").await;
    assert_eq!(node(&client, "node1").await.free_bytes, 0);
    let mut rows = client.grants().await.unwrap();
    rows.sort_by(|a, b| a.donor.cmp(&b.donor));
    let seen: Vec<_> = rows.iter().map(|row| (&*row.donor, &*row.state)).collect();
    assert_eq!(seen, [("node1", "lost"), ("node2", "committed")]);
    // Lost slabs cannot be lent; a new request gets only live ones.
    match client.allocate(request(2, 3, &[])).await {
        Err(ControlError::NoRoom { free, .. }) => {
            assert_eq!(free, [("node2".to_owned(), 2 * SLAB_BYTES)]);
        }
        other => panic!("{other:?}"),
    }
    // The lost grant expires with its lease; the other stays.
    until(|| async { states(&mut client.clone()).await }, |states| *states == ["committed"]).await;
}

#[tokio::test]
async fn refused_connection_marks_node_down() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let dying = Agent::start("node1", &monitor.addr, 8).await;
    let _living = Agent::start("node2", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    // Once it has answered, a refused connection means its death.
    let lent = client.allocate(request(9, 8, &["node1"])).await.unwrap();
    client.release(&leases(&lent)).await.unwrap();
    until(|| node(&client, "node1"), |row| row.free_bytes == 8 * SLAB_BYTES).await;
    dying.kill().await;
    // node1 has most free memory and is tried first; the request falls back to node2.
    let lent = client.allocate(request(1, 2, &[])).await.unwrap();
    assert!(lent.iter().all(|grant| grant.donor == "node2"), "{lent:?}");
    assert_eq!(node(&client, "node1").await.state, "down");
}

#[tokio::test]
async fn agent_restart_changes_its_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let agent = Agent::start("node1", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    let lent = client.allocate(request(1, 3, &[])).await.unwrap();
    let old = agent.identity;
    agent.kill().await;

    // The old address refuses connections, so that no heartbeats need to be missed first.
    let agent = Agent::start("node1", &monitor.addr, 4).await;
    assert_eq!((agent.identity.node, agent.identity.epoch), (old.node, old.epoch + 1));
    assert_eq!(states(&mut client).await, ["lost"]);
    let row = node(&client, "node1").await;
    assert_eq!((row.state.as_str(), row.free_bytes), ("up", 4 * SLAB_BYTES));

    client.release(&leases(&lent[..1])).await.unwrap();
    assert_eq!(states(&mut client).await, [""; 0]);
    let again = client.allocate(request(2, 4, &[])).await.unwrap();
    assert_eq!(again[0].donor_epoch, agent.identity.epoch);
}

#[tokio::test]
async fn address_reuse_reaches_the_new_node() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let one = Agent::start("node1", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    let lent = client.allocate(request(1, 1, &["node1"])).await.unwrap();
    let addr = lent[0].control_addr.clone();
    one.kill().await;
    let _two = Agent::try_start_at(&addr, "node2", &monitor.addr, 4).await.unwrap();
    let lent = client.allocate(request(2, 1, &["node2"])).await.unwrap();
    assert_eq!((lent[0].donor.as_str(), &lent[0].control_addr), ("node2", &addr));
}
