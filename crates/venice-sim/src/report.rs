//! What happened in a run: numbers, and what the checkers say.

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
    /// A hash of all that happened: the same seed and scenario always give the same.
    pub trace_hash: String,
    /// How long it took, in virtual nanoseconds.
    pub virtual_ns: u64,
    /// Events it was made of.
    pub events: u64,
    /// Accesses that succeeded, by kind.
    pub accesses: Vec<Accesses>,
    /// Accesses that failed because their link went down.
    pub failed: u64,
    /// Accesses that a donor refused.
    pub refused: u64,
    /// Times a recipient called a donor down.
    pub links_down: u64,
    /// What the links did to frames.
    pub frames: LinkCounts,
    /// What the ends of the links counted.
    pub links: LinkTotals,
    /// Faults of the scenario, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What each checker says.
    pub verdicts: Vec<Verdict>,
    /// What must not have happened, the first ones.
    pub violations: Vec<Violation>,
}

/// What became of the accesses of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accesses {
    /// Which kind.
    pub kind: Kind,
    /// How many succeeded.
    pub succeeded: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Half of them took no longer, in virtual nanoseconds.
    pub p50_ns: u64,
    /// All but one in a hundred took no longer.
    pub p99_ns: u64,
    /// None took longer.
    pub max_ns: u64,
}

/// Sums over both ends of all links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkTotals {
    /// Sequenced frames sent for the first time.
    pub sent: u64,
    /// Sequenced frames sent again.
    pub replayed: u64,
    /// Sequenced frames that came a second time.
    pub duplicates: u64,
    /// Sequenced frames that came before their turn.
    pub early: u64,
    /// Replays asked for.
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
    /// Whether nothing happened that must not.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }

    /// Accesses that succeeded.
    pub fn succeeded(&self) -> u64 {
        self.accesses.iter().map(|accesses| accesses.succeeded).sum()
    }
}
