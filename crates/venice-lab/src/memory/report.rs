//! Report types of `venice bench memory`; [`super::tables`] renders them as text.

use serde::{Deserialize, Serialize};

use super::application::{Application, Sizes};
use super::mode::{Budget, Mode};
use super::sample::{Sample, Timing};
use venice_measure::interrupt::Late;
use venice_measure::machine::Machine;

/// Text of a run that the kernel killed, the same as that of `venice run --mode swap`.
pub(super) const KILLED: &str = "the kernel killed the program (out of memory)";

/// The report that `venice bench memory --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Machine it was measured on.
    pub machine: Machine,
    /// Seconds since 1970 at its start.
    pub started_unix_s: u64,
    /// Load average of the minute before.
    pub load: f64,
    /// True for a `--quick` run.
    pub quick: bool,
    /// Replicas that Venice kept of far memory.
    pub copies: u32,
    /// Application sizes.
    pub sizes: Sizes,
    /// Time limit of one application in one mode, in seconds.
    pub limit_s: f64,
    /// Every application in every mode.
    pub cells: Vec<Cell>,
    /// Cases without a figure, each with its reason.
    pub unmeasured: Vec<Unmeasured>,
    /// Values and digests checked.
    pub checked: u64,
    /// Wrong ones among them.
    pub wrong: u64,
    /// True if an interrupt ended the run early.
    pub interrupted: bool,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
}

/// One case of an application in one mode with one local share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The application.
    pub application: Application,
    /// Its name with the case's parameters.
    pub case: String,
    /// Source of its memory.
    pub mode: Mode,
    /// Share of what it holds that could be local.
    pub local_share: f64,
    /// The same in bytes; for the run on local memory, all that it held.
    pub local_bytes: u64,
    /// Measured operations: requests, edges, bytes or points.
    pub operations: u64,
    /// Their duration in seconds.
    pub seconds: f64,
    /// Time for an operation, as a factor of the run on local memory.
    pub slowdown: f64,
    /// 99th percentile of the latency of single requests in microseconds, if there are any.
    pub p99_us: Option<f64>,
    /// True if a time limit ended it early.
    pub cut_short: bool,
    /// Duration of filling the memory before, in seconds.
    pub load_s: f64,
    /// Duration of the whole run that it belongs to, in seconds: start, fill, work, check.
    pub whole_s: f64,
    /// Resident anonymous memory while it was measured, in bytes.
    pub resident_bytes: u64,
    /// Values and digests of the whole run that were wrong.
    pub wrong: u64,
}

/// Reason for missing figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The machine lacks a requirement.
    Skipped,
    /// It did not end within the time limit.
    TooSlow,
    /// The kernel killed the program because the swap device did not keep up with the limit.
    Killed,
    /// It failed.
    Failed,
}

impl Fate {
    /// Classifies an error of a run.
    pub(super) fn of(error: &anyhow::Error) -> Self {
        if error.is::<Late>() {
            Fate::TooSlow
        } else if format!("{error:#}").contains(KILLED) {
            Fate::Killed
        } else {
            Fate::Failed
        }
    }
}

/// A mode, or an application in a mode, without figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unmeasured<M = Mode> {
    /// Application with its parameters; `None`: all.
    pub name: Option<String>,
    /// The mode.
    pub mode: M,
    /// Local share; `None`: any.
    pub local_share: Option<f64>,
    /// Kind of the failure.
    pub fate: Fate,
    /// Reason.
    pub reason: String,
}

/// Key of a run in one mode in the report.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) application: Application,
    pub(super) mode: Mode,
    pub(super) local_share: f64,
    pub(super) local_bytes: u64,
}

impl Place {
    pub(super) fn local(application: Application, held_bytes: u64) -> Self {
        Self { application, mode: Mode::Local, local_share: 1.0, local_bytes: held_bytes }
    }

    pub(super) fn of(application: Application, mode: Mode, share: f64, budget: Budget) -> Self {
        Self { application, mode, local_share: share, local_bytes: budget.local_bytes }
    }
}

impl Cell {
    pub(super) fn new(
        place: Place,
        timing: &Timing,
        local: &Timing,
        sample: &Sample,
        whole_s: f64,
    ) -> Self {
        let Place { application, mode, local_share, local_bytes } = place;
        Self {
            application,
            case: timing.case.clone(),
            mode,
            local_share,
            local_bytes,
            operations: timing.operations,
            seconds: timing.seconds,
            slowdown: timing.pace_s() / local.pace_s(),
            p99_us: timing.p99_us,
            cut_short: timing.cut_short,
            load_s: sample.load_s,
            whole_s,
            resident_bytes: sample.resident_bytes,
            wrong: sample.wrong,
        }
    }
}

impl MemoryReport {
    /// Returns the names of all cases, in the order they ran.
    pub(crate) fn cases(&self) -> Vec<&str> {
        let mut cases: Vec<&str> = Vec::new();
        for cell in &self.cells {
            if !cases.contains(&cell.case.as_str()) {
                cases.push(&cell.case);
            }
        }
        cases
    }

