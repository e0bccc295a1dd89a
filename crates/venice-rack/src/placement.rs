//! Choosing donors for a request, by one of three policies.
//!
//! A donor is worth its free slabs less its price: [`HOP_SLABS`] for every hop that lies between
//! it and the recipient, and more where the way there is slow or busy, or its machine stalls
//! ([`Price`]). What is decided depends on nothing but the arguments, and is counted in whole slabs.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use venice_wire::NodeId;

/// How many free slabs make up for one hop more: 64 MiB. A hop costs every access its time; a
/// donor that is drained before the others leaves nothing to those whose only near one it is.
pub const HOP_SLABS: u32 = 4;
/// As much as a hop for every quarter of a link's bandwidth that is in use.
pub const QUARTER_SLABS: u32 = HOP_SLABS;
/// As much as two hops for a donor whose machine's tasks wait for memory.
pub const STALL_SLABS: u32 = 2 * HOP_SLABS;
/// Busier than busy is no link.
const MOST_QUARTERS: u32 = 4;

/// Which donors are taken first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Slab by slab from the donor that is worth most: near ones with much left. Of equals the
    /// nearest, then the lowest number. Programs of one place leave something to each other.
    #[default]
    Nearest,
    /// Slab by slab from the donor that has given least to this request, so that it has the
    /// bandwidth of all and loses little with each; of equals the one that is worth most.
    Spread,
    /// As few donors as can be, so that the others stay whole, for large requests or to be
    /// switched off: one that has room for all, the cheapest, of these the tightest; else what
    /// the roomiest can give, and so on with the rest.
    Pack,
}

impl Policy {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Nearest, Self::Spread, Self::Pack];

    /// What people call it.
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

/// There is no such policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no placement {0:?}: say nearest, spread or pack")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let named = Self::ALL.into_iter().find(|policy| policy.name() == text);
        named.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// Who could lend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Donor {
    /// The node.
    pub node: NodeId,
    /// Slabs it has left.
    pub free_slabs: u32,
    /// Most it may give to this request besides what it has given: with copies, no more than one
    /// of each slab.
    pub most_slabs: u32,
    /// Slabs it has given to this request already.
    pub given_slabs: u32,
    /// Hops between the recipient's node and it; `None` where all reach each other directly. 0 is
    /// the recipient's own node: it counts as one hop more than the farthest, since what is idle
    /// there serves the program better as local memory.
    pub hops: Option<u32>,
    /// Hops that the way counts as by its measured round trip, where that is out of the ordinary.
    pub slow_hops: u32,
    /// Quarters of the bandwidth in use on the busiest link of the way.
    pub busy_quarters: u32,
    /// Tasks of its machine wait for memory.
    pub is_stalled: bool,
}

/// What speaks against a donor, in free slabs that would make up for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// How far it is: hops, or what its round trip comes to in hops if that is more.
    pub distance_slabs: u32,
    /// What goes on there already, on the busiest link of the way.
    pub traffic_slabs: u32,
    /// Its machine waits for memory.
    pub stall_slabs: u32,
}

impl Price {
    /// All of it.
    pub fn total_slabs(&self) -> u32 {
        self.distance_slabs.saturating_add(self.traffic_slabs).saturating_add(self.stall_slabs)
    }
}

impl Donor {
    /// A donor that is reached directly, with nothing that speaks against it.
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
        }
    }

    /// Slabs that may be had of it.
    pub fn can_give(&self) -> u32 {
        self.free_slabs.min(self.most_slabs)
    }

    /// What speaks against it, where the farthest donor is `farthest` hops away.
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
            Some(0) => farthest.saturating_add(1),
            hops => hops.unwrap_or(0).max(self.slow_hops),
        }
    }
}

/// The most hops, counted or by measured time, that a donor with room is away.
pub fn farthest(donors: &[Donor]) -> u32 {
    let with_room = donors.iter().filter(|donor| donor.can_give() > 0);
    with_room.map(|donor| donor.hops.unwrap_or(0).max(donor.slow_hops)).max().unwrap_or(0)
}

/// Finds donors for `slabs`; how many of each. `None` when they have not enough between them.
///
/// Takes `O(slabs · log donors)`.
pub fn place(policy: Policy, slabs: u32, donors: &[Donor]) -> Option<BTreeMap<NodeId, u32>> {
    let total: u64 = donors.iter().map(|donor| u64::from(donor.can_give())).sum();
    if total < u64::from(slabs) {
        return None;
    }
    let farthest = farthest(donors);
    let able = donors.iter().filter(|donor| donor.can_give() > 0);
    let candidates = able.map(|donor| Candidate::new(policy, donor, farthest));
    Some(match policy {
        Policy::Nearest | Policy::Spread => slab_by_slab(policy, slabs, candidates.collect()),
        Policy::Pack => packed(slabs, candidates.collect()),
    })
}

fn slab_by_slab(
    policy: Policy,
    slabs: u32,
    mut candidates: BinaryHeap<Candidate>,
) -> BTreeMap<NodeId, u32> {
    let mut shares = BTreeMap::new();
    for _ in 0..slabs {
        let mut best = candidates.pop().expect("there is room for all of it");
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
    // First where the request is already: that makes no donor more.
    candidates.sort_by_key(|it| (it.given, it.price, it.hops.0, Reverse(it.can_give), it.node.0));
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
        let tightest = tightest.min_by_key(|it| (it.price, it.hops.0, it.can_give, it.node.0));
        let roomiest = || {
            candidates.iter().max_by_key(|it| (it.can_give, Reverse(it.price), it.hops, it.node))
        };
        let (node, room) = tightest
            .or_else(roomiest)
            .map(|it| (it.node, it.can_give))
            .expect("there is room for all of it");
        let share = slabs.min(room);
        shares.insert(node.0, share);
        slabs -= share;
        candidates.retain(|it| it.node != node);
    }
    shares
}

/// Ordered by what is asked of it last, then worth, then nearness, then number.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// What it has given to the request, where that counts.
    given: Reverse<u32>,
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
            worth: i64::from(donor.free_slabs) - i64::from(price),
            hops: Reverse(donor.counted_hops(farthest)),
            node: Reverse(donor.node),
            can_give: donor.can_give(),
            price,
        }
    }
}
