//! What the ways to the donors carry besides what goes on there, for requests that say how much
//! bandwidth they need (Venice, 5.3: placement by "the nature of the sharing").
//!
//! A request's traffic is taken to be even over its slabs. So its need makes a limit on the slabs that a
//! donor gives: as many as its way has bandwidth for. What was promised to a grant stays promised, used
//! or not, until the grant ends.

use super::MonitorCore;
use super::pending::{PartState, PendingRequest};
use super::weighing::USUAL_LINK_BPS;
use crate::placement::{Donor, Policy, place};
use crate::rat::{GrantRecord, GrantState};
use crate::rows::bandwidth_text;
use crate::rrt::NodeEntry;
use crate::types::{FlowPeer, LinkPort, LinkReport, MemoryRequest, RackError};
use std::collections::BTreeMap;
use venice_wire::NodeId;

/// Donors that share a link may have more of it between them than there is: then each gets less, and
/// it is tried again, so often.
const MAX_ROUNDS: usize = 8;
/// Donors that are named where none does.
const MOST_TOLD: usize = 8;

/// A link that traffic to a donor takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    /// The donor's own, where all reach each other directly.
    Port(NodeId),
    /// Between two neighbours' relays, the lower number first.
    Hop(NodeId, NodeId),
}

impl Link {
    fn hop(one: NodeId, other: NodeId) -> Self {
        Self::Hop(one.min(other), one.max(other))
    }
}

/// What the ways to a request's donors carry.
pub(super) struct Carrying {
    /// What each slab of the request brings, in bits a second.
    slab_bps: u64,
    /// The links of each donor's way.
    ways: BTreeMap<NodeId, Vec<Link>>,
    /// What is left of each, in bits a second.
    spare_bps: BTreeMap<Link, u64>,
}

/// Traffic of one slab, where `bandwidth_bps` is for so many of each copy.
pub(super) fn slab_bps(bandwidth_bps: u64, slabs_of_copy: u32) -> u64 {
    bandwidth_bps.div_ceil(u64::from(slabs_of_copy).max(1))
}

impl MonitorCore {
    /// What the ways carry of a request for so many slabs of each copy; `None`: it did not say what it
    /// needs.
    pub(super) fn carrying(&self, request: &MemoryRequest, slabs_of_copy: u32) -> Option<Carrying> {
        self.carrying_besides(request, slabs_of_copy, None)
    }

    /// The same, where the request of that number counts for nothing.
    fn carrying_besides(
        &self,
        request: &MemoryRequest,
        slabs_of_copy: u32,
        besides: Option<u128>,
    ) -> Option<Carrying> {
        if request.bandwidth_bps == 0 {
            return None;
        }
        let home = self.home_of(request);
        let nodes_at = self.positions_around(home);
        let ways: BTreeMap<_, _> = self
            .rrt
            .iter()
            .map(|(donor, entry)| (donor, self.links_between(home, donor, entry, &nodes_at)))
            .collect();
        let promised = self.promised(besides);
        let links = ways.values().flatten().copied();
        let spare_bps = links.map(|link| (link, self.spare_bps(link, &promised))).collect();
        let slab_bps = slab_bps(request.bandwidth_bps, slabs_of_copy);
        Some(Carrying { slab_bps, ways, spare_bps })
    }

    /// The same of a request in its handshake.
    pub(super) fn carrying_of(&self, client_id: u128) -> Option<Carrying> {
        let pending = self.requests.get(&client_id)?;
        self.carrying(&pending.request, pending.most_slabs)
    }

    /// Of several Monitor Nodes another may have promised meanwhile what was to be promised here: shares
    /// whose ways carry them no more are given back, and placed anew. Whether there were any.
    pub(super) fn gives_back_overloading(&mut self, now_ns: u64, client_id: u128) -> bool {
        let Some(pending) = self.requests.get(&client_id) else { return false };
        let carrying = self.carrying_besides(&pending.request, pending.most_slabs, Some(client_id));
        let Some(carrying) = carrying else { return false };
        let prepared = pending.parts.iter().filter(|(_, part)| part.state == PartState::Prepared);
        let mut shares = BTreeMap::new();
        for (_, part) in prepared.clone() {
            *shares.entry(part.donor.node).or_default() += part.slabs;
        }
        let overloaded = carrying.overloaded(&shares);
        let is_overloading = |donor| {
            let mut links = carrying.ways.get(&donor).into_iter().flatten();
            links.any(|link| overloaded.contains_key(link))
        };
        let lost: Vec<_> = prepared
            .filter(|(_, part)| is_overloading(part.donor.node))
            .map(|(id, part)| (*id, part.donor))
            .collect();
        for (grant, donor) in &lost {
            self.take_part(*grant);
            self.abort(*donor, *grant);
        }
        if !lost.is_empty() {
            self.advance(now_ns, client_id);
        }
        !lost.is_empty()
    }

