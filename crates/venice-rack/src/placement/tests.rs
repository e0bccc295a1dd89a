use super::*;
use proptest::prelude::*;

fn shares_of(slabs: u32, donors: &[(u32, Option<u32>)]) -> Option<Vec<u32>> {
    shares_by(Policy::Nearest, slabs, donors)
}

fn shares_by(policy: Policy, slabs: u32, donors: &[(u32, Option<u32>)]) -> Option<Vec<u32>> {
    let all = donors.iter().enumerate().map(|(number, (free_slabs, hops))| Donor {
        hops: *hops,
        ..Donor::direct(NodeId(number as u32), *free_slabs)
    });
    let all: Vec<Donor> = all.collect();
    let shares = place(policy, slabs, &all)?;
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
fn emptiest_donor_gives_first() {
    assert_eq!(shares(3, &[2, 10, 4]), Some(vec![0, 3, 0]));
    assert_eq!(shares(8, &[2, 10, 4]), Some(vec![0, 7, 1]));
}

#[test]
fn placement_is_all_or_nothing() {
    assert_eq!(shares(16, &[2, 10, 4]), Some(vec![2, 10, 4]));
    assert_eq!(shares(17, &[2, 10, 4]), None);
    assert_eq!(shares(1, &[]), None);
}

#[test]
fn donor_holds_one_copy_per_slab() {
    let copies_of = |slabs: u32, copies: u32, available: &[u32]| {
        let donors = available.iter().enumerate().map(|(number, free_slabs)| Donor {
            most_slabs: slabs,
            ..Donor::direct(NodeId(number as u32), *free_slabs)
        });
        let donors: Vec<Donor> = donors.collect();
        let shares = place(Policy::Nearest, slabs * copies, &donors);
        shares.map(|shares| shares.into_values().collect::<Vec<_>>())
    };
    assert_eq!(copies_of(4, 2, &[16, 5, 5]), Some(vec![4, 2, 2]));
    assert_eq!(copies_of(6, 2, &[100, 6]), Some(vec![6, 6]));
    assert_eq!(copies_of(7, 2, &[100, 6]), None);
    assert_eq!(copies_of(1, 2, &[100]), None);
}

#[test]
fn cut_donor_comes_last() {
    for policy in Policy::ALL {
        let donors = [(64, true), (4, false), (6, false)].iter().enumerate();
        let donors = donors.map(|(number, (free_slabs, is_cut))| Donor {
            is_cut: *is_cut,
            ..Donor::direct(NodeId(number as u32), *free_slabs)
        });
        let donors: Vec<Donor> = donors.collect();
        let of_cut = |slabs| place(policy, slabs, &donors).unwrap().remove(&NodeId(0));
        assert_eq!(of_cut(10), None, "{policy}");
        assert_eq!(of_cut(13), Some(3), "{policy}");
    }
}

#[test]
fn near_donors_first_own_node_last() {
    // A row of five nodes whose first one borrows.
    let row = |free| [0, 1, 2, 3, 4].map(|hops| (free, Some(hops)));
    assert_eq!(shares_of(4, &row(32)), Some(vec![0, 4, 0, 0, 0]));
    assert_eq!(shares_of(6, &row(32)), Some(vec![0, 5, 1, 0, 0]));
    assert_eq!(shares_of(40, &row(32)), Some(vec![0, 16, 12, 8, 4]));
    assert_eq!(shares_of(50, &row(32)), Some(vec![2, 18, 14, 10, 6]));
    // Small donors are drained one after the other.
    assert_eq!(shares_of(9, &row(4)), Some(vec![0, 4, 4, 1, 0]));
    assert_eq!(shares_of(20, &row(4)), Some(vec![4; 5]));
}

#[test]
fn hop_weighs_some_free_slabs() {
    let near = (10, Some(1));
    assert_eq!(shares_of(1, &[near, (14, Some(2))]), Some(vec![1, 0]), "the nearest of equals");
    assert_eq!(shares_of(1, &[near, (15, Some(2))]), Some(vec![0, 1]));
}

#[test]
fn spread_ignores_free_memory() {
    let near_and_far = [(32, Some(1)), (8, Some(3)), (20, Some(2))];
    assert_eq!(shares_by(Policy::Spread, 6, &near_and_far), Some(vec![2, 2, 2]));
    // Ties go to the highest worth.
    assert_eq!(shares_by(Policy::Spread, 1, &near_and_far), Some(vec![1, 0, 0]));
    // A donor without free slabs is skipped.
    assert_eq!(
        shares_by(Policy::Spread, 12, &[(2, None), (9, None), (9, None)]),
        Some(vec![2, 5, 5])
    );
    assert_eq!(shares_by(Policy::Spread, 3, &[(1, None), (1, None)]), None);
}

#[test]
fn spread_counts_slabs_already_given() {
    let donor = |node, given_slabs| Donor { given_slabs, ..Donor::direct(NodeId(node), 8) };
    let shares = place(Policy::Spread, 3, &[donor(1, 2), donor(2, 0), donor(3, 0)]);
    assert_eq!(shares, Some(BTreeMap::from([(NodeId(2), 2), (NodeId(3), 1)])));
}

#[test]
fn pack_takes_fewest_donors() {
    let direct = |free: &[u32]| free.iter().map(|free| (*free, None)).collect::<Vec<_>>();
    let packed = |slabs, free: &[u32]| shares_by(Policy::Pack, slabs, &direct(free));
    // The tightest donor with room for all of it.
    assert_eq!(packed(6, &[32, 7, 10]), Some(vec![0, 6, 0]));
    // Else the largest, and the rest at the tightest fit.
    assert_eq!(packed(36, &[32, 7, 10]), Some(vec![32, 4, 0]));
    assert_eq!(packed(45, &[32, 7, 10]), Some(vec![32, 3, 10]));
    assert_eq!(packed(50, &[32, 7, 10]), None);
    // Of the donors with room for all, the nearest before the tightest.
    assert_eq!(
        shares_by(Policy::Pack, 6, &[(6, Some(2)), (20, Some(1)), (20, Some(0))]),
        Some(vec![0, 6, 0])
    );
}

#[test]
fn pack_keeps_donors_already_used() {
    let donor =
        |node, free, given_slabs| Donor { given_slabs, ..Donor::direct(NodeId(node), free) };
    let shares = place(Policy::Pack, 3, &[donor(1, 3, 0), donor(2, 9, 4)]);
    assert_eq!(shares, Some(BTreeMap::from([(NodeId(2), 3)])));
}

#[test]
fn price_counts_traffic_delay_and_stalls() {
    let plain = Donor::direct(NodeId(1), 10);
    let price = |donor: Donor| donor.price(0);
    assert_eq!(price(plain), Price::default());
    let busy = price(Donor { busy_quarters: 3, ..plain });
    assert_eq!((busy.traffic_slabs, busy.total_slabs()), (12, 12));
    assert_eq!(price(Donor { busy_quarters: 90, ..plain }).traffic_slabs, 16, "4 quarters at most");
    assert_eq!(price(Donor { is_stalled: true, ..plain }).stall_slabs, STALL_SLABS);
    let far = Donor { hops: Some(2), ..plain };
    assert_eq!(price(far).distance_slabs, 8);
    assert_eq!(price(Donor { slow_hops: 1, ..far }).distance_slabs, 8, "the counted hops are more");
    assert_eq!(price(Donor { slow_hops: 5, ..far }).distance_slabs, 20);
    // The own node counts as farther than the farthest.
    assert_eq!(Donor { hops: Some(0), ..plain }.price(3).distance_slabs, 16);
}

#[test]
fn policy_names_roundtrip() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
        assert_eq!(policy.to_string(), policy.name());
    }
    let unknown = "Pack".parse::<Policy>().unwrap_err().to_string();
    assert!(unknown.contains("nearest, spread or pack"), "{unknown}");
}

