//! Nodes that relay for each other: near donors are taken first, and the tables show distances.

use crate::common::{self, CountingKeys, owner, placement_of, settings};
use venice_rack::monitor::{Action, Distances, MonitorCore, MonitorSettings, Token};
use venice_rack::monitor_node::{DonorCall, Reply};
use venice_rack::placement::Policy;
use venice_rack::quota::{Limits, QuotaFor, QuotaRecord};
use venice_rack::types::{
    AllocationRequest, DonorReport, DonorStatus, DroppedCounts, FlowPeer, FlowReport,
    HeartbeatReport, HeldGrant, HeldState, Identity, LinkPort, LinkProtection, LinkReport,
    LinkState, NodeRegistration, PeerList, PortReport, PrepareRequest, RackError, RelayPlace,
    Share, Want,
};
use venice_wire::{GrantId, SLAB_BYTES};

const SLABS: u32 = 32;
const LINK: &str = "latency=2us";

/// Returns the path along a row of nodes.
fn along_a_row(topology: &str, from: u32, to: u32) -> Option<Vec<u32>> {
    assert_eq!(topology, "mesh:4");
    Some(if from < to { (from + 1..=to).collect() } else { (to..from).rev().collect() })
}

/// Returns the distances in a row of nodes.
fn in_a_row(_: &str, from: u32) -> Distances {
    Box::new(move |to| Some(from.abs_diff(to)))
}

/// Returns the neighbours in a row of four nodes.
fn beside_in_row(_: &str, position: u32) -> Vec<u32> {
    (0..4).filter(|other| position.abs_diff(*other) == 1).collect()
}

/// Creates a row of four nodes, node1 to node4.
fn row() -> (MonitorCore, Vec<Identity>) {
    let neighbours = beside_in_row;
    let settings =
        MonitorSettings { way: along_a_row, distance: in_a_row, neighbours, ..settings() };
    let mut core = MonitorCore::recover(settings, Box::new(CountingKeys(0)), 0, []);
    let nodes = (0..4).map(|position| {
        core.handle_register(0, Token(position.into()), registration(position));
        let answer = actions(&mut core).into_iter().find_map(|action| match action {
            Action::Reply(_, Reply::Registered(result)) => Some(result.unwrap().identity),
            _ => None,
        });
        answer.unwrap()
    });
    let nodes = nodes.collect();
    (core, nodes)
}

fn registration(position: u32) -> NodeRegistration {
    let name = format!("node{}", position + 1);
    NodeRegistration {
        relay: Some(RelayPlace { topology: "mesh:4".into(), position, addr: String::new() }),
        link: LINK.into(),
        ..common::registration(&name, position.into(), SLABS)
    }
}

fn actions(core: &mut MonitorCore) -> Vec<Action> {
    std::iter::from_fn(|| core.poll_action()).collect()
}

/// Requests memory for a program of `home`, and returns the prepares.
fn ask(core: &mut MonitorCore, home: &str, slabs: u64) -> Vec<(Identity, PrepareRequest)> {
    let request = AllocationRequest {
        wants: vec![Want::memory(slabs * SLAB_BYTES, 1)],
        client_id: 7,
        recipient: "program".into(),
        donors: vec![],
        home: home.into(),
        placement: None,
        purpose: String::new(),
        queueing: Default::default(),
    };
    core.handle_request(0, owner(), request).unwrap();
    let prepare = |action| match action {
        Action::Call { donor, call: DonorCall::Prepare(request), .. } => Some((donor, request)),
        _ => None,
    };
    actions(core).into_iter().filter_map(prepare).collect()
}

fn shares(home: &str, slabs: u64) -> Vec<(u32, u32)> {
    let (mut core, nodes) = row();
    let asked = ask(&mut core, home, slabs);
    let position = |donor: Identity| nodes.iter().position(|node| *node == donor).unwrap() as u32;
    asked.iter().map(|(donor, request)| (position(*donor) + 1, request.share.slabs())).collect()
}

