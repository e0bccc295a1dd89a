//! Dry runs of requests: the placement of memory and the choice of devices, with reasons. No donor is
//! called.

use super::MonitorCore;
use super::devices::{DeviceSearch, Stock, Tried};
use super::handshake::{Chosen, beside, room};
use super::pending::{CheckedRequest, WantedMemory};
use crate::caller::Owner;
use crate::placement::{Donor, farthest, place};
use crate::pressure::PressureLevel;
use crate::queueing::{InLine, no_room_text};
use crate::resource::ResourceSpec;
use crate::rows::{AllocationPlan, DevicePlan, DevicePlanRow, PlacementPlan, PlacementRow};
use crate::rrt::NodeEntry;
use crate::types::{AllocationRequest, RackError};
use crate::want::Want;
use std::collections::BTreeSet;
use venice_wire::{ByteSize, NodeId, SLAB_BYTES};

impl MonitorCore {
    /// Returns what [`Self::handle_request`] would do with a request of `owner` at this moment. No
    /// state changes.
    ///
    /// # Errors
    /// The request is invalid, whatever the rack has free.
    pub fn plan(
        &self,
        owner: &Owner,
        request: &AllocationRequest,
    ) -> Result<AllocationPlan, RackError> {
        let checked = self.check_request(owner.clone(), request.clone())?;
        let place = self.queue.place_to_be(request.queueing.priority);
        let tried = Tried::default();
        let (checked, slabs) = (&checked, checked.slabs());
        let (tried, stock) = (&tried, Stock::Free);
        let search = DeviceSearch { checked, place, tried, slabs, stock, kept: None };
        let chosen = self.choose_all_devices(&search);
        let chosen = chosen.map_err(|shortage| self.no_device(&search, &shortage).to_string());
        let sites: Vec<NodeId> = chosen.iter().flatten().map(|chosen| chosen.donor).collect();
        let (mut refusal, refused) = match self.check_quota(checked) {
            Err(error) => (error.to_string(), "the quota has no room"),
            Ok(()) => {
                (chosen.as_ref().err().cloned().unwrap_or_default(), "the request is refused")
            }
        };
        let memory = checked.memory();
        let memory = memory
            .map(|memory| self.plan_memory(checked, &memory, &sites, (&mut refusal, refused)));
        let mut would_wait = String::new();
        if !refusal.is_empty() && request.queueing.left_ms() > 0 {
            match self.plan_to_wait(checked) {
                Ok(how) => would_wait = how,
                Err(error) => refusal = error.to_string(),
            }
        }
        let refused = (!refusal.is_empty()).then_some(refused);
        let chosen = chosen.ok().filter(|_| refused.is_none()).unwrap_or_default();
        let wants = request.devices();
        let devices = wants.map(|it| self.plan_devices(&search, it, &chosen, refused));
        let devices = devices.collect();
        Ok(AllocationPlan { refusal, would_wait, memory, devices })
    }

    fn plan_devices(
        &self,
        search: &DeviceSearch<'_>,
        (index, want): (usize, &Want),
        chosen: &[Chosen],
        refused: Option<&str>,
    ) -> DevicePlan {
        let is_chosen = |node, spec: &ResourceSpec| {
            let mut chosen = chosen.iter().filter(|it| it.want == index && it.donor == node);
            chosen.any(|it| it.share.address == spec.address)
        };
        let devices = self.devices_of_kind(want.kind);
        let devices = devices.filter(|(_, entry, _)| !entry.record.is_revoked);
        let devices = devices.map(|(node, entry, spec)| {
            let is_chosen = is_chosen(node, spec);
            let why = match self.why_not(search, want, &[], (node, entry, spec)) {
                Some(why) => why,
                None if is_chosen => "chosen".to_owned(),
                None => match refused {
                    Some(refused) => format!("would do, but {refused}"),
                    None => "would do as well: another comes first".to_owned(),
                },
            };
            DevicePlanRow {
                node: entry.record.name.clone(),
                address: spec.address.clone(),
                bytes: spec.bytes,
                free_bytes: self.free_of(entry, spec, &[]).unwrap_or(0),
                capabilities: spec.capabilities.clone(),
                is_chosen,
                why,
            }
        });
        DevicePlan { wanted: want.described(), devices: devices.collect() }
    }

