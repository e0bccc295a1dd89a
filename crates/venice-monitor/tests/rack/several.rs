//! Several Monitor Nodes with one etcd: one serves, and another goes on.

use crate::ANY_PORT;
use crate::kit::{Agent, Beginning, bounded, config, keep, request, until};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use venice_control::client::MonitorClient;
use venice_control::{ControlError, Grant, GrantRow, NodeRow, QuotaFor, QuotaRecord, RackError};
use venice_etcd_test::Etcd;
use venice_monitor::{MonitorConfig, MonitorError};
use venice_wire::SLAB_BYTES;

/// A Monitor Node with that etcd.
fn with(etcd: &Etcd, state_dir: &Path, listen: &str) -> MonitorConfig {
    let store = Some(format!("etcd://{}/rack", etcd.addresses()));
    MonitorConfig { store, ..config(state_dir, listen) }
}

fn folders() -> [TempDir; 2] {
    [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()]
}

/// The tables without what changes by itself.
async fn tables(client: &MonitorClient) -> (Vec<GrantRow>, Vec<(String, u32, u64)>) {
    let grants = client.clone().grants().await.unwrap().into_iter();
    let nodes = client.clone().nodes().await.unwrap().into_iter();
    let node = |row: NodeRow| (row.name, row.node_id, row.epoch);
    (grants.map(|row| GrantRow { age_s: 0.0, ..row }).collect(), nodes.map(node).collect())
}

#[tokio::test]
async fn another_goes_on_where_one_died() {
    let etcd = Etcd::start(3);
    let folders = folders();
    let first = Beginning::of(with(&etcd, folders[0].path(), ANY_PORT)).ready().await;
    // At the same address: there the agents look for it.
    let addr = first.addr.clone();
    let mut second = Beginning::of(with(&etcd, folders[1].path(), &addr));
    let _agents = [Agent::start("node1", &addr, 4).await, Agent::start("node2", &addr, 4).await];
    let client = first.client().await;
    let lent = client.clone().request_memory(request(1, 4, &[])).await.unwrap();
    let _kept = keep(&lent);
    let before = tables(&client).await;
    assert_eq!((before.0.len(), before.1.len()), (2, 2));
    assert!(!second.is_ready(), "two serve");

    first.kill().await;
    let second = second.ready().await;
    let client = second.client().await;
    assert_eq!(tables(&client).await, before);
    assert_eq!(client.clone().request_memory(request(1, 4, &[])).await.unwrap(), lent);
    until(
        || async { client.clone().nodes().await.unwrap() },
        |rows| rows.iter().all(|row| row.last_heartbeat_ms.is_some()),
    )
    .await;
    let more = client.clone().request_memory(request(2, 4, &[])).await.unwrap();
    assert!(more.iter().all(|grant| grant.id > lent[1].id), "a number is never given twice");
    assert_eq!(tables(&client).await.0[..2], before.0);
}

