//! Devices in the tables: free devices, and the choice for a request.

mod matching;
mod offered;
mod table;

pub(super) use offered::{check_offered, reports_of};
pub(super) use table::Offered;

use super::handshake::{Chosen, beside};
use super::pending::{CheckedRequest, Part, PendingRequest};
use super::queue::{Kept, Place};
use super::{CallError, MonitorCore};
use crate::placement::{Donor, Policy, place};
use crate::resource::{MAX_DEVICE_GRANTS, ResourceKind, ResourceSpec, Share, too_many_grants};
use crate::rrt::NodeEntry;
use crate::types::{Identity, Refusal};
use crate::want::Want;
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::{ByteSize, NodeId};

/// The reason against a lent device.
const TAKEN: &str = "granted";
/// Most devices listed with reasons in an error: an answer has the room of a header.
const MAX_REASONS: usize = 8;
/// Longest reason, in bytes.
const MAX_REASON_BYTES: usize = 240;
/// Most nodes whose distance from memory is computed for one choice.
const MAX_SITES: usize = 64;

/// Failed attempts with donors.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Devices that their donors refused, with the reasons: by node, kind and address.
    refused: BTreeMap<(NodeId, ResourceKind, String), String>,
    /// Donors that did not answer.
    silent: BTreeSet<NodeId>,
}

impl Tried {
    /// True if no donor has refused or stayed silent.
    pub(super) fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.silent.is_empty()
    }

    /// Records a failed attempt with a device.
    pub(super) fn note(
        &mut self,
        donor: NodeId,
        (kind, address): (ResourceKind, &str),
        error: &CallError,
    ) {
        match error {
            // The commit came too late for the prepare.
            CallError::Refused(Refusal::UnknownGrant) => {}
            CallError::Refused(refusal) => {
                let why = match refusal {
                    Refusal::NoDevice(why) => why.clone(),
                    other => other.to_string(),
                };
                self.refused.insert((donor, kind, address.to_owned()), why);
            }
            CallError::NoAnswer | CallError::Gone => {
                self.silent.insert(donor);
            }
        }
    }
}

/// A search for the devices of a request.
pub(super) struct DeviceSearch<'a> {
    pub(super) checked: &'a CheckedRequest,
    /// Its place in the queue: requests ahead of it come first.
    pub(super) place: Place,
    pub(super) tried: &'a Tried,
    /// Slabs that are to be near the devices.
    pub(super) slabs: u32,
    pub(super) stock: Stock,
    /// Amounts that requests ahead keep, if they are known.
    pub(super) kept: Option<&'a Kept>,
}

/// The devices a search chooses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stock {
    /// The devices that are free and work.
    Free,
    /// All of nodes that are up and may lend, as if nothing were lent or faulty.
    Whole,
}