    /// Plans the placement of memory, of a request refused for another reason where `refusal` has
    /// one; adds the reason where the memory cannot be placed. `refused` is the reason for the rows
    /// of nodes with room.
    fn plan_memory(
        &self,
        checked: &CheckedRequest,
        memory: &WantedMemory,
        sites: &[NodeId],
        (refusal, refused): (&mut String, &str),
    ) -> PlacementPlan {
        let WantedMemory { slabs, most_slabs, .. } = *memory;
        let policy = self.policy_of(checked);
        let weighing = self.weigh_from(checked, sites);
        let place_in_line = self.queue.place_to_be(checked.request.queueing.priority);
        let closed = self.closed_to(place_in_line, slabs);
        let as_donor = |node, entry| {
            let most_slabs = if closed.has(node) { 0 } else { most_slabs };
            Donor { most_slabs, ..beside(sites, weighing.donor(node, entry)) }
        };
        let usable = self.rrt.iter().filter(|(node, _)| checked.may_use(*node));
        let donors: Vec<Donor> = usable.map(|(node, entry)| as_donor(node, entry)).collect();
        let bandwidth = self.bandwidth(checked, memory);
        let is_room = room(donors.iter().copied()) >= u64::from(slabs);
        let shares = match &bandwidth {
            None => place(policy, slabs, &donors),
            Some(bandwidth) => bandwidth.place(policy, slabs, &donors),
        };
        *refusal = match (&shares, &bandwidth) {
            _ if !refusal.is_empty() => std::mem::take(refusal),
            (None, Some(bandwidth)) if is_room => {
                self.no_bandwidth(memory, bandwidth, &donors).to_string()
            }
            _ => self.why_refused(checked, memory, shares.is_some(), &donors),
        };
        let shares = shares.filter(|_| refusal.is_empty()).unwrap_or_default();
        let farthest = farthest(&donors);
        let nodes = self.rrt.iter().filter(|(_, entry)| !entry.record.is_revoked);
        let nodes = nodes.map(|(node, entry)| {
            let donor = as_donor(node, entry);
            let is_named = checked.may_use(node);
            let price = donor.price(farthest);
            let slabs = shares.get(&node).copied().unwrap_or(0);
            let left_bps = bandwidth.as_ref().and_then(|bandwidth| bandwidth.left_bps(node));
            let limit = bandwidth.as_ref().and_then(|bandwidth| bandwidth.limit_of(&donor));
            let of_link = match limit.filter(|_| is_named) {
                Some(_) if slabs == 0 => Some("its link has too little left"),
                Some(most) if slabs >= most => Some("all its link carries of this"),
                _ => None,
            };
            let is_copied = memory.slabs > memory.most_slabs;
            let by_node = || match why(entry, &donor, slabs, is_named, is_copied) {
                None if !refusal.is_empty() => format!("has room, but {refused}"),
                None => "others come first".to_owned(),
                Some(why) => why.to_owned(),
            };
            PlacementRow {
                node: entry.record.name.clone(),
                slabs,
                free_slabs: donor.free_slabs,
                hops: donor.hops,
                distance_slabs: price.distance_slabs,
                traffic_slabs: price.traffic_slabs,
                stall_slabs: price.stall_slabs,
                score_slabs: i64::from(donor.free_slabs) - i64::from(price.total_slabs()),
                link_left_bps: left_bps,
                why: match is_named && closed.has(node) && donor.free_slabs > 0 {
                    true => "reserved for requests ahead in the queue".to_owned(),
                    false => of_link.map_or_else(by_node, str::to_owned),
                },
            }
        });
        PlacementPlan {
            policy: policy.name().to_owned(),
            slab_bytes: SLAB_BYTES,
            slabs,
            copies: checked.request.wants[memory.want].count,
            nodes: nodes.collect(),
        }
    }

