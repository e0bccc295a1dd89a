//! What queued requests want, collected in one walk of the queue: nothing is preempted for a
//! request while another is ahead of it that would get it.

use super::MonitorCore;
use super::places::Waiter;
use crate::monitor::pending::CheckedRequest;
use crate::resource::ResourceKind;
use std::collections::BTreeSet;
use venice_wire::NodeId;

/// Wants of the requests passed so far.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// True if one wants memory of any donor.
    any_donor: bool,
    /// Donors of which one wants memory.
    donors: BTreeSet<NodeId>,
    /// Devices that suit one, by node, kind and address.
    devices: BTreeSet<(NodeId, ResourceKind, String)>,
}

impl MonitorCore {
    /// Adds what a request wants.
    pub(super) fn add_ahead(&self, ahead: &mut Ahead, waiter: &Waiter) {
        let checked = &waiter.checked;
        match (&checked.named, checked.memory()) {
            (_, None) => {}
            (None, Some(_)) => ahead.any_donor = true,
            (Some(named), Some(_)) => ahead.donors.extend(named),
        }
        ahead.devices.extend(self.devices_for(checked));
    }

    /// True if a request ahead may use memory or a device that this one may use.
    pub(super) fn is_met(&self, ahead: &Ahead, checked: &CheckedRequest) -> bool {
        let meets_memory = match &checked.named {
            None => ahead.any_donor || !ahead.donors.is_empty(),
            Some(named) => ahead.any_donor || !ahead.donors.is_disjoint(named),
        };
        checked.memory().is_some() && meets_memory
            || self.devices_for(checked).any(|device| ahead.devices.contains(&device))
    }

    /// Iterates over the devices that suit a request, lent or not.
    fn devices_for(
        &self,
        checked: &CheckedRequest,
    ) -> impl Iterator<Item = (NodeId, ResourceKind, String)> {
        checked.request.devices().flat_map(move |(_, want)| {
            let devices = self.devices_of_kind(want.kind);
            let suits = devices
                .filter(move |(node, _, spec)| checked.may_use(*node) && want.would_do(spec));
            suits.map(|(node, _, spec)| (node, spec.kind, spec.address.clone()))
        })
    }
}
