//! Choosing donors for a request: who has most left, and who is near.
//!
//! A donor counts by its free slabs less [`HOP_SLABS`] for every hop that lies between it and the
//! recipient. So of donors with as much left the near ones give first, and the distant ones begin
//! to give before the near ones are drained. What is decided depends on nothing but the arguments.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use venice_wire::NodeId;

/// How many free slabs make up for one hop more: 64 MiB. A hop costs every access its time; a
/// donor that is drained before the others leaves nothing to those whose only near one it is.
pub const HOP_SLABS: u32 = 4;

/// Who could lend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Donor {
    /// The node.
    pub node: NodeId,
    /// Slabs it has left.
    pub free_slabs: u32,
    /// Most it may give to this request: with copies, no more than one of each slab.
    pub most_slabs: u32,
    /// Hops between the recipient's node and it; `None` where all reach each other directly. 0 is
    /// the recipient's own node: it counts as one hop more than the farthest, since what is idle
    /// there serves the program better as local memory.
    pub hops: Option<u32>,
}

impl Donor {
    fn can_give(&self) -> u32 {
        self.free_slabs.min(self.most_slabs)
    }
}

/// Spreads `slabs` over donors: slab by slab to whoever counts most; of equals the nearest goes
/// first, then the lowest number. `None` when they have not enough between them.
///
/// Takes `O(slabs · log donors)`.
pub fn spread(
    slabs: u32,
    donors: impl IntoIterator<Item = Donor>,
) -> Option<BTreeMap<NodeId, u32>> {
    let donors: Vec<Donor> = donors.into_iter().filter(|donor| donor.can_give() > 0).collect();
    let total: u64 = donors.iter().map(|donor| u64::from(donor.can_give())).sum();
    if total < u64::from(slabs) {
        return None;
    }
    let farthest = donors.iter().filter_map(|donor| donor.hops).max().unwrap_or(0);
    let mut candidates: BinaryHeap<Candidate> = donors
        .iter()
        .map(|donor| {
            let hops = match donor.hops {
                Some(0) => farthest.saturating_add(1),
                hops => hops.unwrap_or(0),
            };
            let worth = i64::from(donor.free_slabs) - i64::from(HOP_SLABS) * i64::from(hops);
            let (hops, node) = (Reverse(hops), Reverse(donor.node));
            Candidate { worth, hops, node, can_give: donor.can_give() }
        })
        .collect();
    let mut shares = BTreeMap::new();
    for _ in 0..slabs {
        let mut best = candidates.pop()?;
        *shares.entry(best.node.0).or_insert(0) += 1;
        best.worth -= 1;
        best.can_give -= 1;
        if best.can_give > 0 {
            candidates.push(best);
        }
    }
    Some(shares)
}

