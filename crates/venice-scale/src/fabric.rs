//! Links and the packets on them, hop by hop.

use venice_fabric::topology::{Position, Topology};
use venice_simkernel::units::{BitRate, Bytes};
use venice_wire::SwitchPort;

use crate::config::{Config, Fabric as FabricConfig};

/// Ports of a node's switch that lead to others, in a mesh or torus.
const PORTS: usize = 6;

/// One direction of a link. Packets leave in the order of their arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// The time at which the last bit of all its packets is sent.
    free_at: u64,
    bytes: u64,
    /// Bytes when reads began.
    marked: u64,
}

/// The outcome of a packet's stop at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is at its destination.
    There,
    /// It will be whole at the next switch.
    Next {
        /// The next switch.
        at: u32,
        /// The time.
        time: u64,
    },
}

/// All links of a rack.
#[derive(Debug)]
pub struct Fabric {
    topology: Topology,
    rate: BitRate,
    latency: u64,
    links: Vec<Link>,
    /// Packets sent over a link, and how many of them waited for it.
    pub sent: u64,
    /// See `sent`.
    pub waited: u64,
    /// The longest wait for a link, in picoseconds; once reads have begun, since then.
    pub longest_wait: u64,
}

impl Fabric {
    pub fn new(config: &Config) -> Self {
        let FabricConfig { rate, latency, .. } = config.fabric;
        let topology = config.fabric.topology(config.nodes);
        let nodes = topology.nodes() as usize;
        let links = match topology {
            Topology::Mesh { .. } | Topology::Torus { .. } => nodes * PORTS,
            // One up from each node, and one down to it.
            Topology::Router { .. } | Topology::AllToAll { .. } => 2 * nodes,
        };
        Self {
            topology,
            rate,
            latency: latency.0,
            links: vec![Link::default(); links],
            sent: 0,
            waited: 0,
            longest_wait: 0,
        }
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the links between two nodes.
    pub fn hops(&self, from: u32, to: u32) -> u32 {
        self.topology.hops(Position(from), Position(to))
    }

    /// Returns the neighbours of a node by port, those that are nodes.
    pub fn neighbours(&self, of: u32) -> impl Iterator<Item = (u16, u32)> {
        let nodes = self.topology.nodes();
        let neighbours = self.topology.neighbours(Position(of));
        neighbours.map(|(port, other)| (port.0, other.0)).filter(move |(_, other)| *other < nodes)
    }

    /// Returns the bytes that a node has sent at a port of a mesh or torus.
    pub fn bytes_sent(&self, at: u32, port: u16) -> u64 {
        self.links[at as usize * PORTS + usize::from(port)].bytes
    }

    /// Begins to count bytes and waits.
    pub fn mark(&mut self) {
        self.links.iter_mut().for_each(|link| link.marked = link.bytes);
        self.longest_wait = 0;
    }

    /// Returns the bytes since then over the busiest link, and over all in the mean.
    pub fn bytes(&self) -> (u64, f64) {
        let sent = self.links.iter().map(|link| link.bytes - link.marked);
        let most = sent.clone().max().unwrap_or(0);
        let all: u64 = sent.sum();
        let count = 2 * self.topology.links().count();
        (most, all as f64 / count.max(1) as f64)
    }

    /// Returns the time of so many bytes on a link.
    pub fn time_of(&self, bytes: u64) -> u64 {
        self.rate.time_of(bytes)
    }

    /// Queues a packet that is whole at a switch for the link to the next one.
    pub fn step(&mut self, now: u64, at: u32, to: u32, bytes: Bytes) -> Step {
        let Some(hop) = self.topology.next_hop(Position(at), Position(to)) else {
            return Step::There;
        };
        let neighbour = self.topology.neighbour(Position(at), hop.port);
        let (next, _) = neighbour.expect("a route follows links");
        let time = self.rate.time_of(bytes.0);
        let index = self.link(at, hop.port);
        let link = &mut self.links[index];
        let begins = link.free_at.max(now);
        link.free_at = begins + time;
        link.bytes += bytes.0;
        let arrives = link.free_at + self.latency;
        self.sent += 1;
        self.waited += u64::from(begins > now);
        self.longest_wait = self.longest_wait.max(begins - now);
        Step::Next { at: next.0, time: arrives }
    }

    fn link(&self, at: u32, port: SwitchPort) -> usize {
        let nodes = self.topology.nodes();
        match self.topology {
            Topology::Mesh { .. } | Topology::Torus { .. } => {
                at as usize * PORTS + usize::from(port.0)
            }
            Topology::Router { .. } | Topology::AllToAll { .. } if at < nodes => at as usize,
            Topology::Router { .. } | Topology::AllToAll { .. } => {
                nodes as usize + usize::from(port.0)
            }
        }
    }
}
