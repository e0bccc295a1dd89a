//! How far nodes are from each other, where they relay for each other.

use super::MonitorCore;
use crate::rrt::NodeRecord;
use venice_wire::NodeId;

impl MonitorCore {
    /// Hops from one node's relay to another's; `None` where they reach each other directly.
    pub(super) fn hops(&self, from: NodeId, to: NodeId) -> Option<u32> {
        Some(self.way(from, to)?.len() as u32)
    }

    /// The names of the nodes whose relays pass on what goes from `from`, itself the first, to
    /// `to`, which is left out.
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

    fn name_at(&self, topology: &str, position: u32) -> String {
        let is_there = |record: &NodeRecord| {
            let place = record.relay.as_ref();
            place.is_some_and(|place| place.topology == topology && place.position == position)
        };
        let found = self.rrt.iter().find(|(_, entry)| is_there(&entry.record));
        found.map_or_else(|| format!("position {position}"), |(_, entry)| entry.record.name.clone())
    }
}
