//! Distances between nodes that relay for each other.

use super::MonitorCore;
use crate::rrt::NodeEntry;
use crate::types::{LinkPort, LinkState};
use venice_wire::NodeId;

impl MonitorCore {
    /// Returns the hops from one node's relay to another's; `None` where they reach each other
    /// directly.
    pub(super) fn hops(&self, from: NodeId, to: NodeId) -> Option<u32> {
        Some(self.way(from, to)?.len() as u32)
    }

    /// Returns the names of the nodes whose relays pass on packets from `from`, the first, to `to`,
    /// which is left out.
    pub(super) fn relays_between(&self, from: NodeId, to: NodeId) -> Option<Vec<String>> {
        let mut positions = self.way(from, to)?;
        positions.pop();
        let topology = &self.rrt.get(from)?.record.relay.as_ref()?.topology;
        let names = positions.into_iter().map(|position| self.name_at(topology, position));
        Some(std::iter::once(self.name_of(from)).chain(names).collect())
    }

    pub(super) fn way(&self, from: NodeId, to: NodeId) -> Option<Vec<u32>> {
        let place = |node| self.rrt.get(node)?.record.relay.as_ref();
        let (here, there) = (place(from)?, place(to)?);
        if here.topology != there.topology {
            return None;
        }
        (self.settings.way)(&here.topology, here.position, there.position)
    }

    /// True if nothing is known to be down on that path: neither a node nor a link between two of
    /// them. Around one that is down, packets take a path that only the relays know.
    pub(super) fn is_way_open(&self, from: NodeId, to: NodeId) -> bool {
        let (Some(way), Some(entry)) = (self.way(from, to), self.rrt.get(from)) else {
            return false;
        };
        let Some(place) = &entry.record.relay else { return false };
        let stops = way.iter().map(|position| self.node_at(&place.topology, *position));
        let stops: Option<Vec<_>> = std::iter::once(Some((from, entry))).chain(stops).collect();
        stops.is_some_and(|stops| {
            stops.iter().all(|(_, entry)| entry.up)
                && stops.windows(2).all(|hop| self.is_hop_open(hop[0].0, hop[1].0))
        })
    }

    fn is_hop_open(&self, one: NodeId, other: NodeId) -> bool {
        let is_down = |from, to| {
            let tested = self.tst.get(from, to, LinkPort::Hop);
            tested.is_some_and(|report| report.state == LinkState::Down)
        };
        !is_down(one, other) && !is_down(other, one)
    }

    fn name_at(&self, topology: &str, position: u32) -> String {
        let found = self.node_at(topology, position);
        found.map_or_else(|| format!("position {position}"), |(_, entry)| entry.record.name.clone())
    }

    fn node_at(&self, topology: &str, position: u32) -> Option<(NodeId, &NodeEntry)> {
        let node = *self.rrt.relays().positions(topology).get(&position)?;
        Some((node, self.rrt.get(node)?))
    }
}
