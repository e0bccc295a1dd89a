//! Nearest donors where nodes relay for each other, without a look at every path.
//!
//! The price of a donor's distance follows from two positions; that of slow and busy links needs the
//! tests along its path. So donors are taken in the order of what they are worth at most, by distance
//! alone, until the rest cannot be worth as much as those chosen.

use super::MonitorCore;
use super::handshake::beside;
use super::pending::WantedMemory;
use crate::placement::{Donor, HOP_SLABS, Policy, farthest, place};
use crate::rrt::Room;
use std::collections::{BTreeMap, BinaryHeap};
use venice_wire::NodeId;

/// Donors of which the paths are looked at before the first placement.
const FIRST_LOOKED_AT: usize = 32;

/// A donor that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Its worth at most.
    most: i64,
    node: NodeId,
    hops: u32,
    room: Room,
}

impl MonitorCore {
    /// Returns the donors of the missing slabs by [`Policy::Nearest`], as [`place`] would choose them
    /// from all; `None` where distances, or other prices, do not decide, or there is no room.
    pub(super) fn placed_near(
        &self,
        client_id: u128,
        memory: &WantedMemory,
        sites: &[NodeId],
    ) -> Option<BTreeMap<NodeId, u32>> {
        let pending = &self.requests[&client_id];
        let policy = self.policy_of(&pending.checked);
        if policy != Policy::Nearest || memory.bandwidth_bps > 0 {
            return None;
        }
        let weighing = self.weigh_from(&pending.checked, sites);
        let place_of_home = self.rrt.get(weighing.home()?)?.record.relay.as_ref()?;
        let distance = (self.settings.distance)(&place_of_home.topology, place_of_home.position);
        let open = self.open(pending, memory).map(|(node, room)| {
            Some(Candidate { most: 0, node, hops: distance(room.position?)?, room })
        });
        let mut candidates = open.collect::<Option<Vec<_>>>()?;
        let farthest_away = candidates.iter().max_by_key(|it| it.hops).copied()?;
        for it in &mut candidates {
            // The own node counts as one hop more than the farthest.
            let hops = if it.hops == 0 { farthest_away.hops + 1 } else { it.hops };
            let is_first = sites.contains(&it.node) || it.node == farthest_away.node;
            let worth = i64::from(it.room.free_slabs) - i64::from(hops * HOP_SLABS);
            it.most = if is_first { i64::MAX } else { worth };
        }
        let mut candidates = BinaryHeap::from(candidates);
        let (mut donors, mut look_at) = (Vec::new(), FIRST_LOOKED_AT);
        loop {
            while donors.len() < look_at
                && let Some(Candidate { node, room, .. }) = candidates.pop()
            {
                let donor = pending.as_asked(memory, weighing.donor_with(node, room)?);
                donors.push(beside(sites, donor));
            }
            look_at *= 2;
            let Some(next) = candidates.peek() else {
                return place(policy, pending.missing_slabs(), &donors);
            };
            let Some(shares) = place(policy, pending.missing_slabs(), &donors) else { continue };
            if least_worth(&donors, &shares).is_none_or(|least| next.most < least) {
                return Some(shares);
            }
        }
    }
}

/// Returns the worth of the last slab taken from donors beside no device; `None`: there is none.
fn least_worth(donors: &[Donor], shares: &BTreeMap<NodeId, u32>) -> Option<i64> {
    let farthest = farthest(donors);
    let taken = donors.iter().filter(|donor| !donor.is_beside);
    let taken = taken.filter_map(|donor| Some((donor, shares.get(&donor.node)?)));
    let worth = taken.map(|(donor, slabs)| {
        let price = donor.price(farthest).total_slabs();
        i64::from(donor.free_slabs) - i64::from(price) - i64::from(*slabs) + 1
    });
    worth.min()
}
