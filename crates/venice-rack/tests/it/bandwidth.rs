//! Requests with a bandwidth need: no link is promised more than it carries.

use crate::common::lenders::{Rack, SLABS};
use crate::common::{CountingKeys, S, owner, placement_of, registration, settings};
use proptest::prelude::*;
use std::collections::BTreeMap;
use venice_rack::monitor::{Action, MonitorCore, MonitorSettings};
use venice_rack::placement::Policy;
use venice_rack::types::{
    AllocationRequest, FlowPeer, FlowReport, Grant, HeartbeatReport, Identity, LinkPort,
    LinkProtection, LinkReport, LinkState, NodeRegistration, PortReport, RackError, RelayPlace,
    Want,
};
use venice_wire::{NodeId, SLAB_BYTES};

const MBPS: u64 = 1_000_000;

/// Creates a rack whose nodes reach each other directly. Each tests the next, whose port has the
/// given bandwidth.
fn direct(ports_mbps: &[f64]) -> Rack {
    let count = ports_mbps.len() as u32;
    let node = |number: u32| NodeRegistration {
        udp_addr: format!("node{number}:2"),
        ..registration(&format!("node{number}"), number.into(), SLABS)
    };
    let settings = MonitorSettings { lease_ns: 1_000_000 * S, ..settings() };
    let monitor = MonitorCore::recover(settings, Box::new(CountingKeys(0)), 0, []);
    let mut rack = Rack::new(monitor, (1..=count).map(node));
    for (at, mbps) in ports_mbps.iter().enumerate() {
        let tester = (at as u32 + 1) % count + 1;
        let link = link(NodeId(at as u32 + 1), LinkPort::Udp, Some(*mbps), None);
        report(&mut rack, NodeId(tester), vec![link], vec![]);
    }
    rack
}

/// Creates a row of nodes that relay for each other, with links of the given bandwidth.
fn row(links_mbps: &[f64]) -> Rack {
    let count = links_mbps.len() as u32 + 1;
    let node = |position: u32| NodeRegistration {
        relay: Some(RelayPlace { topology: "row".into(), position, addr: String::new() }),
        ..registration(&format!("node{}", position + 1), (position + 1).into(), SLABS)
    };
    let way = |_: &str, from: u32, to: u32| {
        Some(if from < to { (from + 1..=to).collect() } else { (to..from).rev().collect() })
    };
    let settings = MonitorSettings { way, lease_ns: 1_000_000 * S, ..settings() };
    let monitor = MonitorCore::recover(settings, Box::new(CountingKeys(0)), 0, []);
    let mut rack = Rack::new(monitor, (0..count).map(node));
    for (at, mbps) in links_mbps.iter().enumerate() {
        let link = link(NodeId(at as u32 + 2), LinkPort::Hop, Some(*mbps), Some(0.0));
        report(&mut rack, NodeId(at as u32 + 1), vec![link], vec![]);
    }
    rack
}

fn link(to: NodeId, port: LinkPort, mbps: Option<f64>, used: Option<f64>) -> LinkReport {
    LinkReport {
        to,
        port,
        state: LinkState::Up,
        latency_us: 10.0,
        loss_ratio: 0.0,
        bandwidth_mbps: mbps,
        bytes_per_s: used,
        protection: LinkProtection::Plain,
    }
}

fn report(rack: &mut Rack, from: NodeId, links: Vec<LinkReport>, flows: Vec<FlowReport>) {
    let (identity, core): &(Identity, _) = &rack.donors[&from];
    let report = HeartbeatReport {
        usage: Vec::new(),
        peers_version: 0,
        identity: *identity,
        instance: from.0.into(),
        memory: core.report(),
        links,
        port: PortReport { flows, ..PortReport::default() },
        pressure: Default::default(),
        door: Default::default(),
    };
    rack.monitor.handle_heartbeat(rack.now_ns, report).unwrap();
    rack.settle();
}

fn memory_request(rack: &mut Rack, home: &str, slabs: u64, mbps: u64) -> AllocationRequest {
    rack.requests += 1;
    AllocationRequest {
        wants: vec![Want { bandwidth_bps: mbps * MBPS, ..Want::memory(slabs * SLAB_BYTES, 1) }],
        client_id: rack.requests,
        recipient: "program".into(),
        donors: vec![],
        home: home.into(),
        placement: Some(Policy::Spread),
        purpose: String::new(),
        queueing: Default::default(),
    }
}

fn get(rack: &mut Rack, slabs: u64, mbps: u64) -> Result<Vec<Grant>, RackError> {
    let request = memory_request(rack, "", slabs, mbps);
    rack.ask(owner(), request)
}

