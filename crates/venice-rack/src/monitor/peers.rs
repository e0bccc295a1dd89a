//! Peer lists: the nodes to which a node tests its links, and the relays.
//!
//! A list is sent when it changes, not with each heartbeat: addresses and keys are many times the
//! size of the rest.

use super::MonitorCore;
use crate::rrt::{NodeRecord, SentPeers};
use crate::types::{Peer, PeerList, RelayPeer, RelayPlace};
use std::iter::zip;
use std::sync::Arc;
use venice_wire::{KeyName, NodeId};

/// The number of nodes a node tests its links to: those that follow it by number. In a rack of
/// thousands, all pairs would be too large a table and too much traffic.
const TESTED_PEERS: usize = 64;

impl MonitorCore {
    /// Returns the peer list of a node; `None` if it has that `version`.
    pub(super) fn peers_for(&mut self, node: NodeId, version: u64) -> Option<PeerList> {
        let revision = self.rrt.revision();
        let sent = &self.rrt.get(node)?.sent_peers;
        if sent.revision != revision {
            let (peers, relays) = (self.near(node), self.relays_for(node));
            let are_relays_same =
                Arc::ptr_eq(&relays, &sent.relays) || relays.is_empty() && sent.relays.is_empty();
            let is_same = are_relays_same && are_same(&peers, &sent.peers);
            let mut entry = self.rrt.get_mut(node)?;
            if is_same && entry.sent_peers.version != 0 {
                entry.sent_peers.revision = revision;
            } else {
                entry.sent_peers = SentPeers { revision, version: revision, peers, relays };
            }
        }
        let sent = &self.rrt.get(node)?.sent_peers;
        (sent.version != version).then(|| PeerList {
            version: sent.version,
            peers: sent.peers.iter().map(|it| self.peer(node, it)).collect(),
            relays: sent.relays.iter().filter_map(|it| relay(it)).collect(),
        })
    }

    /// Returns the living nodes that it is to test; of a relay its neighbours, whose keys it needs.
    fn near(&self, node: NodeId) -> Vec<Arc<NodeRecord>> {
        let place = self.rrt.get(node).and_then(|entry| entry.record.relay.as_ref());
        if let Some(place) = place {
            let nodes = self.rrt.relays().positions(&place.topology);
            let neighbours = (self.settings.neighbours)(&place.topology, place.position);
            let there = neighbours.iter().filter_map(|at| self.rrt.get(*nodes.get(at)?));
            return there.filter(|it| it.up).map(|it| Arc::clone(&it.record)).collect();
        }
        let living = self.rrt.after(node).filter(|it| it.up);
        living.take(TESTED_PEERS).map(|it| Arc::clone(&it.record)).collect()
    }

    fn peer(&self, of: NodeId, record: &NodeRecord) -> Peer {
        Peer {
            name: record.name.clone(),
            node: record.identity.node,
            epoch: record.identity.epoch,
            udp_addr: record.udp_addr.clone(),
            shm_socket: record.shm_socket.clone(),
            seal_key: record.secret.map(|secret| self.keys.seal_key(&secret, KeyName::Peer(of))),
        }
    }

    /// Returns every relay, for a node that is one: packets' paths depend on all of them.
    fn relays_for(&self, node: NodeId) -> Arc<[Arc<NodeRecord>]> {
        match self.rrt.get(node).is_some_and(|entry| entry.record.relay.is_some()) {
            true => Arc::clone(self.rrt.relays().list()),
            false => Arc::default(),
        }
    }
}

fn are_same(these: &[Arc<NodeRecord>], those: &[Arc<NodeRecord>]) -> bool {
    these.len() == those.len() && zip(these, those).all(|(one, other)| Arc::ptr_eq(one, other))
}

fn relay(record: &NodeRecord) -> Option<RelayPeer> {
    let RelayPlace { position, addr, .. } = record.relay.clone()?;
    Some(RelayPeer { node: record.identity.node, position, addr })
}
