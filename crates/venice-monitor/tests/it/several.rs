//! Several active Monitor Nodes with one etcd.

use crate::ANY_PORT;
use crate::kit::{Agent, Monitor, StartingMonitor, bounded, config, keep, leases, request, until};
use crate::wire::Wire;
use std::collections::BTreeSet;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use venice_control::client::MonitorClient;
use venice_control::{ControlError, Grant, Limits, NodeRow, QuotaFor, QuotaRecord, RackError};
use venice_monitor::MonitorConfig;
use venice_testkit::etcd::Etcd;
use venice_testkit::tables::{Table, Tables};
use venice_wire::SLAB_BYTES;

/// Quota of an etcd that fills up quickly, in bytes.
const SMALL_BYTES: u64 = 8 << 20;

/// Monitor Nodes with one etcd.
struct Rack {
    monitors: Vec<Option<Monitor>>,
    addrs: Vec<String>,
    folders: Vec<TempDir>,
}

impl Rack {
    async fn start(etcds: &[&String]) -> Self {
        let mut rack = Self { monitors: Vec::new(), addrs: Vec::new(), folders: Vec::new() };
        for etcd in etcds {
            rack.folders.push(tempfile::tempdir().unwrap());
            let config = rack.config(rack.folders.len() - 1, etcd, ANY_PORT);
            let monitor = StartingMonitor::of(config).ready().await;
            rack.addrs.push(monitor.addr.clone());
            rack.monitors.push(Some(monitor));
        }
        rack
    }

    fn config(&self, at: usize, etcd: &str, listen: &str) -> MonitorConfig {
        let store = Some(format!("etcd://{etcd}/rack"));
        MonitorConfig { store, ..config(self.folders[at].path(), listen) }
    }

    /// Returns the addresses of all Monitor Nodes.
    fn all(&self) -> String {
        self.addrs.join(",")
    }

    async fn agent(&self, name: &str, slabs: u32) -> Agent {
        let agent = Agent::start(name, &self.all(), slabs).await;
        for at in 0..self.addrs.len() {
            let client = self.client(at).await;
            let rows = || async { client.clone().nodes().await.unwrap() };
            let is_known = |rows: &Vec<NodeRow>| {
                rows.iter().any(|row| row.name == name && row.last_heartbeat_ms.is_some())
            };
            until(rows, is_known).await;
        }
        agent
    }

    async fn client(&self, at: usize) -> MonitorClient {
        client(&self.addrs[at]).await
    }

    async fn kill(&mut self, at: usize) {
        self.monitors[at].take().expect("the Monitor Node runs").kill().await;
    }

    async fn restart(&mut self, at: usize, etcd: &str) {
        let config = self.config(at, etcd, &self.addrs[at]);
        self.monitors[at] = Some(StartingMonitor::of(config).ready().await);
    }
}

async fn client(addrs: &str) -> MonitorClient {
    MonitorClient::connect(&venice_testkit::identity::access(addrs.to_owned())).await.unwrap()
}

/// Returns the tables of the Monitor Node at `addrs`; `None` if it does not answer.
async fn tables(addrs: &str) -> Option<Tables> {
    Tables::of(&venice_testkit::identity::access(addrs.to_owned())).await.ok()
}

/// Runs slow work on another thread, so that the Monitor Nodes and recipients of this one go on.
async fn on_another_thread(etcd: Etcd, work: impl FnOnce(&Etcd) + Send + 'static) -> Etcd {
    let done = tokio::task::spawn_blocking(move || {
        work(&etcd);
        etcd
    });
    done.await.unwrap()
}

/// Waits until all Monitor Nodes have equal tables that match the donors' grants.
async fn wait_for_equal_tables(rack: &Rack, agents: &[&Agent]) {
    let all = || async {
        let mut all = Vec::new();
        for at in (0..rack.addrs.len()).filter(|at| rack.monitors[*at].is_some()) {
            all.push(tables(&rack.addrs[at]).await);
        }
        let lent: BTreeSet<u64> =
            agents.iter().flat_map(|agent| agent.held()).map(|(id, _)| id.0).collect();
        (all, lent)
    };
    let is_same = |(all, lent): &(Vec<Option<Tables>>, BTreeSet<u64>)| {
        let Some(first) = &all[0] else { return false };
        let rows = || first.records(Table::Grants);
        let listed: BTreeSet<u64> = rows().filter_map(|row| row["id"].as_u64()).collect();
        let committed = rows().all(|row| row["state"] == "committed");
        committed && listed == *lent && all.iter().all(|other| other.as_ref() == Some(first))
    };
    until(all, is_same).await;
}

fn ids(grants: &[Grant]) -> BTreeSet<u64> {
    grants.iter().map(|grant| grant.id.0).collect()
}