fn shares(grants: &[Grant]) -> BTreeMap<u32, u64> {
    grants.iter().map(|grant| (grant.donor_node.0, grant.share.bytes / SLAB_BYTES)).collect()
}

#[test]
fn link_bandwidth_limits_donor_share() {
    let mut rack = direct(&[1000.0, 250.0]);
    // Without a need, half from each.
    let grants = get(&mut rack, 8, 0).unwrap();
    assert_eq!(shares(&grants), [(1, 4), (2, 4)].into());
    rack.release(&grants);
    // A gigabit over eight slabs: 125 Mb/s each, of which node2 carries two.
    let grants = get(&mut rack, 8, 1000).unwrap();
    assert_eq!(shares(&grants), [(1, 6), (2, 2)].into());
    let rows = rack.monitor.grant_rows(0);
    assert_eq!(rows.iter().map(|row| row.bandwidth_bps).sum::<u64>(), 1000 * MBPS);
}

#[test]
fn promise_lasts_until_release() {
    let mut rack = direct(&[1000.0, 1000.0]);
    let first = get(&mut rack, 8, 1600).unwrap();
    let refused = get(&mut rack, 4, 800).unwrap_err();
    let RackError::NoBandwidth(why) = &refused else { panic!("{refused}") };
    assert!(why.contains("800Mbps more") && why.contains("200Mbps to node1"), "{why}");
    // A request without a need still gets memory.
    let others = get(&mut rack, 4, 0).unwrap();
    let half = get(&mut rack, 4, 400).unwrap();
    assert_eq!(shares(&half), [(1, 2), (2, 2)].into());
    rack.release(&first);
    get(&mut rack, 4, 800).unwrap();
    rack.release(&others);
}

#[test]
fn unpromised_traffic_reduces_bandwidth() {
    let mut rack = direct(&[1000.0, 1000.0]);
    let mine = get(&mut rack, 4, 1000).unwrap();
    let of_node1 = mine.iter().find(|grant| grant.donor_node == NodeId(1)).unwrap().id;
    let flow = |with, mbps: f64| FlowReport { with, bytes_per_s: mbps * 1e6 / 8.0 };
    // 500 promised, of which 400 are used, and 300 unpromised: 200 are left.
    let flows = vec![flow(FlowPeer::Grant(of_node1), 400.0), flow(FlowPeer::Anybody, 300.0)];
    report(&mut rack, NodeId(1), vec![], flows);
    let request = memory_request(&mut rack, "", 4, 1000);
    let plan = rack.monitor.plan(&owner(), &request).unwrap();
    let left: Vec<_> =
        placement_of(&plan).nodes.iter().map(|row| row.link_left_bps.unwrap() / MBPS).collect();
    assert_eq!(left, [200, 500]);
    assert!(plan.refusal.contains("1Gbps more"), "{}", plan.refusal);
    assert!(
        placement_of(&plan).nodes.iter().all(|row| row.why == "its link has too little left"),
        "{plan:?}"
    );
}

#[test]
fn link_tests_are_not_traffic() {
    let mut rack = direct(&[1000.0, 1000.0]);
    let burst = FlowReport { with: FlowPeer::Node(NodeId(2)), bytes_per_s: 1e8 };
    report(&mut rack, NodeId(1), vec![], vec![burst]);
    let grants = get(&mut rack, 4, 1900).unwrap();
    assert_eq!(shares(&grants), [(1, 2), (2, 2)].into());
    let request = AllocationRequest { placement: None, ..memory_request(&mut rack, "", 4, 0) };
    let plan = rack.monitor.plan(&owner(), &request).unwrap();
    assert!(
        placement_of(&plan).nodes.iter().all(|row| row.traffic_slabs == 0 && row.slabs == 2),
        "{plan:?}"
    );
}

