//! Several Monitor Nodes with one etcd, all of which serve.

use crate::ANY_PORT;
use crate::kit::{Agent, Beginning, Monitor, bounded, config, keep, leases, request, until};
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

/// What the members of an etcd keep that is soon full.
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
            let monitor = Beginning::of(config).ready().await;
            rack.addrs.push(monitor.addr.clone());
            rack.monitors.push(Some(monitor));
        }
        rack
    }

    fn config(&self, at: usize, etcd: &str, listen: &str) -> MonitorConfig {
        let store = Some(format!("etcd://{etcd}/rack"));
        MonitorConfig { store, ..config(self.folders[at].path(), listen) }
    }

    /// Where all of them are.
    fn all(&self) -> String {
        self.addrs.join(",")
    }

    async fn agent(&self, name: &str, slabs: u32) -> Agent {
        let agent = Agent::start(name, &self.all(), slabs).await;
        for at in 0..self.addrs.len() {
            let client = self.client(at).await;
            let rows = || async { client.clone().nodes().await.unwrap() };
            let hears = |rows: &Vec<NodeRow>| {
                rows.iter().any(|row| row.name == name && row.last_heartbeat_ms.is_some())
            };
            until(rows, hears).await;
        }
        agent
    }

    async fn client(&self, at: usize) -> MonitorClient {
        client(&self.addrs[at]).await
    }

    async fn kill(&mut self, at: usize) {
        self.monitors[at].take().expect("it lives").kill().await;
    }

    async fn restart(&mut self, at: usize, etcd: &str) {
        let config = self.config(at, etcd, &self.addrs[at]);
        self.monitors[at] = Some(Beginning::of(config).ready().await);
    }
}

async fn client(addrs: &str) -> MonitorClient {
    MonitorClient::connect(&venice_testkit::identity::access(addrs.to_owned())).await.unwrap()
}

/// The tables of the Monitor Nodes there; `None`: it does not answer.
async fn tables(addrs: &str) -> Option<Tables> {
    Tables::of(&venice_testkit::identity::access(addrs.to_owned())).await.ok()
}

/// Does something that takes long, and leaves this thread to the Monitor Nodes and recipients in it.
async fn beside(etcd: Etcd, work: impl FnOnce(&Etcd) + Send + 'static) -> Etcd {
    let done = tokio::task::spawn_blocking(move || {
        work(&etcd);
        etcd
    });
    done.await.unwrap()
}

/// All of these Monitor Nodes have the same tables, record by record, and just what donors lend.
async fn agree(rack: &Rack, agents: &[&Agent]) {
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
async fn all_serve_at_once_and_nothing_is_lent_twice() {
    let etcd = Etcd::start(3);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 3]).await;
    let agents = [rack.agent("node1", 20).await, rack.agent("node2", 20).await];
    // 24 requests for 40 slabs, at all three beside each other: 20 can be granted.
    let mut asking = JoinSet::new();
    for number in 0..24 {
        let client = rack.client(number % 3).await;
        let request = request(number as u128 + 1, 2, &[]);
        asking.spawn(async move { client.clone().request_memory(request).await });
    }
    let (mut granted, mut refused) = (Vec::new(), 0);
    while let Some(asked) = bounded(asking.join_next()).await {
        match asked.unwrap() {
            Ok(grants) => granted.extend(grants),
            Err(_) => refused += 1,
        }
    }
    assert!(refused >= 4, "{refused} were refused of 24");
    assert!(!granted.is_empty());
    assert_eq!(ids(&granted).len(), granted.len(), "a number was given twice");
    let _kept = keep(&granted);
    agree(&rack, &[&agents[0], &agents[1]]).await;
    let given_back = rack.client(2).await.release(&leases(&granted)).await.unwrap();
    assert_eq!(given_back, []);
    agree(&rack, &[&agents[0], &agents[1]]).await;
    assert_eq!(tables(&rack.addrs[0]).await.unwrap().count(Table::Grants), 0);
}

#[tokio::test]
async fn one_request_at_two_of_them_is_granted_once() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 40).await;
    let mut kept = Vec::new();
    for number in 1..=8 {
        let mut asking = JoinSet::new();
        for at in 0..2 {
            let client = rack.client(at).await;
            let request = request(number, 2, &[]);
            asking.spawn(async move { client.clone().request_memory(request).await });
        }
        let answers = bounded(asking.join_all()).await;
        let granted: BTreeSet<_> =
            answers.iter().filter_map(|answer| answer.as_ref().ok()).map(|it| ids(it)).collect();
        assert_eq!(granted.len(), 1, "{answers:?}");
        let answer = answers.into_iter().find_map(Result::ok).unwrap();
        kept.push(keep(&answer));
    }
    agree(&rack, &[&agent]).await;
    assert_eq!(agent.lent_slabs(), 16);
}

