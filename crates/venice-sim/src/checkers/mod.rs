//! Independent checkers: each has the requests and the results, and none depends on the fabric's
//! code.
//!
//! | checker | input | promise |
//! |---|---|---|
//! | [`History`] | the recipient's requests and results | every byte read was written and not yet overwritten |
//! | [`Executions`] | stores into the donor's memory | every write is executed once, whole, in order, and before it is answered |
//! | [`Counters`] | requests and results of atomics | each is executed once, and the results are those of one order |
//! | [`Conversations`] | both ends of QPairs | messages come once, whole and in order |
//! | [`Streams`] | both ends of QPairs | bytes come once and in order, and the end after all of them |
//! | credit | fill levels of both ends of QPairs | no reader is sent more than it has room for, and no credit is lost or invented |
//! | [`WireWatch`] | the frames as they are sent | credits are kept, positions and acknowledgements are valid, replays repeat |
//! | progress | the clock | every access completes within a bound after the last fault |
//! | agreement | both ends' mapping tables, and the grants, in quiescence | they have the same windows and grants |

mod conversations;
mod counters;
mod executions;
mod history;
mod oracle;
mod streams;
mod wire_watch;

use serde::Serialize;

pub use self::conversations::{ConversationId, Conversations, Direction, message};
pub use self::counters::{AtomicId, Change, Counters};
pub use self::executions::Executions;
pub use self::history::{History, ReadId, WriteId, written};
pub use self::oracle::{Oracle, Region, RegionId, Writing};
pub use self::streams::{StreamId, Streams};
pub use self::wire_watch::WireWatch;

/// A checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checker {
    /// [`History`].
    History,
    /// [`Executions`].
    Executions,
    /// [`Counters`].
    Counters,
    /// [`Conversations`].
    Conversations,
    /// [`Streams`].
    Streams,
    /// QPairs respect their credit.
    Credit,
    /// [`WireWatch`].
    Wire,
    /// Everything completes in time.
    Progress,
    /// Both ends agree in quiescence.
    Agreement,
    /// Links go down, and accesses fail, only with a reason.
    Blame,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The checker.
    pub checker: Checker,
    /// Virtual time, in nanoseconds.
    pub at_ns: u64,
    /// Description.
    pub what: String,
}

/// Checks of each checker, and the violations.
#[derive(Debug, Default)]
pub struct Findings {
    checks: [u64; Checker::ALL.len()],
    violations: Vec<Violation>,
    ignored: Vec<Checker>,
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

/// Limit of the violations kept; a broken run has many.
const MAX_VIOLATIONS: usize = 16;

impl Checker {
    /// All checkers.
    pub const ALL: [Self; 10] = [
        Self::History,
        Self::Executions,
        Self::Counters,
        Self::Conversations,
        Self::Streams,
        Self::Credit,
        Self::Wire,
        Self::Progress,
        Self::Agreement,
        Self::Blame,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Executions => "executions",
            Self::Counters => "counters",
            Self::Conversations => "conversations",
            Self::Streams => "streams",
            Self::Credit => "credit",
            Self::Wire => "wire",
            Self::Progress => "progress",
            Self::Agreement => "agreement",
            Self::Blame => "blame",
        }
    }
}

impl Findings {
    /// Ignores these checkers.
    pub fn ignore(&mut self, checkers: &[Checker]) {
        self.ignored.extend_from_slice(checkers);
    }

    /// Counts a check and records its violation.
    pub fn check(&mut self, checker: Checker, at_ns: u64, result: Result<(), String>) {
        self.checks[checker as usize] += 1;
        if let Err(what) = result
            && self.violations.len() < MAX_VIOLATIONS
            && !self.ignored.contains(&checker)
        {
            self.violations.push(Violation { checker, at_ns, what });
        }
    }

    /// True if there is a violation.
    pub fn any(&self) -> bool {
        !self.violations.is_empty()
    }

    /// Returns the first violations.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Returns the result of each checker.
    pub fn verdicts(&self) -> Vec<Verdict> {
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
