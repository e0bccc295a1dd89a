//! Everything that can be set of a topology.

use serde::{Deserialize, Serialize};
use venice_simkernel::units::{BitRate, Picos};

use crate::switch::SwitchConfig;
use crate::switch::config::PacketSwitchConfig;

/// The network between the hosts, by its form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum TopologyConfig {
    /// Two hosts and one cable.
    BackToBack(LinkConfig),
    /// Hosts around one switch.
    Single(SingleConfig),
    /// Racks, arrays of racks, and a data centre of arrays.
    Clos(ClosConfig),
    /// Racks joined by switches that each reach all racks.
    LeafSpine(LeafSpineConfig),
    /// Pods of equal switches, with as much bandwidth above as below.
    FatTree(FatTreeConfig),
    /// Hosts with a router each, in a grid.
    Mesh(MeshConfig),
    /// A grid whose ends are joined.
    Torus(MeshConfig),
}

/// Figure 7 of DIABLO.
impl Default for TopologyConfig {
    fn default() -> Self {
        Self::Clos(ClosConfig::default())
    }
}

/// The carrier of a packet's way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// The packet has the output port of each switch (DIABLO, section 3.3).
    #[default]
    Source,
    /// Each switch finds the port by the destination. The ways are the same.
    Destination,
}

/// The delay of 10 m of cable at 5 ns a metre, two thirds of the speed of light: the reach inside and
/// between neighbouring racks.
const CABLE: Picos = Picos(50 * Picos::NANO);
const GIGABIT: BitRate = BitRate(1_000_000_000);

/// A link: the same both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LinkConfig {
    /// The rate of the line.
    pub rate: BitRate,
    /// The time of a bit from end to end.
    pub propagation: Picos,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self { rate: GIGABIT, propagation: CABLE }
    }
}

/// The switches of one level, and the links from them downwards. Levels differ in nothing else (DIABLO,
/// section 3.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LevelConfig {
    /// The rate of each link to the level below.
    pub rate: BitRate,
    /// The time of a bit on such a link.
    pub propagation: Picos,
    /// The switches.
    pub switch: SwitchConfig,
}

impl Default for LevelConfig {
    fn default() -> Self {
        Self { rate: GIGABIT, propagation: CABLE, switch: SwitchConfig::default() }
    }
}

impl LevelConfig {
    /// Returns DIABLO's fast network: 10 Gb/s and 100 ns from port to port (section 4.2).
    pub fn ten_gigabit() -> Self {
        let switch = SwitchConfig::Packet(PacketSwitchConfig::low_latency());
        Self { rate: BitRate(10 * GIGABIT.0), switch, ..Self::default() }
    }
}

/// Hosts around one switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SingleConfig {
    /// The hosts, one a port.
    pub hosts: u32,
    /// The switch and its links.
    pub tor: LevelConfig,
}

impl Default for SingleConfig {
    fn default() -> Self {
        Self { hosts: 31, tor: LevelConfig::default() }
    }
}

/// Three levels of switches, the lowest at the top of each rack (ToR). With one array there is no
/// third level; with one rack, none but its ToR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClosConfig {
    /// Hosts of a rack.
    pub hosts_per_rack: u32,
    /// Racks of an array.
    pub racks_per_array: u32,
    /// Arrays of the data centre.
    pub arrays: u32,
    /// Links from a ToR upwards, shared out to the array's switches.
    pub tor_uplinks: u32,
    /// Switches of each array.
    pub array_switches: u32,
    /// Links from an array switch upwards, shared out to the datacenter switches.
    pub array_uplinks: u32,
    /// Switches above all arrays.
    pub datacenter_switches: u32,
    /// ToR switches, and their links to hosts.
    pub tor: LevelConfig,
    /// Array switches, and their links to ToRs.
    pub array: LevelConfig,
    /// Datacenter switches, and their links to array switches.
    pub datacenter: LevelConfig,
}

/// Figure 7 of DIABLO: 31 hosts a rack, 16 racks an array, 4 arrays, one link upwards from each switch.
impl Default for ClosConfig {
    fn default() -> Self {
        Self {
            hosts_per_rack: 31,
            racks_per_array: 16,
            arrays: 4,
            tor_uplinks: 1,
            array_switches: 1,
            array_uplinks: 1,
            datacenter_switches: 1,
            tor: LevelConfig::default(),
            array: LevelConfig::default(),
            datacenter: LevelConfig::default(),
        }
    }
}

impl ClosConfig {
    /// Returns Figure 7 at 10 Gb/s.
    pub fn ten_gigabit() -> Self {
        let level = LevelConfig::ten_gigabit;
        Self { tor: level(), array: level(), datacenter: level(), ..Self::default() }
    }
}

/// Two levels: each leaf has links to each spine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeafSpineConfig {
    /// Hosts of a leaf.
    pub hosts_per_leaf: u32,
    /// Leaves: a rack each.
    pub leaves: u32,
    /// Spines.
    pub spines: u32,
    /// Parallel links from each leaf to each spine.
    pub links_per_spine: u32,
    /// Leaf switches, and their links to hosts.
    pub leaf: LevelConfig,
    /// Spine switches, and their links to leaves.
    pub spine: LevelConfig,
}

impl Default for LeafSpineConfig {
    fn default() -> Self {
        Self {
            hosts_per_leaf: 32,
            leaves: 16,
            spines: 4,
            links_per_spine: 1,
            leaf: LevelConfig::default(),
            spine: LevelConfig::ten_gigabit(),
        }
    }
}

/// A fat tree of switches of `k` ports (Al-Fares et al., SIGCOMM 2008): k pods with k/2 edge and k/2
/// aggregation switches each, k²/4 core switches, k³/4 hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FatTreeConfig {
    /// Ports of a switch, even.
    pub k: u32,
    /// Edge switches, and their links to hosts.
    pub edge: LevelConfig,
    /// Aggregation switches, and their links to edge switches.
    pub aggregation: LevelConfig,
    /// Core switches, and their links to aggregation switches.
    pub core: LevelConfig,
}

impl Default for FatTreeConfig {
    fn default() -> Self {
        Self {
            k: 8,
            edge: LevelConfig::default(),
            aggregation: LevelConfig::default(),
            core: LevelConfig::default(),
        }
    }
}

/// Venice nodes in a grid: each is a host and a router (Dong et al., HPCA 2016, section 5). Packets
/// go through the dimensions in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MeshConfig {
    /// Nodes in each dimension, the first one's neighbours being numbered in sequence.
    pub dimensions: Vec<u32>,
    /// Routers, and the links between neighbours.
    pub router: LevelConfig,
    /// The link between a host and its router.
    pub host: LinkConfig,
}

/// The prototype of Venice (HPCA 2016, Table 1): eight nodes in a mesh, links of 5 Gb/s, and 1.4 µs
/// between neighbours, of which a router has 675 ns. A host is on the chip of its router.
impl Default for MeshConfig {
    fn default() -> Self {
        let rate = BitRate(5 * GIGABIT.0);
        let latency = Picos(675 * Picos::NANO);
        let switch = PacketSwitchConfig { latency, ..PacketSwitchConfig::default() };
        Self {
            dimensions: vec![2, 2, 2],
            router: LevelConfig { rate, propagation: CABLE, switch: SwitchConfig::Packet(switch) },
            host: LinkConfig { rate, propagation: Picos(0) },
        }
    }
}
