//! What speaks for and against each donor, as the tables have it.

use super::MonitorCore;
use crate::placement::Donor;
use crate::rrt::{NodeEntry, Room};
use crate::types::{LinkPort, LinkReport, LinkState};
use std::collections::BTreeMap;
use venice_wire::NodeId;

/// What a link is taken to carry, in bits a second, where nobody says: 10 Gb/s.
pub(super) const USUAL_LINK_BPS: u64 = 10_000_000_000;
/// A round trip counts when it takes so many times as long as is usual for its hops: what a busy
/// machine adds for a while is not to move memory about.
const SLOW_FACTOR: u64 = 4;

/// The tables, as seen from one recipient.
pub(super) struct Weighing<'a> {
    core: &'a MonitorCore,
    home: Option<NodeId>,
    /// The home's packets go through relays.
    is_relayed: bool,
    /// Who stands where in the home's network.
    nodes_at: BTreeMap<u32, NodeId>,
    /// The median round trip of a hop, in nanoseconds; 0: nobody has tested.
    usual_hop_ns: u64,
}

impl MonitorCore {
    /// The donors as seen from `home`, where nodes relay for each other.
    pub(super) fn weigh(&self, home: Option<NodeId>) -> Weighing<'_> {
        let relay = home.and_then(|home| self.rrt.get(home)?.record.relay.as_ref());
        let nodes_at = relay.map_or_else(BTreeMap::new, |relay| self.nodes_at(&relay.topology));
        let usual_hop_ns = if relay.is_some() { self.usual_hop_ns() } else { 0 };
        Weighing { core: self, home, is_relayed: relay.is_some(), nodes_at, usual_hop_ns }
    }

    pub(super) fn nodes_at(&self, topology: &str) -> BTreeMap<u32, NodeId> {
        let places = self.rrt.iter().filter_map(|(node, entry)| {
            let place = entry.record.relay.as_ref()?;
            (place.topology == topology).then_some((place.position, node))
        });
        places.collect()
    }

    fn usual_hop_ns(&self) -> u64 {
        let hops = self.tst.iter().filter(|(_, report)| report.port == LinkPort::Hop);
        let mut tested: Vec<u64> = hops.filter_map(|(_, report)| round_trip_ns(report)).collect();
        tested.sort_unstable();
        tested.get(tested.len() / 2).copied().unwrap_or(0)
    }
}

impl Weighing<'_> {
    /// What `node` is as a donor, before anything was asked of it.
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
            ..Donor::direct(node, entry.available_slabs())
        }
    }

    /// The same of one that has room. Its entry is left alone where it has nothing to add.
    pub(super) fn donor_with(&self, node: NodeId, room: Room) -> Option<Donor> {
        if room.is_at_ease && !self.is_relayed {
            return Some(Donor::direct(node, room.free_slabs));
        }
        Some(self.donor(node, self.core.rrt.get(node)?))
    }

    /// Hops that the way counts as by its round trip, and the quarters in use of its busiest link.
    fn along(&self, home: NodeId, way: &[u32]) -> (u32, u32) {
        let (mut from, mut round_trips_ns, mut busiest) = (home, 0u64, 0);
        for position in way {
            let Some(to) = self.nodes_at.get(position).copied() else { continue };
            let tested = |from, to| self.core.tst.get(from, to, LinkPort::Hop);
            let there = tested(from, to).or_else(|| tested(to, from));
            if let Some(report) = there {
                let ns = round_trip_ns(report).unwrap_or(self.usual_hop_ns);
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

    /// Where all reach each other directly, what goes on at the donor's own port.
    fn busy_port(&self, node: NodeId, entry: &NodeEntry) -> u32 {
        let used = entry.used_bytes_per_s();
        if used == 0 {
            // In a large rack most donors: what their links carry need not be read.
            return 0;
        }
        quarters(used, self.core.port_bps(node, entry))
    }
}

/// Quarters of a link in use.
fn quarters(used_bytes_per_s: u64, bandwidth_bps: Option<u64>) -> u32 {
    let quarter_bps = bandwidth_bps.unwrap_or(USUAL_LINK_BPS).div_ceil(4).max(1);
    let used = used_bytes_per_s.saturating_mul(8) / quarter_bps;
    u32::try_from(used).unwrap_or(u32::MAX)
}

fn round_trip_ns(report: &LinkReport) -> Option<u64> {
    (report.state == LinkState::Up).then_some((report.latency_us * 1e3) as u64)
}
