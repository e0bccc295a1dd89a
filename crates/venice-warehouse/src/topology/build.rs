//! Topologies from their configuration.

use venice_simkernel::units::{BitRate, Picos};

use super::config::{
    ClosConfig, FatTreeConfig, LeafSpineConfig, LevelConfig, LinkConfig, MeshConfig, SingleConfig,
};
use super::grid::Grid;
use super::tree::{Below, Tree};
use super::{Peer, Port, Shape, SwitchNode, Topology, TopologyConfig};
use crate::switch::PortNumber;

/// A value out of its range, with its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("topology: {key}: {problem}")]
pub struct BadTopology {
    /// The key below the topology.
    pub key: String,
    /// The value and its bound.
    pub problem: String,
}

fn bad(key: &str, problem: String) -> BadTopology {
    BadTopology { key: key.into(), problem }
}

/// The most hosts of a topology.
const MOST_HOSTS: u64 = 1 << 22;
/// The most ports of a switch.
const MOST_PORTS: u64 = 4096;
/// The most ports of all switches.
const MOST_PORTS_OF_ALL: u64 = 1 << 24;
/// The most of anything that is counted.
const MOST: u32 = 1 << 16;
/// The longest propagation: an hour would be a slip of the unit.
const LONGEST: Picos = Picos(Picos::SECOND);

/// A level with its name in the configuration.
type NamedLevel<'a> = (&'a str, &'a LevelConfig);

impl Topology {
    /// Builds a topology.
    ///
    /// # Errors
    /// A value out of its range, or numbers that do not divide.
    pub fn build(config: &TopologyConfig) -> Result<Self, BadTopology> {
        match config {
            TopologyConfig::BackToBack(link) => Self::cable(*link),
            TopologyConfig::Single(single) => single_tree(single),
            TopologyConfig::Clos(clos) => clos_tree(clos),
            TopologyConfig::LeafSpine(leaf_spine) => leaf_spine_tree(leaf_spine),
            TopologyConfig::FatTree(fat_tree) => fat_tree_tree(fat_tree),
            TopologyConfig::Mesh(mesh) => Self::grid(mesh, false),
            TopologyConfig::Torus(torus) => Self::grid(torus, true),
        }
    }

    fn cable(link: LinkConfig) -> Result<Self, BadTopology> {
        check_link("rate", "propagation", link)?;
        let port = |other| Port {
            peer: Peer::Host(other),
            rate: link.rate,
            propagation: link.propagation,
        };
        Ok(Self {
            shape: Shape::Cable,
            levels: Vec::new(),
            host_links: vec![port(1), port(0)],
            switches: Vec::new(),
        })
    }

    fn tree(tree: Tree, levels: &[NamedLevel]) -> Result<Self, BadTopology> {
        check_levels(levels)?;
        check_hosts(tree.hosts())?;
        check_ports(&tree, levels)?;
        let nowhere = Port { peer: Peer::Unconnected, rate: BitRate(0), propagation: Picos(0) };
        let node = |switch: u32| {
            let level = tree.level(switch);
            SwitchNode { level, ports: vec![nowhere; tree.ports(level).1 as usize] }
        };
        let mut switches: Vec<SwitchNode> = (0..tree.switches()).map(node).collect();
        let mut host_links = vec![nowhere; tree.hosts() as usize];
        for switch in 0..tree.switches() {
            let level = levels[usize::from(tree.level(switch))].1;
            let link = |peer| Port { peer, rate: level.rate, propagation: level.propagation };
            let mut port: PortNumber = 0;
            while let Some(below) = tree.below(switch, port) {
                let (own, here) = match below {
                    Below::Host(host) => (&mut host_links[host as usize], Peer::Host(host)),
                    Below::Switch(lower, up) => (
                        &mut switches[lower as usize].ports[usize::from(up)],
                        Peer::Switch { switch: lower, port: up },
                    ),
                };
                *own = link(Peer::Switch { switch, port });
                switches[switch as usize].ports[usize::from(port)] = link(here);
                port += 1;
            }
        }
        let levels = named(levels);
        Ok(Self { shape: Shape::Tree(tree), levels, host_links, switches })
    }

