//! Measurement of latency and bandwidth, the same for every system.
//!
//! Every figure is the median over a few repetitions. An operation shorter than a few clock reads
//! is measured in runs of many for its median, and one by one, less the clock's cost, for its 99th
//! percentile.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;

use super::series::Latency;
use crate::clock;
use venice_measure::{cpus, interrupt};

/// Longer operations are counted as this long, in nanoseconds.
const MAX_NS: u64 = 60_000_000_000;
/// Duration of a run of fast operations: a hundred clock reads.
const RUN_NS: f64 = 2_500.0;
/// Operations this slow are measured one by one.
const SLOW_NS: f64 = 1_000.0;

/// Extent of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Duration of one repetition.
    pub(crate) length: Duration,
    /// Number of repetitions: odd, so that there is a middle one.
    pub(crate) repetitions: usize,
    /// Duration of an empty interval, in nanoseconds.
    pub(crate) clock_cost_ns: u64,
}

impl Effort {
    /// Returns the effort for a functional check and a rough figure.
    pub(crate) fn quick() -> Self {
        Self { length: Duration::from_millis(12), repetitions: 1, clock_cost_ns: clock::cost_ns() }
    }

    /// Returns the effort for comparable figures.
    pub(crate) fn full() -> Self {
        Self { length: Duration::from_millis(60), repetitions: 3, clock_cost_ns: clock::cost_ns() }
    }

    /// Measures the latency of `operation`, called again and again.
    ///
    /// # Errors
    /// When it fails, and on an interrupt.
    pub(crate) fn latency(&self, mut operation: impl FnMut() -> Result<()>) -> Result<Latency> {
        let usual_ns = self.warm_up(&mut operation)?;
        let mut found = Vec::with_capacity(self.repetitions);
        for _ in 0..self.repetitions {
            interrupt::check()?;
            found.push(self.repetition(usual_ns, &mut operation)?);
        }
        Ok(median_of(&found))
    }

    /// Collects latencies that `operation` measures itself, in nanoseconds.
    ///
    /// # Errors
    /// When it fails, and on an interrupt.
    pub(crate) fn latency_of(&self, mut operation: impl FnMut() -> Result<u64>) -> Result<Latency> {
        let mut ignored = || operation().map(drop);
        self.warm_up(&mut ignored)?;
        let mut found = Vec::with_capacity(self.repetitions);
        for _ in 0..self.repetitions {
            interrupt::check()?;
            let mut histogram = histogram()?;
            let start = Instant::now();
            while start.elapsed() < self.length || histogram.is_empty() {
                histogram.saturating_record(operation()?);
            }
            found.push(of_histogram(&histogram));
        }
        Ok(median_of(&found))
    }

    /// Measures bytes per second; each call of `operation` returns the bytes it moved.
    ///
    /// # Errors
    /// When it fails, and on an interrupt.
    pub(crate) fn bandwidth(&self, mut operation: impl FnMut() -> Result<u64>) -> Result<f64> {
        let usual_ns = self.warm_up(&mut || operation().map(drop))?;
        let run = (RUN_NS * 4.0 / usual_ns).clamp(1.0, 4096.0) as u64;
        let mut found = Vec::with_capacity(self.repetitions);
        for _ in 0..self.repetitions {
            interrupt::check()?;
            let (start, mut bytes) = (Instant::now(), 0);
            loop {
                for _ in 0..run {
                    bytes += operation()?;
                }
                let elapsed = start.elapsed();
                if elapsed >= self.length {
                    found.push(bytes as f64 / elapsed.as_secs_f64());
                    break;
                }
            }
        }
        Ok(median(found))
    }

    /// Runs for a fifth of a repetition; returns the nanoseconds of one operation.
    fn warm_up(&self, operation: &mut impl FnMut() -> Result<()>) -> Result<f64> {
        let (start, mut count) = (Instant::now(), 0u32);
        loop {
            operation()?;
            count += 1;
            let elapsed = start.elapsed();
            if elapsed > self.length / 5 {
                return Ok(elapsed.as_nanos() as f64 / f64::from(count));
            }
        }
    }