    /// Why the ways to these donors, who have the room, do not do for a request.
    pub(super) fn no_bandwidth(
        &self,
        request: &MemoryRequest,
        carrying: &Carrying,
        donors: &[Donor],
    ) -> RackError {
        let left = |donor: &Donor| {
            let left_bps = carrying.left_bps(donor.node)?;
            Some(format!("{} to {}", bandwidth_text(left_bps), self.name_of(donor.node)))
        };
        let able = donors.iter().filter(|donor| donor.can_give() > 0);
        let ways: Vec<String> = able.filter_map(left).take(MOST_TOLD).collect();
        RackError::NoBandwidth(format!(
            "the donors have the room, but their links do not carry {} more for it ({} left): ask for \
             less, or name no donors",
            bandwidth_text(request.bandwidth_bps),
            ways.join(", "),
        ))
    }

    fn positions_around(&self, home: Option<NodeId>) -> BTreeMap<u32, NodeId> {
        let relay = home.and_then(|home| self.rrt.get(home)?.record.relay.as_ref());
        relay.map_or_else(BTreeMap::new, |relay| self.nodes_at(&relay.topology))
    }

    /// Over which links `home` reaches a donor. None lead to one on the same node, nor to one that has
    /// no port for datagrams.
    fn links_between(
        &self,
        home: Option<NodeId>,
        donor: NodeId,
        entry: &NodeEntry,
        nodes_at: &BTreeMap<u32, NodeId>,
    ) -> Vec<Link> {
        let way = home.and_then(|home| Some((home, self.way(home, donor)?)));
        let Some((mut from, way)) = way else {
            let has_port = !entry.record.udp_addr.is_empty();
            return has_port.then_some(Link::Port(donor)).into_iter().collect();
        };
        let mut links = Vec::new();
        for to in way.iter().filter_map(|position| nodes_at.get(position).copied()) {
            links.push(Link::hop(from, to));
            from = to;
        }
        links
    }

    /// What was promised, by link: to grants, and to requests in their handshake but that one.
    fn promised(&self, besides: Option<u128>) -> BTreeMap<Link, u64> {
        let is_promised =
            |it: &&GrantRecord| it.bandwidth_bps > 0 && it.state != GrantState::Releasing;
        let granted = self.rat.iter().filter(is_promised);
        let granted = granted.map(|grant| (grant.home, grant.donor, grant.bandwidth_bps));
        let asks = |(id, it): &(&u128, &PendingRequest)| {
            it.request.bandwidth_bps > 0 && Some(**id) != besides
        };
        let asked = self.requests.iter().filter(asks).flat_map(|(_, pending)| {
            let home = self.home_of(&pending.request);
            let parts = pending
                .parts
                .values()
                .filter(|part| matches!(part.state, PartState::Preparing | PartState::Prepared));
            parts.map(move |part| (home, part.donor.node, pending.share_bps(part.slabs)))
        });
        let mut promised = BTreeMap::new();
        for (home, donor, bps) in granted.chain(asked) {
            let Some(entry) = self.rrt.get(donor) else { continue };
            for link in self.links_between(home, donor, entry, &self.positions_around(home)) {
                let sum: &mut u64 = promised.entry(link).or_default();
                *sum = sum.saturating_add(bps);
            }
        }
        promised
    }

    fn spare_bps(&self, link: Link, promised: &BTreeMap<Link, u64>) -> u64 {
        let promised = promised.get(&link).copied().unwrap_or(0);
        match link {
            Link::Port(donor) => {
                let Some(entry) = self.rrt.get(donor) else { return 0 };
                let capacity = self.port_bps(donor, entry).unwrap_or(USUAL_LINK_BPS);
                capacity.saturating_sub(promised).saturating_sub(self.unpromised_bps(entry))
            }
            Link::Hop(one, other) => {
                let (used, capacity) = self.hop_bps(one, other);
                // Whose the traffic is that goes on there, relays do not say.
                capacity.unwrap_or(USUAL_LINK_BPS).saturating_sub(used.max(promised))
            }
        }
    }

    /// What goes on at a donor's port beyond what was promised.
    fn unpromised_bps(&self, entry: &NodeEntry) -> u64 {
        let beyond = |with, bps: u64| match with {
            FlowPeer::Grant(grant) => {
                bps.saturating_sub(self.rat.get(grant).map_or(0, |grant| grant.bandwidth_bps))
            }
            FlowPeer::Anybody => bps,
            // Tests of the links.
            FlowPeer::Node(_) => 0,
        };
        let flows = entry.port.flows.iter();
        let flows = flows.map(|flow| beyond(flow.with, (flow.bytes_per_s * 8.0) as u64));
        flows.fold(0, u64::saturating_add)
    }

