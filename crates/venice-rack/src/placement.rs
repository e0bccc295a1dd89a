//! Placement: the choice of donors for a request, by one of three policies.
//!
//! A donor's worth is its free slabs less its price: [`HOP_SLABS`] for every hop between it and the
//! recipient, and more where the path is slow or busy, or its machine stalls ([`Price`]). The
//! result depends on the arguments alone, and is computed in whole slabs.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use venice_wire::NodeId;

/// Free slabs that outweigh one more hop: 64 MiB. A hop costs every access its time; a donor that
/// is drained before the others leaves nothing to recipients that have no other near donor.
pub const HOP_SLABS: u32 = 4;
/// The price of each quarter of a link's bandwidth in use: that of one hop.
pub const QUARTER_SLABS: u32 = HOP_SLABS;
/// The price of a donor whose machine stalls for memory: that of two hops.
pub const STALL_SLABS: u32 = 2 * HOP_SLABS;
/// The most quarters of bandwidth that count.
const MOST_QUARTERS: u32 = 4;

/// The order in which donors are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Slab by slab from the donor of the highest worth: near ones with much free memory. Ties go
    /// to the nearest, then to the lowest number. Programs of one node leave near memory to each
    /// other.
    #[default]
    Nearest,
    /// Slab by slab from the donor that has given least to this request: it gets the bandwidth of
    /// all donors and loses little with each. Ties go to the highest worth.
    Spread,
    /// The fewest donors, so that the others stay whole for large requests or can be switched off.
    /// One donor with room for everything, the cheapest, then the tightest; else all of the
    /// roomiest, and so on with the rest.
    Pack,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Nearest, Self::Spread, Self::Pack];

    /// Returns the name shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Spread => "spread",
            Self::Pack => "pack",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for an unknown policy name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown placement {0:?}: expected nearest, spread or pack")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let named = Self::ALL.into_iter().find(|policy| policy.name() == text);
        named.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// A possible donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Donor {
    /// The node.
    pub node: NodeId,
    /// Slabs it has free.
    pub free_slabs: u32,
    /// Slabs it may give to this request besides those already given: with copies, at most one copy
    /// of each slab.
    pub most_slabs: u32,
    /// Slabs it has already given to this request.
    pub given_slabs: u32,
    /// Hops from the recipient's node; `None` where all nodes reach each other directly. 0 is the
    /// recipient's own node. It counts as one hop more than the farthest, since idle memory there
    /// serves the program better as local memory.
    pub hops: Option<u32>,
    /// Hops equivalent to the measured round trip, where that is unusually long.
    pub slow_hops: u32,
    /// Quarters of the bandwidth in use on the busiest link of the path.
    pub busy_quarters: u32,
    /// True if tasks of its machine wait for memory.
    pub is_stalled: bool,
    /// True if its node lends a device to the same request: it comes first.
    pub is_beside: bool,
    /// True if packets do not reach it: it comes after all others.
    pub is_cut: bool,
}

/// The price of a donor, in free slabs that would outweigh it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// Slabs for the distance: hops, or the round trip in hops if that is more.
    pub distance_slabs: u32,
    /// Slabs for the traffic on the busiest link of the path.
    pub traffic_slabs: u32,
    /// Slabs for stalls of its machine.
    pub stall_slabs: u32,
}

impl Price {
    /// Returns the sum.
    pub fn total_slabs(&self) -> u32 {
        self.distance_slabs.saturating_add(self.traffic_slabs).saturating_add(self.stall_slabs)
    }
}

impl Donor {
    /// Creates a donor that is reached directly, without any price.
    pub fn direct(node: NodeId, free_slabs: u32) -> Self {
        Self {
            node,
            free_slabs,
            most_slabs: u32::MAX,
            given_slabs: 0,
            hops: None,
            slow_hops: 0,
            busy_quarters: 0,
            is_stalled: false,
            is_beside: false,
            is_cut: false,
        }
    }

    /// Returns the slabs it can give to this request.
    pub fn can_give(&self) -> u32 {
        self.free_slabs.min(self.most_slabs)
    }

    /// Returns the donor's price, where the farthest donor is `farthest` hops away.
    pub fn price(&self, farthest: u32) -> Price {
        let hops = self.counted_hops(farthest);
        Price {
            distance_slabs: hops.saturating_mul(HOP_SLABS),
            traffic_slabs: self.busy_quarters.min(MOST_QUARTERS) * QUARTER_SLABS,
            stall_slabs: if self.is_stalled { STALL_SLABS } else { 0 },
        }
    }

