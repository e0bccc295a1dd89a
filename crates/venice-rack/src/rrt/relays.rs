//! The relays of a rack, by position: computed once for all nodes after each change of the table.

use super::{NodeEntry, NodeRecord};
use std::collections::BTreeMap;
use std::iter::zip;
use std::sync::Arc;
use venice_wire::NodeId;

/// Positions of a network, with their nodes.
pub(crate) type Positions = Arc<BTreeMap<u32, NodeId>>;

/// The relays of a rack.
#[derive(Debug, Default)]
pub(crate) struct Relays {
    /// The revision of the table that they are from.
    pub(super) revision: u64,
    /// By topology: while nodes are down there may be more than one.
    by_topology: BTreeMap<String, Positions>,
    list: Arc<[Arc<NodeRecord>]>,
}

impl Relays {
    /// Finds them. A place whose node now lives under another name belongs to the living one.
    pub(super) fn of<'a>(
        revision: u64,
        nodes: impl Iterator<Item = &'a NodeEntry>,
        before: &Self,
    ) -> Self {
        let (up, down): (Vec<_>, Vec<_>) =
            nodes.filter(|entry| entry.record.relay.is_some()).partition(|entry| entry.up);
        let mut by_topology: BTreeMap<&str, BTreeMap<u32, NodeId>> = BTreeMap::new();
        let mut by_position: BTreeMap<u32, &Arc<NodeRecord>> = BTreeMap::new();
        for entry in up.into_iter().chain(down) {
            let Some(place) = &entry.record.relay else { continue };
            let there = by_topology.entry(&place.topology).or_default();
            there.entry(place.position).or_insert(entry.record.identity.node);
            by_position.entry(place.position).or_insert(&entry.record);
        }
        let list: Vec<Arc<NodeRecord>> = by_position.into_values().cloned().collect();
        let is_same = list.len() == before.list.len()
            && zip(&list, &*before.list).all(|(one, other)| Arc::ptr_eq(one, other));
        let by_topology = by_topology.into_iter();
        Self {
            revision,
            by_topology: by_topology.map(|(name, nodes)| (name.to_owned(), nodes.into())).collect(),
            list: if is_same { Arc::clone(&before.list) } else { list.into() },
        }
    }

    /// Returns the nodes of a network.
    pub(crate) fn positions(&self, topology: &str) -> Positions {
        self.by_topology.get(topology).cloned().unwrap_or_default()
    }

    /// Returns the records of all relays, living or not, by position. The list stays the same one
    /// while none of them changes: their being up is no part of it.
    pub(crate) fn list(&self) -> &Arc<[Arc<NodeRecord>]> {
        &self.list
    }
}
