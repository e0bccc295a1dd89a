//! The disk's time for a small durable write: the lower bound of every change of the tables.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// Bytes of a write.
const LEN: usize = 4096;
/// Number of writes.
const COUNT: u64 = 200;

/// Measures small writes until they are durable, in nanoseconds, in the folder of the Monitor
/// Node's file.
///
/// # Errors
/// When the disk fails.
pub(super) fn durable_writes() -> Result<Histogram<u64>> {
    let file = tempfile::tempfile().context("cannot make a file to measure the disk with")?;
    let mut histogram = super::load::histogram();
    for at in 0..COUNT {
        let started = Instant::now();
        file.write_all_at(&[at as u8; LEN], 0)
            .and_then(|()| file.sync_data())
            .context("cannot write to the disk")?;
        histogram.saturating_record(super::load::nanoseconds(started.elapsed()));
    }
    Ok(histogram)
}