    /// Returns the reason of a refusal of memory apart from quota and bandwidth; empty if there is
    /// none.
    fn why_refused(
        &self,
        checked: &CheckedRequest,
        memory: &WantedMemory,
        is_placed: bool,
        donors: &[Donor],
    ) -> String {
        let WantedMemory { slabs, most_slabs, .. } = *memory;
        let named = checked.named.as_ref();
        let place_in_line = self.queue.place_to_be(checked.request.queueing.priority);
        let before = self.before_for_memory(place_in_line, named);
        match () {
            () if !is_placed && !before.is_empty() => {
                let line = InLine { before, ..InLine::default() };
                no_room_text(u64::from(slabs) * SLAB_BYTES, &self.free_by_node(named), &line)
            }
            () if !is_placed => self.why_no_room(slabs, most_slabs, donors),
            () if !self.leaves_enough(checked, slabs) => {
                let kept = ByteSize(self.reserved_from(checked).saturating_mul(SLAB_BYTES));
                format!(
                    "{kept} of the free memory is reserved for other workloads (`venice forecast`)"
                )
            }
            () => String::new(),
        }
    }

    fn why_no_room(&self, slabs: u32, of_copy: u32, donors: &[Donor]) -> String {
        let shares = slabs.div_ceil(of_copy.max(1)) as usize;
        let with_room = donors.iter().filter(|donor| donor.free_slabs > 0).count();
        if (1..shares).contains(&with_room) {
            return format!(
                "it needs {shares} nodes with room, one for each share: there are {with_room} \
                 (`venice nodes` lists them)"
            );
        }
        let free: u64 = donors.iter().map(|donor| u64::from(donor.free_slabs)).sum();
        if free >= u64::from(slabs) {
            let apart = room(donors.iter().copied());
            return format!(
                "no node gives more than one share ({of_copy} slabs): so there is room for {apart} \
                 slabs of {slabs}"
            );
        }
        let names: BTreeSet<_> = donors.iter().map(|donor| donor.node).collect();
        let up = self.rrt.iter().filter(|(node, entry)| names.contains(node) && entry.up);
        let of_node = |(_, entry): (_, &NodeEntry)| {
            let bytes = u64::from(entry.available_slabs()) * SLAB_BYTES;
            (entry.record.name.clone(), bytes)
        };
        no_room_text(
            u64::from(slabs) * SLAB_BYTES,
            &up.map(of_node).collect::<Vec<_>>(),
            &InLine::default(),
        )
    }
}

/// Explains the share of a node, or that it has none; `None`: it has room, and no share.
fn why(
    entry: &NodeEntry,
    donor: &Donor,
    slabs: u32,
    is_named: bool,
    is_copied: bool,
) -> Option<&'static str> {
    Some(match () {
        () if !is_named => "not among the donors named",
        () if entry.record.is_stopped => "stopped: its agent has ended",
        () if !entry.up => "down: no heartbeat",
        () if entry.is_unreachable() => "unreachable: calls to its agent fail",
        () if entry.record.is_draining => "being drained",
        () if entry.record.total_slabs() == 0 => "lends nothing",
        () if entry.pressure.level != PressureLevel::None => "its machine is short of memory",
        () if donor.free_slabs == 0 => "full",
        () if is_copied && slabs > 0 && slabs == donor.most_slabs && slabs < donor.free_slabs => {
            "one copy of everything: the others are for other nodes"
        }
        () if donor.is_cut && slabs > 0 => "its udp link is down, and others lack the room",
        () if donor.is_cut => "its udp link is down (`venice links`)",
        () if slabs > 0 && slabs == donor.free_slabs => "all it has free",
        () if slabs > 0 && donor.is_beside => "chosen: on the node of a device",
        () if slabs > 0 => "chosen",
        () => return None,
    })
}