proptest! {
    #[test]
    fn free_memory_stays_even(
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
        // A donor that gave something keeps at most one slab less than any other that could have
        // given more.
        let most = *left.iter().max().unwrap();
        for (share, left) in shares.iter().zip(&left) {
            prop_assert!(*share == 0 || left + 1 >= most);
        }
    }

    #[test]
    fn nearer_equal_donor_gives_no_less(
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

    #[test]
    fn policies_place_all_or_nothing(
        donors in prop::collection::vec((0u32..12, 0u32..12, 0u32..4), 1..8),
        slabs in 0u32..60,
    ) {
        let donors: Vec<Donor> = donors.iter().enumerate().map(|(number, (free, most, hops))| Donor {
            most_slabs: *most,
            hops: Some(*hops),
            ..Donor::direct(NodeId(number as u32), *free)
        }).collect();
        let room: u32 = donors.iter().map(Donor::can_give).sum();
        for policy in Policy::ALL {
            let Some(shares) = place(policy, slabs, &donors) else {
                prop_assert!(room < slabs);
                continue;
            };
            prop_assert_eq!(shares.values().sum::<u32>(), slabs);
            for donor in &donors {
                let share = shares.get(&donor.node).copied().unwrap_or(0);
                prop_assert!(share <= donor.can_give());
            }
        }
    }

    #[test]
    fn pack_donor_count_is_minimal(
        free in prop::collection::vec(0u32..12, 1..7),
        slabs in 1u32..40,
    ) {
        let direct: Vec<_> = free.iter().map(|free| (*free, None)).collect();
        let Some(shares) = shares_by(Policy::Pack, slabs, &direct) else { return Ok(()) };
        let used = shares.iter().filter(|share| **share > 0).count() as u32;
        let sets = 0u32..1 << free.len();
        let fewest = sets.filter(|set| {
            let of_set = free.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
            of_set.map(|(_, free)| *free).sum::<u32>() >= slabs
        }).map(u32::count_ones).min();
        prop_assert_eq!(Some(used), fewest);
    }
}