#[tokio::test]
async fn a_quota_holds_over_all_of_them() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 40).await;
    let of = QuotaFor::User("root".to_owned());
    let quota = QuotaRecord { of, limits: Limits::of_memory(Some(7 * SLAB_BYTES)) };
    rack.client(0).await.set_quota(quota).await.unwrap();
    let hears = |it: &Result<venice_control::QuotaTable, _>| it.as_ref().unwrap().users.len() == 1;
    until(|| async { rack.client(1).await.quotas().await }, hears).await.unwrap();
    let mut asking = JoinSet::new();
    for number in 0..8 {
        let client = rack.client(number % 2).await;
        let request = request(number as u128 + 1, 2, &[]);
        asking.spawn(async move { client.clone().request_memory(request).await });
    }
    let mut kept = Vec::new();
    while let Some(asked) = bounded(asking.join_next()).await {
        match asked.unwrap() {
            Ok(grants) => kept.push(keep(&grants)),
            Err(ControlError::Rack(RackError::OverQuota { .. })) => {}
            Err(other) => panic!("{other}"),
        }
        let lent = agent.lent_slabs();
        assert!(lent <= 7, "{lent} slabs of a quota of 7");
    }
    assert!((1..=3).contains(&kept.len()), "{} were granted", kept.len());
    agree(&rack, &[&agent]).await;
}

#[tokio::test]
async fn the_others_go_on_where_one_died_and_it_comes_back() {
    let etcd = Etcd::start(3);
    let addresses = etcd.addresses();
    let mut rack = Rack::start(&[&addresses; 2]).await;
    let agents = [rack.agent("node1", 8).await, rack.agent("node2", 8).await];
    let lent = rack.client(0).await.request_memory(request(1, 4, &[])).await.unwrap();
    let _kept = keep(&lent);
    agree(&rack, &[&agents[0], &agents[1]]).await;
    rack.kill(0).await;
    let mut other = client(&rack.all()).await;
    assert_eq!(other.request_memory(request(1, 4, &[])).await.unwrap(), lent, "the same again");
    let more = other.request_memory(request(2, 4, &[])).await.unwrap();
    let _kept_too = keep(&more);
    assert!(ids(&more).is_disjoint(&ids(&lent)), "a number is never given twice");
    rack.restart(0, &addresses).await;
    agree(&rack, &[&agents[0], &agents[1]]).await;
}

#[tokio::test]
async fn a_request_under_way_when_one_dies_is_answered_by_another() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let mut rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    let mut asking = client(&rack.all()).await;
    let asked = tokio::spawn(async move { asking.request_memory(request(1, 3, &[])).await });
    rack.kill(0).await;
    let lent = bounded(asked).await.unwrap().unwrap();
    let _kept = keep(&lent);
    // All that it lends is what was answered, however far the one that died had come.
    let held = || async { agent.held() };
    until(held, |held| held.iter().map(|(id, _)| id.0).collect::<BTreeSet<_>>() == ids(&lent))
        .await;
    agree(&rack, &[&agent]).await;
    assert_eq!(rack.client(1).await.request_memory(request(1, 3, &[])).await.unwrap(), lent);
}

#[tokio::test]
async fn what_is_given_back_to_one_that_falls_silent_is_taken_by_another() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    let wire = Wire::to(&rack.addrs[0]).await;
    let mut client = client(&format!("{},{}", wire.addr, rack.addrs[1])).await;
    let lent = client.request_memory(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&lent);
    agree(&rack, &[&agent]).await;
    wire.cut();
    assert_eq!(bounded(client.release(&leases(&lent))).await.unwrap(), []);
    assert_eq!(agent.held(), []);
    agree(&rack, &[&agent]).await;
}