    fn counted_hops(&self, farthest: u32) -> u32 {
        match self.hops {
            Some(0) if !self.is_beside => farthest.saturating_add(1),
            hops => hops.unwrap_or(0).max(self.slow_hops),
        }
    }
}

/// Returns the most hops, counted or by measured time, to a donor with room.
pub fn farthest(donors: &[Donor]) -> u32 {
    let with_room = donors.iter().filter(|donor| donor.can_give() > 0);
    with_room.map(|donor| donor.hops.unwrap_or(0).max(donor.slow_hops)).max().unwrap_or(0)
}

/// Places `slabs` and returns the slabs of each donor. `None` if the donors lack the room together.
///
/// Takes `O(slabs · log donors)`.
pub fn place(policy: Policy, slabs: u32, donors: &[Donor]) -> Option<BTreeMap<NodeId, u32>> {
    let total: u64 = donors.iter().map(|donor| u64::from(donor.can_give())).sum();
    if total < u64::from(slabs) {
        return None;
    }
    let farthest = farthest(donors);
    let (mut left, mut shares) = (slabs, BTreeMap::new());
    for is_cut in [false, true] {
        let able = donors.iter().filter(|donor| donor.can_give() > 0 && donor.is_cut == is_cut);
        let room: u64 = able.clone().map(|donor| u64::from(donor.can_give())).sum();
        let part = u32::try_from(room).map_or(left, |room| room.min(left));
        let candidates = able.map(|donor| Candidate::new(policy, donor, farthest));
        shares.extend(match policy {
            Policy::Nearest | Policy::Spread => slab_by_slab(policy, part, candidates.collect()),
            Policy::Pack => packed(part, candidates.collect()),
        });
        left -= part;
    }
    Some(shares)
}

fn slab_by_slab(
    policy: Policy,
    slabs: u32,
    mut candidates: BinaryHeap<Candidate>,
) -> BTreeMap<NodeId, u32> {
    let mut shares = BTreeMap::new();
    for _ in 0..slabs {
        let mut best = candidates.pop().expect("the donors have room for all slabs");
        *shares.entry(best.node.0).or_insert(0) += 1;
        best.worth -= 1;
        best.can_give -= 1;
        if policy == Policy::Spread {
            best.given.0 += 1;
        }
        if best.can_give > 0 {
            candidates.push(best);
        }
    }
    shares
}

fn packed(mut slabs: u32, mut candidates: Vec<Candidate>) -> BTreeMap<NodeId, u32> {
    let mut shares = BTreeMap::new();
    // Donors of this request come first: they add no further donor.
    candidates.sort_by_key(|it| {
        (it.given, it.is_away(), it.price, it.hops.0, Reverse(it.can_give), it.node.0)
    });
    candidates.retain(|it| {
        let more = if it.given.0 > 0 { slabs.min(it.can_give) } else { 0 };
        if more > 0 {
            shares.insert(it.node.0, more);
            slabs -= more;
        }
        it.given.0 == 0
    });
    while slabs > 0 {
        let has_room = |it: &&Candidate| it.can_give >= slabs;
        let tightest = candidates.iter().filter(has_room);
        let tightest =
            tightest.min_by_key(|it| (it.is_away(), it.price, it.hops.0, it.can_give, it.node.0));
        let roomiest = || {
            candidates
                .iter()
                .max_by_key(|it| (it.is_beside, it.can_give, Reverse(it.price), it.hops, it.node))
        };
        let (node, room) = tightest
            .or_else(roomiest)
            .map(|it| (it.node, it.can_give))
            .expect("the donors have room for all slabs");
        let share = slabs.min(room);
        shares.insert(node.0, share);
        slabs -= share;
        candidates.retain(|it| it.node != node);
    }
    shares
}

/// A donor to choose from. Orders by slabs given last, then those beside a device, then worth, then
/// nearness, then number.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Slabs given to the request, where the policy counts them.
    given: Reverse<u32>,
    is_beside: bool,
    worth: i64,
    hops: Reverse<u32>,
    node: Reverse<NodeId>,
    can_give: u32,
    price: u32,
}

impl Candidate {
    fn new(policy: Policy, donor: &Donor, farthest: u32) -> Self {
        let price = donor.price(farthest).total_slabs();
        let given = if policy == Policy::Nearest { 0 } else { donor.given_slabs };
        Self {
            given: Reverse(given),
            is_beside: donor.is_beside,
            worth: i64::from(donor.free_slabs) - i64::from(price),
            hops: Reverse(donor.counted_hops(farthest)),
            node: Reverse(donor.node),
            can_give: donor.can_give(),
            price,
        }
    }

    fn is_away(&self) -> bool {
        !self.is_beside
    }
}
