//! Venice's own channels, measured on each medium.
//!
//! A [`Bed`] is a pair of Venice ends with a medium between them. [`accesses`] measures the
//! one-sided channels of any bed.

mod app;
mod frames;
mod kinds;
mod lender;
mod lent;
mod messages;
mod patterns;
mod rings;
mod shm;
mod sockets;
mod talk;
mod udp;
mod virtual_time;
mod worker;

use anyhow::Result;

pub use kinds::{AppPattern, ChannelKind};
pub(super) use messages::{Setting, both_ways, messages};
pub use patterns::Adaptive;
pub(super) use patterns::{adaptive, operations_per_s};
pub(super) use rings::RingBed;
pub(super) use shm::{ShmBed, fresh_reads, one_way_writes};
pub(super) use sockets::{Place, socket_messages};
pub(super) use udp::{Protection, UdpBed};
pub(super) use virtual_time::{application_in_virtual_time, both_ways_in_virtual_time};

use super::measure::Effort;
use super::raw::Waiting;
use super::series::{Latency, Medium, Operation, Point, Series, System};

/// Bytes of the memory that is accessed: the largest access fits twice.
const MEMORY_BYTES: usize = 64 << 20;

/// Two ends of Venice: the near one accesses memory of the far one.
pub(super) trait Bed {
    /// Performs one access to its end.
    fn once(&mut self, operation: Operation, len: usize) -> Result<()>;

    /// Keeps as many accesses outstanding as the channel takes, and returns the bytes of those that
    /// completed.
    fn many(&mut self, operation: Operation, len: usize) -> Result<u64>;

    /// Waits for all outstanding accesses.
    fn settle(&mut self) -> Result<()>;
}

/// Subject of a measurement of accesses.
#[derive(Debug, Clone)]
pub(super) struct About {
    pub(super) medium: Medium,
    pub(super) variant: String,
    pub(super) operations: Vec<Operation>,
    /// True if the bandwidth is measured too: it does not depend on the way to wait.
    pub(super) bandwidth: bool,
}

/// Measures each operation by size. `done` is called after each point.
///
/// # Errors
/// When an access fails, and on an interrupt.
pub(super) fn accesses(
    effort: &Effort,
    bed: &mut impl Bed,
    about: &About,
    sizes: &[u64],
    mut done: impl FnMut(),
) -> Result<Vec<Series>> {
    let mut found = Vec::new();
    for &operation in &about.operations {
        let mut series = Series::new(System::Venice, about.medium, operation, &about.variant);
        for size_bytes in sizes_of(operation, sizes) {
            let len = size_bytes as usize;
            let latency = effort.latency(|| bed.once(operation, len))?;
            // A write's latency includes its acknowledgement: one way is half, as in other
            // benchmarks.
            let latency = if operation == Operation::Write { half(latency) } else { latency };
            let bandwidth_bytes_per_s = if about.bandwidth {
                let rate = effort.bandwidth(|| bed.many(operation, len))?;
                bed.settle()?;
                Some(rate)
            } else {
                None
            };
            series.points.push(Point { size_bytes, latency: Some(latency), bandwidth_bytes_per_s });
            done();
        }
        found.push(series);
    }
    Ok(found)
}

/// Returns the sizes that an operation is measured at.
pub(super) fn sizes_of(operation: Operation, sizes: &[u64]) -> Vec<u64> {
    match operation {
        Operation::Atomic => vec![8],
        operation => sizes.iter().copied().filter(|size| operation.carries(*size)).collect(),
    }
}

/// Halves a round trip.
fn half(latency: Latency) -> Latency {
    Latency {
        mean_ns: latency.mean_ns / 2.0,
        p50_ns: latency.p50_ns.map(|ns| ns / 2.0),
        p99_ns: latency.p99_ns.map(|ns| ns / 2.0),
    }
}

impl Waiting {
    /// Returns the variant of Venice's near end; the far end, an agent's thread, waits in its own
    /// way.
    pub(super) fn variant(self, protection: Protection) -> String {
        format!("{}, {}", protection.name(), self.name())
    }
}
