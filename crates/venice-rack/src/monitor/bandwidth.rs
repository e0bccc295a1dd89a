//! Bandwidth admission: the bandwidth left on the paths to the donors, for requests that state the
//! bandwidth they need (Venice, 5.3: placement by "the nature of the sharing").
//!
//! A request's traffic is taken to be even over its slabs, so its need limits the slabs of each
//! donor to the bandwidth of its path. Bandwidth promised to a grant stays promised, used or not,
//! until the grant ends.

use super::MonitorCore;
use super::pending::{CheckedRequest, Part, PartState, PendingRequest, WantedMemory};
use super::weighing::USUAL_LINK_BPS;
use crate::placement::{Donor, Policy, place};
use crate::rat::{GrantRecord, GrantState};
use crate::rows::bandwidth_text;
use crate::rrt::NodeEntry;
use crate::types::{FlowPeer, LinkPort, LinkReport, RackError};
use std::collections::BTreeMap;
use venice_wire::NodeId;

/// Most rounds of placement: donors that share a link may together exceed it; then each gets less,
/// and placement is repeated.
const MAX_ROUNDS: usize = 8;
/// Most donors named in an error.
const MOST_NAMED: usize = 8;

/// A link on the path to a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    /// The donor's own port, where all nodes reach each other directly.
    Port(NodeId),
    /// The link between two neighbours' relays, the lower number first.
    Hop(NodeId, NodeId),
}

impl Link {
    fn hop(one: NodeId, other: NodeId) -> Self {
        Self::Hop(one.min(other), one.max(other))
    }
}

/// The bandwidth left on the paths to a request's donors.
pub(super) struct PathBandwidth {
    /// Traffic of each slab of the request, in bits a second.
    slab_bps: u64,
    /// The links of each donor's path.
    ways: BTreeMap<NodeId, Vec<Link>>,
    /// Bandwidth left on each link, in bits a second.
    spare_bps: BTreeMap<Link, u64>,
}

impl MonitorCore {
    /// Returns the bandwidth for the memory of a request; `None` if it states no need.
    pub(super) fn bandwidth(
        &self,
        checked: &CheckedRequest,
        memory: &WantedMemory,
    ) -> Option<PathBandwidth> {
        self.bandwidth_besides(checked, memory, None)
    }

    /// The same, without the promises to the request of that number.
    fn bandwidth_besides(
        &self,
        checked: &CheckedRequest,
        memory: &WantedMemory,
        besides: Option<u128>,
    ) -> Option<PathBandwidth> {
        if memory.bandwidth_bps == 0 {
            return None;
        }
        let home = self.home_of(&checked.request);
        let nodes_at = self.positions_around(home);
        let ways: BTreeMap<_, _> = self
            .rrt
            .iter()
            .map(|(donor, entry)| (donor, self.links_between(home, donor, entry, &nodes_at)))
            .collect();
        let promised = self.promised(besides);
        let links = ways.values().flatten().copied();
        let spare_bps = links.map(|link| (link, self.spare_bps(link, &promised))).collect();
        let slab_bps = memory.slab_bps();
        Some(PathBandwidth { slab_bps, ways, spare_bps })
    }

