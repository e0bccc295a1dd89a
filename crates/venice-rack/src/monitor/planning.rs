//! Dry runs of memory requests: the placement, with reasons. No donor is called.

use super::MonitorCore;
use super::handshake::room;
use crate::caller::Owner;
use crate::placement::{Donor, farthest, place};
use crate::pressure::PressureLevel;
use crate::queueing::{InLine, no_room_text};
use crate::rows::{PlacementPlan, PlacementRow};
use crate::rrt::NodeEntry;
use crate::types::{MemoryRequest, RackError};
use std::collections::BTreeSet;
use venice_wire::{ByteSize, NodeId, SLAB_BYTES};

/// A request under planning.
struct Wanted<'a> {
    owner: &'a Owner,
    request: &'a MemoryRequest,
    /// Slabs of all copies together.
    slabs: u32,
    slabs_of_copy: u32,
    named: Option<&'a BTreeSet<NodeId>>,
}

impl MonitorCore {
    /// Returns where [`Self::handle_request`] would place a request of `owner` at this moment.
    /// No state changes.
    ///
    /// # Errors
    /// The request is invalid, whatever the rack has free.
    pub fn plan(&self, owner: &Owner, request: &MemoryRequest) -> Result<PlacementPlan, RackError> {
        let (slabs_of_copy, named) = self.check_request(owner, request)?;
        let slabs = slabs_of_copy.saturating_mul(request.copies);
        let policy = request.placement.unwrap_or(self.settings.placement);
        let weighing = self.weigh(self.home_of(request));
        let is_named = |node: NodeId| named.as_ref().is_none_or(|named| named.contains(&node));
        let place_in_line = self.queue.place_to_be(request.queueing.priority);
        let closed = self.closed_to(place_in_line, slabs);
        let as_donor = |node, entry| {
            let most_slabs = if closed.has(node) { 0 } else { slabs_of_copy };
            Donor { most_slabs, ..weighing.donor(node, entry) }
        };
        let donors: Vec<Donor> = self
            .rrt
            .iter()
            .filter(|(node, _)| is_named(*node))
            .map(|(node, entry)| as_donor(node, entry))
            .collect();
        let bandwidth = self.bandwidth(request, slabs_of_copy);
        let is_room = room(donors.iter().copied()) >= u64::from(slabs);
        let shares = match &bandwidth {
            None => place(policy, slabs, &donors),
            Some(bandwidth) => bandwidth.place(policy, slabs, &donors),
        };
        let wanted = Wanted { owner, request, slabs, slabs_of_copy, named: named.as_ref() };
        let mut refusal = match (&shares, &bandwidth) {
            (None, Some(bandwidth)) if is_room => {
                self.no_bandwidth(request, bandwidth, &donors).to_string()
            }
            _ => self.why_refused(&wanted, shares.is_some(), &donors),
        };
        let mut would_wait = String::new();
        if !refusal.is_empty() && request.queueing.left_ms() > 0 {
            match self.plan_to_wait(owner, request, (slabs_of_copy, named.clone())) {
                Ok(how) => would_wait = how,
                Err(error) => refusal = error.to_string(),
            }
        }
        let shares = shares.filter(|_| refusal.is_empty()).unwrap_or_default();
        let farthest = farthest(&donors);
        let nodes = self.rrt.iter().filter(|(_, entry)| !entry.record.is_revoked);
        let nodes = nodes.map(|(node, entry)| {
            let donor = as_donor(node, entry);
            let price = donor.price(farthest);
            let slabs = shares.get(&node).copied().unwrap_or(0);
            let left_bps = bandwidth.as_ref().and_then(|bandwidth| bandwidth.left_bps(node));
            let limit = bandwidth.as_ref().and_then(|bandwidth| bandwidth.limit_of(&donor));
            let of_link = match limit.filter(|_| is_named(node)) {
                Some(_) if slabs == 0 => Some("its link has too little left"),
                Some(most) if slabs >= most => Some("all its link carries of this"),
                _ => None,
            };
            let by_node = || why(entry, &donor, slabs, is_named(node), refusal.is_empty());
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
                why: match is_named(node) && closed.has(node) && donor.free_slabs > 0 {
                    true => "reserved for requests ahead in the queue".to_owned(),
                    false => of_link.map_or_else(by_node, str::to_owned),
                },
            }
        });
        Ok(PlacementPlan {
            policy: policy.name().to_owned(),
            slab_bytes: SLAB_BYTES,
            slabs,
            copies: request.copies,
            nodes: nodes.collect(),
            refusal,
            would_wait,
        })
    }

    /// Returns the reason of a refusal apart from bandwidth; empty if there is none.
    fn why_refused(&self, wanted: &Wanted<'_>, is_placed: bool, donors: &[Donor]) -> String {
        let Wanted { owner, request, slabs, slabs_of_copy, named } = *wanted;
        let place_in_line = self.queue.place_to_be(request.queueing.priority);
        let before = self.before(place_in_line, named);
        match self.check_quota(owner, u64::from(slabs)) {
            Err(error) => error.to_string(),
            Ok(()) if !is_placed && !before.is_empty() => {
                let line = InLine { before, ..InLine::default() };
                no_room_text(u64::from(slabs) * SLAB_BYTES, &self.free_by_node(named), &line)
            }
            Ok(()) if !is_placed => self.why_no_room(slabs, slabs_of_copy, donors),
            Ok(()) if !self.leaves_enough(&owner.user, request, slabs) => {
                let kept = self.reserved_from(&owner.user, request);
                let kept = ByteSize(kept.saturating_mul(SLAB_BYTES));
                format!(
                    "{kept} of the free memory is reserved for other workloads (`venice forecast`)"
                )
            }
            Ok(()) => String::new(),
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

/// Explains the share of a node, or that it has none.
fn why(entry: &NodeEntry, donor: &Donor, slabs: u32, is_named: bool, is_granted: bool) -> String {
    let reason = match () {
        () if !is_named => "not among the donors named",
        () if entry.record.is_stopped => "stopped: its agent has ended",
        () if !entry.up => "down: no heartbeat",
        () if entry.record.is_draining => "being drained",
        () if entry.record.total_slabs() == 0 => "lends nothing",
        () if entry.pressure.level != PressureLevel::None => "its machine is short of memory",
        () if donor.free_slabs == 0 => "full",
        () if slabs > 0 && slabs == donor.most_slabs && slabs < donor.free_slabs => {
            "one copy of everything: a node has no second"
        }
        () if slabs > 0 && slabs == donor.free_slabs => "all it has free",
        () if slabs > 0 => "chosen",
        () if !is_granted => "has room, but the request is refused",
        () => "others come first",
    };
    reason.to_owned()
}