impl MonitorCore {
    /// Returns the search for the missing devices of a request in its handshake.
    pub(super) fn device_search<'a>(&self, pending: &'a PendingRequest) -> DeviceSearch<'a> {
        let PendingRequest { checked, place, tried, .. } = pending;
        let slabs = pending.missing_slabs();
        DeviceSearch { checked, place: *place, tried, slabs, stock: Stock::Free, kept: None }
    }

    /// Chooses a device, and returns it with its donor. Of the suitable ones it takes one near the
    /// memory of the request; of these one with the fewest capabilities, so that demanding requests
    /// find the others; of these the smallest, where for a divisible one the rest counts; then of
    /// the node with the fewest lent; then by number and name.
    fn choose_device(
        &self,
        search: &DeviceSearch<'_>,
        want: &Want,
        chosen: &[Chosen],
    ) -> Option<(Identity, &ResourceSpec)> {
        let mut best = None;
        let mut away = BTreeMap::new();
        for (node, entry, spec) in self.devices_of_kind(want.kind) {
            if !self.suits(search, want, chosen, (node, entry, spec)) {
                continue;
            }
            let distance = self.distance_from_memory(search, node, &mut away);
            let granted = self.rat.of_donor(node);
            let lent = granted.filter(|grant| grant.share.device().is_some()).count();
            let left = self.free_of(entry, spec, chosen).unwrap_or(0);
            let rank = (distance, spec.capabilities.len(), left, lent, node, &spec.address);
            if best.as_ref().is_none_or(|(least, _, _)| rank < *least) {
                best = Some((rank, entry.record.identity, spec));
            }
        }
        best.map(|(_, donor, spec)| (donor, spec))
    }

    /// Returns the hops of all slabs of the request together, if a device of `node` were chosen;
    /// a neighbour counts as one hop where nodes reach each other directly.
    fn distance_from_memory(
        &self,
        search: &DeviceSearch<'_>,
        node: NodeId,
        known: &mut BTreeMap<NodeId, u64>,
    ) -> u64 {
        let Some(memory) = search.checked.memory().filter(|_| search.slabs > 0) else { return 0 };
        if let Some(distance) = known.get(&node) {
            return *distance;
        }
        if known.len() >= MAX_SITES {
            return u64::MAX;
        }
        let weighing = self.weigh(Some(node));
        let donors = self.rrt.with_room().filter(|(donor, _)| search.checked.may_use(*donor));
        let donors = donors.filter_map(|(donor, room)| weighing.donor_with(donor, room));
        let donors: Vec<Donor> = donors
            .map(|donor| Donor { most_slabs: memory.most_slabs, ..beside(&[node], donor) })
            .collect();
        let hops_of = |donor: &NodeId| {
            let hops = donors.iter().find(|it| it.node == *donor).and_then(|it| it.hops);
            if *donor == node { 0 } else { u64::from(hops.unwrap_or(1)) }
        };
        let distance = place(Policy::Nearest, search.slabs, &donors).map_or(u64::MAX, |shares| {
            shares.iter().map(|(donor, slabs)| hops_of(donor) * u64::from(*slabs)).sum()
        });
        known.insert(node, distance);
        distance
    }

    /// True if a device suits a want, beside those `chosen` before.
    fn suits(
        &self,
        search: &DeviceSearch<'_>,
        want: &Want,
        chosen: &[Chosen],
        (node, entry, spec): (NodeId, &NodeEntry, &ResourceSpec),
    ) -> bool {
        match search.stock {
            Stock::Free => self.why_not(search, want, chosen, (node, entry, spec)).is_none(),
            Stock::Whole => {
                let left = left_beside(spec, chosen_of(node, chosen));
                let is_usable = is_usable(search.checked, want, (node, entry, spec));
                is_usable && left.is_some_and(|left| left >= want.bytes.0)
            }
        }
    }

    /// Explains why a device does not suit a want; `None`: it does.
    pub(super) fn why_not(
        &self,
        search: &DeviceSearch<'_>,
        want: &Want,
        chosen: &[Chosen],
        (node, entry, spec): (NodeId, &NodeEntry, &ResourceSpec),
    ) -> Option<String> {
        let DeviceSearch { checked, place, tried, kept, .. } = search;
        let is_kept = || match kept {
            Some(kept) => kept.has_device((node, spec), want.amount()),
            None => self.is_kept_for_others(*place, (node, spec), want.amount()),
        };
        let refused = tried.refused.get(&(node, spec.kind, spec.address.clone()));
        let fault = self.fault_of(entry, spec);
        let missing = want.capabilities.iter().filter(|it| !spec.can(std::slice::from_ref(it)));
        let missing: Vec<String> = missing.map(|it| format!("{it:?}")).collect();
        let left = self.free_of(entry, spec, chosen);
        Some(match () {
            () if !checked.may_use(node) => "not among the donors named".to_owned(),
            () if entry.record.is_draining => "its node is being drained".to_owned(),
            () if !missing.is_empty() => format!("cannot {}", missing.join(", ")),
            () if !fault.is_empty() => fault,
            () if tried.silent.contains(&node) => "its node does not answer".to_owned(),
            () if left.is_none() => TAKEN.to_owned(),
            () if let Some(why) = refused => why.clone(),
            () if self.is_full(node) => too_many_grants(),
            () if spec.bytes == 0 && want.bytes.0 > 0 => "its size is unknown".to_owned(),
            () if left.is_some_and(|left| left < want.bytes.0) => {
                format!("{} are left", ByteSize(left.unwrap_or(0)))
            }
            () if is_kept() => "reserved for requests ahead in the queue".to_owned(),
            () => return None,
        })
    }

    /// True if a node has as many grants of devices as it may.
    fn is_full(&self, node: NodeId) -> bool {
        let granted = self.rat.of_donor(node).filter(|grant| grant.share.device().is_some());
        granted.count() >= MAX_DEVICE_GRANTS
    }

    /// Returns the free bytes of a device; `None`: it is lent, being prepared, or `chosen`.
    pub(super) fn free_of(
        &self,
        entry: &NodeEntry,
        spec: &ResourceSpec,
        chosen: &[Chosen],
    ) -> Option<u64> {
        let identity = entry.record.identity;
        let Identity { node, epoch } = identity;
        let granted = self.rat.of_donor(node).filter(|grant| grant.donor_epoch == epoch);
        let granted = granted.map(|grant| &grant.share);
        let parts = self.requests.values().flat_map(|pending| pending.parts.values());
        let early = parts.filter(|part: &&Part| part.donor == identity && part.is_early());
        let early = early.map(|part| &part.share);
        left_beside(spec, granted.chain(early).chain(chosen_of(node, chosen)))
    }

    /// Returns the fault of a device; empty if none is known.
    pub(super) fn fault_of(&self, entry: &NodeEntry, spec: &ResourceSpec) -> String {
        if let Some(absence) = entry.absence() {
            return absence;
        }
        let reports = &entry.devices;
        let report = reports.iter().find(|it| it.kind == spec.kind && it.address == spec.address);
        report.map(|report| report.fault.clone()).unwrap_or_default()
    }

    pub(super) fn devices_of_kind(
        &self,
        kind: ResourceKind,
    ) -> impl Iterator<Item = (NodeId, &NodeEntry, &ResourceSpec)> {
        self.rrt.iter().flat_map(move |(node, entry)| {
            let specs = entry.record.resources.iter().filter(move |spec| spec.kind == kind);
            specs.map(move |spec| (node, entry, spec))
        })
    }
}

