//! Devices in the tables: free devices, the choice for a request, and the rows for users.

use super::super::MonitorCore;
use super::{PendingDevice, Sought};
use crate::rat::{GrantRecord, GrantState};
use crate::resource::{MAX_DEVICE_GRANTS, too_many_grants};
use crate::rows::{GrantRow, ResourceRow};
use crate::rrt::NodeEntry;
use crate::types::{DeviceRequest, DeviceShare, Identity, ResourceKind, ResourceSpec};
use std::collections::BTreeMap;
use venice_wire::{ByteSize, NodeId};

/// The reason against a lent device.
const TAKEN: &str = "granted";
/// Most devices listed with reasons in an error: an answer has the room of a header.
const MAX_REASONS: usize = 8;
/// Longest reason, in bytes.
const MAX_REASON_BYTES: usize = 240;

impl MonitorCore {
    /// Chooses the device for a request, and returns it with its donor. Of the suitable ones it
    /// takes one with the fewest capabilities, so that demanding requests find the others; of these
    /// the smallest, where for storage the rest counts; then of the node with the fewest lent; then
    /// by number and name.
    pub(in super::super) fn choose_device(
        &self,
        sought: &Sought<'_>,
    ) -> Option<(Identity, &ResourceSpec)> {
        let mut best = None;
        for (node, entry, spec) in self.devices_of_kind(sought.request.kind) {
            if self.why_not(sought, node, entry, spec).is_some() {
                continue;
            }
            let lent = self.rat.of_donor(node).filter(|grant| grant.device.is_some()).count();
            let left = self.free_of(entry, spec).unwrap_or(0);
            let rank = (spec.capabilities.len(), left, lent, node, &spec.address);
            if best.as_ref().is_none_or(|(least, _, _)| rank < *least) {
                best = Some((rank, entry.record.identity, spec));
            }
        }
        best.map(|(_, donor, spec)| (donor, spec))
    }

    /// Explains in words why there is none.
    pub(in super::super) fn why_no_device(&self, sought: &Sought<'_>) -> String {
        let Sought { request, named, .. } = sought;
        let mut reasons = Vec::new();
        let is_named = |node: &NodeId| named.is_none_or(|named| named.contains(node));
        let devices = self.devices_of_kind(request.kind).filter(|(node, _, _)| is_named(node));
        let mut unlisted = 0;
        for (node, entry, spec) in devices {
            if reasons.len() == MAX_REASONS {
                unlisted += 1;
                continue;
            }
            let why = self.why_not(sought, node, entry, spec).unwrap_or_default();
            reasons.push(clipped(format!("{} {}: {why}", entry.record.name, spec.address)));
        }
        let wanted = clipped(request.wanted());
        if reasons.is_empty() {
            let kind = request.kind;
            let nobody = if named.is_some() { "none of the nodes named" } else { "no node" };
            return format!(
                "no {wanted}: {nobody} offers any (`venice agent --offer {kind}:...` does; `venice \
                 resources` lists what is offered)"
            );
        }
        if unlisted > 0 {
            reasons.push(format!("and {unlisted} more, which `venice resources` lists"));
        }
        let reasons = reasons.join("; ");
        format!("no {wanted} available ({reasons})")
    }

    /// Explains why a device does not suit a request; `None`: it does.
    pub(super) fn why_not(
        &self,
        sought: &Sought<'_>,
        node: NodeId,
        entry: &NodeEntry,
        spec: &ResourceSpec,
    ) -> Option<String> {
        let Sought { request, named, place, tried } = sought;
        let DeviceRequest { bytes, capabilities, .. } = request;
        let is_named = named.is_none_or(|named| named.contains(&node));
        let refused = tried.refused.get(&(node, spec.kind, spec.address.clone()));
        let fault = self.fault_of(entry, spec);
        let missing = capabilities.iter().filter(|it| !spec.can(std::slice::from_ref(it)));
        let missing: Vec<&str> = missing.map(String::as_str).collect();
        let left = self.free_of(entry, spec);
        Some(match () {
            () if !is_named => "not among the donors named".to_owned(),
            () if entry.record.is_draining => "its node is being drained".to_owned(),
            () if !missing.is_empty() => format!("cannot {}", missing.join(", ")),
            () if !fault.is_empty() => fault,
            () if tried.silent.contains(&node) => "its node does not answer".to_owned(),
            () if left.is_none() => TAKEN.to_owned(),
            () if let Some(why) = refused => why.clone(),
            () if self.is_full(node) => too_many_grants(),
            () if spec.bytes == 0 && bytes.0 > 0 => "its size is unknown".to_owned(),
            () if left.is_some_and(|left| left < bytes.0) => {
                format!("{} are left", ByteSize(left.unwrap_or(0)))
            }
            () if self.is_kept_for_others(*place, node, spec, request.amount()) => {
                "reserved for requests ahead in the queue".to_owned()
            }
            () => return None,
        })
    }

    /// True if a node has as many grants of devices as it may.
    fn is_full(&self, node: NodeId) -> bool {
        let granted = self.rat.of_donor(node).filter(|grant| grant.device.is_some());
        granted.count() >= MAX_DEVICE_GRANTS
    }

