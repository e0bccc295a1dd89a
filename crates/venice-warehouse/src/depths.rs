//! The bytes that wait in a switch, over virtual time.

use serde::{Deserialize, Serialize};

/// Intervals of a run; if there would be more, each two become one.
pub const MOST_INTERVALS: u64 = 256;

/// The bytes that wait in a switch, by interval. They change with events alone, so neither stops of the
/// run nor its parts change them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Depths {
    /// Picoseconds of an interval.
    width: u64,
    intervals: Vec<Interval>,
    /// Bytes that wait, and the time since which they do.
    bytes: u64,
    changed_at: u64,
}

/// The bytes that waited in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Interval {
    /// Bytes times picoseconds.
    area: u128,
    most: u64,
}

/// The depths of one switch in intervals that all switches share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Mean bytes of each interval.
    pub mean: Vec<u64>,
    /// The most bytes at any time of each interval.
    pub most: Vec<u64>,
}

impl Depths {
    /// A switch in which nothing waits, with intervals of so many picoseconds.
    ///
    /// # Panics
    /// If that is 0.
    pub fn new(width: u64) -> Self {
        assert!(width > 0, "intervals have a length");
        Self { width, intervals: Vec::new(), bytes: 0, changed_at: 0 }
    }

    /// Adds bytes that wait from `now` on.
    pub fn add(&mut self, now: u64, bytes: u32) {
        self.advance(now);
        self.bytes += u64::from(bytes);
        let (place, depth) = (self.place(now), self.bytes);
        let interval = self.interval(place);
        interval.most = interval.most.max(depth);
    }

    /// Removes bytes that wait no longer.
    pub fn remove(&mut self, now: u64, bytes: u32) {
        self.advance(now);
        self.bytes = self.bytes.saturating_sub(bytes.into());
    }

    /// Returns the width of the intervals that a run of `end` picoseconds has.
    pub fn width_until(width: u64, end: u64) -> u64 {
        let mut width = width;
        while end / width >= MOST_INTERVALS {
            width = width.saturating_mul(2);
        }
        width
    }

    /// Returns the depths until `end`, in intervals of [`Depths::width_until`] that time.
    pub fn sampled(&self, end: u64) -> Sampled {
        let mut whole = self.clone();
        whole.advance(end);
        let last = whole.place(end);
        whole.interval(last);
        let mean = |(number, interval): (u64, &Interval)| {
            let begin = number * whole.width;
            let length = whole.width.min(end.saturating_sub(begin)).max(1);
            u64::try_from(interval.area / u128::from(length)).unwrap_or(u64::MAX)
        };
        Sampled {
            mean: (0..).zip(&whole.intervals).map(mean).collect(),
            most: whole.intervals.iter().map(|interval| interval.most).collect(),
        }
    }

    fn place(&self, at: u64) -> u64 {
        at / self.width
    }

    fn interval(&mut self, place: u64) -> &mut Interval {
        let place = place as usize;
        if self.intervals.len() <= place {
            self.intervals.resize(place + 1, Interval::default());
        }
        &mut self.intervals[place]
    }

    /// Counts the bytes that have waited until `now`.
    fn advance(&mut self, now: u64) {
        while self.width < Self::width_until(self.width, now) {
            self.widen();
        }
        let mut from = self.changed_at;
        self.changed_at = now.max(from);
        let bytes = self.bytes;
        while bytes > 0 && from < now {
            let place = self.place(from);
            let to = (place + 1).saturating_mul(self.width).min(now);
            let interval = self.interval(place);
            interval.area += u128::from(bytes) * u128::from(to - from);
            interval.most = interval.most.max(bytes);
            from = to;
        }
    }

    /// Makes one interval of each two.
    fn widen(&mut self) {
        let joined = |two: &[Interval]| Interval {
            area: two.iter().map(|one| one.area).sum(),
            most: two.iter().map(|one| one.most).max().unwrap_or(0),
        };
        self.intervals = self.intervals.chunks(2).map(joined).collect();
        self.width = self.width.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn intervals_have_mean_and_most() {
        let mut depths = Depths::new(10);
        depths.add(5, 100);
        depths.add(15, 100);
        depths.remove(15, 200);
        depths.add(30, 7);
        let Sampled { mean, most } = depths.sampled(34);
        assert_eq!((mean, most), (vec![50, 50, 0, 7], vec![100, 200, 0, 7]));
    }

    proptest! {
        /// Long runs have the intervals that they would have had from the start.
        #[test]
        fn widened_intervals_are_exact(
            steps in prop::collection::vec((0..900u64, 1..1500u32), 1..60),
            rest in 0..500u64,
        ) {
            let width = 8;
            let (mut fine, mut now) = (Depths::new(width), 0);
            let mut steps_at = Vec::new();
            for (after, bytes) in steps {
                now += after;
                steps_at.push((now, bytes));
            }
            let end = now + rest;
            let mut coarse = Depths::new(Depths::width_until(width, end));
            let mut waiting = Vec::new();
            for (at, bytes) in steps_at {
                for depths in [&mut fine, &mut coarse] {
                    match waiting.last() {
                        Some(old) if waiting.len() > 3 => depths.remove(at, *old),
                        _ => depths.add(at, bytes),
                    }
                }
                if waiting.len() > 3 { waiting.pop(); } else { waiting.push(bytes); }
            }
            let sampled = fine.sampled(end);
            prop_assert_eq!(&sampled, &coarse.sampled(end));
            prop_assert!(sampled.mean.len() as u64 <= MOST_INTERVALS);
            prop_assert!(sampled.mean.iter().zip(&sampled.most).all(|(mean, most)| mean <= most));
        }
    }
}
