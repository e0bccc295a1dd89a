//! The workloads that are measured, and the worlds that run them.

use std::fmt;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use toml::Value;
use venice_experiment::{Experiment, World, keys};
use venice_sim::scenario::Scenario;
use venice_warehouse::config::Config;
use venice_warehouse::warehouse::Warehouse;

/// Hosts of a rack, and racks of an array, of the experiment `memcached-tail`.
pub(super) const RACK_HOSTS: u32 = 31;
const ARRAY_RACKS: u32 = 16;
/// Servers of a rack in that experiment.
pub(super) const RACK_SERVERS: u32 = 2;
/// Mean think time of its clients, in microseconds.
pub(super) const THINK_US: u32 = 1300;

/// Servers of incast, each of which sends a block in each iteration.
pub(super) const INCAST_SERVERS: u32 = 16;
pub(super) const INCAST_BLOCK_BYTES: u32 = 256 << 10;
/// Room of the client's port. ns-3 has a queue for each output, so Venice's switch gets one too.
pub(super) const INCAST_BUFFER_BYTES: u32 = 32 << 10;
pub(super) const INCAST_RTO_NS: u32 = 1_000_000;

/// Nodes of a side of the mesh.
const MESH_SIDE: u16 = 8;

/// The transport of memcached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// Connections.
    Tcp,
}

/// A queue of future events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueKind {
    /// The simulator's wheels.
    Wheels,
    /// `std::collections::BinaryHeap`.
    BinaryHeap,
}

/// A workload with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Workload {
    /// The experiment `memcached-tail` at 1 Gb/s.
    Memcached {
        /// Transport between clients and servers.
        transport: Transport,
        /// Size of the warehouse, to the nearest whole array of 496 hosts.
        nodes: u32,
        /// Requests of each client.
        requests: u32,
    },
    /// Sixteen servers answer one client at once.
    Incast {
        /// Blocks that each server sends.
        iterations: u32,
    },
    /// A fabric rack of Venice nodes in a mesh of 8×8.
    Mesh {
        /// Accesses of each node.
        accesses: u32,
    },
    /// A queue alone: each event that comes makes another (hold model).
    Queue {
        /// The queue.
        queue: QueueKind,
        /// Events that wait at any time.
        pending: u32,
        /// Events that come.
        events: u32,
    },
}

impl Workload {
    /// Returns the number of simulated nodes.
    pub fn nodes(&self) -> u32 {
        match *self {
            Self::Memcached { nodes, .. } => {
                let (racks, arrays) = racks_and_arrays(nodes);
                RACK_HOSTS * racks * arrays
            }
            Self::Incast { .. } => INCAST_SERVERS + 1,
            Self::Mesh { .. } => u32::from(MESH_SIDE) * u32::from(MESH_SIDE),
            Self::Queue { .. } => 0,
        }
    }
}

/// Returns the racks of an array, and the arrays, of a warehouse with about so many nodes: whole arrays, or
/// whole racks of one array.
pub(super) fn racks_and_arrays(nodes: u32) -> (u32, u32) {
    let array_hosts = RACK_HOSTS * ARRAY_RACKS;
    match (nodes + array_hosts / 2) / array_hosts {
        0 => (nodes.div_ceil(RACK_HOSTS).clamp(1, ARRAY_RACKS), 1),
        arrays => (ARRAY_RACKS, arrays),
    }
}

/// Returns the configuration of one experiment with some keys set.
fn config(name: &str, changes: &[(&str, Value)]) -> Result<Config> {
    let shipped = Warehouse::EXPERIMENTS.iter().find(|(shipped, _)| *shipped == name);
    let (_, text) = shipped.with_context(|| format!("no experiment {name}"))?;
    let mut experiment = Experiment::from_toml(text)?;
    for (key, value) in changes {
        keys::set(&mut experiment.config, key, value.clone())?;
    }
    Ok(keys::read(&experiment.config)?.0)
}

/// Returns the configuration of memcached.
pub(super) fn memcached(transport: Transport, nodes: u32, requests: u32) -> Result<Config> {
    let (racks, arrays) = racks_and_arrays(nodes);
    let transport = match transport {
        Transport::Udp => "udp",
        Transport::Tcp => "tcp",
    };
    let changes = [
        ("topology.racks-per-array", Value::from(racks)),
        ("topology.arrays", Value::from(arrays)),
        ("application.transport", Value::from(transport)),
        ("application.requests", Value::from(requests)),
    ];
    config("memcached-tail", &changes)
}

/// Returns the configuration of incast.
pub(super) fn incast(iterations: u32) -> Result<Config> {
    let buffer = toml::toml! { kind = "per-output" };
    let changes = [
        ("topology.hosts", Value::from(INCAST_SERVERS + 1)),
        ("topology.tor.switch.buffer", Value::Table(buffer)),
        ("topology.tor.switch.buffer.bytes", Value::from(format!("{INCAST_BUFFER_BYTES}B"))),
        ("tcp.rto.minimum-ns", Value::from(INCAST_RTO_NS)),
        ("tcp.rto.granularity-ns", Value::from(1_000_000)),
        ("tcp.rto.clock-ns", Value::from(1_000)),
        ("application.servers", Value::from(INCAST_SERVERS)),
        ("application.iterations", Value::from(iterations)),
    ];
    config("incast-1g", &changes)
}

/// Returns the scenario of the mesh.
pub(super) fn mesh(accesses: u32) -> Scenario {
    let mut scenario = Scenario {
        nodes: MESH_SIDE * MESH_SIDE,
        topology: format!("mesh:{MESH_SIDE}x{MESH_SIDE}"),
        ..Scenario::default()
    };
    scenario.workload.accesses = accesses;
    scenario
}

impl fmt::Display for Workload {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memcached { transport: Transport::Udp, .. } => to.write_str("memcached, UDP"),
            Self::Memcached { transport: Transport::Tcp, .. } => to.write_str("memcached, TCP"),
            Self::Incast { .. } => to.write_str("incast, 16 servers"),
            Self::Mesh { .. } => to.write_str("mesh 8×8"),
            Self::Queue { pending, .. } => write!(to, "queue, {pending} pending"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_rounded_to_arrays() {
        for (nodes, wanted) in [
            (31, (1, 1)),
            (62, (2, 1)),
            (500, (16, 1)),
            (1000, (16, 2)),
            (2000, (16, 4)),
            (10_000, (16, 20)),
        ] {
            assert_eq!(racks_and_arrays(nodes), wanted, "{nodes}");
        }
    }

    #[test]
    fn worlds_take_their_configurations() {
        for transport in [Transport::Udp, Transport::Tcp] {
            let config = memcached(transport, 62, 1).unwrap();
            Warehouse::check(&config).unwrap();
        }
        Warehouse::check(&incast(1).unwrap()).unwrap();
        mesh(1).check().unwrap();
    }
}
