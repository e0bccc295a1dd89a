//! Samples of a time, and the arithmetic of costs.

use std::ops::{Add, Mul, Sub};
use std::time::Instant;

use anyhow::{Result, bail};
use venice_measure::interrupt;

/// A time with its spread, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// The median.
    pub ns: f64,
    /// Half of the range between the quartiles.
    pub spread: f64,
}

impl Cost {
    /// Returns the cost of samples in nanoseconds.
    ///
    /// # Errors
    /// If there are none.
    pub fn of(mut samples: Vec<f64>) -> Result<Self> {
        if samples.is_empty() {
            bail!("no sample was taken");
        }
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
        Ok(Self { ns: at(0.5), spread: (at(0.75) - at(0.25)) / 2.0 })
    }

    /// Returns a time without a spread.
    pub fn exact(ns: f64) -> Self {
        Self { ns, spread: 0.0 }
    }

    fn with(self, other: Self, ns: f64) -> Self {
        // Independent errors.
        Self { ns: ns.max(0.0), spread: self.spread.hypot(other.spread) }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(other, self.ns + other.ns)
    }
}

/// A difference is 0 at least: what costs less than the clock can tell costs nothing.
impl Sub for Cost {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.with(other, self.ns - other.ns)
    }
}

impl Mul<f64> for Cost {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        Self { ns: self.ns * factor, spread: self.spread * factor }
    }
}

/// Extent of the measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Samples of each cost.
    pub samples: usize,
    /// Time for which the noise is watched.
    pub noise_s: f64,
    /// Cost of reading the clock, which is in each sample.
    pub clock_ns: f64,
}

impl Effort {
    pub fn new(is_quick: bool) -> Self {
        let (samples, noise_s) = if is_quick { (60, 1.0) } else { (400, 15.0) };
        Self { samples, noise_s, clock_ns: crate::clock::cost_ns() as f64 }
    }

    /// Measures an operation: each sample is a run of `run` of it. `between` comes before each, and is
    /// not measured.
    ///
    /// # Errors
    /// If an operation fails, and on an interrupt.
    pub fn measure(
        &self,
        run: usize,
        mut between: impl FnMut() -> Result<()>,
        mut operation: impl FnMut() -> Result<()>,
    ) -> Result<Cost> {
        let mut samples = Vec::with_capacity(self.samples);
        // The first one warms caches up.
        for _ in 0..=self.samples {
            interrupt::check()?;
            between()?;
            let start = Instant::now();
            for _ in 0..run {
                operation()?;
            }
            let ns = start.elapsed().as_nanos() as f64;
            samples.push((ns - self.clock_ns).max(0.0) / run as f64);
        }
        samples.remove(0);
        Cost::of(samples)
    }

    /// Measures what needs nothing between two runs.
    ///
    /// # Errors
    /// The same.
    pub fn repeat(&self, run: usize, operation: impl FnMut() -> Result<()>) -> Result<Cost> {
        self.measure(run, || Ok(()), operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_move_no_median() {
        let mut samples = vec![10.0, 12.0, 11.0, 9.0, 8.0];
        assert_eq!(Cost::of(samples.clone()).unwrap(), Cost { ns: 10.0, spread: 1.0 });
        samples[0] = 1e9;
        assert_eq!(Cost::of(samples).unwrap().ns, 11.0);
        assert!(Cost::of(Vec::new()).is_err());
    }

    #[test]
    fn spreads_add_as_errors() {
        let (a, b) = (Cost { ns: 100.0, spread: 3.0 }, Cost { ns: 40.0, spread: 4.0 });
        assert_eq!(a + b, Cost { ns: 140.0, spread: 5.0 });
        assert_eq!(a - b, Cost { ns: 60.0, spread: 5.0 });
        assert_eq!((b - a).ns, 0.0);
        assert_eq!(a * 0.5, Cost { ns: 50.0, spread: 1.5 });
    }
}