/// Registrations and grants are in the durable log; what changes with every heartbeat is not.
#[test]
fn heartbeats_store_nothing() {
    let mut rack = direct(&[1000.0, 1000.0]);
    let held = get(&mut rack, 2, 100).unwrap();
    for second in 1..100 {
        rack.now_ns = second * S;
        for node in [NodeId(1), NodeId(2)] {
            let (identity, core): &(Identity, _) = &rack.donors[&node];
            let other = NodeId(3 - node.0);
            let (mbps, used) = (second as f64 * 10.0, second as f64 * 1e6);
            let with = FlowPeer::Grant(held[0].id);
            let heartbeat = HeartbeatReport {
                usage: Vec::new(),
                peers_version: 0,
                identity: *identity,
                instance: node.0.into(),
                memory: core.report(),
                links: vec![link(other, LinkPort::Udp, Some(mbps), Some(used))],
                port: PortReport {
                    flows: vec![FlowReport { with, bytes_per_s: used }],
                    ..PortReport::default()
                },
                pressure: Default::default(),
                door: Default::default(),
            };
            rack.monitor.handle_heartbeat(rack.now_ns, heartbeat).unwrap();
        }
        rack.monitor.handle_timeout(rack.now_ns);
        while let Some(action) = rack.monitor.poll_action() {
            assert!(!matches!(action, Action::Store(_)), "{action:?} at second {second}");
        }
    }
    assert_eq!(rack.monitor.grant_rows(rack.now_ns).len(), held.len());
}

#[test]
fn donors_share_a_common_link() {
    // node1 reaches node2 by a fast link, and node3 and node4 by one of 300 Mb/s.
    let mut rack = row(&[10_000.0, 300.0, 10_000.0]);
    let wanted = |rack: &mut Rack, mbps| AllocationRequest {
        donors: vec!["node2".into(), "node3".into(), "node4".into()],
        ..memory_request(rack, "node1", 12, mbps)
    };
    let plain = wanted(&mut rack, 0);
    let grants = rack.ask(owner(), plain).unwrap();
    assert_eq!(shares(&grants), [(2, 4), (3, 4), (4, 4)].into());
    rack.release(&grants);
    // 100 Mb/s a slab: three of them by the slow link.
    let needy = wanted(&mut rack, 1200);
    let grants = rack.ask(owner(), needy).unwrap();
    let shares = shares(&grants);
    assert_eq!(shares[&2] + shares.get(&3).unwrap_or(&0) + shares.get(&4).unwrap_or(&0), 12);
    assert!(shares[&2] >= 9, "{shares:?}");
}

#[test]
fn own_node_needs_no_link() {
    let mut rack = row(&[10.0]);
    let wanted = AllocationRequest {
        donors: vec!["node1".into()],
        ..memory_request(&mut rack, "node1", 4, 5000)
    };
    rack.ask(owner(), wanted).unwrap();
}

/// Returns the bandwidth promised on each link of a row, from the rows of the grants.
fn promised_bps(rack: &Rack, links: usize) -> Vec<u64> {
    let mut promised = vec![0; links];
    for row in rack.monitor.grant_rows(0) {
        let number = |name: &str| name.strip_prefix("node").unwrap().parse::<usize>().unwrap();
        let (one, other) = (number(&row.home), number(&row.donor));
        for link in one.min(other)..one.max(other) {
            promised[link - 1] += row.bandwidth_bps;
        }
    }
    promised
}

proptest! {
    /// For any order of requests and releases: no link is promised more than it carries, each grant
    /// is whole, and in the end nothing is promised.
    #[test]
    fn links_are_never_overcommitted(
        links_mbps in prop::collection::vec(50u32..2000, 2..6),
        steps in prop::collection::vec((any::<bool>(), 0usize..6, 1u64..24, 1u64..1500, 0usize..3), 1..24),
    ) {
        let links: Vec<f64> = links_mbps.iter().map(|mbps| f64::from(*mbps)).collect();
        let mut rack = row(&links);
        let mut held: Vec<Vec<Grant>> = Vec::new();
        for (releases, home, slabs, mbps, policy) in steps {
            if releases && !held.is_empty() {
                let grants = held.swap_remove(home % held.len());
                rack.release(&grants);
            } else {
                let home = format!("node{}", home % (links.len() + 1) + 1);
                let placement = Some(Policy::ALL[policy]);
                let wanted = AllocationRequest { placement, ..memory_request(&mut rack, &home, slabs, mbps) };
                match rack.ask(owner(), wanted) {
                    Ok(grants) => {
                        let bytes: u64 = grants.iter().map(|grant| grant.share.bytes).sum();
                        prop_assert_eq!(bytes, slabs * SLAB_BYTES);
                        held.push(grants);
                    }
                    Err(RackError::NoBandwidth(_) | RackError::NoRoom { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            for (promised, mbps) in promised_bps(&rack, links.len()).iter().zip(&links_mbps) {
                prop_assert!(*promised <= u64::from(*mbps) * MBPS, "{} on {}", promised, mbps);
            }
        }
        held.iter().for_each(|grants| rack.release(grants));
        prop_assert_eq!(promised_bps(&rack, links.len()), vec![0; links.len()]);
    }
}
