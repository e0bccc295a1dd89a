//! Counts of a run.

use hdrhistogram::Histogram;
use venice_fabric::{AccessError, DownReason};

use crate::report::Accesses;
use crate::scenario::Kind;

/// Counts of one run.
#[derive(Debug)]
pub(super) struct Tally {
    kinds: [KindTally; Kind::ALL.len()],
    pub failed: u64,
    pub refused: u64,
    pub links_down: u64,
}

#[derive(Debug)]
struct KindTally {
    count: u64,
    bytes: u64,
    latency: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let kind = |_| KindTally {
            count: 0,
            bytes: 0,
            // Range up to an hour, with a precision of one part in a hundred.
            latency: Histogram::new_with_bounds(1, 3_600_000_000_000, 2)
                .expect("the bounds are valid"),
        };
        Self { kinds: Kind::ALL.map(kind), failed: 0, refused: 0, links_down: 0 }
    }
}

impl Tally {
    pub fn succeeded(&mut self, kind: Kind, len_bytes: u32, took_ns: u64) {
        let tally = &mut self.kinds[kind as usize];
        tally.count += 1;
        tally.bytes += u64::from(len_bytes);
        tally.latency.saturating_record(took_ns);
    }

    pub fn failed(&mut self, error: AccessError) {
        match error {
            AccessError::Refused(_) => self.refused += 1,
            _ => self.failed += 1,
        }
    }

    pub fn link_down(&mut self, _reason: DownReason) {
        self.links_down += 1;
    }

    pub fn accesses(&self) -> Vec<Accesses> {
        let of = |&kind: &Kind| {
            let KindTally { count, bytes, latency } = &self.kinds[kind as usize];
            Accesses {
                kind,
                succeeded: *count,
                bytes: *bytes,
                p50_ns: latency.value_at_quantile(0.5),
                p99_ns: latency.value_at_quantile(0.99),
                max_ns: latency.max(),
            }
        };
        Kind::ALL.iter().map(of).collect()
    }
}
