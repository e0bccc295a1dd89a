//! Ranks drawn by Zipf's law, as the YCSB benchmark does it.
//!
//! Source: Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994.

use crate::pattern::Random;

/// Draws ranks `0..items`, rank `r` with a probability in proportion to `1 / (r + 1)^theta`.
#[derive(Debug, Clone)]
pub struct Zipf {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta_items: f64,
    eta: f64,
}

impl Zipf {
    /// Prepares the distribution; `theta` lies strictly between 0 (uniform) and 1. The time is
    /// proportional to `items`.
    pub fn new(items: u64, theta: f64) -> Self {
        assert!(items > 0, "a Zipf distribution needs items");
        assert!(theta > 0.0 && theta < 1.0, "theta must lie between 0 and 1");
        let zeta_items = zeta(items, theta);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta))
            / (1.0 - zeta(2.min(items), theta) / zeta_items);
        Self { items, theta, alpha: 1.0 / (1.0 - theta), zeta_items, eta }
    }

    /// Returns the next rank; 0 is the most popular.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta_items;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

fn zeta(items: u64, theta: f64) -> f64 {
    (1..=items).map(|rank| (rank as f64).powf(-theta)).sum()
}

/// Scatters ranks over `0..items` so that popular keys are not neighbours in memory. A bijection:
/// every key belongs to exactly one rank.
#[derive(Debug, Clone)]
pub struct Scatter {
    items: u64,
    factor: u64,
}

impl Scatter {
    /// Scatters ranks over `items` keys.
    ///
    /// # Panics
    /// When `items` is 0.
    pub fn new(items: u64) -> Self {
        assert!(items > 0, "nothing to scatter");
        // Any factor without a common divisor works; one near the golden ratio spreads well.
        let golden = (items as f64 * 0.618_033_988_749_895) as u64;
        let factor = (golden.max(1)..).find(|&f| gcd(f, items) == 1).unwrap_or(1);
        Self { items, factor }
    }

    /// Returns the key of `rank`.
    pub fn key(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.factor) % u128::from(self.items)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_zipfs_law() {
        let items = 1000;
        let draws = 400_000;
        let zipf = Zipf::new(items, 0.99);
        let mut random = Random::new(11);
        let mut counts = vec![0u64; items as usize];
        (0..draws).for_each(|_| counts[zipf.rank(&mut random) as usize] += 1);

        let expected = |rank: f64| draws as f64 / (rank + 1.0).powf(0.99) / zipf.zeta_items;
        for rank in [0usize, 1] {
            let ratio = counts[rank] as f64 / expected(rank as f64);
            assert!((0.95..1.05).contains(&ratio), "rank {rank}: {ratio} of what was expected");
        }
        // Single ranks beyond the first two are approximated, so bands of them are compared.
        for (low, high) in [(2usize, 10), (10, 100), (100, 1000)] {
            let seen: u64 = counts[low..high].iter().sum();
            let wanted: f64 = (low..high).map(|rank| expected(rank as f64)).sum();
            let ratio = seen as f64 / wanted;
            assert!((0.9..1.1).contains(&ratio), "ranks {low}..{high}: {ratio}");
        }
    }

    #[test]
    fn tiny_sets_stay_in_bounds() {
        for items in 1..5 {
            let zipf = Zipf::new(items, 0.99);
            let mut random = Random::new(items);
            assert!((0..1000).all(|_| zipf.rank(&mut random) < items));
        }
    }

    #[test]
    fn scatter_is_a_bijection() {
        for items in [1u64, 2, 3, 10, 1024, 16_384, 9_973] {
            let scatter = Scatter::new(items);
            let keys: std::collections::BTreeSet<u64> =
                (0..items).map(|rank| scatter.key(rank)).collect();
            assert_eq!(keys.len() as u64, items);
            assert!(keys.iter().all(|&key| key < items));
        }
    }
}