#[tokio::test]
async fn concurrent_monitors_never_overcommit() {
    let etcd = Etcd::start(3);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 3]).await;
    let agents = [rack.agent("node1", 20).await, rack.agent("node2", 20).await];
    // 24 requests for 40 slabs, concurrently at all three: 20 can be granted.
    let mut calls = JoinSet::new();
    for number in 0..24 {
        let client = rack.client(number % 3).await;
        let request = request(number as u128 + 1, 2, &[]);
        calls.spawn(async move { client.clone().allocate(request).await });
    }
    let (mut granted, mut refused) = (Vec::new(), 0);
    while let Some(asked) = bounded(calls.join_next()).await {
        match asked.unwrap() {
            Ok(grants) => granted.extend(grants),
            Err(_) => refused += 1,
        }
    }
    assert!(refused >= 4, "{refused} were refused of 24");
    assert!(!granted.is_empty());
    assert_eq!(ids(&granted).len(), granted.len(), "a grant number was used twice");
    let _kept = keep(&granted);
    wait_for_equal_tables(&rack, &[&agents[0], &agents[1]]).await;
    let given_back = rack.client(2).await.release(&leases(&granted)).await.unwrap();
    assert_eq!(given_back, []);
    wait_for_equal_tables(&rack, &[&agents[0], &agents[1]]).await;
    assert_eq!(tables(&rack.addrs[0]).await.unwrap().count(Table::Grants), 0);
}

#[tokio::test]
async fn duplicate_request_is_granted_once() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 40).await;
    let mut kept = Vec::new();
    for number in 1..=8 {
        let mut calls = JoinSet::new();
        for at in 0..2 {
            let client = rack.client(at).await;
            let request = request(number, 2, &[]);
            calls.spawn(async move { client.clone().allocate(request).await });
        }
        let answers = bounded(calls.join_all()).await;
        let granted: BTreeSet<_> =
            answers.iter().filter_map(|answer| answer.as_ref().ok()).map(|it| ids(it)).collect();
        assert_eq!(granted.len(), 1, "{answers:?}");
        let answer = answers.into_iter().find_map(Result::ok).unwrap();
        kept.push(keep(&answer));
    }
    wait_for_equal_tables(&rack, &[&agent]).await;
    assert_eq!(agent.lent_slabs(), 16);
}

#[tokio::test]
async fn quota_spans_all_monitors() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 40).await;
    let of = QuotaFor::User("root".to_owned());
    let quota = QuotaRecord { of, limits: Limits::of_memory(Some(7 * SLAB_BYTES)) };
    rack.client(0).await.set_quota(quota).await.unwrap();
    let is_known =
        |it: &Result<venice_control::QuotaTable, _>| it.as_ref().unwrap().users.len() == 1;
    until(|| async { rack.client(1).await.quotas().await }, is_known).await.unwrap();
    let mut calls = JoinSet::new();
    for number in 0..8 {
        let client = rack.client(number % 2).await;
        let request = request(number as u128 + 1, 2, &[]);
        calls.spawn(async move { client.clone().allocate(request).await });
    }
    let mut kept = Vec::new();
    while let Some(asked) = bounded(calls.join_next()).await {
        match asked.unwrap() {
            Ok(grants) => kept.push(keep(&grants)),
            Err(ControlError::Rack(RackError::OverQuota { .. })) => {}
            Err(other) => panic!("{other}"),
        }
        let lent = agent.lent_slabs();
        assert!(lent <= 7, "{lent} slabs of a quota of 7");
    }
    assert!((1..=3).contains(&kept.len()), "{} were granted", kept.len());
    wait_for_equal_tables(&rack, &[&agent]).await;
}

#[tokio::test]
async fn surviving_monitors_take_over() {
    let etcd = Etcd::start(3);
    let addresses = etcd.addresses();
    let mut rack = Rack::start(&[&addresses; 2]).await;
    let agents = [rack.agent("node1", 8).await, rack.agent("node2", 8).await];
    let lent = rack.client(0).await.allocate(request(1, 4, &[])).await.unwrap();
    let _kept = keep(&lent);
    wait_for_equal_tables(&rack, &[&agents[0], &agents[1]]).await;
    rack.kill(0).await;
    let mut other = client(&rack.all()).await;
    assert_eq!(other.allocate(request(1, 4, &[])).await.unwrap(), lent, "the same again");
    let more = other.allocate(request(2, 4, &[])).await.unwrap();
    let _kept_too = keep(&more);
    assert!(ids(&more).is_disjoint(&ids(&lent)), "grant numbers are unique");
    rack.restart(0, &addresses).await;
    wait_for_equal_tables(&rack, &[&agents[0], &agents[1]]).await;
}

#[tokio::test]
async fn pending_request_moves_to_a_peer() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let mut rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    let mut calls = client(&rack.all()).await;
    let asked = tokio::spawn(async move { calls.allocate(request(1, 3, &[])).await });
    rack.kill(0).await;
    let lent = bounded(asked).await.unwrap().unwrap();
    let _kept = keep(&lent);
    // The agent lends just the answered grants, whatever the dead Monitor Node had done.
    let held = || async { agent.held() };
    until(held, |held| held.iter().map(|(id, _)| id.0).collect::<BTreeSet<_>>() == ids(&lent))
        .await;
    wait_for_equal_tables(&rack, &[&agent]).await;
    assert_eq!(rack.client(1).await.allocate(request(1, 3, &[])).await.unwrap(), lent);
}

