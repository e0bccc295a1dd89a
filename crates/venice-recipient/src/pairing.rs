//! Which donors hold the copies of which slab, or its fragments.

use std::cmp::Reverse;

/// For each slab the donors that hold its copies, so that no two are on one donor: `counts[n]` is
/// how many slabs donor `n` has granted. Donors take turns, and so do the pairs they make: when one
/// is lost, what it held is with all the others. The first `read` of them are those that are read
/// while all live: one of copies, as many as give a page of fragments.
///
/// `None`: the counts do not come out even, or one donor has more than there are slabs.
pub fn pair(counts: &[usize], copies: usize, read: usize) -> Option<Vec<Vec<usize>>> {
    let total: usize = counts.iter().sum();
    if copies == 0 || !total.is_multiple_of(copies) {
        return None;
    }
    let slabs = total / copies;
    if counts.iter().any(|&count| count > slabs) {
        return None;
    }
    let mut left = counts.to_vec();
    let mut reads = vec![0usize; counts.len()];
    let mut together = vec![vec![0usize; counts.len()]; counts.len()];
    let mut paired: Vec<Vec<usize>> = Vec::with_capacity(slabs);
    for _ in 0..slabs {
        let mut donors: Vec<usize> = Vec::with_capacity(copies);
        for _ in 0..copies {
            // Who has most must go first, or what it has left is more than there are slabs. Of
            // equals who has been least with the others.
            let met = |donor: usize| donors.iter().map(|&other| together[donor][other]).sum();
            let free =
                (0..counts.len()).filter(|&donor| left[donor] > 0 && !donors.contains(&donor));
            let next = free.min_by_key(|&donor| {
                let met: usize = met(donor);
                (Reverse(left[donor]), met, donor)
            })?;
            for &other in &donors {
                together[next][other] += 1;
                together[other][next] += 1;
            }
            left[next] -= 1;
            donors.push(next);
        }
        donors.sort_by_key(|&donor| (reads[donor], donor));
        donors.iter().take(read).for_each(|&donor| reads[donor] += 1);
        paired.push(donors);
    }
    Some(paired)
}

/// Most slabs that can be had in so many copies, no two of one slab from one donor.
pub fn most_slabs(free: &[u64], copies: u64) -> u64 {
    let fits = |slabs: u64| free.iter().map(|&free| free.min(slabs)).sum::<u64>() >= slabs * copies;
    let (mut fit, mut not) = (0, free.iter().sum::<u64>() / copies.max(1) + 1);
    while not - fit > 1 {
        let middle = fit + (not - fit) / 2;
        if fits(middle) { fit = middle } else { not = middle }
    }
    fit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_copies_of_a_slab_are_on_one_donor() {
        for counts in
            [vec![3, 3, 3, 3], vec![6, 6], vec![6, 3, 2, 1], vec![1, 5, 2, 4], vec![9, 9, 9, 9]]
        {
            for copies in 1..=3 {
                let total: usize = counts.iter().sum();
                let Some(paired) = pair(&counts, copies, 1) else {
                    let most = *counts.iter().max().unwrap();
                    assert!(!total.is_multiple_of(copies) || most > total / copies);
                    continue;
                };
                let mut given = vec![0; counts.len()];
                for donors in &paired {
                    assert_eq!(donors.len(), copies, "{counts:?}");
                    for (at, &donor) in donors.iter().enumerate() {
                        assert!(!donors[..at].contains(&donor), "{counts:?}: {donors:?}");
                        given[donor] += 1;
                    }
                }
                assert_eq!(given, counts);
            }
        }
    }

    #[test]
    fn every_donor_is_read_about_as_often() {
        let paired = pair(&[8, 8, 8, 8], 2, 1).unwrap();
        for donor in 0..4 {
            let read = paired.iter().filter(|donors| donors[0] == donor).count();
            assert!((3..=5).contains(&read), "donor {donor}: {read} of 16 in {paired:?}");
            let others = paired.iter().filter(|donors| donors.contains(&donor)).flatten();
            let others: std::collections::BTreeSet<_> = others.collect();
            assert_eq!(others.len(), 4, "donor {donor} shares with all: {paired:?}");
        }
    }

    #[test]
    fn of_fragments_every_donor_has_computed_ones_in_turn() {
        let paired = pair(&[6; 6], 6, 4).unwrap();
        for donor in 0..6 {
            let read = paired.iter().filter(|donors| donors[..4].contains(&donor)).count();
            assert_eq!(read, 4, "donor {donor}: {paired:?}");
        }
    }

    #[test]
    fn as_much_as_fits_twice() {
        assert_eq!(most_slabs(&[4, 4, 4], 2), 6);
        assert_eq!(most_slabs(&[100, 3], 2), 3);
        assert_eq!(most_slabs(&[100], 2), 0);
        assert_eq!(most_slabs(&[5, 2], 1), 7);
        assert_eq!(most_slabs(&[], 3), 0);
    }
}