#[test]
fn near_donors_are_taken_first() {
    assert_eq!(shares("node1", 4), [(2, 4)]);
    assert_eq!(shares("node1", 12), [(2, 8), (3, 4)]);
    // Both neighbours are equally near.
    assert_eq!(shares("node2", 6), [(1, 3), (3, 3)]);
    assert_eq!(shares("node4", 4), [(3, 4)]);
    assert_eq!(shares("node1", 128), [(1, 32), (2, 32), (3, 32), (4, 32)]);
    // Without a home all donors are equally far.
    assert_eq!(shares("", 8), [(1, 2), (2, 2), (3, 2), (4, 2)]);
}

/// Reports a test of the hop link from `from` to `to`.
fn tested(core: &mut MonitorCore, (from, to): (Identity, Identity), latency_us: f64, used: f64) {
    let status = DonorStatus { total_slabs: SLABS, free_slabs: SLABS, revision: 1 };
    let link = LinkReport {
        to: to.node,
        port: LinkPort::Hop,
        state: LinkState::Up,
        latency_us,
        loss_ratio: 0.0,
        bandwidth_mbps: None,
        bytes_per_s: Some(used),
        protection: LinkProtection::Plain,
    };
    let report = HeartbeatReport {
        usage: Vec::new(),
        peers_version: 0,
        door: Default::default(),
        identity: from,
        instance: u64::from(from.node.0) - 1,
        memory: DonorReport { status, held: vec![], devices: vec![] },
        links: vec![link],
        pressure: Default::default(),
        port: PortReport::default(),
    };
    core.handle_heartbeat(0, report).unwrap();
}

/// Returns the shares of six slabs for a program of node2, with these link tests: round trip in
/// microseconds and bytes a second of node1-node2, node2-node3, node3-node4.
fn six_for_node2(links: [(f64, f64); 3]) -> Vec<(u32, u32)> {
    let (mut core, nodes) = row();
    for (ends, (latency_us, used)) in nodes.windows(2).zip(links) {
        tested(&mut core, (ends[0], ends[1]), latency_us, used);
    }
    let asked = ask(&mut core, "node2", 6);
    asked.iter().map(|(donor, request)| (donor.node.0, request.share.slabs())).collect()
}

#[test]
fn busy_and_slow_links_count_as_hops() {
    let calm = (10.0, 0.0);
    assert_eq!(six_for_node2([calm, calm, calm]), [(1, 3), (3, 3)]);
    // 5.6 of 10 Gb/s are two quarters.
    assert_eq!(six_for_node2([calm, (10.0, 7e8), calm]), [(1, 6)]);
    assert_eq!(six_for_node2([(10.0, 7e8), calm, calm]), [(3, 5), (4, 1)]);
    // Twenty times the usual counts; twice as long is within normal variation.
    assert_eq!(six_for_node2([calm, (200.0, 0.0), calm]), [(1, 6)]);
    assert_eq!(six_for_node2([calm, (20.0, 0.0), calm]), [(1, 3), (3, 3)]);
}

#[test]
fn request_overrides_placement_policy() {
    let shares = |placement, rack| {
        let settings =
            MonitorSettings { way: along_a_row, distance: in_a_row, placement: rack, ..settings() };
        let mut core = MonitorCore::recover(settings, Box::new(CountingKeys(0)), 0, []);
        for position in 0..4 {
            core.handle_register(0, Token(position.into()), registration(position));
        }
        let request = AllocationRequest {
            wants: vec![Want::memory(12 * SLAB_BYTES, 1)],
            client_id: 7,
            recipient: "program".into(),
            donors: vec![],
            home: "node1".into(),
            placement,
            purpose: String::new(),
            queueing: Default::default(),
        };
        core.handle_request(0, owner(), request).unwrap();
        let prepare = |action| match action {
            Action::Call { donor, call: DonorCall::Prepare(request), .. } => {
                Some((donor.node.0, request.share.slabs()))
            }
            _ => None,
        };
        actions(&mut core).into_iter().filter_map(prepare).collect::<Vec<_>>()
    };
    let (nearest, spread) = ([(2, 8), (3, 4)], [(1, 3), (2, 3), (3, 3), (4, 3)]);
    assert_eq!(shares(None, Policy::Nearest), nearest);
    assert_eq!(shares(Some(Policy::Spread), Policy::Nearest), spread);
    assert_eq!(shares(Some(Policy::Pack), Policy::Nearest), [(2, 12)]);
    assert_eq!(shares(None, Policy::Spread), spread);
    assert_eq!(shares(Some(Policy::Nearest), Policy::Spread), nearest);
}

