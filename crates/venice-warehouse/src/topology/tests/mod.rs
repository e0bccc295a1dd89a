//! Tests of all forms of topologies.

mod traffic;

use proptest::prelude::*;
use venice_simkernel::units::{BitRate, Picos};

use super::config::{
    ClosConfig, FatTreeConfig, LeafSpineConfig, LevelConfig, LinkConfig, MeshConfig, SingleConfig,
};
use super::*;
use crate::switch::config::PacketSwitchConfig;

fn build(config: &TopologyConfig) -> Topology {
    Topology::build(config).expect("it is a valid configuration")
}

/// Trees whose links divide, and grids.
fn any_config() -> impl Strategy<Value = TopologyConfig> {
    let counts = (1..5u32, 1..5u32, 1..4u32, 1..4u32, 1..4u32, 1..3u32, 1..4u32);
    let clos = counts.prop_map(|(hosts, racks, arrays, switches, above, links, times)| {
        TopologyConfig::Clos(ClosConfig {
            hosts_per_rack: hosts,
            racks_per_array: racks,
            arrays,
            tor_uplinks: switches * links,
            array_switches: switches,
            array_uplinks: above * times,
            datacenter_switches: above,
            ..ClosConfig::default()
        })
    });
    let leaf_spine =
        (1..5u32, 1..6u32, 1..5u32, 1..4u32).prop_map(|(hosts, leaves, spines, links)| {
            TopologyConfig::LeafSpine(LeafSpineConfig {
                hosts_per_leaf: hosts,
                leaves,
                spines,
                links_per_spine: links,
                ..LeafSpineConfig::default()
            })
        });
    let fat_tree = (1..4u32).prop_map(|half| {
        TopologyConfig::FatTree(FatTreeConfig { k: 2 * half, ..Default::default() })
    });
    let single = (1..40u32)
        .prop_map(|hosts| TopologyConfig::Single(SingleConfig { hosts, ..Default::default() }));
    let grid =
        (prop::collection::vec(1..6u32, 1..4), any::<bool>()).prop_map(|(dimensions, torus)| {
            let config = MeshConfig { dimensions, ..MeshConfig::default() };
            if torus { TopologyConfig::Torus(config) } else { TopologyConfig::Mesh(config) }
        });
    let cable = Just(TopologyConfig::BackToBack(LinkConfig::default()));
    prop_oneof![clos, leaf_spine, fat_tree, single, grid, cable]
}

/// Returns the host that a way ends at.
fn end_of(topology: &Topology, from: Host, to: Host, hash: u32) -> Option<Host> {
    let last = topology.route(from, to, hash).take(100).last();
    let peer = match last {
        None => topology.host_link(from).peer,
        Some(hop) => topology.switches()[hop.switch as usize].ports[usize::from(hop.output)].peer,
    };
    match peer {
        Peer::Host(host) => Some(host),
        Peer::Switch { .. } | Peer::Unconnected => None,
    }
}

proptest! {
    #[test]
    fn every_pair_is_delivered(config in any_config(), hash in any::<u32>()) {
        let topology = build(&config);
        for from in 0..topology.hosts() {
            for to in (0..topology.hosts()).filter(|to| *to != from) {
                prop_assert_eq!(end_of(&topology, from, to, hash), Some(to));
                let hops = topology.route(from, to, hash).count() as u32;
                prop_assert_eq!(hops, topology.switch_hops(from, to));
                let mut carried = topology.source_route(from, to, hash).expect("it is short");
                for hop in topology.route(from, to, hash) {
                    prop_assert_eq!(carried.take(), Some(hop.output));
                }
                prop_assert_eq!((carried.take(), carried.remaining()), (None, 0));
            }
        }
    }

    #[test]
    fn links_have_two_ends(config in any_config()) {
        let topology = build(&config);
        let switches = topology.switches();
        let mut hosts = 0;
        for (number, node) in (0u32..).zip(switches) {
            for (at, port) in (0u16..).zip(&node.ports) {
                let here = Peer::Switch { switch: number, port: at };
                let back = match port.peer {
                    Peer::Host(host) => {
                        prop_assert_eq!(topology.rack_of(host), number);
                        hosts += 1;
                        topology.host_link(host)
                    }
                    Peer::Switch { switch, port } => &switches[switch as usize].ports[usize::from(port)],
                    Peer::Unconnected => continue,
                };
                prop_assert_eq!(*back, Port { peer: here, ..*port });
            }
        }
        prop_assert!(switches.is_empty() || hosts == topology.hosts());
        let racks = topology.racks() * topology.hosts_per_rack();
        prop_assert_eq!(racks, topology.hosts());
    }

    #[test]
    fn partition_covers_all_nodes(config in any_config(), parts in 0..12u16) {
        let topology = build(&config);
        let Partition { parts: count, part_of, look_ahead } = topology.partition(parts);
        let hosts = topology.hosts();
        prop_assert!(count >= 1 && count <= parts.max(1));
        prop_assert_eq!(part_of.len(), hosts as usize + topology.switches().len());
        prop_assert!((0..count).all(|part| part_of.contains(&part)));
        prop_assert!(part_of.iter().all(|part| *part < count));
        let mut delays = Vec::new();
        for host in 0..hosts {
            if let Peer::Switch { switch, .. } = topology.host_link(host).peer {
                prop_assert_eq!(part_of[host as usize], part_of[(hosts + switch) as usize]);
            }
        }
        for (number, node) in (0u32..).zip(topology.switches()) {
            let latency = topology.switch_config(number).latency().0;
            for port in &node.ports {
                if let Peer::Switch { switch, .. } = port.peer
                    && part_of[(hosts + switch) as usize] != part_of[(hosts + number) as usize]
                {
                    delays.push(latency + port.propagation.0);
                }
            }
        }
        prop_assert_eq!(look_ahead, delays.into_iter().min().unwrap_or(u64::MAX));
        let racks = topology.racks();
        let sizes = (0..count).map(|part| {
            (0..racks).filter(|rack| part_of[(rack * topology.hosts_per_rack()) as usize] == part).count()
        });
        let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
        prop_assert!(most - least <= 1, "{least} to {most} racks");
    }
}