    fn grid(config: &MeshConfig, is_torus: bool) -> Result<Self, BadTopology> {
        if !(1..=6).contains(&config.dimensions.len()) {
            let count = config.dimensions.len();
            return Err(bad("dimensions", format!("{count} numbers, not from 1 to 6")));
        }
        config.dimensions.iter().try_for_each(|extent| check_count("dimensions", *extent))?;
        let levels = [("router", &config.router)];
        check_levels(&levels)?;
        check_link("host.rate", "host.propagation", config.host)?;
        let grid = Grid { extents: config.dimensions.clone(), is_torus };
        check_hosts(grid.hosts())?;
        let host_port =
            |peer| Port { peer, rate: config.host.rate, propagation: config.host.propagation };
        let router_port = |router: u32, port: PortNumber| {
            let neighbour = grid.neighbour(router, port);
            let peer = neighbour.map(|(switch, port)| Peer::Switch { switch, port });
            Port {
                peer: peer.unwrap_or(Peer::Unconnected),
                rate: config.router.rate,
                propagation: config.router.propagation,
            }
        };
        let node = |router: u32| {
            let links = (0..grid.host_port()).map(|port| router_port(router, port));
            let ports = links.chain([host_port(Peer::Host(router))]).collect();
            SwitchNode { level: 0, ports }
        };
        let hosts = grid.hosts() as u32;
        let own = |host| host_port(Peer::Switch { switch: host, port: grid.host_port() });
        Ok(Self {
            levels: named(&levels),
            host_links: (0..hosts).map(own).collect(),
            switches: (0..hosts).map(node).collect(),
            shape: Shape::Grid(grid),
        })
    }
}

fn single_tree(config: &SingleConfig) -> Result<Topology, BadTopology> {
    check_count("hosts", config.hosts)?;
    let tree = Tree {
        hosts_per_rack: config.hosts,
        racks_per_array: 1,
        arrays: 1,
        tor_uplinks: 0,
        array_switches: 0,
        array_uplinks: 0,
        datacenter_switches: 0,
        groups: 1,
    };
    Topology::tree(tree, &[("tor", &config.tor)])
}

fn clos_tree(config: &ClosConfig) -> Result<Topology, BadTopology> {
    check_count("hosts-per-rack", config.hosts_per_rack)?;
    check_count("racks-per-array", config.racks_per_array)?;
    check_count("arrays", config.arrays)?;
    let (has_array, has_top) = (config.racks_per_array > 1 || config.arrays > 1, config.arrays > 1);
    let if_any = |is_there: bool, count: u32| if is_there { count } else { 0 };
    if has_array {
        check_count("array-switches", config.array_switches)?;
        check_divides("tor-uplinks", config.tor_uplinks, "array-switches", config.array_switches)?;
    }
    if has_top {
        let above = config.datacenter_switches;
        check_count("datacenter-switches", above)?;
        check_divides("array-uplinks", config.array_uplinks, "datacenter-switches", above)?;
    }
    let tree = Tree {
        hosts_per_rack: config.hosts_per_rack,
        racks_per_array: config.racks_per_array,
        arrays: config.arrays,
        tor_uplinks: if_any(has_array, config.tor_uplinks),
        array_switches: if_any(has_array, config.array_switches),
        array_uplinks: if_any(has_top, config.array_uplinks),
        datacenter_switches: if_any(has_top, config.datacenter_switches),
        groups: 1,
    };
    let levels =
        [("tor", &config.tor), ("array", &config.array), ("datacenter", &config.datacenter)];
    Topology::tree(tree, &levels)
}