    /// Returns and re-places shares whose paths no longer carry them, since another Monitor Node
    /// has promised the bandwidth meanwhile. Returns true if there were any.
    pub(super) fn gives_back_overloading(&mut self, now_ns: u64, client_id: u128) -> bool {
        let Some(pending) = self.requests.get(&client_id) else { return false };
        let checked = &pending.checked;
        let Some(memory) = checked.memory() else { return false };
        let bandwidth = self.bandwidth_besides(checked, &memory, Some(client_id));
        let Some(bandwidth) = bandwidth else { return false };
        let prepared = pending
            .parts
            .iter()
            .filter(|(_, part)| part.state == PartState::Prepared && part.want == memory.want);
        let mut shares = BTreeMap::new();
        for (_, part) in prepared.clone() {
            *shares.entry(part.donor.node).or_default() += part.slabs();
        }
        let overloaded = bandwidth.overloaded(&shares);
        let is_overloading = |donor| {
            let mut links = bandwidth.ways.get(&donor).into_iter().flatten();
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

    /// Explains why the paths to these donors, which have the room, do not carry a request.
    pub(super) fn no_bandwidth(
        &self,
        memory: &WantedMemory,
        bandwidth: &PathBandwidth,
        donors: &[Donor],
    ) -> RackError {
        let left = |donor: &Donor| {
            let left_bps = bandwidth.left_bps(donor.node)?;
            Some(format!("{} to {}", bandwidth_text(left_bps), self.name_of(donor.node)))
        };
        let able = donors.iter().filter(|donor| donor.can_give() > 0);
        let ways: Vec<String> = able.filter_map(left).take(MOST_NAMED).collect();
        RackError::NoBandwidth(format!(
            "the donors have the room, but their links do not carry {} more for it ({} left): ask for \
             less, or name no donors",
            bandwidth_text(memory.bandwidth_bps),
            ways.join(", "),
        ))
    }

    /// Returns the links by which `home` reaches a donor. There are none to a donor on the same
    /// node, nor to one without a UDP port.
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

    /// Returns the bandwidth promised, by link: to grants, and to requests in their handshake
    /// except `besides`.
    fn promised(&self, besides: Option<u128>) -> BTreeMap<Link, u64> {
        let is_promised =
            |it: &&GrantRecord| it.bandwidth_bps > 0 && it.state != GrantState::Releasing;
        let granted = self.rat.iter().filter(is_promised);
        let granted = granted.map(|grant| (grant.home, grant.donor, grant.bandwidth_bps));
        let asks = |(id, it): &(&u128, &PendingRequest)| {
            it.checked.memory().is_some_and(|it| it.bandwidth_bps > 0) && Some(**id) != besides
        };
        let asked = self.requests.iter().filter(asks).flat_map(|(_, pending)| {
            let home = self.home_of(&pending.checked.request);
            let parts = pending.early_parts();
            parts.map(move |(_, part)| (home, part.donor.node, pending.share_bps(part)))
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
                // Relays do not report whose traffic a link carries.
                capacity.unwrap_or(USUAL_LINK_BPS).saturating_sub(used.max(promised))
            }
        }
    }

    /// Returns the traffic at a donor's port beyond the promises.
    fn unpromised_bps(&self, entry: &NodeEntry) -> u64 {
        let beyond = |with, bps: u64| match with {
            FlowPeer::Grant(grant) => {
                bps.saturating_sub(self.rat.get(grant).map_or(0, |grant| grant.bandwidth_bps))
            }
            FlowPeer::Anybody => bps,
            // Link tests.
            FlowPeer::Node(_) => 0,
        };
        let flows = entry.port.flows.iter();
        let flows = flows.map(|flow| beyond(flow.with, (flow.bytes_per_s * 8.0) as u64));
        flows.fold(0, u64::saturating_add)
    }

    /// Returns the present traffic and the capacity of a hop link, in bits a second, as reported by
    /// either end.
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

    /// Returns the bandwidth of a link in bits a second: measured, or else of the emulated link.
    pub(super) fn link_bps(&self, from: NodeId, report: &LinkReport) -> Option<u64> {
        let measured_bps = report.bandwidth_mbps.map(|mbps| (mbps * 1e6) as u64);
        measured_bps.or_else(|| (self.settings.link_bps)(&self.link_of(from)))
    }

    /// Returns the bandwidth of a donor's port in bits a second: the most that any node has
    /// measured, unless its recipients emulate a slower link.
    pub(super) fn port_bps(&self, donor: NodeId, entry: &NodeEntry) -> Option<u64> {
        let tests = self.tst.towards(donor, LinkPort::Udp);
        let measured = tests.filter_map(|report| report.bandwidth_mbps);
        let measured = measured.map(|mbps| (mbps * 1e6) as u64).max();
        let emulated = (self.settings.link_bps)(&entry.record.link);
        [measured, emulated].into_iter().flatten().min()
    }
}

impl WantedMemory {
    /// Returns the traffic of one slab, in bits a second: the need is that of all slabs of a copy.
    fn slab_bps(&self) -> u64 {
        self.bandwidth_bps.div_ceil(u64::from(self.most_slabs).max(1))
    }
}

impl PendingRequest {
    /// Returns the traffic of a share, in bits a second; 0 for a device.
    pub(super) fn share_bps(&self, part: &Part) -> u64 {
        let memory = self.checked.memory().filter(|memory| memory.bandwidth_bps > 0);
        memory.map_or(0, |memory| memory.slab_bps().saturating_mul(part.slabs().into()))
    }
}

impl PathBandwidth {
    /// Returns the bandwidth left on the path to a donor, in bits a second; `None` if it has no
    /// links.
    pub(super) fn left_bps(&self, donor: NodeId) -> Option<u64> {
        let links = self.ways.get(&donor)?.iter();
        links.filter_map(|link| self.spare_bps.get(link)).copied().min()
    }

    /// Limits each donor to what its path carries.
    fn limited(&self, donors: impl IntoIterator<Item = Donor>) -> Vec<Donor> {
        let limit = |donor: Donor| {
            let most = self.left_bps(donor.node).map_or(u64::MAX, |left| left / self.slab_bps);
            let most = u32::try_from(most).unwrap_or(u32::MAX);
            Donor { most_slabs: donor.most_slabs.min(most), ..donor }
        };
        donors.into_iter().map(limit).collect()
    }

    /// Returns the slabs that a donor's path carries, if that is less than the donor has room for.
    pub(super) fn limit_of(&self, donor: &Donor) -> Option<u32> {
        let limited = self.limited([*donor]);
        let most = limited.first().map_or(0, Donor::can_give);
        (most < donor.can_give()).then_some(most)
    }

    /// Places as [`place`], without exceeding any link. It may find nothing where several donors
    /// share a link and another choice among them would fit.
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

    /// Returns the links that these shares exceed, with their load and what is left on them.
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
