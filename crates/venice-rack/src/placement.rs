//! Choosing donors for a request.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use venice_wire::NodeId;

/// Spreads `slabs` over donors: slab by slab to whoever has most left, so that the donors end up
/// as evenly loaded as they can be; of equals the lowest number goes first. `None` when they have
/// not enough between them.
///
/// Takes `O(slabs · log donors)`.
pub fn spread(
    slabs: u32,
    available: impl IntoIterator<Item = (NodeId, u32)>,
) -> Option<BTreeMap<NodeId, u32>> {
    let mut left: BinaryHeap<(u32, Reverse<NodeId>)> = available
        .into_iter()
        .filter(|(_, available)| *available > 0)
        .map(|(node, available)| (available, Reverse(node)))
        .collect();
    let total: u64 = left.iter().map(|(available, _)| u64::from(*available)).sum();
    if total < u64::from(slabs) {
        return None;
    }
    let mut shares = BTreeMap::new();
    for _ in 0..slabs {
        let mut most = left.peek_mut()?;
        *shares.entry(most.1.0).or_insert(0) += 1;
        most.0 -= 1;
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares(slabs: u32, available: &[u32]) -> Option<Vec<u32>> {
        let donors = available.iter().enumerate().map(|(i, n)| (NodeId(i as u32), *n));
        let shares = spread(slabs, donors)?;
        let share = |i: usize| shares.get(&NodeId(i as u32)).copied().unwrap_or(0);
        Some((0..available.len()).map(share).collect())
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
    }
}
