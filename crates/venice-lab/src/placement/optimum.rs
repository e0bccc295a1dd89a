//! The optimal placement of requests that are all known in advance: a minimum-cost flow, by
//! successive shortest augmenting paths.
//!
//! The requests feed the nodes; a node's slabs rise in cost one after the other, so that the costs
//! are convex and the flow is a true optimum. Crates for graphs solve flows without costs
//! (petgraph, pathfinding), and those with costs need C++ or a linear solver. This solver is short,
//! and a test compares it with exhaustive search.

use super::case::Case;

/// Cost of an unreachable node.
const FAR: i64 = i64::MAX / 4;

/// Returns the least cost of placing all requests of a rack.
///
/// # Panics
/// When there is no room for all of them.
pub(super) fn least_cost(case: &Case) -> i64 {
    let (asks, nodes) = (case.asks.len(), case.free.len());
    let prices: Vec<Vec<u32>> = case.asks.iter().map(|ask| case.prices(ask)).collect();
    let mut placed = vec![vec![0u32; nodes]; asks];
    for (from, ask) in case.asks.iter().enumerate() {
        for _ in 0..ask.slabs * ask.copies {
            augment(case, from, &prices, &mut placed);
        }
    }
    case.cost(&placed)
}

/// Adds one slab for a request, moving others where that is cheaper.
fn augment(case: &Case, from: usize, prices: &[Vec<u32>], placed: &mut [Vec<u32>]) {
    let ways = Ways::shortest(case, from, prices, placed);
    let given = |node: usize| placed.iter().map(|of_ask| of_ask[node]).sum::<u32>();
    let with_room = (0..case.free.len()).filter(|node| given(*node) < case.free[*node]);
    let last =
        with_room.min_by_key(|&node| ways.to_node[node].0 + case.unevenness(node, given(node)));
    let mut node = last.expect("the rack has room");
    assert!(ways.to_node[node].0 < FAR, "a node with room is reachable");
    loop {
        let ask = ways.to_node[node].1;
        placed[ask][node] += 1;
        if ask == from {
            return;
        }
        node = ways.moved_from[ask];
        placed[ask][node] -= 1;
    }
}

/// The cheapest paths of one slab more, alternating between requests and nodes.
struct Ways {
    /// By node: the cost to reach it, and the request before it.
    to_node: Vec<(i64, usize)>,
    /// By request: the node that it returns a slab to.
    moved_from: Vec<usize>,
}

impl Ways {
    /// Runs Bellman-Ford until no path gets cheaper.
    fn shortest(case: &Case, from: usize, prices: &[Vec<u32>], placed: &[Vec<u32>]) -> Self {
        let (asks, nodes) = (case.asks.len(), case.free.len());
        let mut to_ask = vec![FAR; asks];
        let mut ways = Self { to_node: vec![(FAR, 0); nodes], moved_from: vec![0; asks] };
        to_ask[from] = 0;
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for ask in 0..asks {
                for node in 0..nodes {
                    let price = i64::from(prices[ask][node]);
                    let may_take = placed[ask][node] < case.asks[ask].slabs;
                    if may_take && to_ask[ask] + price < ways.to_node[node].0 {
                        ways.to_node[node] = (to_ask[ask] + price, ask);
                        has_changed = true;
                    }
                    if placed[ask][node] > 0 && ways.to_node[node].0 - price < to_ask[ask] {
                        to_ask[ask] = ways.to_node[node].0 - price;
                        ways.moved_from[ask] = node;
                        has_changed = true;
                    }
                }
            }
        }
        ways
    }
}

#[cfg(test)]
mod tests {
    use venice_rack::placement::Policy;

    use super::super::case::Ask;
    use super::*;

    /// Searches all placements of these requests; returns the least cost.
    fn least_by_trying(case: &Case, placed: &mut Vec<Vec<u32>>) -> Option<i64> {
        let Some(ask) = case.asks.get(placed.len()) else { return Some(case.cost(placed)) };
        let mut shares = Vec::new();
        every_share(case, ask.slabs * ask.copies, ask.slabs, &mut Vec::new(), &mut shares);
        let has_room = |share: &Vec<u32>, placed: &[Vec<u32>]| {
            (0..case.free.len()).all(|node| {
                share[node] + placed.iter().map(|of_ask| of_ask[node]).sum::<u32>()
                    <= case.free[node]
            })
        };
        let mut least = None;
        for share in shares {
            if has_room(&share, placed) {
                placed.push(share);
                least = least.into_iter().chain(least_by_trying(case, placed)).min();
                placed.pop();
            }
        }
        least
    }

    fn every_share(
        case: &Case,
        left: u32,
        most: u32,
        so_far: &mut Vec<u32>,
        all: &mut Vec<Vec<u32>>,
    ) {
        if so_far.len() == case.free.len() {
            if left == 0 {
                all.push(so_far.clone());
            }
            return;
        }
        for slabs in 0..=left.min(most) {
            so_far.push(slabs);
            every_share(case, left - slabs, most, so_far, all);
            so_far.pop();
        }
    }

    /// Draws a rack of few slabs, with small requests.
    fn small(seed: u64, nodes: usize, asks: usize) -> Case {
        let mut case = Case::draw(seed, nodes);
        case.free.iter_mut().for_each(|free| *free = *free / 8 + 1);
        case.asks.truncate(asks);
        for Ask { slabs, copies, .. } in &mut case.asks {
            (*slabs, *copies) = ((*slabs).min(2), (*copies).min(2));
        }
        case
    }

    #[test]
    fn solver_matches_exhaustive_search() {
        let mut tried = 0;
        for seed in 0..60 {
            let case = small(seed, 3 + seed as usize % 2, 2);
            let Some(least) = least_by_trying(&case, &mut Vec::new()) else { continue };
            assert_eq!(least_cost(&case), least, "seed {seed}: {case:?}");
            tried += 1;
        }
        assert!(tried > 50, "few have room: {tried}");
    }

    #[test]
    fn single_request_is_placed_optimally() {
        for seed in 0..60 {
            let mut case = small(seed, 3 + seed as usize % 3, 1);
            case.asks[0].slabs = 1 + (seed % 3) as u32;
            let Some(placed) = case.one_by_one(Policy::Nearest) else { continue };
            assert_eq!(case.cost(&placed), least_cost(&case), "seed {seed}: {case:?}");
        }
    }
}
