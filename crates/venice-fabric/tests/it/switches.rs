//! Whole networks of switches: every packet arrives once, whatever the links do, and traffic never
//! stops for good.

use crate::switch_net::{Faults, LOSSY, MS, Net, ROOMY, Rng, SECOND, Settings, TINY};
use venice_fabric::switch::{InjectError, Switch, SwitchStats};
use venice_fabric::{Position, Topology};
use venice_wire::NodeId;

fn shaped(text: &str) -> Topology {
    Topology::shaped(text).unwrap()
}

/// Random packets between random nodes, as fast as the switches take them.
fn random_traffic(net: &mut Net, packets: usize) {
    let nodes = u64::from(net.topology.nodes());
    let mut rng = Rng(net.rng.draw());
    let target = net.deliveries.len() + packets;
    net.run_until("traffic goes in", 100 * SECOND, |net| {
        for _ in 0..nodes {
            if net.deliveries.len() == target {
                return true;
            }
            let (from, to) = (rng.below(nodes) as u32, rng.below(nodes) as u32);
            let len = if rng.chance(200) { 4096 } else { rng.below(200) as usize };
            match net.inject(from, to, len) {
                Ok(()) | Err(InjectError::WouldBlock) => {}
                Err(error) => panic!("{error}"),
            }
        }
        false
    });
    net.run_until("all arrive", 100 * SECOND, |net| net.all_delivered());
}

#[test]
fn packets_arrive_once_despite_losses() {
    for (seed, topology) in [
        shaped("mesh:2x2x2"),
        shaped("torus:3x3"),
        shaped("mesh:3x3x3"),
        shaped("torus:4x4x4"),
        Topology::Router { nodes: 9 },
        Topology::AllToAll { nodes: 6 },
    ]
    .into_iter()
    .enumerate()
    {
        let mut net = Net::new(topology, ROOMY, LOSSY, seed as u64);
        net.come_up();
        random_traffic(&mut net, 600);
        net.check_quiet();
        assert!(net.none_doubled());
        assert!(net.switches.iter().flatten().any(|switch| switch.stats().delivered > 0));
    }
}

