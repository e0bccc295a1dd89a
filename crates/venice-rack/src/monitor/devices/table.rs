//! Devices in `venice resources`, and those that a donor's report may claim.

use super::super::MonitorCore;
use crate::resource::{ResourceKind, ResourceSpec, Share};
use crate::rows::ResourceRow;
use crate::rrt::NodeEntry;
use std::collections::BTreeMap;

impl MonitorCore {
    /// Completes the row of a device in `venice resources`.
    pub(in super::super) fn device_row(
        &self,
        entry: &NodeEntry,
        spec: &ResourceSpec,
        row: ResourceRow,
    ) -> ResourceRow {
        let fault = self.fault_of(entry, spec);
        let left = self.free_of(entry, spec, &[]);
        let is_available = left.is_some() && fault.is_empty() && !entry.record.is_draining;
        let health = if fault.is_empty() { row.health } else { fault };
        let free_bytes = left.filter(|_| is_available).unwrap_or(0);
        ResourceRow { free_bytes, available: is_available, health, ..row }
    }
}

/// The resources that a donor's report may still claim as lent: no more than it offers.
pub(in super::super) struct Offered {
    left_slabs: u32,
    devices: BTreeMap<(ResourceKind, String), (ResourceSpec, Left)>,
}

/// Whole devices once, divisible ones by bytes.
enum Left {
    Whole,
    Bytes(u64),
}

impl Offered {
    /// Returns all that a node offers, of the slabs at most `reported_slabs`.
    pub(in super::super) fn by(entry: Option<&NodeEntry>, reported_slabs: u32) -> Self {
        let specs = entry.into_iter().flat_map(|entry| &entry.record.resources);
        let devices = specs.filter(|spec| spec.kind.is_device()).map(|spec| {
            let left = match spec.slab_bytes {
                0 => Left::Whole,
                _ => Left::Bytes(spec.bytes),
            };
            ((spec.kind, spec.address.clone()), (spec.clone(), left))
        });
        let left_slabs = entry.map_or(0, |entry| entry.record.total_slabs()).min(reported_slabs);
        Self { left_slabs, devices: devices.collect() }
    }

    /// Takes a share, as the registration describes it; `None` if it cannot be.
    pub(in super::super) fn take(&mut self, share: &Share) -> Option<Share> {
        if !share.kind.is_device() {
            let (slabs, left_slabs) = (share.slabs(), self.left_slabs);
            self.left_slabs = left_slabs.saturating_sub(slabs);
            return (1..=left_slabs).contains(&slabs).then(|| Share::of_slabs(slabs));
        }
        let of = (share.kind, share.address.clone());
        match self.devices.get_mut(&of)? {
            (_, Left::Whole) => self.devices.remove(&of).map(|(spec, _)| spec.share(0)),
            (spec, Left::Bytes(left)) => {
                let its = spec.share(share.bytes);
                *left = left.checked_sub(its.bytes).filter(|_| share.bytes > 0)?;
                Some(its)
            }
        }
    }
}
