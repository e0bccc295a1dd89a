//! Nearest donors in a large network of relays: few paths are looked at, and the choice is as if all
//! were.

use crate::common::{self, CountingKeys, owner, settings};
use proptest::prelude::*;
use venice_rack::monitor::{Action, Distances, MonitorCore, MonitorSettings, Token};
use venice_rack::monitor_node::DonorCall;
use venice_rack::types::*;
use venice_wire::{NodeId, SLAB_BYTES};

/// Nodes in each of both directions.
const SIDE: u32 = 12;
const NODES: u32 = SIDE * SIDE;

/// Returns the path on a square, along rows first.
fn way(_: &str, from: u32, to: u32) -> Option<Vec<u32>> {
    let (mut at, mut path) = (from, Vec::new());
    while at != to {
        at = match (at % SIDE, to % SIDE) {
            (here, there) if here < there => at + 1,
            (here, there) if here > there => at - 1,
            _ if at < to => at + SIDE,
            _ => at - SIDE,
        };
        path.push(at);
    }
    Some(path)
}

fn distance(_: &str, from: u32) -> Distances {
    Box::new(move |to| Some((from % SIDE).abs_diff(to % SIDE) + (from / SIDE).abs_diff(to / SIDE)))
}

/// A node's free slabs, and the tests of its links to the right and downwards: round trip in
/// microseconds, bytes a second.
type NodeState = (u32, [(f64, f64); 2]);

fn rack(settings: MonitorSettings, nodes: &[NodeState]) -> MonitorCore {
    let mut core = MonitorCore::recover(settings, Box::new(CountingKeys(0)), 0, []);
    for position in 0..NODES {
        let addr = String::new();
        let registration = NodeRegistration {
            relay: Some(RelayPlace { topology: "square".into(), position, addr }),
            ..common::registration(&format!("node{position}"), u64::from(position) + 1, 64)
        };
        core.handle_register(0, Token(1), registration);
    }
    for (position, (free_slabs, links)) in (0..).zip(nodes) {
        let link = |(to, (latency_us, used)): (u32, (f64, f64))| LinkReport {
            to: NodeId(to + 1),
            port: LinkPort::Hop,
            state: LinkState::Up,
            latency_us,
            loss_ratio: 0.0,
            bandwidth_mbps: None,
            bytes_per_s: Some(used),
            protection: LinkProtection::Plain,
        };
        let ends = [position + 1, position + SIDE].into_iter().zip(*links);
        let status = DonorStatus { total_slabs: 64, free_slabs: *free_slabs, revision: 1 };
        let report = HeartbeatReport {
            identity: Identity { node: NodeId(position + 1), epoch: 1 },
            instance: u64::from(position) + 1,
            memory: DonorReport { status, held: vec![], devices: vec![] },
            links: ends.filter(|(to, _)| *to < NODES).map(link).collect(),
            port: PortReport::default(),
            pressure: Default::default(),
            door: Default::default(),
            usage: Vec::new(),
            peers_version: 0,
        };
        core.handle_heartbeat(0, report).unwrap();
    }
    while core.poll_action().is_some() {}
    core
}

/// Returns the donors of a request, with their slabs.
fn donors(core: &mut MonitorCore, home: u32, slabs: u64) -> Vec<(u32, u32)> {
    let request = AllocationRequest {
        client_id: 1,
        recipient: "program".into(),
        wants: vec![Want::memory(slabs * SLAB_BYTES, 1)],
        donors: vec![],
        home: format!("node{home}"),
        placement: None,
        purpose: String::new(),
        queueing: Default::default(),
    };
    core.handle_request(0, owner(), request).unwrap();
    let prepares = std::iter::from_fn(|| core.poll_action()).filter_map(|action| match action {
        Action::Call { donor, call: DonorCall::Prepare(request), .. } => {
            Some((donor.node.0, request.share.slabs()))
        }
        _ => None,
    });
    prepares.collect()
}

fn any_node() -> impl Strategy<Value = NodeState> {
    let latency = prop_oneof![9 => Just(3.0), 1 => Just(60.0)];
    let used = prop_oneof![6 => Just(0.0), 1 => 0.0..1.2e9];
    let link = (latency, used);
    let free = prop_oneof![2 => Just(0_u32), 5 => 0..=64_u32, 2 => Just(64_u32)];
    (free, [link.clone(), link])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn choice_is_that_from_all(
        nodes in prop::collection::vec(any_node(), NODES as usize),
        home in 0..NODES,
        slabs in prop_oneof![4 => 1..80_u64, 1 => 80..9000_u64],
    ) {
        let all = MonitorSettings { way, ..settings() };
        let near = MonitorSettings { distance, ..all };
        let expected = donors(&mut rack(all, &nodes), home, slabs);
        prop_assert_eq!(donors(&mut rack(near, &nodes), home, slabs), expected);
    }
}