#[tokio::test]
async fn one_that_is_cut_off_from_the_store_serves_nobody_and_goes_on_by_itself() {
    let etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let wire = Wire::to(&addresses).await;
    let rack = Rack::start(&[&wire.addr, &addresses]).await;
    let agents = [rack.agent("node1", 8).await];
    let lent = rack.client(0).await.request_memory(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&lent);
    wire.cut();
    // Asked at the one that is cut off, and answered by the other.
    let more = client(&rack.all()).await.request_memory(request(2, 2, &[])).await.unwrap();
    let _kept_too = keep(&more);
    let alone = venice_testkit::identity::access(rack.addrs[0].clone());
    let answers = || async { MonitorClient::connect(&alone).await.is_ok() };
    until(answers, |answers| !answers).await;
    assert_eq!(agents[0].held().len(), 2, "what is lent is lent");
    wire.mend();
    until(answers, |answers| *answers).await;
    agree(&rack, &[&agents[0]]).await;
    let mut client = rack.client(0).await;
    let last = until(
        || async { client.clone().request_memory(request(3, 2, &[])).await },
        |it| it.is_ok(),
    );
    let _kept_last = keep(&last.await.unwrap());
    agree(&rack, &[&agents[0]]).await;
    client.release(&leases(&more)).await.unwrap();
    agree(&rack, &[&agents[0]]).await;
}

#[tokio::test]
async fn without_the_stores_majority_nobody_serves_and_nothing_is_lost() {
    let mut etcd = Etcd::start(3);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    let lent = rack.client(0).await.request_memory(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&lent);
    agree(&rack, &[&agent]).await;
    etcd.kill(0);
    etcd.kill(1);
    for addr in &rack.addrs {
        let alone = venice_testkit::identity::access(addr.clone());
        until(|| async { MonitorClient::connect(&alone).await.is_ok() }, |it| !it).await;
    }
    // Donors and recipients need nobody for what is lent.
    assert_eq!(agent.held().len(), 1);
    etcd.restart(0);
    for addr in &rack.addrs {
        let alone = venice_testkit::identity::access(addr.clone());
        until(|| async { MonitorClient::connect(&alone).await.is_ok() }, |it| *it).await;
    }
    agree(&rack, &[&agent]).await;
}

#[tokio::test]
async fn a_store_without_room_is_waited_for() {
    let etcd = Etcd::start_small(3, SMALL_BYTES);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    let lent = rack.client(0).await.request_memory(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&lent);
    agree(&rack, &[&agent]).await;
    let etcd = beside(etcd, Etcd::fill).await;
    for addr in &rack.addrs {
        let alone = venice_testkit::identity::access(addr.clone());
        until(|| async { MonitorClient::connect(&alone).await.is_ok() }, |it| !it).await;
    }
    // Meanwhile they try to begin anew.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(rack.monitors.iter().flatten().all(|monitor| !monitor.has_ended()), "one has ended");
    assert_eq!(agent.held().len(), 1, "what is lent is lent");
    let _etcd = beside(etcd, Etcd::make_room).await;
    let client = until(
        || async { MonitorClient::connect(&venice_testkit::identity::access(rack.all())).await },
        |it| it.is_ok(),
    );
    let mut client = client.await.unwrap();
    agree(&rack, &[&agent]).await;
    let more = client.request_memory(request(2, 2, &[])).await.unwrap();
    let _kept_too = keep(&more);
    agree(&rack, &[&agent]).await;
}

#[tokio::test]
async fn a_store_that_was_begun_anew_is_filled_again() {
    let mut etcd = Etcd::start(1);
    let addresses = etcd.addresses();
    let rack = Rack::start(&[&addresses; 2]).await;
    let agent = rack.agent("node1", 4).await;
    etcd.begin_anew();
    for at in 0..2 {
        let hears = |rows: &Result<Vec<NodeRow>, ()>| {
            rows.as_ref().is_ok_and(|rows| {
                rows.iter().any(|row| row.last_heartbeat_ms.is_some() && row.state == "up")
            })
        };
        let alone = venice_testkit::identity::access(rack.addrs[at].clone());
        let rows = || async {
            let mut client = MonitorClient::connect(&alone).await.map_err(drop)?;
            client.nodes().await.map_err(drop)
        };
        until(rows, hears).await.unwrap();
    }
    let mut client = client(&rack.all()).await;
    let lent = until(
        || async { client.clone().request_memory(request(1, 2, &[])).await },
        |it| it.is_ok(),
    );
    let lent = lent.await.unwrap();
    let _kept = keep(&lent);
    agree(&rack, &[&agent]).await;
    client.release(&leases(&lent)).await.unwrap();
}
