//! Prices of donors for placement, from the tables.

use super::MonitorCore;
use crate::placement::Donor;
use crate::rrt::{NodeEntry, Positions, Room};
use crate::types::{LinkPort, LinkReport};
use venice_wire::NodeId;

/// Assumed bandwidth of a link without any information, in bits a second: 10 Gb/s.
pub(super) const USUAL_LINK_BPS: u64 = 10_000_000_000;
/// A round trip counts from this multiple of the usual time for its hops: the transient load of a
/// machine must not move memory.
const SLOW_FACTOR: u64 = 4;

/// The tables, as seen from one recipient.
pub(super) struct Weighing<'a> {
    core: &'a MonitorCore,
    home: Option<NodeId>,
    /// The recipient's own node, where it is known.
    own: Option<NodeId>,
    /// True if the home's packets go through relays.
    is_relayed: bool,
    /// The nodes of the home's network, by position.
    nodes_at: Positions,
    /// The median round trip of a hop, in nanoseconds; 0: not tested.
    usual_hop_ns: u64,
}

impl MonitorCore {
    /// Creates the view from `home`, where nodes relay for each other.
    pub(super) fn weigh(&self, home: Option<NodeId>) -> Weighing<'_> {
        let relay = home.and_then(|home| self.rrt.get(home)?.record.relay.as_ref());
        let nodes_at = self.positions_around(home);
        let usual_hop_ns = if relay.is_some() { self.tst.usual_hop_ns() } else { 0 };
        let is_relayed = relay.is_some();
        Weighing { core: self, home, own: home, is_relayed, nodes_at, usual_hop_ns }
    }

    /// Returns the nodes of the network that a node is in, if it is in one.
    pub(super) fn positions_around(&self, home: Option<NodeId>) -> Positions {
        let relay = home.and_then(|home| self.rrt.get(home)?.record.relay.as_ref());
        relay.map_or_else(Default::default, |it| self.rrt.relays().positions(&it.topology))
    }
}

impl<'a> Weighing<'a> {
    /// Returns the node that distances are counted from.
    pub(super) fn home(&self) -> Option<NodeId> {
        self.home
    }

    /// Sees the links as this node has tested them.
    pub(super) fn tested_by(self, own: Option<NodeId>) -> Weighing<'a> {
        Weighing { own, ..self }
    }

    /// Packets find another path around relays that are down.
    fn is_cut(&self, node: NodeId) -> bool {
        !self.is_relayed && self.own != Some(node) && self.core.tst.is_cut(self.own, node)
    }

    /// Returns `node` as a donor, before anything was requested from it.
    pub(super) fn donor(&self, node: NodeId, entry: &NodeEntry) -> Donor {
        let way = self.home.and_then(|home| self.core.way(home, node));
        let hops = way.as_ref().map(|way| way.len() as u32);
        let (slow_hops, busy_quarters) = match (self.home, &way) {
            (Some(home), Some(way)) => self.along(home, way),
            _ => (0, self.busy_port(node, entry)),
        };
        let is_stalled = entry.is_stalled();
        Donor {
            hops,
            slow_hops,
            busy_quarters,
            is_stalled,
            is_cut: self.is_cut(node),
            ..Donor::direct(node, entry.available_slabs())
        }
    }

    /// The same for a node with room. Its entry is skipped if it has nothing to add.
    pub(super) fn donor_with(&self, node: NodeId, room: Room) -> Option<Donor> {
        if room.is_unloaded && !self.is_relayed {
            let is_cut = self.is_cut(node);
            return Some(Donor { is_cut, ..Donor::direct(node, room.free_slabs) });
        }
        Some(self.donor(node, self.core.rrt.get(node)?))
    }

    /// Returns the hops equivalent to the path's round trip, and the quarters in use of its busiest
    /// link.
    fn along(&self, home: NodeId, way: &[u32]) -> (u32, u32) {
        let (mut from, mut round_trips_ns, mut busiest) = (home, 0u64, 0);
        for position in way {
            let Some(to) = self.nodes_at.get(position).copied() else { continue };
            let tested = |from, to| self.core.tst.get(from, to, LinkPort::Hop);
            let there = tested(from, to).or_else(|| tested(to, from));
            if let Some(report) = there {
                let ns = report.round_trip_ns().unwrap_or(self.usual_hop_ns);
                round_trips_ns = round_trips_ns.saturating_add(ns);
                busiest = busiest.max(self.busy_link(from, report));
            }
            from = to;
        }
        let slow_ns = self.usual_hop_ns.saturating_mul(SLOW_FACTOR);
        let slow_hops = round_trips_ns.checked_div(slow_ns).unwrap_or(0);
        (u32::try_from(slow_hops).unwrap_or(u32::MAX), busiest)
    }

    fn busy_link(&self, from: NodeId, report: &LinkReport) -> u32 {
        let used = report.bytes_per_s.map_or(0, |used| used as u64);
        quarters(used, self.core.link_bps(from, report))
    }

    /// Returns the load of the donor's own port, where all nodes reach each other directly.
    fn busy_port(&self, node: NodeId, entry: &NodeEntry) -> u32 {
        let used = entry.used_bytes_per_s();
        if used == 0 {
            // Most donors in a large rack: their links need not be read.
            return 0;
        }
        quarters(used, self.core.port_bps(node, entry))
    }
}

/// Returns the quarters of a link in use.
fn quarters(used_bytes_per_s: u64, bandwidth_bps: Option<u64>) -> u32 {
    let quarter_bps = bandwidth_bps.unwrap_or(USUAL_LINK_BPS).div_ceil(4).max(1);
    let used = used_bytes_per_s.saturating_mul(8) / quarter_bps;
    u32::try_from(used).unwrap_or(u32::MAX)
}
