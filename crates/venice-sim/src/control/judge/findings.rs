//! How many checks each checker made, and what it found.

use serde::Serialize;

/// Which checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checker {
    /// Nothing has two owners.
    Owners,
    /// What is told is so.
    Truth,
    /// What is told is recorded.
    Record,
    /// A request is granted once.
    Single,
    /// Nothing ends that somebody goes by.
    Kept,
    /// A number is given once.
    Numbers,
    /// Nothing is asked of who is drained or dead.
    TurnedAway,
    /// Nothing is done that an earlier process was asked.
    Lives,
    /// The line keeps its order.
    Line,
    /// Everybody is served.
    Served,
    /// All agree when it is quiet.
    Agreement,
    /// No assertion fails.
    Soundness,
}

/// Something that must not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Who noticed.
    pub checker: Checker,
    /// When, in virtual nanoseconds since the start.
    pub at_ns: u64,
    /// What.
    pub what: String,
}

/// What one checker has to say of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Who.
    pub checker: Checker,
    /// Checks made.
    pub checks: u64,
    /// Of them not as they should be.
    pub violations: u64,
}

#[derive(Debug, Default)]
pub(in crate::control) struct Findings {
    checks: [u64; Checker::ALL.len()],
    violations: Vec<Violation>,
}

/// Violations kept.
const MAX_VIOLATIONS: usize = 16;

impl Checker {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Owners,
        Self::Truth,
        Self::Record,
        Self::Single,
        Self::Kept,
        Self::Numbers,
        Self::TurnedAway,
        Self::Lives,
        Self::Line,
        Self::Served,
        Self::Agreement,
        Self::Soundness,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Owners => "owners",
            Self::Truth => "truth",
            Self::Record => "record",
            Self::Single => "single",
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
    /// Takes note of one check and, if it failed, of why.
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