fn memory_request(home: &str, slabs: u64, copies: u32) -> AllocationRequest {
    AllocationRequest {
        wants: vec![Want::memory(slabs * SLAB_BYTES, copies)],
        client_id: 7,
        recipient: "program".into(),
        donors: vec![],
        home: home.into(),
        placement: None,
        purpose: String::new(),
        queueing: Default::default(),
    }
}

#[test]
fn plan_explains_placement_without_granting() {
    let (mut core, nodes) = row();
    core.handle_drain(0, Token(9), "node3", true);
    actions(&mut core);
    let plan = core.plan(&owner(), &memory_request("node1", 12, 2)).unwrap();
    assert!(core.poll_action().is_none(), "no donor is called");
    assert_eq!((core.grant_rows(0).len(), plan.refusal.as_str()), (0, ""));
    assert_eq!(
        (
            placement_of(&plan).policy.as_str(),
            placement_of(&plan).slabs,
            placement_of(&plan).copies
        ),
        ("nearest", 24, 2)
    );
    let shown: Vec<_> =
        placement_of(&plan).nodes.iter().map(|row| (row.slabs, row.hops, &*row.why)).collect();
    let expected = [
        (4, Some(0), "chosen"),
        (12, Some(1), "one copy of everything: the others are for other nodes"),
        (0, Some(2), "being drained"),
        (8, Some(3), "chosen"),
    ];
    assert_eq!(shown, expected);
    let (own, near) = (&placement_of(&plan).nodes[0], &placement_of(&plan).nodes[1]);
    assert_eq!((own.distance_slabs, own.score_slabs), (16, 16), "a hop beyond the farthest");
    assert_eq!((near.free_slabs, near.distance_slabs, near.score_slabs), (32, 4, 28));

    // A real request is placed alike.
    core.handle_request(0, owner(), memory_request("node1", 12, 2)).unwrap();
    let prepare = |action| match action {
        Action::Call { donor, call: DonorCall::Prepare(request), .. } => {
            Some((donor, request.share.slabs()))
        }
        _ => None,
    };
    let asked: Vec<_> = actions(&mut core).into_iter().filter_map(prepare).collect();
    assert_eq!(asked, [(nodes[0], 4), (nodes[1], 12), (nodes[3], 8)]);
    // It counts in the next plan: prepared slabs are not free.
    let plan = core.plan(&owner(), &memory_request("node1", 60, 1)).unwrap();
    assert_eq!(placement_of(&plan).nodes[1].free_slabs, 20);
}

#[test]
fn plan_explains_refusal() {
    let (mut core, _) = row();
    let refusal = |core: &MonitorCore, request| core.plan(&owner(), &request).unwrap().refusal;
    assert!(refusal(&core, memory_request("", 200, 1)).contains("no room for"));
    // 4 donors have no room for 5 copies of anything.
    assert!(refusal(&core, memory_request("", 20, 5)).contains("it needs 5 nodes with room"));
    let of = QuotaFor::User(owner().user);
    core.handle_set_quota(
        Token(9),
        QuotaRecord { of, limits: Limits::of_memory(Some(SLAB_BYTES)) },
        "root@h",
    );
    let plan = core.plan(&owner(), &memory_request("", 2, 1)).unwrap();
    assert!(plan.refusal.contains("of a quota of"), "{}", plan.refusal);
    assert!(
        placement_of(&plan)
            .nodes
            .iter()
            .all(|row| row.slabs == 0 && row.why.contains("the quota has no room"))
    );
    let nowhere = core.plan(&owner(), &memory_request("nowhere", 2, 1));
    assert_eq!(nowhere, Err(RackError::UnknownNode("nowhere".into())));
}

