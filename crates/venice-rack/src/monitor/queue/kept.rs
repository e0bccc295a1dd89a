//! What queued requests keep from those behind them, collected in one walk of the queue.

use super::places::Waiter;
use super::{Closed, MonitorCore};
use crate::resource::{ResourceKind, ResourceSpec};
use std::collections::BTreeMap;
use venice_wire::{NodeId, SLAB_BYTES};

/// The least amounts that the requests passed so far keep from one behind them.
#[derive(Debug, Default)]
pub(in crate::monitor) struct Kept {
    /// Bytes of memory, by requests that may use all donors.
    everywhere: Option<u64>,
    /// Bytes of memory, by requests that name their donors.
    at_donors: BTreeMap<NodeId, u64>,
    /// Amounts of devices, by node, kind and address.
    devices: BTreeMap<(NodeId, ResourceKind, String), u64>,
}

impl Kept {
    /// Returns the donors that are closed to a request for this many slabs.
    pub(super) fn closed_to(&self, slabs: u32) -> Closed {
        let bytes = u64::from(slabs).saturating_mul(SLAB_BYTES);
        if self.everywhere.is_some_and(|least| bytes >= least) {
            return Closed::All;
        }
        let closed = self.at_donors.iter().filter(|(_, least)| bytes >= **least);
        Closed::Only(closed.map(|(node, _)| *node).collect())
    }

    /// True if this amount of a device is kept.
    pub(in crate::monitor) fn has_device(
        &self,
        (node, spec): (NodeId, &ResourceSpec),
        amount: u64,
    ) -> bool {
        if self.devices.is_empty() {
            return false;
        }
        let least = self.devices.get(&(node, spec.kind, spec.address.clone()));
        least.is_some_and(|least| amount >= *least)
    }

    fn add_memory(&mut self, waiter: &Waiter) {
        let memory = waiter.checked.memory();
        let Some(least) = memory.and_then(|memory| waiter.kept_from(memory.want)) else { return };
        match &waiter.checked.named {
            None => self.everywhere = Some(self.everywhere.map_or(least, |it| it.min(least))),
            Some(named) => {
                for node in named {
                    lower(self.at_donors.entry(*node).or_insert(least), least);
                }
            }
        }
    }
}

fn lower(known: &mut u64, least: u64) {
    *known = (*known).min(least);
}

impl MonitorCore {
    /// Adds what a request keeps from those behind it.
    pub(super) fn add_kept(&self, kept: &mut Kept, waiter: &Waiter) {
        kept.add_memory(waiter);
        for (index, want) in waiter.checked.request.devices() {
            let Some(least) = waiter.kept_from(index) else { continue };
            for (node, _, spec) in self.devices_of_kind(want.kind) {
                if waiter.checked.may_use(node) && want.would_do(spec) {
                    let device = (node, spec.kind, spec.address.clone());
                    lower(kept.devices.entry(device).or_insert(least), least);
                }
            }
        }
    }
}