#[test]
fn figure_seven_has_its_shape() {
    let topology = build(&TopologyConfig::default());
    assert_eq!((topology.hosts(), topology.racks()), (1984, 64));
    assert_eq!(topology.switches().len(), 64 + 4 + 1);
    // The same rack, the same array, another array.
    let hops = [30, 31, 16 * 31 - 1, 16 * 31].map(|to| topology.switch_hops(0, to));
    assert_eq!(hops, [1, 3, 3, 5]);
    let ratio =
        |switch| topology.bandwidth(switch).map(|(down, up)| (down.0 / up.0, down.0 % up.0));
    assert_eq!(
        [0, 63, 64, 67, 68].map(ratio),
        [Some((31, 0)), Some((31, 0)), Some((16, 0)), Some((16, 0)), None]
    );
    let levels = [0, 64, 68].map(|switch| topology.switches()[switch].level);
    assert_eq!(levels.map(|level| topology.level_name(level)), ["tor", "array", "datacenter"]);
}

#[test]
fn one_array_has_no_datacenter_switch() {
    let config = |racks_per_array, arrays| {
        build(&TopologyConfig::Clos(ClosConfig { racks_per_array, arrays, ..Default::default() }))
    };
    let array = config(16, 1);
    assert_eq!((array.hosts(), array.switches().len()), (496, 17));
    assert_eq!(array.bandwidth(16), None);
    assert_eq!((0..496).map(|to| array.switch_hops(0, to)).max(), Some(3));
    let rack = config(1, 1);
    assert_eq!((rack.hosts(), rack.switches().len(), rack.rates(0).len()), (31, 1, 31));
}

#[test]
fn flows_spread_over_all_ways() {
    let config = FatTreeConfig { k: 8, ..FatTreeConfig::default() };
    let topology = build(&TopologyConfig::FatTree(config));
    let to = topology.hosts() - 1;
    let mut cores = vec![0u32; topology.switches().len()];
    let flows = 16_000;
    for flow in 0..flows {
        let way: Vec<Hop> = topology.route(0, to, flow).collect();
        assert_eq!(way.len(), 5);
        cores[way[2].switch as usize] += 1;
    }
    let used: Vec<u32> = cores.into_iter().filter(|count| *count > 0).collect();
    assert_eq!(used.len(), 16);
    // A binomial count of mean 1000 has a deviation of 31: five of them.
    assert!(used.iter().all(|count| count.abs_diff(1000) < 155), "{used:?}");
}

#[test]
fn grid_goes_dimension_by_dimension() {
    let config = MeshConfig { dimensions: vec![4, 3], ..MeshConfig::default() };
    let mesh = build(&TopologyConfig::Mesh(config.clone()));
    // From (0, 0) to (3, 2): three links along the first dimension, two along the second.
    let way: Vec<(u32, u16)> = mesh.route(0, 11, 0).map(|hop| (hop.switch, hop.output)).collect();
    assert_eq!(way, [(0, 0), (1, 0), (2, 0), (3, 2), (7, 2), (11, 4)]);
    // Around the ends: one link each.
    let torus = build(&TopologyConfig::Torus(config));
    let way: Vec<(u32, u16)> = torus.route(0, 11, 0).map(|hop| (hop.switch, hop.output)).collect();
    assert_eq!(way, [(0, 1), (3, 3), (11, 4)]);
    let ways: Vec<u16> =
        (0..64).filter_map(|hash| torus.route(0, 2, hash).next()).map(|hop| hop.output).collect();
    assert!(ways.contains(&0) && ways.contains(&1), "half of a ring is as long either way");
}

