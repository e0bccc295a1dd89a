//! What the disk takes to make a little durable: the floor of every change of the tables.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// Bytes of a write.
const LEN: usize = 4096;
/// Writes.
const COUNT: u64 = 200;

/// Nanoseconds that each of some writes took until it was durable, where the Monitor Node's file will be.
///
/// # Errors
/// When the disk does not take them.
pub(super) fn durable_writes() -> Result<Histogram<u64>> {
    let file = tempfile::tempfile().context("cannot make a file to measure the disk with")?;
    let mut histogram = super::load::histogram();
    for at in 0..COUNT {
        let started = Instant::now();
        file.write_all_at(&[at as u8; LEN], 0)
            .and_then(|()| file.sync_data())
            .context("the disk")?;
        histogram.saturating_record(super::load::nanoseconds(started.elapsed()));
    }
    Ok(histogram)
}
