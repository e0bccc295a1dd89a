//! Which switch port leads where.
//!
//! A topology is a table of ports and a rule. The table says what is at the other end of each port; the
//! rule finds the port towards a host by arithmetic, without a table of routes. Where several ways are
//! as short, a hash of the flow chooses (ECMP), anew at each level.
//!
//! Hosts are numbered rack by rack. Nodes of a simulation are the hosts, then the switches.

pub mod config;

mod build;
mod grid;
mod partition;
mod source_route;
#[cfg(test)]
mod tests;
mod tree;

use serde::{Deserialize, Serialize};
use venice_simkernel::random::mix;
use venice_simkernel::units::{BitRate, Picos};

pub use self::build::BadTopology;
pub use self::config::{Routing, TopologyConfig};
use self::grid::Grid;
pub use self::partition::Partition;
pub use self::source_route::SourceRoute;
use self::tree::Tree;
use crate::packet::Host;
use crate::switch::{PortNumber, SwitchConfig};

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The other end.
    pub peer: Peer,
    /// The rate of the link.
    pub rate: BitRate,
    /// The time of a bit on the link.
    pub propagation: Picos,
}

/// The other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// A host's network card.
    Host(Host),
    /// A port of a switch.
    Switch {
        /// The switch, from 0 in the whole topology.
        switch: u32,
        /// Its port.
        port: PortNumber,
    },
    /// Nothing: the end of a mesh.
    Unconnected,
}

/// A switch in a topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchNode {
    /// Its level, from 0 for those with hosts.
    pub level: u8,
    /// Its ports by number.
    pub ports: Vec<Port>,
}

/// A switch on the way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The switch.
    pub switch: u32,
    /// The port by which the packet leaves it.
    pub output: PortNumber,
}

/// Hosts, switches, the links between them, and the ways of packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    shape: Shape,
    /// By level: its name in the configuration, and its switches.
    levels: Vec<(String, SwitchConfig)>,
    host_links: Vec<Port>,
    switches: Vec<SwitchNode>,
}

/// The rule of a topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Shape {
    /// Two hosts and no switch.
    Cable,
    Tree(Tree),
    Grid(Grid),
}

impl Topology {
    /// Returns the number of hosts.
    pub fn hosts(&self) -> u32 {
        self.host_links.len() as u32
    }

    /// Returns the number of racks: of ToRs, of nodes in a grid.
    pub fn racks(&self) -> u32 {
        match &self.shape {
            Shape::Cable => 1,
            Shape::Tree(tree) => tree.racks(),
            Shape::Grid(_) => self.hosts(),
        }
    }

    /// Returns the rack of a host.
    pub fn rack_of(&self, host: Host) -> u32 {
        match &self.shape {
            Shape::Cable => 0,
            Shape::Tree(tree) => host / tree.hosts_per_rack,
            Shape::Grid(_) => host,
        }
    }

    /// Returns the number of hosts of each rack. Rack `r` begins with host `r` times that.
    pub fn hosts_per_rack(&self) -> u32 {
        self.hosts() / self.racks()
    }

    /// Returns the switches by number: those of a rack first, each with the number of its rack.
    pub fn switches(&self) -> &[SwitchNode] {
        &self.switches
    }

    /// Returns the configuration of a switch.
    ///
    /// # Panics
    /// If there is no such switch.
    pub fn switch_config(&self, switch: u32) -> &SwitchConfig {
        &self.levels[usize::from(self.switches[switch as usize].level)].1
    }

    /// Returns the name of a level: `tor`, `spine`, `router`.
    ///
    /// # Panics
    /// If there is no such level.
    pub fn level_name(&self, level: u8) -> &str {
        &self.levels[usize::from(level)].0
    }

    /// Returns the line rates of a switch's ports.
    ///
    /// # Panics
    /// If there is no such switch.
    pub fn rates(&self, switch: u32) -> Vec<BitRate> {
        self.switches[switch as usize].ports.iter().map(|port| port.rate).collect()
    }

    /// Returns the link of a host: its peer is the first switch, or the other host.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn host_link(&self, host: Host) -> &Port {
        &self.host_links[host as usize]
    }

    /// Returns the port by which a packet to `to` leaves a switch.
    ///
    /// # Panics
    /// If there are no switches.
    pub fn output(&self, switch: u32, to: Host, flow_hash: u32) -> PortNumber {
        match &self.shape {
            Shape::Cable => panic!("two hosts have no switch"),
            Shape::Tree(tree) => tree.output(switch, to, flow_hash),
            Shape::Grid(grid) => grid.output(switch, to, flow_hash),
        }
    }

    /// Returns the switches on the way of a packet.
    pub fn route(&self, from: Host, to: Host, flow_hash: u32) -> impl Iterator<Item = Hop> {
        let mut at = self.host_link(from).peer;
        std::iter::from_fn(move || {
            let Peer::Switch { switch, port: _ } = at else {
                return None;
            };
            let output = self.output(switch, to, flow_hash);
            at = self.switches[switch as usize].ports[usize::from(output)].peer;
            Some(Hop { switch, output })
        })
    }

    /// Returns the way of a packet as it carries it; `None` if it is too long.
    pub fn source_route(&self, from: Host, to: Host, flow_hash: u32) -> Option<SourceRoute> {
        SourceRoute::new(self.route(from, to, flow_hash).map(|hop| hop.output))
    }

    /// Returns the number of switches between two hosts; in a tree 1, 3 or 5.
    pub fn switch_hops(&self, from: Host, to: Host) -> u32 {
        match &self.shape {
            Shape::Cable => 0,
            Shape::Tree(tree) => tree.switch_hops(from, to),
            Shape::Grid(grid) => grid.switch_hops(from, to),
        }
    }

    /// Returns the bit rates of a switch downwards and upwards, whose quotient is its
    /// over-subscription; `None` if nothing is above it.
    ///
    /// # Panics
    /// If there is no such switch.
    pub fn bandwidth(&self, switch: u32) -> Option<(BitRate, BitRate)> {
        let Shape::Tree(_) = self.shape else {
            return None;
        };
        let is_up =
            |port: &&Port| matches!(port.peer, Peer::Switch { switch: to, .. } if to > switch);
        let ports = &self.switches[switch as usize].ports;
        let all: u64 = ports.iter().map(|port| port.rate.0).sum();
        let up: u64 = ports.iter().filter(is_up).map(|port| port.rate.0).sum();
        (up > 0).then_some((BitRate(all - up), BitRate(up)))
    }

    /// Returns the least time from a switch's decision to send until the first bit is at the peer.
    fn delay(&self, switch: u32, port: &Port) -> u64 {
        self.switch_config(switch).latency().0 + port.propagation.0
    }
}

/// Returns one of `ways` by the hash of a flow, independently at each level.
fn pick(flow_hash: u32, level: u32, ways: u32) -> u32 {
    if ways <= 1 {
        return 0;
    }
    let hash = mix(u64::from(level) << 32 | u64::from(flow_hash)) >> 32;
    ((hash * u64::from(ways)) >> 32) as u32
}