    /// Returns the measured modes, in the order of [`Mode::ALL`], without `local`.
    pub(crate) fn modes(&self) -> Vec<Mode> {
        let measured = |mode: &Mode| self.cells.iter().any(|cell| cell.mode == *mode);
        Mode::ALL.into_iter().skip(1).filter(measured).collect()
    }

    /// Returns the measured local shares, falling.
    pub(crate) fn shares(&self) -> Vec<f64> {
        let far = self.cells.iter().filter(|cell| cell.mode != Mode::Local);
        let mut shares: Vec<f64> = far.map(|cell| cell.local_share).collect();
        shares.sort_unstable_by(|one, other| other.total_cmp(one));
        shares.dedup();
        shares
    }

    /// Returns a case in a mode; the share does not count for `local`.
    pub(crate) fn cell(&self, case: &str, mode: Mode, share: f64) -> Option<&Cell> {
        self.cells.iter().find(|cell| {
            cell.case == case
                && cell.mode == mode
                && (mode == Mode::Local || cell.local_share == share)
        })
    }

    /// True if the limit ended a case in a mode.
    pub(crate) fn is_too_slow(&self, case: &str, mode: Mode, share: f64) -> bool {
        self.unmeasured.iter().any(|one| {
            one.fate == Fate::TooSlow
                && one.mode == mode
                && one.local_share == Some(share)
                && one.name.as_deref() == Some(case)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sizes() -> Sizes {
        Sizes {
            data_bytes: 1 << 20,
            graph_vertices: 1000,
            graph_edges: 6000,
            r_mat_scale: 8,
            file_bytes: 1 << 20,
            fft_bytes: 1 << 20,
            value_bytes: vec![4096],
            clients: vec![1],
            requests: 100,
            rounds: 1,
        }
    }

    fn cell(mode: Mode, local_share: f64, slowdown: f64) -> Cell {
        Cell {
            application: Application::Pagerank,
            case: "pagerank".into(),
            mode,
            local_share,
            local_bytes: 8 << 20,
            operations: 1000,
            seconds: slowdown,
            slowdown,
            p99_us: None,
            cut_short: false,
            load_s: 1.0,
            whole_s: 2.0 + slowdown,
            resident_bytes: 8 << 20,
            wrong: 0,
        }
    }

    pub(crate) fn sample() -> MemoryReport {
        MemoryReport {
            machine: Machine::describe(),
            started_unix_s: 0,
            load: 0.5,
            quick: true,
            copies: 1,
            sizes: sizes(),
            limit_s: 60.0,
            cells: vec![
                cell(Mode::Local, 1.0, 1.0),
                cell(Mode::VeniceShm, 0.5, 1.25),
                cell(Mode::VeniceShm, 0.25, 2.0),
                cell(Mode::VeniceWindow, 0.25, 1.1),
                cell(Mode::VeniceSwapShm, 0.25, 4.0),
                cell(Mode::SwapDisk, 0.25, 40.0),
            ],
            unmeasured: vec![
                Unmeasured {
                    name: None,
                    mode: Mode::Zram,
                    local_share: None,
                    fate: Fate::Skipped,
                    reason: "no zram here".into(),
                },
                Unmeasured {
                    name: Some("fft".into()),
                    mode: Mode::SwapDisk,
                    local_share: Some(0.25),
                    fate: Fate::TooSlow,
                    reason: "it did not end".into(),
                },
            ],
            checked: 30,
            wrong: 0,
            interrupted: false,
            seconds: 2.0,
        }
    }

    #[test]
    fn report_survives_json() {
        let report = sample();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cells"][2]["mode"], "venice-shm");
        assert_eq!(json["cells"][2]["slowdown"], 2.0);
        assert_eq!(json["unmeasured"][0]["fate"], "skipped");
        assert_eq!(serde_json::from_value::<MemoryReport>(json).unwrap(), report);
    }

    #[test]
    fn errors_are_classified() {
        let killed = anyhow::anyhow!("venice: {KILLED}: give it more").context("pagerank failed");
        assert_eq!(Fate::of(&killed), Fate::Killed);
        assert_eq!(Fate::of(&anyhow::anyhow!("no such file")), Fate::Failed);
        let limit = std::time::Duration::ZERO;
        let late =
            venice_measure::interrupt::wait_until("the end", limit, || Ok(None::<()>)).unwrap_err();
        assert_eq!(Fate::of(&late.context("fft")), Fate::TooSlow);
    }

    #[test]
    fn cells_are_found_by_key() {
        let report = sample();
        assert_eq!(report.cases(), ["pagerank"]);
        assert_eq!(report.shares(), [0.5, 0.25]);
        assert_eq!(report.modes().len(), 4);
        assert_eq!(report.cell("pagerank", Mode::VeniceShm, 0.5).unwrap().slowdown, 1.25);
        assert!(report.cell("pagerank", Mode::Local, 0.25).is_some());
        assert!(report.cell("pagerank", Mode::SwapDisk, 0.5).is_none());
    }
}