#[tokio::test]
async fn release_fails_over_to_a_peer() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    let wire = Wire::to(&rack.addrs[0]).await;
    let mut client = client(&format!("{},{}", wire.addr, rack.addrs[1])).await;
    let lent = client.allocate(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&lent);
    wait_for_equal_tables(&rack, &[&agent]).await;
    wire.cut();
    assert_eq!(bounded(client.release(&leases(&lent))).await.unwrap(), []);
    assert_eq!(agent.held(), []);
    wait_for_equal_tables(&rack, &[&agent]).await;
}

#[tokio::test]
async fn isolated_monitor_stops_and_resumes() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let wire = Wire::to(&addresses).await;
    let rack = Rack::start(&[&wire.addr, &addresses]).await;
    let agents = [rack.agent("node1", 8).await];
    let lent = rack.client(0).await.allocate(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&lent);
    wire.cut();
    // The first address is the isolated one; the other answers.
    let more = client(&rack.all()).await.allocate(request(2, 2, &[])).await.unwrap();
    let _kept_too = keep(&more);
    let alone = venice_testkit::identity::access(rack.addrs[0].clone());
    let answers = || async { MonitorClient::connect(&alone).await.is_ok() };
    until(answers, |answers| !answers).await;
    assert_eq!(agents[0].held().len(), 2, "loans survive");
    wire.restore();
    until(answers, |answers| *answers).await;
    wait_for_equal_tables(&rack, &[&agents[0]]).await;
    let mut client = rack.client(0).await;
    let last =
        until(|| async { client.clone().allocate(request(3, 2, &[])).await }, |it| it.is_ok());
    let _kept_last = keep(&last.await.unwrap());
    wait_for_equal_tables(&rack, &[&agents[0]]).await;
    client.release(&leases(&more)).await.unwrap();
    wait_for_equal_tables(&rack, &[&agents[0]]).await;
}

#[tokio::test]
async fn lost_quorum_stops_service_without_loss() {
    let mut etcd = Etcd::start(3);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    let lent = rack.client(0).await.allocate(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&lent);
    wait_for_equal_tables(&rack, &[&agent]).await;
    etcd.kill(0);
    etcd.kill(1);
    for addr in &rack.addrs {
        let alone = venice_testkit::identity::access(addr.clone());
        until(|| async { MonitorClient::connect(&alone).await.is_ok() }, |it| !it).await;
    }
    // Existing loans need no Monitor Node.
    assert_eq!(agent.held().len(), 1);
    etcd.restart(0);
    for addr in &rack.addrs {
        let alone = venice_testkit::identity::access(addr.clone());
        until(|| async { MonitorClient::connect(&alone).await.is_ok() }, |it| *it).await;
    }
    wait_for_equal_tables(&rack, &[&agent]).await;
}

#[tokio::test]
async fn full_store_is_retried() {
    let etcd = Etcd::start_small(3, SMALL_BYTES);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    let lent = rack.client(0).await.allocate(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&lent);
    wait_for_equal_tables(&rack, &[&agent]).await;
    let etcd = on_another_thread(etcd, Etcd::fill).await;
    for addr in &rack.addrs {
        let alone = venice_testkit::identity::access(addr.clone());
        until(|| async { MonitorClient::connect(&alone).await.is_ok() }, |it| !it).await;
    }
    // The Monitor Nodes retry meanwhile.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(rack.monitors.iter().flatten().all(|monitor| !monitor.has_ended()), "one has ended");
    assert_eq!(agent.held().len(), 1, "loans survive");
    let _etcd = on_another_thread(etcd, Etcd::make_room).await;
    let client = until(
        || async { MonitorClient::connect(&venice_testkit::identity::access(rack.all())).await },
        |it| it.is_ok(),
    );
    let mut client = client.await.unwrap();
    wait_for_equal_tables(&rack, &[&agent]).await;
    let more = client.allocate(request(2, 2, &[])).await.unwrap();
    let _kept_too = keep(&more);
    wait_for_equal_tables(&rack, &[&agent]).await;
}

#[tokio::test]
async fn recreated_store_is_refilled() {
    let mut etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    etcd.begin_anew();
    for at in 0..2 {
        let is_known = |rows: &Result<Vec<NodeRow>, ()>| {
            rows.as_ref().is_ok_and(|rows| {
                rows.iter().any(|row| row.last_heartbeat_ms.is_some() && row.state == "up")
            })
        };
        let alone = venice_testkit::identity::access(rack.addrs[at].clone());
        let rows = || async {
            let mut client = MonitorClient::connect(&alone).await.map_err(drop)?;
            client.nodes().await.map_err(drop)
        };
        until(rows, is_known).await.unwrap();
    }
    let mut client = client(&rack.all()).await;
    let lent =
        until(|| async { client.clone().allocate(request(1, 2, &[])).await }, |it| it.is_ok());
    let lent = lent.await.unwrap();
    let _kept = keep(&lent);
    wait_for_equal_tables(&rack, &[&agent]).await;
    client.release(&leases(&lent)).await.unwrap();
}
