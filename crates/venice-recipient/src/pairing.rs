//! Pairing: the donors of each slab's copies or fragments.

use std::cmp::Reverse;

/// Chooses for each slab the donors of its copies, no two on one donor; `counts[n]` is the number
/// of slabs granted by donor `n`. Donors take turns, and so do their pairs: if one is lost, its
/// data is spread over all others. The first `read` donors of a slab are read while all live: one
/// of copies, as many as give a page of fragments.
///
/// Returns `None` if the counts do not come out even, or one donor has more than there are slabs.
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
            // The donor with most left goes first, or its rest exceeds the slabs. Ties go to the
            // donor least often paired with the others.
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

/// Returns the most slabs with this many copies, no two of one slab at one donor.
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
    fn copies_are_on_different_donors() {
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
    fn reads_are_spread_evenly() {
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
    fn parity_fragments_rotate() {
        let paired = pair(&[6; 6], 6, 4).unwrap();
        for donor in 0..6 {
            let read = paired.iter().filter(|donors| donors[..4].contains(&donor)).count();
            assert_eq!(read, 4, "donor {donor}: {paired:?}");
        }
    }

    #[test]
    fn most_slabs_respects_copies() {
        assert_eq!(most_slabs(&[4, 4, 4], 2), 6);
        assert_eq!(most_slabs(&[100, 3], 2), 3);
        assert_eq!(most_slabs(&[100], 2), 0);
        assert_eq!(most_slabs(&[5, 2], 1), 7);
        assert_eq!(most_slabs(&[], 3), 0);
    }
}