#[tokio::test]
async fn one_that_stops_hands_over_and_one_that_stands_by_stops_at_once() {
    let etcd = Etcd::start(1);
    let folders = folders();
    let first = Beginning::of(with(&etcd, folders[0].path(), ANY_PORT)).ready().await;
    let second = Beginning::of(with(&etcd, folders[1].path(), ANY_PORT));
    first.stop().await;
    let second = second.ready().await;
    let mut third = Beginning::of(with(&etcd, folders[0].path(), ANY_PORT));
    assert!(!third.is_ready());
    third.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn whose_turn_is_over_changes_nothing() {
    let etcd = Etcd::start(1);
    let folders = folders();
    let first = Beginning::of(with(&etcd, folders[0].path(), ANY_PORT)).ready().await;
    let agent = Agent::start("node1", &first.addr, 4).await;
    let mut client = first.client().await;
    // As if it had stood still for longer than its turn was to last.
    etcd.remove("rack/records/monitor/serving");
    assert!(bounded(client.request_memory(request(1, 4, &[]))).await.is_err());
    let error = first.error().await;
    assert!(matches!(error, MonitorError::TurnOver), "{error:?}");
    let second = Beginning::of(with(&etcd, folders[1].path(), ANY_PORT)).ready().await;
    let client = second.client().await;
    let (grants, nodes) = tables(&client).await;
    assert_eq!(
        (grants.len(), nodes.len()),
        (0, 1),
        "its node is known, its request was not granted"
    );
    assert!(agent.held().is_empty());
}

#[tokio::test]
async fn without_the_stores_majority_nobody_serves_and_nothing_is_lost() {
    let mut etcd = Etcd::start(3);
    let folders = folders();
    let first = Beginning::of(with(&etcd, folders[0].path(), ANY_PORT)).ready().await;
    let addr = first.addr.clone();
    let agent = Agent::start("node1", &addr, 4).await;
    let client = first.client().await;
    let lent = client.clone().request_memory(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&lent);
    let before = tables(&client).await;
    etcd.kill(0);
    etcd.kill(1);
    let error = first.error().await;
    assert!(matches!(error, MonitorError::TurnOver | MonitorError::Store(_)), "{error:?}");
    // What was lent is lent: donors and recipients need nobody for it.
    assert_eq!(agent.held().len(), 1);
    etcd.restart(0);
    let second = Beginning::of(with(&etcd, folders[1].path(), &addr)).ready().await;
    assert_eq!(tables(&second.client().await).await, before);
}

#[tokio::test]
async fn a_quota_holds_under_the_next_one_too() {
    let etcd = Etcd::start(1);
    let folders = folders();
    let first = Beginning::of(with(&etcd, folders[0].path(), ANY_PORT)).ready().await;
    let addr = first.addr.clone();
    let _agent = Agent::start("node1", &addr, 8).await;
    let client = first.client().await;
    let of = |user: &str| QuotaFor::User(user.to_owned());
    let quota = |user: &str, slabs| QuotaRecord { of: of(user), bytes: Some(slabs * SLAB_BYTES) };
    let root = first.client().await.quotas().await.unwrap();
    assert!(root.users.is_empty());
    client.clone().set_quota(quota("root", 3)).await.unwrap();
    client.clone().set_quota(quota("gone", 1)).await.unwrap();
    client.clone().remove_quota(of("gone")).await.unwrap();
    let _kept = keep(&client.clone().request_memory(request(1, 2, &[])).await.unwrap());
    let is_over = |result: Result<Vec<Grant>, ControlError>| match result {
        Err(ControlError::Rack(RackError::OverQuota { user, used_bytes, .. })) => {
            assert_eq!((user.as_str(), used_bytes), ("root", 2 * SLAB_BYTES));
        }
        other => panic!("{other:?}"),
    };
    is_over(client.clone().request_memory(request(2, 2, &[])).await);
    let before = client.clone().quotas().await.unwrap();

    first.kill().await;
    let second = Beginning::of(with(&etcd, folders[1].path(), &addr)).ready().await;
    let client = second.client().await;
    assert_eq!(client.clone().quotas().await.unwrap(), before);
    is_over(client.clone().request_memory(request(3, 2, &[])).await);
    client.clone().request_memory(request(4, 1, &[])).await.unwrap();
}

#[tokio::test]
async fn one_that_stands_by_serves_a_store_that_was_begun_anew() {
    let mut etcd = Etcd::start(1);
    let folders = folders();
    let first = Beginning::of(with(&etcd, folders[0].path(), ANY_PORT)).ready().await;
    let mut second = Beginning::of(with(&etcd, folders[1].path(), ANY_PORT));
    // It comes to stand by meanwhile, and waits for what the new store may never tell.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!second.is_ready());
    first.kill().await;
    etcd.begin_anew();
    second.ready().await.stop().await;
}

#[tokio::test]
async fn a_request_under_way_when_one_dies_is_answered_by_the_next() {
    let etcd = Etcd::start(1);
    let folders = folders();
    let first = Beginning::of(with(&etcd, folders[0].path(), ANY_PORT)).ready().await;
    let addr = first.addr.clone();
    let second = Beginning::of(with(&etcd, folders[1].path(), &addr));
    let agent = Agent::start("node1", &addr, 4).await;
    // Nobody is at the other address.
    let both = venice_identity_test::access(format!("{addr},127.0.0.1:1"));
    let client = MonitorClient::connect(&both).await.unwrap();
    let mut asking = client.clone();
    let asked = tokio::spawn(async move { asking.request_memory(request(1, 3, &[])).await });
    first.kill().await;
    let second = second.ready().await;
    let lent = bounded(asked).await.unwrap().unwrap();
    let _kept = keep(&lent);
    let ids: Vec<_> = lent.iter().map(|grant| grant.id).collect();
    // All that it lends is what was answered, however far the one that died had come.
    let held = || async { agent.held() };
    until(held, |held| held.iter().map(|(id, _)| *id).eq(ids.iter().copied())).await;
    let client = second.client().await;
    assert_eq!(tables(&client).await.0.len(), ids.len());
    assert_eq!(client.clone().request_memory(request(1, 3, &[])).await.unwrap(), lent);
}
