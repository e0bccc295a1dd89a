//! Outcome of a run.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::path::PathBuf;

use venice_sim::checkers::{Verdict, Violation};
use venice_sim::scenario::Scenario;

use super::Run;
use crate::racks::judge::Judgement;
use crate::racks::plan::Port;

/// Outcome of a run; its text includes the command to repeat it.
#[derive(Debug)]
pub struct Outcome {
    /// The scenario.
    pub scenario: Scenario,
    /// The port.
    pub port: Port,
    /// Accesses that succeeded and messages that arrived, by kind.
    pub succeeded: BTreeMap<&'static str, u64>,
    /// Accesses that failed.
    pub failed: u64,
    /// Links that went down or could not be made.
    pub downs: u64,
    /// Results of the checkers.
    pub verdicts: Vec<Verdict>,
    /// The first violations.
    pub violations: Vec<Violation>,
    /// Duration, in nanoseconds.
    pub took_ns: u64,
    /// Folder of the notes of all processes, after a violation.
    pub notes: Option<PathBuf>,
}

impl Outcome {
    pub(super) fn new(run: &Run<'_>, judgement: Judgement, took_ns: u64) -> Self {
        let Judgement { oracle, succeeded, failed, downs } = judgement;
        Self {
            scenario: run.scenario.clone(),
            port: run.port,
            succeeded,
            failed,
            downs,
            verdicts: oracle.findings.verdicts(),
            violations: oracle.findings.violations().to_vec(),
            took_ns,
            notes: None,
        }
    }

    /// True if there is no violation.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }

    /// Returns the number of accesses and messages that succeeded.
    pub fn total(&self) -> u64 {
        self.succeeded.values().sum()
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (seed, port) = (self.scenario.seed, self.port.name());
        let wired = match &*self.scenario.topology {
            "all-to-all" => String::new(),
            topology => format!(" --topology {topology}"),
        };
        let faults: Vec<_> = self.scenario.faults.iter().map(|fault| fault.name()).collect();
        write!(
            f,
            "{port}{wired}, seed {seed}: {} nodes, {} accesses, {} failed, {} times down, faults [{}], \
             {:.1} s",
            self.scenario.nodes,
            self.total(),
            self.failed,
            self.downs,
            faults.join(", "),
            self.took_ns as f64 / 1e9
        )?;
        for violation in &self.violations {
            write!(f, "\n  {}: {}", violation.checker.name(), violation.what)?;
        }
        if let Some(notes) = &self.notes {
            write!(
                f,
                "\n  notes and scenario: {}\n  again: cargo run -p venice-rack-test -- run --port \
                 {port}{wired} --seed {seed}",
                notes.display()
            )?;
        }
        Ok(())
    }
}
