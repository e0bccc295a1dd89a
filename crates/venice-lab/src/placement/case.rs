//! Small racks and their requests, drawn from a seed, and the cost of a placement.

use std::collections::BTreeMap;

use venice_rack::placement::{Donor, Policy, farthest, place};
use venice_wire::NodeId;

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// A request for memory.
#[derive(Debug)]
pub(super) struct Ask {
    /// Node of the recipient.
    pub(super) home: usize,
    pub(super) slabs: u32,
    pub(super) copies: u32,
}

/// A row or a ring of nodes, some with less room than others, and some busy links.
#[derive(Debug)]
pub(super) struct Case {
    /// Slabs that each node has left.
    pub(super) free: Vec<u32>,
    hops: Vec<Vec<u32>>,
    busy: Vec<Vec<u32>>,
    pub(super) asks: Vec<Ask>,
}

impl Case {
    /// Draws the rack of so many nodes that belongs to a seed.
    pub(super) fn draw(seed: u64, nodes: usize) -> Self {
        let mut draw = Draw(seed);
        let is_ring = draw.below(2) == 1;
        let free: Vec<u32> = (0..nodes).map(|_| 8 + draw.below(25) as u32).collect();
        let hops = |from: usize, to: usize| {
            let straight = from.abs_diff(to);
            (if is_ring { straight.min(nodes - straight) } else { straight }) as u32
        };
        let hops = (0..nodes).map(|from| (0..nodes).map(|to| hops(from, to)).collect()).collect();
        let busy_way = |draw: &mut Draw| draw.below(8).saturating_sub(4) as u32;
        let busy = (0..nodes).map(|_| (0..nodes).map(|_| busy_way(&mut draw)).collect()).collect();
        let total: u32 = free.iter().sum();
        let least = free.iter().copied().min().unwrap_or(0);
        let count = 2 + draw.below(4) as u32;
        let asks = (0..count).map(|_| {
            let copies = 1 + draw.below(2) as u32;
            let most = (total * 3 / 4 / count / copies).clamp(1, least);
            let slabs = 1 + draw.below(u64::from(most)) as u32;
            Ask { home: draw.below(nodes as u64) as usize, slabs, copies }
        });
        let asks = asks.collect();
        Self { free, hops, busy, asks }
    }

    fn donors(&self, ask: &Ask, free: &[u32]) -> Vec<Donor> {
        let donor = |node: usize| Donor {
            most_slabs: ask.slabs,
            hops: Some(self.hops[ask.home][node]),
            busy_quarters: self.busy[ask.home][node],
            ..Donor::direct(NodeId(node as u32), free[node])
        };
        (0..free.len()).map(donor).collect()
    }

    /// Returns the price of each node's slabs for a request, apart from the node's free room.
    pub(super) fn prices(&self, ask: &Ask) -> Vec<u32> {
        let donors = self.donors(ask, &self.free);
        let farthest = farthest(&donors);
        donors.iter().map(|donor| donor.price(farthest).total_slabs()).collect()
    }

    /// Places each request as it comes; returns slabs by request and node, or `None` if one finds
    /// no room.
    pub(super) fn one_by_one(&self, policy: Policy) -> Option<Vec<Vec<u32>>> {
        let mut free = self.free.clone();
        let mut placed = Vec::new();
        for ask in &self.asks {
            let donors = self.donors(ask, &free);
            let shares: BTreeMap<_, _> = place(policy, ask.slabs * ask.copies, &donors)?;
            let share = |node: usize| shares.get(&NodeId(node as u32)).copied().unwrap_or(0);
            let of_ask: Vec<u32> = (0..free.len()).map(share).collect();
            free.iter_mut().zip(&of_ask).for_each(|(free, slabs)| *free -= slabs);
            placed.push(of_ask);
        }
        Some(placed)
    }

    /// Returns the cost of a node's next slab beside its price: its shortfall in free slabs from
    /// the freest node's initial number.
    pub(super) fn unevenness(&self, node: usize, given: u32) -> i64 {
        let most = self.free.iter().max().copied().unwrap_or(0);
        i64::from(most - self.free[node] + given)
    }

    /// Returns the sum that `nearest` minimises over all slabs: price and unevenness.
    pub(super) fn cost(&self, placed: &[Vec<u32>]) -> i64 {
        let prices = self.asks.iter().zip(placed).map(|(ask, of_ask)| {
            let of_node = self.prices(ask).into_iter().zip(of_ask);
            of_node.map(|(price, slabs)| i64::from(price * slabs)).sum::<i64>()
        });
        let uneven = (0..self.free.len()).map(|node| {
            let given: u32 = placed.iter().map(|of_ask| of_ask[node]).sum();
            (0..given).map(|before| self.unevenness(node, before)).sum::<i64>()
        });
        prices.sum::<i64>() + uneven.sum::<i64>()
    }
}