    fn repetition(
        &self,
        usual_ns: f64,
        operation: &mut impl FnMut() -> Result<()>,
    ) -> Result<Latency> {
        let single = self.singly(operation)?;
        if usual_ns > SLOW_NS {
            return Ok(single);
        }
        let run = (RUN_NS / usual_ns).clamp(2.0, 1024.0) as u32;
        let mut histogram = histogram()?;
        let begin = Instant::now();
        while begin.elapsed() < self.length {
            let start = Instant::now();
            for _ in 0..run {
                operation()?;
            }
            // The unit is a tenth of a nanosecond: a fast operation takes a few.
            let ns = start.elapsed().as_nanos() as u64;
            histogram
                .saturating_record(10 * ns.saturating_sub(self.clock_cost_ns) / u64::from(run));
        }
        Ok(Latency {
            mean_ns: histogram.mean() / 10.0,
            p50_ns: Some(histogram.value_at_quantile(0.5) as f64 / 10.0),
            p99_ns: single.p99_ns,
        })
    }

    fn singly(&self, operation: &mut impl FnMut() -> Result<()>) -> Result<Latency> {
        let mut histogram = histogram()?;
        let begin = Instant::now();
        loop {
            let start = Instant::now();
            operation()?;
            let end = Instant::now();
            let ns = (end - start).as_nanos() as u64;
            histogram.saturating_record(ns.saturating_sub(self.clock_cost_ns));
            if end - begin > self.length {
                return Ok(of_histogram(&histogram));
            }
        }
    }
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_max(MAX_NS, 3).context("cannot make a histogram")
}

fn of_histogram(histogram: &Histogram<u64>) -> Latency {
    Latency {
        mean_ns: histogram.mean(),
        p50_ns: Some(histogram.value_at_quantile(0.5) as f64),
        p99_ns: Some(histogram.value_at_quantile(0.99) as f64),
    }
}

/// Returns the median of each figure.
fn median_of(found: &[Latency]) -> Latency {
    let each = |figure: fn(&Latency) -> Option<f64>| {
        let values: Vec<f64> = found.iter().filter_map(figure).collect();
        (!values.is_empty()).then(|| median(values))
    };
    Latency {
        mean_ns: each(|latency| Some(latency.mean_ns)).unwrap_or_default(),
        p50_ns: each(|latency| latency.p50_ns),
        p99_ns: each(|latency| latency.p99_ns),
    }
}

/// Returns the middle value; of an even number the lower of the two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    assert!(!values.is_empty(), "a median of nothing");
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// The processors of the two ends: two, unless the machine has only one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) near_cpu: usize,
    pub(crate) far_cpu: usize,
}

impl Ends {
    /// Chooses two processors.
    ///
    /// # Errors
    /// When the kernel does not report the processors.
    pub(crate) fn choose() -> Result<Self> {
        let cpus = cpus::allowed()?;
        Ok(Self { near_cpu: cpus[0], far_cpu: cpus[1 % cpus.len()] })
    }
}

/// Runs `body` on a thread of its own on `cpu`, so that pinning affects neither this thread nor its
/// children.
///
/// # Errors
/// The errors of `body`, and when the thread cannot be pinned.
pub(crate) fn on_cpu<T: Send>(cpu: usize, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            cpus::pin_to(cpu)?;
            body()
        });
        thread.join().unwrap_or_else(|_| bail!("a measuring thread panicked"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_and_slow_operations_are_measured() {
        let effort = Effort::quick();
        let fast = effort.latency(|| Ok(())).unwrap();
        assert!(fast.p50_ns.unwrap() < SLOW_NS && fast.mean_ns >= 0.0, "{fast:?}");
        let slow = effort
            .latency(|| {
                std::thread::sleep(Duration::from_micros(200));
                Ok(())
            })
            .unwrap();
        assert!(slow.p50_ns.unwrap() > 150_000.0, "{slow:?}");
        assert!(slow.p50_ns <= slow.p99_ns, "{slow:?}");
        let bytes_per_s = effort
            .bandwidth(|| {
                std::thread::sleep(Duration::from_millis(1));
                Ok(1000)
            })
            .unwrap();
        assert!(bytes_per_s > 0.0 && bytes_per_s < 1e6, "{bytes_per_s}");
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![2.0, 1.0]), 1.0);
        let latency = |p50| Latency { mean_ns: p50, p50_ns: Some(p50), p99_ns: None };
        let middle = median_of(&[latency(5.0), latency(1.0), latency(2.0)]);
        assert_eq!(middle, latency(2.0));
    }

    #[test]
    fn failing_operation_ends_the_measurement() {
        let error = Effort::quick().latency(|| bail!("out of luck")).unwrap_err();
        assert!(error.to_string().contains("out of luck"));
    }
}
