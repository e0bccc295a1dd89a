//! Histograms with logarithmic buckets, which processes share or copy.

/// Buckets of a histogram: 16 for each power of two.
pub(super) const BUCKETS: usize = 16 * 40;

/// Returns the bucket of a value. All values up to 16 share the first.
pub(super) fn bucket_of(value: u64) -> usize {
    let value = value.max(16);
    let power = 63 - value.leading_zeros() as usize;
    let sixteenth = (value >> (power - 4)) as usize & 15;
    ((power - 4) * 16 + sixteenth).min(BUCKETS - 1)
}

/// Returns the least value of a bucket.
pub(super) fn bucket_floor(bucket: usize) -> u64 {
    let (power, sixteenth) = (bucket / 16 + 4, bucket % 16);
    (16 + sixteenth as u64) << (power - 4)
}

/// Returns the value below which the share `quantile` of `counts` lies; `None` if all are 0.
pub(super) fn value_at(counts: &[u64], quantile: f64) -> Option<u64> {
    let total: u64 = counts.iter().sum();
    let wanted = (total as f64 * quantile).ceil().max(1.0) as u64;
    let mut seen = 0;
    let is_reached = |count: &u64| {
        seen += count;
        seen >= wanted
    };
    counts.iter().position(is_reached).map(bucket_floor)
}
