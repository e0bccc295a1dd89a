//! Peer lists: the neighbours and relays sent to each node.

use serde::{Deserialize, Serialize};
use venice_wire::{NodeId, SealKey};

/// The peers of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerList {
    /// The version: never 0, and different after every change.
    pub version: u64,
    /// Living nodes whose links the node tests; for a relay its living neighbours.
    pub peers: Vec<Peer>,
    /// All relays of the rack, living or not, by position; empty without relays.
    pub relays: Vec<RelayPeer>,
}

/// Another node of the rack, as needed for a link test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its number.
    pub node: NodeId,
    /// Its epoch.
    pub epoch: u64,
    /// `host:port` of its UDP data port; empty when it has none.
    pub udp_addr: String,
    /// Path of its unix socket; empty when it has none.
    pub shm_socket: String,
    /// The key that seals datagrams from the receiver of this list to this node; `None` in a rack
    /// without protection.
    pub seal_key: Option<SealKey>,
}

/// A node's place in a network of relays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayPlace {
    /// Shape and size of the network, the same for every node of the rack, for example `mesh:2x2x2`
    /// or `router:8`.
    pub topology: String,
    /// The node's position in it.
    pub position: u32,
    /// `host:port` of its relay's UDP port.
    pub addr: String,
}

/// A relay of the rack, for its neighbours and for routing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayPeer {
    /// The node's number.
    pub node: NodeId,
    /// Its position.
    pub position: u32,
    /// `host:port` of its relay's UDP port.
    pub addr: String,
}