/// Ordered by worth, then nearness, then number.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    worth: i64,
    hops: Reverse<u32>,
    node: Reverse<NodeId>,
    can_give: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares_of(slabs: u32, donors: &[(u32, Option<u32>)]) -> Option<Vec<u32>> {
        let all = donors.iter().enumerate().map(|(number, (free_slabs, hops))| Donor {
            node: NodeId(number as u32),
            free_slabs: *free_slabs,
            most_slabs: u32::MAX,
            hops: *hops,
        });
        let shares = spread(slabs, all)?;
        let share = |number: usize| shares.get(&NodeId(number as u32)).copied().unwrap_or(0);
        Some((0..donors.len()).map(share).collect())
    }

    fn shares(slabs: u32, available: &[u32]) -> Option<Vec<u32>> {
        let donors: Vec<_> = available.iter().map(|free_slabs| (*free_slabs, None)).collect();
        shares_of(slabs, &donors)
    }

    #[test]
    fn equal_donors_share_equally() {
        assert_eq!(shares(8, &[16, 16, 16, 16]), Some(vec![2, 2, 2, 2]));
        assert_eq!(shares(5, &[4, 4]), Some(vec![3, 2]));
    }

    #[test]
    fn the_emptiest_donor_gives_first() {
        assert_eq!(shares(3, &[2, 10, 4]), Some(vec![0, 3, 0]));
        assert_eq!(shares(8, &[2, 10, 4]), Some(vec![0, 7, 1]));
    }

    #[test]
    fn all_or_nothing() {
        assert_eq!(shares(16, &[2, 10, 4]), Some(vec![2, 10, 4]));
        assert_eq!(shares(17, &[2, 10, 4]), None);
        assert_eq!(shares(1, &[]), None);
    }

    #[test]
    fn no_donor_gives_two_copies_of_a_slab() {
        let copies_of = |slabs: u32, copies: u32, available: &[u32]| {
            let donors = available.iter().enumerate().map(|(number, free_slabs)| Donor {
                node: NodeId(number as u32),
                free_slabs: *free_slabs,
                most_slabs: slabs,
                hops: None,
            });
            spread(slabs * copies, donors).map(|shares| shares.into_values().collect::<Vec<_>>())
        };
        assert_eq!(copies_of(4, 2, &[16, 5, 5]), Some(vec![4, 2, 2]));
        assert_eq!(copies_of(6, 2, &[100, 6]), Some(vec![6, 6]));
        assert_eq!(copies_of(7, 2, &[100, 6]), None);
        assert_eq!(copies_of(1, 2, &[100]), None);
    }

    #[test]
    fn near_donors_give_first_and_the_own_node_last() {
        // A row of five whose first node borrows.
        let row = |free| [0, 1, 2, 3, 4].map(|hops| (free, Some(hops)));
        assert_eq!(shares_of(4, &row(32)), Some(vec![0, 4, 0, 0, 0]));
        assert_eq!(shares_of(6, &row(32)), Some(vec![0, 5, 1, 0, 0]));
        assert_eq!(shares_of(40, &row(32)), Some(vec![0, 16, 12, 8, 4]));
        assert_eq!(shares_of(50, &row(32)), Some(vec![2, 18, 14, 10, 6]));
        // Little ones are drained one after the other.
        assert_eq!(shares_of(9, &row(4)), Some(vec![0, 4, 4, 1, 0]));
        assert_eq!(shares_of(20, &row(4)), Some(vec![4; 5]));
    }

    #[test]
    fn a_hop_weighs_as_much_as_some_free_slabs() {
        let near = (10, Some(1));
        assert_eq!(shares_of(1, &[near, (14, Some(2))]), Some(vec![1, 0]), "the nearest of equals");
        assert_eq!(shares_of(1, &[near, (15, Some(2))]), Some(vec![0, 1]));
    }

    proptest! {
        #[test]
        fn no_donor_gives_more_than_it_has_and_the_rest_is_even(
            available in prop::collection::vec(0u32..40, 1..8),
            slabs in 0u32..200,
        ) {
            let total: u32 = available.iter().sum();
            let Some(shares) = shares(slabs, &available) else {
                prop_assert!(total < slabs);
                return Ok(());
            };
            prop_assert_eq!(shares.iter().sum::<u32>(), slabs);
            let left: Vec<_> = available.iter().zip(&shares).map(|(a, s)| a.checked_sub(*s).unwrap()).collect();
            // Whoever gave something keeps at most one less than anybody who could have given more.
            let most = *left.iter().max().unwrap();
            for (share, left) in shares.iter().zip(&left) {
                prop_assert!(*share == 0 || left + 1 >= most);
            }
        }

        #[test]
        fn who_is_as_free_and_nearer_gives_as_much_at_least(
            donors in prop::collection::vec((0u32..40, 1u32..6), 1..8),
            slabs in 0u32..200,
        ) {
            let with_hops: Vec<_> = donors.iter().map(|(free, hops)| (*free, Some(*hops))).collect();
            let total: u32 = donors.iter().map(|(free, _)| free).sum();
            let Some(shares) = shares_of(slabs, &with_hops) else {
                prop_assert!(total < slabs);
                return Ok(());
            };
            prop_assert_eq!(shares.iter().sum::<u32>(), slabs);
            for (share, (free, hops)) in shares.iter().zip(&donors) {
                prop_assert!(share <= free);
                for (other_share, (other_free, other_hops)) in shares.iter().zip(&donors) {
                    prop_assert!(free != other_free || hops >= other_hops || share >= other_share);
                }
            }
        }
    }
}
