//! Report of a run: counts, and the checkers' results.

use std::collections::BTreeMap;

use serde::Serialize;

use super::judge::{Counts, Verdict, Violation};
use super::network::MessageCounts;

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The scenario's seed.
    pub seed: u64,
    /// Number of donors.
    pub donors: u16,
    /// Number of recipients.
    pub recipients: u16,
    /// Number of Monitor Nodes.
    pub monitors: u16,
    /// A hash of all events: the same for the same seed and scenario.
    pub trace_hash: String,
    /// Duration, in virtual nanoseconds.
    pub virtual_ns: u64,
    /// Number of events.
    pub events: u64,
    /// Counts of messages.
    pub messages: MessageCounts,
    /// Counts of grants.
    pub grants: Counts,
    /// Faults of the scenario, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Result of each checker.
    pub verdicts: Vec<Verdict>,
    /// The first violations.
    pub violations: Vec<Violation>,
}

impl Report {
    /// True if there is no violation.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }
}
