//! What happened in a run: numbers, and what the checkers say.

use std::collections::BTreeMap;

use serde::Serialize;

use super::judge::{Counts, Verdict, Violation};
use super::network::MessageCounts;

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The scenario's seed.
    pub seed: u64,
    /// Nodes that lend.
    pub donors: u16,
    /// Nodes whose programs borrow.
    pub recipients: u16,
    /// Monitor Nodes.
    pub monitors: u16,
    /// A hash of all that happened: the same seed and scenario always give the same.
    pub trace_hash: String,
    /// How long it took, in virtual nanoseconds.
    pub virtual_ns: u64,
    /// Events it was made of.
    pub events: u64,
    /// What became of messages.
    pub messages: MessageCounts,
    /// What was granted, and what became of it.
    pub grants: Counts,
    /// Faults of the scenario, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What each checker says.
    pub verdicts: Vec<Verdict>,
    /// What must not have happened, the first ones.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Whether nothing happened that must not.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }
}
