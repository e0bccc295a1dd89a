//! The share of a test's seeds that one run of the tests takes.
//!
//! `VENICE_SEEDS=25%` takes a quarter of them. The number in `VENICE_SEED_ROTATION` says the first,
//! the second, … quarter, so that runs with other numbers together take all of them. Unset: all.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The seeds of this run, out of `0..whole`; at least one.
///
/// # Panics
/// When a variable is set to anything but a share from 1 % to 100 %, or a number.
#[must_use]
pub fn seeds(whole: u64) -> Range<u64> {
    let share = variable("VENICE_SEEDS").map_or(100, |text| {
        let percent = text.trim_end_matches('%').parse().ok();
        percent.filter(|share| (1..=100).contains(share)).expect("VENICE_SEEDS: 1% to 100%")
    });
    let rotation = variable("VENICE_SEED_ROTATION")
        .map_or(0, |text| text.parse().expect("VENICE_SEED_ROTATION: a number"));
    part(whole, share, rotation)
}

/// Calls `run` for each seed, on all processors.
///
/// # Panics
/// When `run` does.
pub fn on_all_processors(seeds: Range<u64>, run: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        while let seed = next.fetch_add(1, Ordering::Relaxed)
            && seed < seeds.end
        {
            run(seed);
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn part(whole: u64, share_percent: u64, rotation: u64) -> Range<u64> {
    let count = (whole * share_percent / 100).max(1);
    let parts = (whole / count).max(1);
    let first = rotation % parts * count;
    first..first + count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_cover_all_seeds() {
        let mut all: Vec<u64> = (0..4).flat_map(|rotation| part(800, 25, rotation)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..800).collect::<Vec<_>>());
        assert_eq!(part(800, 25, 7), part(800, 25, 3));
        assert_eq!(part(800, 100, 3), 0..800);
        assert_eq!(part(3, 5, 2), 2..3);
    }
}