/// True if a want may use a device of a node that is up and may lend, lent or not.
pub(super) fn is_usable(
    checked: &CheckedRequest,
    want: &Want,
    (node, entry, spec): (NodeId, &NodeEntry, &ResourceSpec),
) -> bool {
    entry.is_open() && checked.may_use(node) && want.would_do(spec)
}

/// Returns the bytes of a device that these shares leave; `None`: it is taken.
fn left_beside<'a>(spec: &ResourceSpec, shares: impl Iterator<Item = &'a Share>) -> Option<u64> {
    let is_of_it = |share: &&Share| share.device().is_some_and(|it| spec.is_device(it));
    let mut taken = shares.filter(is_of_it).peekable();
    match spec.slab_bytes {
        0 => taken.peek().is_none().then_some(spec.bytes),
        _ => {
            let left = taken.map(|share| share.bytes).fold(spec.bytes, u64::saturating_sub);
            (left > 0).then_some(left)
        }
    }
}

/// Iterates over the shares of a node that are chosen.
fn chosen_of(node: NodeId, chosen: &[Chosen]) -> impl Iterator<Item = &Share> {
    chosen.iter().filter(move |chosen| chosen.donor == node).map(|chosen| &chosen.share)
}

/// Clips a text to the longest reason.
pub(super) fn clipped(text: String) -> String {
    if text.len() <= MAX_REASON_BYTES {
        return text;
    }
    let end = (0..=MAX_REASON_BYTES - 3).rev().find(|at| text.is_char_boundary(*at));
    format!("{}...", &text[..end.unwrap_or(0)])
}