#[test]
fn unknown_home_is_refused() {
    let (mut core, _) = row();
    let request = AllocationRequest {
        wants: vec![Want::memory(1, 1)],
        client_id: 7,
        recipient: "program".into(),
        donors: vec![],
        home: "nowhere".into(),
        placement: None,
        purpose: String::new(),
        queueing: Default::default(),
    };
    core.handle_request(0, owner(), request).unwrap();
    let answer = actions(&mut core).into_iter().find_map(|action| match action {
        Action::ReplyRequest { result, .. } => Some(result),
        _ => None,
    });
    assert_eq!(answer, Some(Err(RackError::UnknownNode("nowhere".into()))));
}

#[test]
fn tables_show_hops_and_relays() {
    let (mut core, nodes) = row();
    let (donor, request) = ask(&mut core, "node4", 1).remove(0);
    assert_eq!(donor, nodes[2]);
    let row = core.grant_rows(0).remove(0);
    assert_eq!((row.home.as_str(), row.hops, row.state.as_str()), ("node4", Some(1), "prepared"));
    let status = |revision| DonorStatus { total_slabs: SLABS, free_slabs: SLABS - 1, revision };
    core.handle_prepared(0, donor, request.grant, Ok(status(1)));
    core.handle_committed(0, donor, request.grant, Ok(status(2)));
    let row = core.grant_rows(0).remove(0);
    assert_eq!((row.home.as_str(), row.hops, row.state.as_str()), ("node4", Some(1), "committed"));

    let held = HeldGrant {
        ownership: 1,
        owner: None,
        id: request.grant,
        share: Share::of_slabs(1),
        state: HeldState::Committed,
        lease_ms: 10_000,
        recipient: "program".into(),
        purpose: String::new(),
        priority: 100,
    };
    let report = HeartbeatReport {
        usage: Vec::new(),
        peers_version: 0,
        door: Default::default(),
        identity: donor,
        instance: 2,
        memory: DonorReport { status: status(2), held: vec![held], devices: vec![] },
        links: vec![LinkReport {
            to: nodes[1].node,
            port: LinkPort::Hop,
            state: LinkState::Up,
            latency_us: 9.0,
            loss_ratio: 0.0,
            bandwidth_mbps: None,
            bytes_per_s: Some(5.0),
            protection: LinkProtection::Plain,
        }],
        pressure: Default::default(),
        port: PortReport {
            dropped: DroppedCounts::default(),
            flows: vec![FlowReport { with: FlowPeer::Grant(request.grant), bytes_per_s: 3.0 }],
            mapped: vec![request.grant, GrantId(99)],
            xdp: None,
        },
    };
    core.handle_heartbeat(0, report).unwrap();
    let rows = core.link_rows();
    assert_eq!(rows.len(), 3, "an unknown grant has no row: {rows:?}");
    let (hop, flow, mapped) = (&rows[0], &rows[1], &rows[2]);
    assert_eq!((hop.from.as_str(), hop.to.as_str(), hop.hops), ("node3", "node2", Some(1)));
    assert_eq!((hop.emulated.as_str(), hop.reported_by.as_str()), (LINK, "node3"));
    assert_eq!((flow.from.as_str(), flow.to.as_str()), ("program", "node3"));
    assert_eq!((flow.hops, &flow.via[..]), (Some(1), &["node4".to_owned()][..]));
    assert_eq!((flow.bytes_per_s, flow.reported_by.as_str()), (Some(3.0), "node3"));
    assert_eq!((mapped.port.as_str(), mapped.protection.as_str()), ("shm", "descriptor"));
    assert_eq!((mapped.emulated.as_str(), mapped.bytes_per_s), (LINK, None));
}

