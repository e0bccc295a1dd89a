//! Freedom from deadlock, checked by program: the channel dependency graph of every topology here
//! has no cycle (Dally and Seitz, 1987).
//!
//! A channel is a virtual channel of a link in one direction. It depends on another when a packet
//! can hold the one while it waits for the other. Without a cycle some packet can always move.

use std::collections::{BTreeMap, BTreeSet};

use venice_fabric::routing::{DIRECT, DIRECT_WRAPPING, FIRST_DETOUR, LinkStates};
use venice_fabric::{Position, Topology, VirtualChannel};
use venice_wire::{SwitchPort, VIRTUAL_CHANNELS};

type Channel = (Position, SwitchPort, VirtualChannel);
type Graph = BTreeMap<Channel, BTreeSet<Channel>>;

fn topologies() -> Vec<Topology> {
    let mut all = Vec::new();
    for (x, y, z) in [
        (1, 1, 1),
        (2, 1, 1),
        (3, 1, 1),
        (4, 1, 1),
        (9, 1, 1),
        (2, 2, 1),
        (3, 3, 1),
        (4, 4, 1),
        (5, 3, 1),
        (8, 8, 1),
        (1, 4, 3),
        (2, 2, 2),
        (3, 3, 3),
        (4, 4, 4),
        (5, 4, 3),
        (2, 3, 7),
    ] {
        all.extend([Topology::Mesh { x, y, z }, Topology::Torus { x, y, z }]);
    }
    for nodes in [1, 2, 3, 8, 33] {
        all.extend([Topology::Router { nodes }, Topology::AllToAll { nodes }]);
    }
    all
}

fn positions(topology: &Topology) -> impl Iterator<Item = Position> + use<> {
    (0..topology.switches()).map(Position)
}

/// The dependencies of packets routed by destination.
fn direct(topology: &Topology) -> Graph {
    let mut graph = Graph::new();
    for (from, to) in
        positions(topology).flat_map(|from| positions(topology).map(move |to| (from, to)))
    {
        let (mut at, mut held, mut hops) = (from, None, 0);
        while let Some(hop) = topology.next_hop(at, to) {
            assert!(matches!(hop.channel, DIRECT | DIRECT_WRAPPING));
            let wanted = (at, hop.port, hop.channel);
            graph.entry(wanted).or_default();
            if let Some(held) = held {
                graph.entry(held).or_default().insert(wanted);
            }
            (held, hops) = (Some(wanted), hops + 1);
            at = topology.neighbour(at, hop.port).expect("a route follows links").0;
        }
        assert_eq!((at, hops), (to, topology.hops(from, to)), "{topology}: the shortest way");
        assert_eq!(topology.path(from, to).count() as u32, hops);
    }
    graph
}

/// The dependencies of packets with any source route.
fn detours(topology: &Topology) -> Graph {
    let mut graph = Graph::new();
    let channels = (FIRST_DETOUR.0..VIRTUAL_CHANNELS as u8).map(VirtualChannel);
    for link in topology.links() {
        for (from, port, at) in
            [(link.from, link.from_port, link.to), (link.to, link.to_port, link.from)]
        {
            for channel in channels.clone() {
                let waits_for = graph.entry((from, port, channel)).or_default();
                for out in (0..topology.ports(at)).map(SwitchPort) {
                    let Some((to, _)) = topology.neighbour(at, out) else { continue };
                    if let Some(next) = topology.detour_channel(Some((from, channel)), at, to) {
                        assert!(next >= channel);
                        waits_for.insert((at, out, next));
                    }
                }
            }
        }
    }
    graph
}

/// Removes channels that wait for nothing until none is left; a cycle would stay.
fn has_no_cycle(mut graph: Graph) -> bool {
    loop {
        let free: BTreeSet<Channel> =
            graph.iter().filter(|(_, waits)| waits.is_empty()).map(|(at, _)| *at).collect();
        if free.is_empty() {
            return graph.is_empty();
        }
        graph.retain(|at, _| !free.contains(at));
        graph.values_mut().for_each(|waits| waits.retain(|at| !free.contains(at)));
    }
}

#[test]
fn destination_routing_has_no_deadlock() {
    for topology in topologies() {
        assert!(has_no_cycle(direct(&topology)), "{topology} {}", topology.nodes());
    }
}

#[test]
fn source_routes_have_no_deadlock() {
    for topology in topologies() {
        assert!(has_no_cycle(detours(&topology)), "{topology} {}", topology.nodes());
    }
}

/// A switch whose next link is down gives a packet routed by destination a source route around it:
/// the packet then waits for the first detour channel while it holds a direct one.
#[test]
fn mixed_routing_has_no_deadlock() {
    for topology in topologies() {
        let mut graph = direct(&topology);
        for (&(from, port, _), waits_for) in &mut graph {
            let at = topology.neighbour(from, port).expect("it is a link").0;
            let outs = (0..topology.ports(at)).map(SwitchPort);
            let outs = outs.filter(|out| topology.neighbour(at, *out).is_some());
            waits_for.extend(outs.map(|out| (at, out, FIRST_DETOUR)));
        }
        graph.extend(detours(&topology));
        assert!(has_no_cycle(graph), "{topology} {}", topology.nodes());
    }
}

/// The checker finds a known cycle: a ring whose packets all stay on one channel.
#[test]
fn single_channel_ring_deadlocks() {
    let ring = Topology::Torus { x: 5, y: 1, z: 1 };
    let mut merged = Graph::new();
    for ((at, port, _), waits) in direct(&ring) {
        let waits = waits.into_iter().map(|(at, port, _)| (at, port, DIRECT));
        merged.entry((at, port, DIRECT)).or_default().extend(waits);
    }
    assert!(!has_no_cycle(merged));
}

/// With [`venice_fabric::SwitchConfig::source_routes`] every packet has a source route. Each pair
/// of switches has one that all switches on it accept.
#[test]
fn every_pair_has_source_route() {
    for topology in topologies() {
        let all_up = LinkStates::all_up(&topology);
        for (from, to) in
            positions(&topology).flat_map(|from| positions(&topology).map(move |to| (from, to)))
        {
            let route = topology.route_around(from, to, &all_up).expect("a route exists");
            let (mut at, mut came) = (from, None);
            for port in route.ports() {
                let next = topology.neighbour(at, *port).expect("it is a link").0;
                let channel = topology.detour_channel(came, at, next).expect("it is accepted");
                (at, came) = (next, Some((at, channel)));
            }
            assert_eq!(at, to);
            let hops = route.ports().len() as u32;
            assert_eq!(hops, topology.hops(from, to), "{topology}: {from:?} to {to:?}");
            assert!(hops <= topology.diameter());
        }
    }
}
