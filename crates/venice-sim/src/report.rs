//! Report of a run: counts, and the checkers' results.

use std::collections::BTreeMap;
use std::iter::Sum;

use serde::Serialize;

use crate::checkers::{Verdict, Violation};
use crate::network::LinkCounts;
use crate::scenario::Kind;

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The scenario's seed.
    pub seed: u64,
    /// Nodes of the rack.
    pub nodes: u16,
    /// A hash of all events: the same for the same seed and scenario.
    pub trace_hash: String,
    /// Duration, in virtual nanoseconds.
    pub virtual_ns: u64,
    /// Number of events.
    pub events: u64,
    /// Accesses that succeeded, by kind.
    pub accesses: Vec<Accesses>,
    /// Accesses that failed because their link went down.
    pub failed: u64,
    /// Accesses that a donor refused.
    pub refused: u64,
    /// Number of times a recipient found a donor down.
    pub links_down: u64,
    /// Counts of frames on the links.
    pub frames: LinkCounts,
    /// Counts of the links' ends.
    pub links: LinkTotals,
    /// Faults of the scenario, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Result of each checker.
    pub verdicts: Vec<Verdict>,
    /// The first violations.
    pub violations: Vec<Violation>,
}

/// Accesses of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accesses {
    /// The kind.
    pub kind: Kind,
    /// Number of successes.
    pub succeeded: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Median latency, in virtual nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile, in virtual nanoseconds.
    pub p99_ns: u64,
    /// Maximum, in virtual nanoseconds.
    pub max_ns: u64,
}

/// Sums over both ends of all links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkTotals {
    /// Sequenced frames sent for the first time.
    pub sent: u64,
    /// Sequenced frames replayed.
    pub replayed: u64,
    /// Sequenced frames received twice.
    pub duplicates: u64,
    /// Sequenced frames received out of order.
    pub early: u64,
    /// Replays requested.
    pub naks: u64,
    /// Keep-alives sent.
    pub pings: u64,
}

impl Sum for LinkTotals {
    fn sum<I: Iterator<Item = Self>>(totals: I) -> Self {
        totals.fold(Self::default(), |sum, one| Self {
            sent: sum.sent + one.sent,
            replayed: sum.replayed + one.replayed,
            duplicates: sum.duplicates + one.duplicates,
            early: sum.early + one.early,
            naks: sum.naks + one.naks,
            pings: sum.pings + one.pings,
        })
    }
}

impl Report {
    /// True if there is no violation.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }

    /// Returns the number of accesses that succeeded.
    pub fn succeeded(&self) -> u64 {
        self.accesses.iter().map(|accesses| accesses.succeeded).sum()
    }
}
