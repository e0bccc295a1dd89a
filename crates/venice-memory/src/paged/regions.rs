//! The managed regions: the pages of the address space that the pager serves.

use std::ops::Range;

use super::page_table::PageNumber;

/// Disjoint ranges of pages, sorted, adjacent ones joined.
#[derive(Debug, Default)]
pub struct Regions {
    ranges: Vec<Range<PageNumber>>,
}

impl Regions {
    /// Adds a range; pages that are in already stay.
    pub fn insert(&mut self, range: Range<PageNumber>) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let last = self.ranges.partition_point(|r| r.start <= range.end);
        let mut joined = range;
        if first < last {
            joined.start = joined.start.min(self.ranges[first].start);
            joined.end = joined.end.max(self.ranges[last - 1].end);
        }
        self.ranges.splice(first..last, [joined]);
    }

    /// Removes a range.
    pub fn remove(&mut self, range: Range<PageNumber>) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|r| r.end <= range.start);
        let last = self.ranges.partition_point(|r| r.start < range.end);
        if first >= last {
            return;
        }
        let left = self.ranges[first].start..range.start;
        let right = range.end..self.ranges[last - 1].end;
        let rest = [left, right].into_iter().filter(|r| !r.is_empty());
        self.ranges.splice(first..last, rest);
    }

    /// Returns the managed parts of `range`, in order.
    pub fn parts(&self, range: Range<PageNumber>) -> impl Iterator<Item = Range<PageNumber>> + '_ {
        let first = self.ranges.partition_point(|r| r.end <= range.start);
        self.ranges[first..]
            .iter()
            .take_while(move |r| r.start < range.end)
            .map(move |r| r.start.max(range.start)..r.end.min(range.end))
    }

    /// Number of pages.
    pub fn len_pages(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Returns the page that `index` managed pages come before.
    pub fn nth(&self, mut index: usize) -> Option<PageNumber> {
        let holds = |range: &&Range<PageNumber>| match index.checked_sub(range.len()) {
            Some(rest) => {
                index = rest;
                false
            }
            None => true,
        };
        let range = self.ranges.iter().find(holds)?;
        Some(range.start + index)
    }

    /// Returns the first managed stretch at or after `page`.
    pub fn next_from(&self, page: PageNumber) -> Option<Range<PageNumber>> {
        let at = self.ranges.partition_point(|r| r.end <= page);
        let range = self.ranges.get(at)?;
        Some(range.start.max(page)..range.end)
    }

    /// True if every page of `range` is managed.
    pub fn contains(&self, range: Range<PageNumber>) -> bool {
        self.next_from(range.start)
            .is_some_and(|found| found.start == range.start && found.end >= range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn regions_match_set_model(
            operations in prop::collection::vec((any::<bool>(), 0usize..60, 1usize..12), 1..60),
            query in (0usize..60, 1usize..12),
        ) {
            let mut regions = Regions::default();
            let mut model = [false; 80];
            for (insert, start, len) in operations {
                let range = start..start + len;
                model[range.clone()].fill(insert);
                if insert { regions.insert(range) } else { regions.remove(range) }
            }
            let mut seen = [false; 80];
            for part in regions.parts(0..80) {
                prop_assert!(!part.is_empty());
                prop_assert!(part.start == 0 || !seen[part.start - 1], "adjacent ranges are joined");
                seen[part].fill(true);
            }
            prop_assert_eq!(seen, model);
            let nth = |index: &usize| regions.nth(*index);
            let all: Vec<_> = (0..regions.len_pages()).map(|index| nth(&index).unwrap()).collect();
            prop_assert!(all.iter().is_sorted() && all.iter().all(|&page| model[page]));
            prop_assert_eq!(all.len(), model.iter().filter(|&&m| m).count());
            prop_assert_eq!(nth(&all.len()), None);
            let asked = query.0..query.0 + query.1;
            prop_assert_eq!(regions.contains(asked.clone()), model[asked].iter().all(|&m| m));
        }
    }
}
