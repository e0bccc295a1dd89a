//! Checks of each checker, and its violations.

use serde::Serialize;

/// A checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checker {
    /// No resource has two owners.
    Owners,
    /// Answers agree with the donors.
    Truth,
    /// Answers agree with the store.
    Record,
    /// A request is granted once.
    Single,
    /// One owner of a grant is answered.
    Transfers,
    /// No grant in use ends without announcement.
    Kept,
    /// A number is given once.
    Numbers,
    /// No request goes to a drained or dead node.
    TurnedAway,
    /// No order to an earlier process is executed.
    Lives,
    /// The queue keeps its order.
    Line,
    /// Every request is served.
    Served,
    /// All tables agree in quiescence.
    Agreement,
    /// No assertion fails.
    Soundness,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The checker.
    pub checker: Checker,
    /// Virtual time since the start, in nanoseconds.
    pub at_ns: u64,
    /// Description.
    pub what: String,
}

/// Result of one checker in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The checker.
    pub checker: Checker,
    /// Checks made.
    pub checks: u64,
    /// Violations among them.
    pub violations: u64,
}

#[derive(Debug, Default)]
pub(in crate::control) struct Findings {
    checks: [u64; Checker::ALL.len()],
    violations: Vec<Violation>,
}

/// Limit of the violations kept.
const MAX_VIOLATIONS: usize = 16;

impl Checker {
    /// All checkers.
    pub const ALL: [Self; 13] = [
        Self::Owners,
        Self::Truth,
        Self::Record,
        Self::Single,
        Self::Transfers,
        Self::Kept,
        Self::Numbers,
        Self::TurnedAway,
        Self::Lives,
        Self::Line,
        Self::Served,
        Self::Agreement,
        Self::Soundness,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Owners => "owners",
            Self::Truth => "truth",
            Self::Record => "record",
            Self::Single => "single",
            Self::Transfers => "transfers",
            Self::Kept => "kept",
            Self::Numbers => "numbers",
            Self::TurnedAway => "turned-away",
            Self::Lives => "lives",
            Self::Line => "line",
            Self::Served => "served",
            Self::Agreement => "agreement",
            Self::Soundness => "soundness",
        }
    }
}

impl Findings {
    /// Counts a check and records its violation.
    pub(in crate::control) fn check(
        &mut self,
        checker: Checker,
        at_ns: u64,
        is_so: bool,
        why_not: impl FnOnce() -> String,
    ) {
        self.checks[checker as usize] += 1;
        if !is_so && self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(Violation { checker, at_ns, what: why_not() });
        }
    }

    pub(in crate::control) fn any(&self) -> bool {
        !self.violations.is_empty()
    }

    pub(in crate::control) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    pub(in crate::control) fn verdicts(&self) -> Vec<Verdict> {
        let violations = |checker| {
            self.violations.iter().filter(|found| found.checker == checker).count() as u64
        };
        let verdict = |&checker: &Checker| Verdict {
            checker,
            checks: self.checks[checker as usize],
            violations: violations(checker),
        };
        Checker::ALL.iter().map(verdict).collect()
    }
}