    /// Returns the free bytes of a device; `None`: it is lent, or being prepared.
    pub(in super::super) fn free_of(&self, entry: &NodeEntry, spec: &ResourceSpec) -> Option<u64> {
        let Identity { node, epoch } = entry.record.identity;
        let is_of_it = |share: &&DeviceShare| share.device() == (spec.kind, &*spec.address);
        let granted = self.rat.of_donor(node).filter(|grant| grant.donor_epoch == epoch);
        let granted = granted.filter_map(|grant| grant.device.as_ref());
        let asked = self.device_requests.values().filter_map(|pending| pending.part.as_ref());
        let asked = asked.filter(|part| part.donor == entry.record.identity && !part.is_committing);
        let asked = asked.map(|part| &part.share);
        let mut taken = granted.chain(asked).filter(is_of_it).peekable();
        match spec.slab_bytes {
            0 => taken.peek().is_none().then_some(spec.bytes),
            _ => {
                let left = taken.map(|share| share.bytes).fold(spec.bytes, u64::saturating_sub);
                (left > 0).then_some(left)
            }
        }
    }

    /// Returns the fault of a device; empty if none is known.
    pub(in super::super) fn fault_of(&self, entry: &NodeEntry, spec: &ResourceSpec) -> String {
        if let Some(absence) = entry.absence() {
            return absence.to_owned();
        }
        let reports = &entry.devices;
        let report = reports.iter().find(|it| it.kind == spec.kind && it.address == spec.address);
        report.map(|report| report.fault.clone()).unwrap_or_default()
    }

    pub(in super::super) fn devices_of_kind(
        &self,
        kind: ResourceKind,
    ) -> impl Iterator<Item = (NodeId, &NodeEntry, &ResourceSpec)> {
        self.rrt.iter().flat_map(move |(node, entry)| {
            let specs = entry.record.resources.iter().filter(move |spec| spec.kind == kind);
            specs.map(move |spec| (node, entry, spec))
        })
    }

    /// Completes the row of a device in `venice resources`.
    pub(in super::super) fn device_row(&self, entry: &NodeEntry, row: ResourceRow) -> ResourceRow {
        let mut specs = entry.record.resources.iter();
        let spec = specs.find(|it| {
            it.kind.is_device() && it.kind.name() == row.kind && it.address == row.address
        });
        let Some(spec) = spec else { return row };
        let fault = self.fault_of(entry, spec);
        let left = self.free_of(entry, spec);
        let is_available = left.is_some() && fault.is_empty() && !entry.record.is_draining;
        let health = if fault.is_empty() { row.health } else { fault };
        let free_bytes = left.filter(|_| is_available).unwrap_or(0);
        ResourceRow { free_bytes, available: is_available, health, ..row }
    }

    /// Returns the rows in `venice grants` of devices being prepared.
    pub(in super::super) fn device_rows_in_preparation(&self) -> Vec<GrantRow> {
        let row = |pending: &PendingDevice| {
            let part = pending.part.as_ref().filter(|part| !part.is_committing)?;
            let record = GrantRecord {
                id: part.grant,
                origin: None,
                owner: Some(pending.owner.clone()),
                recipient: pending.request.recipient.clone(),
                home: None,
                purpose: pending.request.purpose.clone(),
                priority: pending.request.queueing.priority,
                donor: part.donor.node,
                donor_epoch: part.donor.epoch,
                slabs: 0,
                bandwidth_bps: 0,
                device: Some(part.share.clone()),
                lease_ms: self.settings.lease_ms(),
                granted_ns: 0,
                state: GrantState::Committing,
                confirmed_revision: 0,
            };
            Some(GrantRow { age_s: 0.0, ..self.grant_row(&record, 0) })
        };
        self.device_requests.values().filter_map(row).collect()
    }
}

/// Clips a text to the longest reason.
pub(super) fn clipped(text: String) -> String {
    if text.len() <= MAX_REASON_BYTES {
        return text;
    }
    let end = (0..=MAX_REASON_BYTES - 3).rev().find(|at| text.is_char_boundary(*at));
    format!("{}...", &text[..end.unwrap_or(0)])
}

/// The devices that a donor's report may still claim as lent: no more than it offers.
pub(in super::super) struct Offered(BTreeMap<(ResourceKind, String), (ResourceSpec, Left)>);

/// Whole devices once, storage by bytes.
enum Left {
    Whole,
    Bytes(u64),
}

impl Offered {
    pub(in super::super) fn by(entry: Option<&NodeEntry>) -> Self {
        let specs = entry.into_iter().flat_map(|entry| &entry.record.resources);
        let devices = specs.filter(|spec| spec.kind.is_device()).map(|spec| {
            let left = match spec.slab_bytes {
                0 => Left::Whole,
                _ => Left::Bytes(spec.bytes),
            };
            ((spec.kind, spec.address.clone()), (spec.clone(), left))
        });
        Self(devices.collect())
    }

    /// Takes a share, as the registration describes it; `None` if it cannot be.
    pub(in super::super) fn take(&mut self, share: &DeviceShare) -> Option<DeviceShare> {
        let of = (share.kind, share.address.clone());
        match self.0.get_mut(&of)? {
            (_, Left::Whole) => self.0.remove(&of).map(|(spec, _)| spec.share(0)),
            (spec, Left::Bytes(left)) => {
                let its = spec.share(share.bytes);
                *left = left.checked_sub(its.bytes).filter(|_| share.bytes > 0)?;
                Some(its)
            }
        }
    }
}
