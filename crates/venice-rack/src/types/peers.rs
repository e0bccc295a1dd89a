//! Whom nodes are near, and who relays.

use serde::{Deserialize, Serialize};
use venice_wire::{NodeId, SealKey};

/// Whom a node is near.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerList {
    /// Never 0, and another for every change.
    pub version: u64,
    /// Living nodes to test its links to; where it relays, all others.
    pub peers: Vec<Peer>,
    /// Every relay of the rack, living or not; empty where there are none.
    pub relays: Vec<RelayPeer>,
}

/// Another node of the rack, as a link test needs it.
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
    /// The key to seal with what the asker sends to this node; `None` in a rack without
    /// protection.
    pub seal_key: Option<SealKey>,
}

/// A node's place in a network of relays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayPlace {
    /// The network's shape and size, the same for every node of the rack, for example
    /// `mesh:2x2x2` or `router:8`.
    pub topology: String,
    /// The node's position in it.
    pub position: u32,
    /// `host:port` of its relay's UDP port.
    pub addr: String,
}

/// A relay of the rack, for its neighbours and for who routes to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayPeer {
    /// The node's number.
    pub node: NodeId,
    /// Its position.
    pub position: u32,
    /// `host:port` of its relay's UDP port.
    pub addr: String,
}