fn leaf_spine_tree(config: &LeafSpineConfig) -> Result<Topology, BadTopology> {
    check_count("hosts-per-leaf", config.hosts_per_leaf)?;
    check_count("leaves", config.leaves)?;
    check_count("spines", config.spines)?;
    check_count("links-per-spine", config.links_per_spine)?;
    let tree = Tree {
        hosts_per_rack: config.hosts_per_leaf,
        racks_per_array: config.leaves,
        arrays: 1,
        tor_uplinks: config.spines.saturating_mul(config.links_per_spine),
        array_switches: config.spines,
        array_uplinks: 0,
        datacenter_switches: 0,
        groups: 1,
    };
    Topology::tree(tree, &[("leaf", &config.leaf), ("spine", &config.spine)])
}

fn fat_tree_tree(config: &FatTreeConfig) -> Result<Topology, BadTopology> {
    let k = config.k;
    if !(2..=256).contains(&k) || !k.is_multiple_of(2) {
        return Err(bad("k", format!("{k} is not an even number from 2 to 256")));
    }
    let half = k / 2;
    let tree = Tree {
        hosts_per_rack: half,
        racks_per_array: half,
        arrays: k,
        tor_uplinks: half,
        array_switches: half,
        array_uplinks: half,
        datacenter_switches: half * half,
        groups: half,
    };
    let levels =
        [("edge", &config.edge), ("aggregation", &config.aggregation), ("core", &config.core)];
    Topology::tree(tree, &levels)
}

fn named(levels: &[NamedLevel]) -> Vec<(String, crate::switch::SwitchConfig)> {
    levels.iter().map(|(name, level)| ((*name).into(), level.switch.clone())).collect()
}

fn check_count(key: &str, count: u32) -> Result<(), BadTopology> {
    let fits = (1..=MOST).contains(&count);
    if fits { Ok(()) } else { Err(bad(key, format!("{count} is not from 1 to {MOST}"))) }
}

fn check_divides(key: &str, links: u32, by: &str, count: u32) -> Result<(), BadTopology> {
    check_count(key, links)?;
    let divides = links.is_multiple_of(count);
    let problem = || format!("{links} is no multiple of {by} ({count})");
    if divides { Ok(()) } else { Err(bad(key, problem())) }
}

fn check_hosts(hosts: u64) -> Result<(), BadTopology> {
    let problem = || format!("{hosts} are above {MOST_HOSTS}");
    if hosts <= MOST_HOSTS { Ok(()) } else { Err(bad("hosts", problem())) }
}

fn check_ports(tree: &Tree, levels: &[NamedLevel]) -> Result<(), BadTopology> {
    let mut of_all = 0;
    for (level, (name, _)) in (0..).zip(levels) {
        let (_, ports) = tree.ports(level);
        if ports > MOST_PORTS {
            return Err(bad(name, format!("{ports} ports a switch are above {MOST_PORTS}")));
        }
        of_all += ports * tree.switches_of(level);
        if of_all > MOST_PORTS_OF_ALL {
            return Err(bad(name, format!("{of_all} ports in all are above {MOST_PORTS_OF_ALL}")));
        }
    }
    Ok(())
}

fn check_link(rate: &str, propagation: &str, link: LinkConfig) -> Result<(), BadTopology> {
    if link.rate == BitRate(0) {
        return Err(bad(rate, "0bps is below 1bps".into()));
    }
    if link.propagation > LONGEST {
        return Err(bad(propagation, format!("{} is above {LONGEST}", link.propagation)));
    }
    Ok(())
}

fn check_levels(levels: &[NamedLevel]) -> Result<(), BadTopology> {
    for (name, level) in levels {
        let link = LinkConfig { rate: level.rate, propagation: level.propagation };
        check_link(&format!("{name}.rate"), &format!("{name}.propagation"), link)?;
        let below = |inner: crate::switch::BadSwitch| BadTopology {
            key: format!("{name}.switch.{}", inner.key),
            problem: inner.problem,
        };
        level.switch.check().map_err(below)?;
    }
    Ok(())
}