#[test]
fn saturated_single_buffers_make_progress() {
    for topology in [
        shaped("torus:8"),
        shaped("torus:4x4"),
        shaped("torus:3x3x3"),
        shaped("mesh:4x4"),
        shaped("mesh:2x2x2"),
        Topology::Router { nodes: 8 },
    ] {
        let nodes = topology.nodes();
        let mut net = Net::new(topology, TINY, Faults::default(), 5);
        net.come_up();
        // All nodes send to all nodes, at once.
        let mut left: Vec<Vec<u32>> =
            (0..nodes).map(|from| (0..3 * nodes).map(|n| (from + n) % nodes).collect()).collect();
        let feed = |net: &mut Net, left: &mut Vec<Vec<u32>>| {
            for from in 0..nodes {
                while let Some(to) = left[from as usize].last() {
                    match net.inject(from, *to, 64) {
                        Ok(()) => drop(left[from as usize].pop()),
                        Err(InjectError::WouldBlock) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        };
        // Progress within a bound: some packet arrives in every tenth of a second.
        let (mut delivered, mut since_ns) = (0, net.now_ns);
        while !left.iter().all(Vec::is_empty) || !net.all_delivered() {
            feed(&mut net, &mut left);
            let until_ns = net.now_ns + MS;
            net.step(until_ns);
            let now = net.deliveries.iter().filter(|count| **count > 0).count();
            if now > delivered {
                (delivered, since_ns) = (now, net.now_ns);
            }
            assert!(net.now_ns - since_ns < 100 * MS, "no progress\n{}", net.describe());
        }
        net.check_quiet();
        assert!(net.none_doubled());
    }
}

#[test]
fn tiny_buffers_survive_losses() {
    let mut net = Net::new(shaped("torus:3x3"), TINY, LOSSY, 77);
    net.come_up();
    random_traffic(&mut net, 300);
    net.check_quiet();
    assert!(net.none_doubled());
}

/// Every packet carries its route from the start: no switch chooses, and all other guarantees hold.
#[test]
fn packets_follow_source_route() {
    for (topology, settings, faults) in [
        (shaped("mesh:2x2x2"), ROOMY, LOSSY),
        (shaped("torus:4x4"), TINY, Faults::default()),
        (shaped("torus:3x3"), TINY, LOSSY),
        (Topology::Router { nodes: 9 }, ROOMY, LOSSY),
        (Topology::AllToAll { nodes: 4 }, ROOMY, Faults::default()),
    ] {
        let settings = Settings { source_routes: true, ..settings };
        let mut net = Net::new(topology, settings, faults, 21);
        net.come_up();
        random_traffic(&mut net, 400);
        net.check_quiet();
        assert!(net.none_doubled());
        let stats: Vec<_> = net.switches.iter().flatten().map(Switch::stats).collect();
        let sum = |count: fn(&SwitchStats) -> u64| stats.iter().map(count).sum::<u64>();
        assert_eq!(sum(|s| s.detoured), 0, "{topology}: all links were up");
        // All but those from a node to itself.
        let (routed, injected) = (sum(|s| s.source_routed), sum(|s| s.injected));
        assert!(routed > injected / 2 && routed <= injected, "{topology}: {routed} of {injected}");
    }
}

#[test]
fn source_routes_avoid_dead_node() {
    let settings = Settings { source_routes: true, ..ROOMY };
    let mut net = Net::new(shaped("mesh:3x3"), settings, Faults::default(), 8);
    net.come_up();
    net.kill(Position(4));
    net.run(2 * SECOND);
    for (from, to) in [(3, 5), (1, 7), (5, 3)] {
        net.inject(from, to, 50).unwrap();
    }
    net.run_until("all arrive", 5 * SECOND, |net| net.all_delivered());
    assert!(net.switches.iter().flatten().any(|switch| switch.stats().detoured > 0));
}

#[test]
fn cut_link_delivers_in_flight_once() {
    // Two nodes: packets in flight when the link is cut can only wait for it.
    let mut net = Net::new(shaped("mesh:2"), ROOMY, Faults::default(), 3);
    net.come_up();
    for round in 0..5 {
        // No more than there are credits for: they are in flight at once.
        for n in 0..16 {
            net.inject(0, 1, 100 + n).unwrap();
            net.inject(1, 0, 100 + n).unwrap();
        }
        net.cut(Position(0), Position(1));
        net.run(if round % 2 == 0 { 100 * MS } else { 3 * SECOND });
        if round % 2 == 1 {
            let error = net.inject(0, 1, 9).unwrap_err();
            assert!(matches!(error, InjectError::NoRoute(_)), "{error}");
        }
        net.heal();
        net.run_until("the rest arrives", 5 * SECOND, |net| net.all_delivered());
        net.come_up();
    }
    net.check_quiet();
    assert!(net.none_doubled());
}

#[test]
fn traffic_avoids_dead_node_until_return() {
    for (text, dead) in [("mesh:2x2x2", 1), ("mesh:3x3", 4), ("torus:4x4", 5), ("mesh:2x2x2", 0)] {
        let mut net = Net::new(shaped(text), ROOMY, Faults::default(), 8);
        net.come_up();
        let others: Vec<u32> = (0..net.topology.nodes()).filter(|at| *at != dead).collect();
        net.kill(Position(dead));
        // Detected by its silence, and reported to all.
        net.run(2 * SECOND);
        let lost_before = net.deliveries.len();
        for (from, to) in others.iter().flat_map(|from| others.iter().map(move |to| (*from, *to))) {
            net.inject(from, to, 50).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        for from in &others {
            let error = net.inject(*from, dead, 50).unwrap_err();
            assert!(matches!(error, InjectError::NoRoute(_)), "{error}");
        }
        net.run(SECOND);
        assert!(
            net.deliveries[lost_before..].iter().all(|count| *count == 1),
            "{}",
            net.describe()
        );
        assert!(net.switches.iter().flatten().any(|switch| switch.stats().detoured > 0));

        net.start(Position(dead));
        net.come_up();
        net.run(SECOND);
        let detoured = |net: &Net| -> u64 {
            net.switches.iter().flatten().map(|switch| switch.stats().detoured).sum()
        };
        let before = detoured(&net);
        for (from, to) in (0..net.topology.nodes()).map(|n| (n, dead)) {
            net.inject(from, to, 50).unwrap();
            net.inject(to, from, 50).unwrap();
        }
        net.run_until("all arrive", 5 * SECOND, |net| net.all_delivered());
        assert_eq!(detoured(&net), before, "the direct routes are up again");
        net.check_quiet();
        assert!(net.none_doubled());
    }
}

#[test]
fn restarts_duplicate_no_packets() {
    for seed in 0..4 {
        let mut net = Net::new(shaped("mesh:3x3"), ROOMY, LOSSY, seed);
        net.come_up();
        net.in_order = false;
        let mut rng = Rng(seed + 99);
        for _ in 0..200 {
            for _ in 0..4 {
                let (from, to) = (rng.below(9) as u32, rng.below(9) as u32);
                let _ = net.inject(from, to, 200);
            }
            net.run(rng.below(300_000));
            if rng.chance(30) {
                // At once: the neighbours have not noticed that it was gone.
                let at = Position(rng.below(9) as u32);
                net.kill(at);
                net.start(at);
            }
        }
        net.faults = Faults::default();
        net.come_up();
        net.check_quiet();
        assert!(net.none_doubled());
        let before = net.deliveries.len();
        (0..9).for_each(|from| net.inject(from, 8 - from, 64).unwrap());
        net.run(SECOND);
        assert!(net.deliveries[before..].iter().all(|count| *count == 1), "all arrive again");
    }
}

#[test]
fn flapping_links_stay_bounded() {
    let mut net = Net::new(shaped("torus:3x3"), TINY, Faults { lost: 20, ..Faults::default() }, 21);
    net.come_up();
    let links: Vec<_> = net.topology.links().collect();
    let mut rng = Rng(4);
    for _ in 0..60 {
        let link = links[rng.below(links.len() as u64) as usize];
        net.cut(link.from, link.to);
        for _ in 0..20 {
            let _ = net.inject(rng.below(9) as u32, rng.below(9) as u32, 64);
            net.run(rng.below(10 * MS));
        }
        if rng.chance(400) {
            net.run(SECOND);
        }
        net.heal();
    }
    net.faults = Faults::default();
    net.come_up();
    net.run(SECOND);
    assert!(net.none_doubled());
    let before = net.deliveries.len();
    (0..9).for_each(|from| net.inject(from, (from + 4) % 9, 64).unwrap());
    net.run_until("all arrive", SECOND, |net| net.deliveries[before..].iter().all(|n| *n == 1));
    net.check_quiet();
}

#[test]
fn uncarriable_packets_are_rejected() {
    let mut net = Net::new(shaped("mesh:2"), ROOMY, Faults::default(), 1);
    assert!(matches!(net.inject(0, 1, 8), Err(InjectError::NoRoute(_))), "no link is up yet");
    net.come_up();
    net.inject(0, 0, 8).unwrap();
    assert!(net.all_delivered(), "a node's packets to itself do not leave it");
    let now_ns = net.now_ns;
    let switch = net.switch(0);
    assert!(matches!(switch.inject(now_ns, b"VP"), Err(InjectError::Malformed(_))));
    assert!(switch.reaches(NodeId(101)) && !switch.reaches(NodeId(7)));
}

/// On open links packets cost no allocation: two switches, joined without the test's own network,
/// which allocates.
#[test]
fn packets_do_not_allocate() {
    use venice_fabric::switch::{Switch, SwitchConfig};
    use venice_wire::{MAX_HOP_BYTES, PacketAddr, PacketRepr, SwitchPort};
    let nodes = vec![NodeId(1), NodeId(2)];
    let switch = |at: u32| {
        let incarnation = 5 + u64::from(at);
        let config = SwitchConfig::new(shaped("mesh:2"), Position(at), nodes.clone(), incarnation);
        Switch::new(config)
    };
    let (mut a, mut b) = (switch(0), switch(1));
    let mut buf = vec![0; MAX_HOP_BYTES];
    let mut now_ns = 0;
    let mut lost = 0;
    let mut exchange = |a: &mut Switch, b: &mut Switch| {
        now_ns += 50_000;
        while let Some((port, len)) = a.poll_transmit(now_ns, &mut buf) {
            lost += 1;
            if lost % 13 != 0 {
                b.handle_datagram(now_ns, SwitchPort(port.0 ^ 1), &buf[..len]);
            }
        }
        while let Some((port, len)) = b.poll_transmit(now_ns, &mut buf) {
            a.handle_datagram(now_ns, SwitchPort(port.0 ^ 1), &buf[..len]);
        }
        a.handle_timeout(now_ns);
        b.handle_timeout(now_ns);
        let mut arrived = 0;
        while b.poll_local(now_ns).is_some() {
            arrived += 1;
        }
        (arrived, now_ns)
    };
    for _ in 0..5000 {
        exchange(&mut a, &mut b);
    }
    let addr = |node| PacketAddr { node: NodeId(node), ..PacketAddr::default() };
    let mut packet = vec![0; 5000];
    let len = PacketRepr::new(addr(1), addr(2)).emit(&[7; 4000], &mut packet).unwrap();
    let mut arrived = 0;
    let count = allocation_counter::measure(|| {
        let mut sent = 0;
        for round in 0..20_000u64 {
            while sent < 2000 && a.inject(round, &packet[..len]).is_ok() {
                sent += 1;
            }
            arrived += exchange(&mut a, &mut b).0;
        }
    });
    assert_eq!(arrived, 2000);
    assert!(a.hop_stats(SwitchPort(0)).unwrap().replayed > 0, "losses occurred");
    assert_eq!(count.count_total, 0, "{count:?}");
}

/// A report of an earlier session may have the same version as one of this session.
#[test]
fn stale_report_with_equal_version_is_surpassed() {
    let (center, first) = (Position(4), Position(1));
    let mut net = Net::new(shaped("mesh:3x3"), ROOMY, Faults::default(), 30);
    // A star: every packet passes the center, whose reports count.
    let cut_to_star = |net: &mut Net, more: &[u32]| {
        net.heal();
        for link in net.topology.links().collect::<Vec<_>>() {
            let is_ray = link.from == center || link.to == center;
            let ends = [link.from.0, link.to.0];
            if !is_ray || more.iter().any(|at| ends.contains(at)) {
                net.cut(link.from, link.to);
            }
        }
    };
    cut_to_star(&mut net, &[3, 5]);
    net.run(2 * SECOND);
    net.kill(Position(7));
    net.run(2 * SECOND);
    assert!(!net.switch(1).reaches(NodeId(107)), "the center has said so, as its third change");
    net.kill(center);
    net.start(center);
    net.start(Position(7));
    cut_to_star(&mut net, &[1, 5]);
    net.run(2 * SECOND);
    cut_to_star(&mut net, &[5]);
    net.run(5 * SECOND);
    assert!(net.switch(first.0).reaches(NodeId(107)), "{}", net.describe());
    net.inject(1, 7, 50).unwrap();
    net.run_until("it arrives", SECOND, |net| net.all_delivered());
}

/// Switches die and return again and again, and some have received reports of each session: once
/// all are up, all have the present state.
#[test]
fn repeated_restarts_restore_direct_routes() {
    for seed in [34, 46, 181, 511, 585, 769, 876, 962] {
        let shape = ["mesh:3x3", "mesh:4"][seed as usize % 4 % 2];
        let mut net = Net::new(shaped(shape), ROOMY, Faults::default(), seed * 7919);
        net.in_order = false;
        let (mut rng, nodes) = (Rng(seed + 5), net.topology.nodes());
        let links: Vec<_> = net.topology.links().collect();
        for _ in 0..60 {
            let at = Position(rng.below(nodes.into()) as u32);
            match (rng.below(4), net.switches[at.0 as usize].is_some()) {
                (0, true) => net.kill(at),
                (0 | 1, false) => net.start(at),
                (2, _) => {
                    let link = &links[rng.below(links.len() as u64) as usize];
                    net.cut(link.from, link.to);
                }
                (3, _) => net.heal(),
                _ => {}
            }
            let longest_ns = if rng.chance(300) { SECOND } else { 20 * MS };
            net.run(rng.below(longest_ns));
        }
        net.heal();
        for at in (0..nodes).filter(|at| net.switches[*at as usize].is_none()).collect::<Vec<_>>() {
            net.start(Position(at));
        }
        net.come_up();
        let detoured = |net: &Net| -> u64 {
            net.switches.iter().flatten().map(|switch| switch.stats().detoured).sum()
        };
        let before = detoured(&net);
        for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
            net.inject(from, to, 50).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        net.run_until("all arrive", 5 * SECOND, |net| net.all_delivered());
        assert_eq!(detoured(&net), before, "seed {seed}");
    }
}