#[test]
fn two_hosts_have_no_switch() {
    let topology = build(&TopologyConfig::BackToBack(LinkConfig::default()));
    assert_eq!(
        (topology.hosts(), topology.switches().len(), topology.switch_hops(0, 1)),
        (2, 0, 0)
    );
    assert_eq!(topology.host_link(0).peer, Peer::Host(1));
    assert_eq!(topology.route(0, 1, 7).count(), 0);
    assert_eq!(topology.partition(2).parts, 1);
}

#[test]
fn look_ahead_is_latency_and_cable() {
    let topology = build(&TopologyConfig::default());
    let partition = topology.partition(4);
    assert_eq!(partition.look_ahead, 1_050_000);
    // An array's switch is with its racks.
    assert_eq!(&partition.part_of[1984 + 64..1984 + 68], [0, 1, 2, 3]);
    let slow = LevelConfig { propagation: Picos(0), ..LevelConfig::default() };
    let switch = PacketSwitchConfig { latency: Picos(0), ..PacketSwitchConfig::default() };
    let tor = LevelConfig { switch: SwitchConfig::Packet(switch), ..slow.clone() };
    let config =
        ClosConfig { tor: tor.clone(), array: LevelConfig { ..tor }, ..Default::default() };
    let topology = build(&TopologyConfig::Clos(config));
    assert_eq!(topology.partition(64).parts, 1, "there is no look-ahead");
}

#[test]
fn spines_balance_parts() {
    let spines_of = |leaves| {
        let config = LeafSpineConfig { leaves, spines: 8, ..LeafSpineConfig::default() };
        let part_of = build(&TopologyConfig::LeafSpine(config)).partition(4).part_of;
        let spines = &part_of[part_of.len() - 8..];
        [0, 1, 2, 3].map(|part| spines.iter().filter(|at| **at == part).count())
    };
    assert_eq!(spines_of(8), [2, 2, 2, 2]);
    // Three racks, two, three, two.
    assert_eq!(spines_of(10), [0, 4, 0, 4]);
}

#[test]
fn bad_value_is_named() {
    let clos = |change: fn(&mut ClosConfig)| {
        let mut config = ClosConfig::default();
        change(&mut config);
        Topology::build(&TopologyConfig::Clos(config)).unwrap_err().to_string()
    };
    assert_eq!(clos(|c| c.arrays = 0), "topology: arrays: 0 is not from 1 to 65536");
    assert_eq!(
        clos(|c| c.array_switches = 2),
        "topology: tor-uplinks: 1 is no multiple of array-switches (2)"
    );
    assert_eq!(clos(|c| c.array.rate = BitRate(0)), "topology: array.rate: 0bps is below 1bps");
    assert_eq!(
        clos(|c| c.hosts_per_rack = 5000),
        "topology: tor: 5001 ports a switch are above 4096"
    );
    assert_eq!(
        clos(|c| (c.racks_per_array, c.arrays) = (65_536, 65_536)),
        "topology: hosts: 133143986176 are above 4194304"
    );
    assert_eq!(
        clos(|c| {
            let switch =
                PacketSwitchConfig { latency: Picos(2 * Picos::SECOND), ..Default::default() };
            c.tor.switch = SwitchConfig::Packet(switch);
        }),
        "topology: tor.switch.latency: 2s is above 1s"
    );
    let odd = TopologyConfig::FatTree(FatTreeConfig { k: 5, ..Default::default() });
    let error = Topology::build(&odd).unwrap_err().to_string();
    assert_eq!(error, "topology: k: 5 is not an even number from 2 to 256");
}

#[test]
fn every_form_is_read_from_text() {
    for (text, hosts) in [
        ("kind = 'back-to-back'\nrate = '10Gbps'", 2),
        ("kind = 'single'\nhosts = 24\n[tor.switch]\nkind = 'circuit'", 24),
        ("kind = 'clos'\narrays = 2\n[array]\nrate = '10Gbps'", 992),
        ("kind = 'leaf-spine'\nleaves = 3", 96),
        ("kind = 'fat-tree'\nk = 4", 16),
        ("kind = 'mesh'\ndimensions = [4, 4]", 16),
        ("kind = 'torus'\n[router.switch]\nkind = 'packet'\nlatency = '100ns'", 8),
    ] {
        let config: TopologyConfig = toml::from_str(text).expect(text);
        assert_eq!(build(&config).hosts(), hosts, "{text}");
        let written = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<TopologyConfig>(&written).unwrap(), config, "{written}");
    }
    assert!(toml::from_str::<TopologyConfig>("kind = 'mesh'\nhosts = 3").is_err());
}
