//! Whom a node is told of with each heartbeat: the nodes to test its links to, and the relays.

use super::MonitorCore;
use crate::rrt::NodeEntry;
use crate::types::{Peer, RelayPeer, RelayPlace};
use venice_wire::{KeyName, NodeId};

/// How many nodes a node tests its links to: those that follow it by number. In a rack of thousands
/// all pairs would be a table, and traffic, without end.
const TESTED_PEERS: usize = 64;
/// So many of them with each heartbeat, in turns. A smaller rack is tested whole on each.
const PEERS_AT_ONCE: usize = 16;

impl MonitorCore {
    /// The peers that it is to test next. A relay is told of all: its neighbours' keys are theirs.
    pub(super) fn peers_for(&mut self, node: NodeId) -> Vec<Peer> {
        let Some(entry) = self.rrt.get(node) else { return Vec::new() };
        if entry.record.relay.is_some() {
            return self.rrt.after(node).filter(|it| it.up).map(|it| self.peer(node, it)).collect();
        }
        let turn = entry.peer_turn;
        let tested = || self.rrt.after(node).filter(|it| it.up).take(TESTED_PEERS);
        let count = tested().count();
        if count <= PEERS_AT_ONCE {
            return tested().map(|it| self.peer(node, it)).collect();
        }
        let in_turn = tested().cycle().skip(turn % count).take(PEERS_AT_ONCE);
        let peers = in_turn.map(|it| self.peer(node, it)).collect();
        if let Some(entry) = self.rrt.get_mut(node) {
            entry.peer_turn = (turn + PEERS_AT_ONCE) % count;
        }
        peers
    }

    fn peer(&self, of: NodeId, entry: &NodeEntry) -> Peer {
        let record = &entry.record;
        Peer {
            name: record.name.clone(),
            node: record.identity.node,
            epoch: record.identity.epoch,
            udp_addr: record.udp_addr.clone(),
            shm_socket: record.shm_socket.clone(),
            seal_key: record.secret.map(|secret| self.keys.seal_key(&secret, KeyName::Peer(of))),
        }
    }

    /// Every relay, for a node that is one.
    pub(super) fn relays_for(&self, node: NodeId) -> Vec<RelayPeer> {
        if self.rrt.get(node).is_none_or(|entry| entry.record.relay.is_none()) {
            return Vec::new();
        }
        let relay = |entry: &NodeEntry| {
            let RelayPlace { position, addr, .. } = entry.record.relay.clone()?;
            Some(RelayPeer { node: entry.record.identity.node, position, addr })
        };
        // A place whose node lives under another name now is that one's.
        let (up, down): (Vec<_>, Vec<_>) =
            self.rrt.iter().map(|(_, entry)| entry).partition(|entry| entry.up);
        let mut relays: Vec<RelayPeer> = up.into_iter().filter_map(relay).collect();
        for relay in down.into_iter().filter_map(relay) {
            if !relays.iter().any(|known| known.position == relay.position) {
                relays.push(relay);
            }
        }
        relays
    }
}
