//! Cost of reading the clock, to be subtracted from measurements.

use std::time::Instant;

use hdrhistogram::Histogram;

const SAMPLES: usize = 20_000;

/// Measures the median distance of two consecutive clock reads, in nanoseconds.
pub(crate) fn cost_ns() -> u64 {
    let mut histogram =
        Histogram::<u64>::new_with_max(1_000_000_000, 3).expect("the bounds are supported");
    for _ in 0..SAMPLES {
        let before = Instant::now();
        let after = Instant::now();
        histogram.saturating_record((after - before).as_nanos() as u64);
    }
    histogram.value_at_quantile(0.5)
}
