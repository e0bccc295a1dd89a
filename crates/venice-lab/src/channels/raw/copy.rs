//! memcpy.

use anyhow::Result;

use crate::channels::buffer::PageAligned;
use crate::channels::measure::Effort;
use crate::channels::series::{Medium, Operation, Point, Series, System};

/// Measures copies of each size between two buffers of private memory, the same bytes again and
/// again: they stay cached, as in all other measurements.
pub(in crate::channels) fn copies(effort: &Effort, sizes: &[u64]) -> Result<Series> {
    let largest = sizes.iter().copied().max().unwrap_or(0) as usize;
    let from = PageAligned::new(largest, 0x5a);
    let mut to = PageAligned::new(largest, 0);
    let mut series = Series::new(System::Raw, Medium::Shm, Operation::Copy, "memcpy");
    for &size_bytes in sizes {
        let len = size_bytes as usize;
        let mut copy = || {
            // The compiler must not see the length, as it does not in a channel.
            let len = std::hint::black_box(len);
            to[..len].copy_from_slice(&from[..len]);
            std::hint::black_box(&mut to);
            Ok(())
        };
        let latency = effort.latency(&mut copy)?;
        let bandwidth = effort.bandwidth(|| copy().map(|()| size_bytes))?;
        series.points.push(Point {
            size_bytes,
            latency: Some(latency),
            bandwidth_bytes_per_s: Some(bandwidth),
        });
    }
    Ok(series)
}