    /// What a hop link carries now and what it can, in bits a second, as either end has it.
    fn hop_bps(&self, one: NodeId, other: NodeId) -> (u64, Option<u64>) {
        let ends = [(one, other), (other, one)];
        let reports = ends.map(|(from, to)| {
            let report = self.tst.get(from, to, LinkPort::Hop)?;
            Some((report.bytes_per_s.unwrap_or(0.0), self.link_bps(from, report)))
        });
        let reports = reports.into_iter().flatten();
        let used = reports.clone().map(|(used, _)| (used * 8.0) as u64).max();
        (used.unwrap_or(0), reports.filter_map(|(_, capacity)| capacity).min())
    }

    /// The bandwidth of a link in bits a second: the measured one, else that of the emulated link.
    pub(super) fn link_bps(&self, from: NodeId, report: &LinkReport) -> Option<u64> {
        let measured_bps = report.bandwidth_mbps.map(|mbps| (mbps * 1e6) as u64);
        measured_bps.or_else(|| (self.settings.link_bps)(&self.link_of(from)))
    }

    /// What a donor's port carries, in bits a second: the most that anybody has measured, where its
    /// recipients emulate no slower link.
    pub(super) fn port_bps(&self, donor: NodeId, entry: &NodeEntry) -> Option<u64> {
        let tests = self.tst.towards(donor, LinkPort::Udp);
        let measured = tests.filter_map(|report| report.bandwidth_mbps);
        let measured = measured.map(|mbps| (mbps * 1e6) as u64).max();
        let emulated = (self.settings.link_bps)(&entry.record.link);
        [measured, emulated].into_iter().flatten().min()
    }
}

impl PendingRequest {
    /// What so many of its slabs bring, in bits a second.
    pub(super) fn share_bps(&self, slabs: u32) -> u64 {
        match self.request.bandwidth_bps {
            0 => 0,
            needed => slab_bps(needed, self.most_slabs).saturating_mul(slabs.into()),
        }
    }
}

impl Carrying {
    /// What the way to a donor has left, in bits a second; `None`: no link is in the way.
    pub(super) fn left_bps(&self, donor: NodeId) -> Option<u64> {
        let links = self.ways.get(&donor)?.iter();
        links.filter_map(|link| self.spare_bps.get(link)).copied().min()
    }

    /// The donors, none of which gives more than its way carries.
    fn limited(&self, donors: impl IntoIterator<Item = Donor>) -> Vec<Donor> {
        let limit = |donor: Donor| {
            let most = self.left_bps(donor.node).map_or(u64::MAX, |left| left / self.slab_bps);
            let most = u32::try_from(most).unwrap_or(u32::MAX);
            Donor { most_slabs: donor.most_slabs.min(most), ..donor }
        };
        donors.into_iter().map(limit).collect()
    }

    /// A donor's link carries less of the request than the donor has room for: how many slabs.
    pub(super) fn limit_of(&self, donor: &Donor) -> Option<u32> {
        let limited = self.limited([*donor]);
        let most = limited.first().map_or(0, Donor::can_give);
        (most < donor.can_give()).then_some(most)
    }

    /// As [`place`], so that no link gets more than it carries. It may find nothing where several donors
    /// share a link and another choice among them would do.
    pub(super) fn place(
        &self,
        policy: Policy,
        slabs: u32,
        donors: &[Donor],
    ) -> Option<BTreeMap<NodeId, u32>> {
        let mut donors = self.limited(donors.iter().copied());
        for _ in 0..MAX_ROUNDS {
            let shares = place(policy, slabs, &donors)?;
            let overloaded = self.overloaded(&shares);
            if overloaded.is_empty() {
                return Some(shares);
            }
            for donor in &mut donors {
                let given = u128::from(shares.get(&donor.node).copied().unwrap_or(0));
                let links = self.ways.get(&donor.node).into_iter().flatten();
                for (load, spare) in links.filter_map(|link| overloaded.get(link)) {
                    let fair = given * u128::from(*spare) / u128::from(*load);
                    donor.most_slabs = donor.most_slabs.min(u32::try_from(fair).unwrap_or(0));
                }
            }
        }
        None
    }

    /// The links that carry less than these shares bring, with both.
    fn overloaded(&self, shares: &BTreeMap<NodeId, u32>) -> BTreeMap<Link, (u64, u64)> {
        let mut loads: BTreeMap<Link, u64> = BTreeMap::new();
        for (donor, slabs) in shares {
            for link in self.ways.get(donor).into_iter().flatten() {
                let load = loads.entry(*link).or_default();
                *load = load.saturating_add(self.slab_bps.saturating_mul((*slabs).into()));
            }
        }
        let with_spare =
            loads.into_iter().map(|(link, load)| (link, (load, self.spare_bps[&link])));
        with_spare.filter(|(_, (load, spare))| load > spare).collect()
    }
}
