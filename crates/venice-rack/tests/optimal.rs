//! Placement beside the best there is, on small racks: several requests come one after the other,
//! each placed when it comes and not moved again; the optimum knows them all beforehand.
//!
//! What is compared is the sum, over all slabs, of what `nearest` weighs: the price of the donor
//! for that recipient, and how many slabs less than the freest donor it had left.

use std::collections::BTreeMap;
use venice_rack::placement::{Donor, Policy, farthest, place};
use venice_wire::NodeId;

const SEEDS: u64 = 60;

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

struct Ask {
    home: usize,
    slabs: u32,
    copies: u32,
}

/// A row or a ring of nodes, some with less left than others, and some links busy.
struct Case {
    free: Vec<u32>,
    hops: Vec<Vec<u32>>,
    busy: Vec<Vec<u32>>,
    asks: Vec<Ask>,
}

fn draw(seed: u64) -> Case {
    let mut draw = Draw(seed);
    let nodes = 3 + draw.below(6) as usize;
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
    let count = 2 + draw.below(4) as u32;
    let asks = (0..count).map(|_| {
        let copies = 1 + draw.below(2) as u32;
        let most = (total * 3 / 4 / count / copies).min(free.iter().copied().min().unwrap());
        let slabs = 1 + draw.below(u64::from(most)) as u32;
        Ask { home: draw.below(nodes as u64) as usize, slabs, copies }
    });
    let asks = asks.collect();
    Case { free, hops, busy, asks }
}

impl Case {
    fn donors(&self, ask: &Ask, free: &[u32]) -> Vec<Donor> {
        let donor = |node: usize| Donor {
            most_slabs: ask.slabs,
            hops: Some(self.hops[ask.home][node]),
            busy_quarters: self.busy[ask.home][node],
            ..Donor::direct(NodeId(node as u32), free[node])
        };
        (0..free.len()).map(donor).collect()
    }

    fn prices(&self, ask: &Ask) -> Vec<u32> {
        let donors = self.donors(ask, &self.free);
        let farthest = farthest(&donors);
        donors.iter().map(|donor| donor.price(farthest).total_slabs()).collect()
    }

    /// Each request placed as it comes: slabs by request and node.
    fn one_by_one(&self, policy: Policy) -> Option<Vec<Vec<u32>>> {
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

    /// What a donor's next slab costs beside its price, when it has given so many.
    fn unevenness(&self, node: usize, given: u32) -> i64 {
        let most = self.free.iter().max().unwrap();
        i64::from(most - self.free[node] + given)
    }

    fn cost(&self, placed: &[Vec<u32>]) -> i64 {
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

    /// The least that the cost can be, by successive shortest augmenting paths: the requests feed
    /// the donors, whose slabs cost more one after the other, so that the flow is a true optimum.
    fn optimal(&self) -> i64 {
        let (asks, nodes) = (self.asks.len(), self.free.len());
        let prices: Vec<Vec<u32>> = self.asks.iter().map(|ask| self.prices(ask)).collect();
        let mut placed = vec![vec![0u32; nodes]; asks];
        for (from, ask) in self.asks.iter().enumerate() {
            for _ in 0..ask.slabs * ask.copies {
                self.augment(from, &prices, &mut placed);
            }
        }
        self.cost(&placed)
    }

    /// One slab more for a request, others moving out of its way where that is cheaper
    /// (Bellman-Ford over requests and donors).
    fn augment(&self, from: usize, prices: &[Vec<u32>], placed: &mut [Vec<u32>]) {
        const FAR: i64 = i64::MAX / 4;
        let (asks, nodes) = (self.asks.len(), self.free.len());
        let mut to_ask = vec![FAR; asks];
        let mut to_node = vec![(FAR, 0); nodes];
        let mut moved_from = vec![0; asks];
        to_ask[from] = 0;
        for _ in 0..asks + nodes {
            for ask in 0..asks {
                for node in 0..nodes {
                    let price = i64::from(prices[ask][node]);
                    let may_take = placed[ask][node] < self.asks[ask].slabs;
                    if may_take && to_ask[ask] + price < to_node[node].0 {
                        to_node[node] = (to_ask[ask] + price, ask);
                    }
                    if placed[ask][node] > 0 && to_node[node].0 - price < to_ask[ask] {
                        to_ask[ask] = to_node[node].0 - price;
                        moved_from[ask] = node;
                    }
                }
            }
        }
        let given = |node: usize| placed.iter().map(|of_ask| of_ask[node]).sum::<u32>();
        let with_room = (0..nodes).filter(|node| given(*node) < self.free[*node]);
        let last =
            with_room.min_by_key(|&node| to_node[node].0 + self.unevenness(node, given(node)));
        let mut node = last.expect("there is room");
        loop {
            let ask = to_node[node].1;
            placed[ask][node] += 1;
            if ask == from {
                return;
            }
            node = moved_from[ask];
            placed[ask][node] -= 1;
        }
    }
}

/// Cost of what is placed one by one to the least cost, in thousandths.
fn ratios(policy: Policy) -> Vec<i64> {
    let ratio = |seed| {
        let case = draw(seed);
        let placed = case.one_by_one(policy)?;
        let (cost, least) = (case.cost(&placed), case.optimal());
        assert!(cost >= least, "seed {seed}: the optimum {least} is above {cost}");
        Some(cost * 1000 / least.max(1))
    };
    let mut ratios: Vec<i64> = (0..SEEDS).filter_map(ratio).collect();
    ratios.sort_unstable();
    ratios
}

#[test]
fn placing_requests_as_they_come_is_near_the_optimum() {
    let ratios = ratios(Policy::Nearest);
    let at = |part: usize| ratios[(ratios.len() - 1) * part / 10];
    println!("{} racks, median {}, p90 {}, most {}", ratios.len(), at(5), at(9), at(10));
    assert!(ratios.len() as u64 > SEEDS * 9 / 10, "few are refused: {}", ratios.len());
    assert!(at(5) <= 1050, "within 5 % of the optimum: {ratios:?}");
}

/// Every way to place one small request, tried out.
fn least_by_trying(case: &Case, node: usize, left: u32, share: &mut Vec<u32>) -> Option<i64> {
    if node == case.free.len() {
        return (left == 0).then(|| case.cost(std::slice::from_ref(share)));
    }
    let most = left.min(case.free[node]).min(case.asks[0].slabs);
    let tried = (0..=most).filter_map(|slabs| {
        share.push(slabs);
        let least = least_by_trying(case, node + 1, left - slabs, share);
        share.pop();
        least
    });
    tried.min()
}

#[test]
fn a_single_request_is_placed_as_well_as_can_be() {
    for seed in 0..SEEDS {
        let mut case = draw(seed);
        case.free.truncate(5);
        let nodes = case.free.len();
        case.free.iter_mut().for_each(|free| *free = *free / 4 + 1);
        let (home, slabs) = (case.asks[0].home.min(nodes - 1), case.asks[0].slabs.min(4));
        case.asks = vec![Ask { home, slabs, copies: 2 }];
        let Some(placed) = case.one_by_one(Policy::Nearest) else { continue };
        let tried = least_by_trying(&case, 0, slabs * 2, &mut Vec::new()).unwrap();
        assert_eq!(case.optimal(), tried, "seed {seed}: the solver itself");
        assert_eq!(case.cost(&placed), tried, "seed {seed}");
    }
}