#[test]
fn path_lists_every_relay() {
    let (mut core, nodes) = row();
    let named = AllocationRequest {
        wants: vec![Want::memory(SLAB_BYTES, 1)],
        client_id: 8,
        recipient: "program".into(),
        donors: vec!["node4".into()],
        home: "node1".into(),
        placement: None,
        purpose: String::new(),
        queueing: Default::default(),
    };
    core.handle_request(0, owner(), named).unwrap();
    let grant = actions(&mut core).into_iter().find_map(|action| match action {
        Action::Call { call: DonorCall::Prepare(request), .. } => Some(request.grant),
        _ => None,
    });
    let (grant, far) = (grant.unwrap(), nodes[3]);
    let status = |revision| DonorStatus { total_slabs: SLABS, free_slabs: SLABS - 1, revision };
    core.handle_prepared(0, far, grant, Ok(status(1)));
    core.handle_committed(0, far, grant, Ok(status(2)));
    let held = HeldGrant {
        ownership: 1,
        owner: None,
        id: grant,
        share: Share::of_slabs(1),
        state: HeldState::Committed,
        lease_ms: 10_000,
        recipient: "program".into(),
        purpose: String::new(),
        priority: 100,
    };
    let flows = vec![FlowReport { with: FlowPeer::Grant(grant), bytes_per_s: 1.0 }];
    let report = HeartbeatReport {
        usage: Vec::new(),
        peers_version: 0,
        door: Default::default(),
        identity: far,
        instance: 3,
        memory: DonorReport { status: status(2), held: vec![held], devices: vec![] },
        links: vec![],
        pressure: Default::default(),
        port: PortReport { flows, ..PortReport::default() },
    };
    core.handle_heartbeat(0, report.clone()).unwrap();
    let row = core.link_rows().remove(0);
    assert_eq!(
        (row.hops, row.via),
        (Some(3), ["node1", "node2", "node3"].map(String::from).into())
    );

    // Packets go around a link that is down, on a path unknown to the Monitor Node.
    let hop = |state| LinkReport {
        to: nodes[2].node,
        port: LinkPort::Hop,
        state,
        latency_us: 9.0,
        loss_ratio: 0.0,
        bandwidth_mbps: None,
        bytes_per_s: None,
        protection: LinkProtection::Plain,
    };
    let reported = |core: &mut MonitorCore, state| {
        let status = DonorStatus { total_slabs: SLABS, free_slabs: SLABS, revision: 1 };
        let report = HeartbeatReport {
            identity: nodes[1],
            instance: 1,
            memory: DonorReport { status, held: vec![], devices: vec![] },
            links: vec![hop(state)],
            port: PortReport::default(),
            ..report.clone()
        };
        core.handle_heartbeat(0, report).unwrap();
        core.link_rows().into_iter().find(|row| row.to == "node4").unwrap()
    };
    let row = reported(&mut core, LinkState::Down);
    assert_eq!((row.hops, row.via), (None, vec![]));
    assert_eq!(reported(&mut core, LinkState::Up).hops, Some(3));
}

/// The list of all relays is sent once: a death changes the keys of neighbours only.
#[test]
fn death_is_news_to_neighbours() {
    let (mut core, nodes) = row();
    let report = |core: &mut MonitorCore, now_ns: u64, node: Identity, peers_version: u64| {
        let status = DonorStatus { total_slabs: SLABS, free_slabs: SLABS, revision: 1 };
        let report = HeartbeatReport {
            usage: Vec::new(),
            peers_version,
            door: Default::default(),
            identity: node,
            instance: u64::from(node.node.0) - 1,
            memory: DonorReport { status, held: vec![], devices: vec![] },
            links: vec![],
            pressure: Default::default(),
            port: PortReport::default(),
        };
        core.handle_heartbeat(now_ns, report).unwrap().peers
    };
    let names = |list: &PeerList| -> Vec<u32> { list.peers.iter().map(|it| it.node.0).collect() };
    let lists: Vec<_> = nodes.iter().map(|node| report(&mut core, 0, *node, 0).unwrap()).collect();
    let all: Vec<_> = lists.iter().map(names).collect();
    assert_eq!(all, [vec![2], vec![1, 3], vec![2, 4], vec![3]]);
    let positions =
        |list: &PeerList| -> Vec<u32> { list.relays.iter().map(|it| it.position).collect() };
    assert!(lists.iter().all(|list| positions(list) == [0, 1, 2, 3]));
    let later = 100 * common::S;
    let mut news = |at: usize, now_ns| report(&mut core, now_ns, nodes[at], lists[at].version);
    (0..3).for_each(|at| assert!(news(at, later - 1).is_none()));
    core.handle_timeout(later);
    let mut news = |at: usize| report(&mut core, later, nodes[at], lists[at].version);
    assert!(news(0).is_none() && news(1).is_none());
    let third = news(2).unwrap();
    assert_eq!((names(&third), positions(&third)), (vec![2], vec![0, 1, 2, 3]));
}
