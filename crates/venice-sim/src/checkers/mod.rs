//! Independent checkers: each knows what was asked for and looks at what came of it, and none knows
//! how the fabric works inside.
//!
//! | checker | looks at | holds that |
//! |---|---|---|
//! | [`History`] | what the recipient asks for and gets | every byte read is one that was written and not yet overwritten |
//! | [`Executions`] | what the donor's memory is asked to do | every write is carried out once, whole, in order, and before it is answered |
//! | [`Counters`] | atomics asked for and their results | each is carried out once, and the results are those of one order |
//! | [`Conversations`] | both ends of QPairs | messages come once, whole and in order |
//! | [`Streams`] | both ends of QPairs | bytes come once and in order, and the end after all of them |
//! | credit | how full both ends of QPairs are | no reader is sent more than it has room for, and no credit is lost or made up |
//! | [`WireWatch`] | the frames as they are sent | credits are kept, positions and acknowledgements make sense, replays repeat |
//! | progress | the clock | every access completes within a bound once the faults are over |
//! | agreement | both ends' own mapping tables, and what is lent, when all is quiet | they name the same windows and grants |

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

/// Which checker.
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
    /// QPairs keep to their credit.
    Credit,
    /// [`WireWatch`].
    Wire,
    /// Everything completes in time.
    Progress,
    /// Both ends agree when quiet.
    Agreement,
    /// No link goes down, no access fails, without a reason.
    Blame,
}

/// Something that must not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Who noticed.
    pub checker: Checker,
    /// When, in virtual nanoseconds.
    pub at_ns: u64,
    /// What.
    pub what: String,
}

/// How many checks each checker made, and what it found.
#[derive(Debug, Default)]
pub struct Findings {
    checks: [u64; Checker::ALL.len()],
    violations: Vec<Violation>,
    deaf: Vec<Checker>,
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

/// Violations kept; a broken run has a great many.
const MAX_VIOLATIONS: usize = 16;

impl Checker {
    /// All of them.
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

    /// What it is called.
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
    /// These checkers are not listened to.
    pub fn deafen(&mut self, checkers: &[Checker]) {
        self.deaf.extend_from_slice(checkers);
    }

    /// Takes note of one check and, if it failed, of why.
    pub fn check(&mut self, checker: Checker, at_ns: u64, result: Result<(), String>) {
        self.checks[checker as usize] += 1;
        if let Err(what) = result
            && self.violations.len() < MAX_VIOLATIONS
            && !self.deaf.contains(&checker)
        {
            self.violations.push(Violation { checker, at_ns, what });
        }
    }

    /// Whether anything was found.
    pub fn any(&self) -> bool {
        !self.violations.is_empty()
    }

    /// What was found, the first ones.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// What each checker has to say.
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
