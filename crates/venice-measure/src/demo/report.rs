//! Report types of `venice demo`, with their text form.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use venice_wire::ByteSize;

use super::dataset::Dataset;
use super::mode::{Budget, Mode};
use super::workload::{Checked, Measured};
use crate::machine::Machine;
use crate::report::{grouped, micros, table};

/// The report that `venice demo --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DemoReport {
    /// Bytes of all values together.
    pub dataset_bytes: u64,
    /// Local memory of the modes that borrow or swap, in bytes.
    pub local_bytes: u64,
    /// Remote memory requested by the modes that borrow, in bytes.
    pub remote_bytes: u64,
    /// Values checked in all modes.
    pub values_checked: u64,
    /// Values that differ from the stored ones.
    pub values_wrong: u64,
    /// The modes that ran.
    pub modes: Vec<ModeReport>,
    /// The modes that this machine cannot run.
    pub skipped: Vec<UnmeasuredMode>,
    /// The modes that failed.
    pub failed: Vec<UnmeasuredMode>,
    /// Duration of the whole demo in seconds.
    pub seconds: f64,
    /// Machine it was measured on.
    pub machine: Machine,
}

/// Figures of one mode. Those without a prefix are of uniform requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModeReport {
    /// The mode.
    pub mode: Mode,
    /// Uniform requests a second, one at a time.
    pub ops_per_s: f64,
    /// Median latency of uniform requests in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency of uniform requests in microseconds.
    pub p99_us: f64,
    /// Zipf 0.99 requests a second, one at a time.
    pub zipf_ops_per_s: f64,
    /// Median latency of Zipf requests in microseconds.
    pub zipf_p50_us: f64,
    /// 99th percentile of the latency of Zipf requests in microseconds.
    pub zipf_p99_us: f64,
    /// Peak of redis's resident anonymous memory in bytes, sampled.
    pub resident_bytes_peak: u64,
    /// Duration of the pipelined load in seconds.
    pub load_s: f64,
    /// Measured uniform requests.
    pub requests: u64,
    /// Measured Zipf requests.
    pub zipf_requests: u64,
    /// True if a time limit ended the requests early.
    pub cut_short: bool,
    /// Values checked.
    pub values_checked: u64,
    /// Values that were wrong.
    pub values_wrong: u64,
}

/// A mode without figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmeasuredMode {
    /// The mode.
    pub mode: Mode,
    /// Missing requirement, or error.
    pub reason: String,
}

impl ModeReport {
    /// Collects the figures of one mode.
    pub fn new(
        mode: Mode,
        load_s: f64,
        checked: Checked,
        resident_bytes_peak: u64,
        uniform: &Measured,
        zipf: &Measured,
    ) -> Self {
        Self {
            mode,
            ops_per_s: uniform.ops_per_s,
            p50_us: uniform.p50_us,
            p99_us: uniform.p99_us,
            zipf_ops_per_s: zipf.ops_per_s,
            zipf_p50_us: zipf.p50_us,
            zipf_p99_us: zipf.p99_us,
            resident_bytes_peak,
            load_s,
            requests: uniform.requests,
            zipf_requests: zipf.requests,
            cut_short: uniform.cut_short || zipf.cut_short,
            values_checked: checked.values,
            values_wrong: checked.wrong,
        }
    }
}

/// Outcome of a mode.
#[derive(Debug, Clone)]
pub enum Outcome {
    Measured { report: ModeReport, held_bytes: u64 },
    Skipped { reason: String },
    Failed { reason: String },
}

impl Outcome {
    /// Returns the resident bytes after loading; 0 for a mode that did not run.
    pub fn held_bytes(&self) -> u64 {
        match self {
            Self::Measured { held_bytes, .. } => *held_bytes,
            Self::Skipped { .. } | Self::Failed { .. } => 0,
        }
    }
}

pub fn summarize(
    dataset: &Dataset,
    budget: Budget,
    outcomes: Vec<(Mode, Outcome)>,
    elapsed: Duration,
) -> DemoReport {
    let mut modes = Vec::new();
    let mut skipped = Vec::new();
    let mut failed = Vec::new();
    for (mode, outcome) in outcomes {
        match outcome {
            Outcome::Measured { report, .. } => modes.push(report),
            Outcome::Skipped { reason } => skipped.push(UnmeasuredMode { mode, reason }),
            Outcome::Failed { reason } => failed.push(UnmeasuredMode { mode, reason }),
        }
    }
    DemoReport {
        dataset_bytes: dataset.bytes(),
        local_bytes: budget.local_bytes,
        remote_bytes: budget.remote_bytes,
        values_checked: modes.iter().map(|mode| mode.values_checked).sum(),
        values_wrong: modes.iter().map(|mode| mode.values_wrong).sum(),
        modes,
        skipped,
        failed,
        seconds: elapsed.as_secs_f64(),
        machine: Machine::describe(),
    }
}

impl DemoReport {
    /// Renders the table and the lines under it.
    pub fn text(&self) -> String {
        let mut rows = table(
            &[
                "mode",
                "ops/s",
                "of local",
                "p50 µs",
                "p99 µs",
                "Zipf ops/s",
                "of local",
                "p50 µs",
                "p99 µs",
                "peak resident",
                "load s",
                "wrong",
            ],
            1,
        );
        let local = self.modes.iter().find(|mode| mode.mode == Mode::Local);
        for mode in &self.modes {
            rows.add_row([
                mode.mode.name().to_owned(),
                grouped(mode.ops_per_s),
                share(mode.ops_per_s, local.map(|local| local.ops_per_s)),
                micros(mode.p50_us),
                micros(mode.p99_us),
                grouped(mode.zipf_ops_per_s),
                share(mode.zipf_ops_per_s, local.map(|local| local.zipf_ops_per_s)),
                micros(mode.zipf_p50_us),
                micros(mode.zipf_p99_us),
                ByteSize(mode.resident_bytes_peak).to_string(),
                format!("{:.1}", mode.load_s),
                mode.values_wrong.to_string(),
            ]);
        }
        let mut text = rows.to_string();
        for mode in self.modes.iter().filter(|mode| mode.cut_short) {
            text += &format!(
                "\n{}: cut short after {} uniform and {} Zipf requests",
                mode.mode, mode.requests, mode.zipf_requests
            );
        }
        for skipped in &self.skipped {
            text += &format!("\n{}: SKIPPED, {}", skipped.mode, skipped.reason);
        }
        for failed in &self.failed {
            text += &format!("\n{}: FAILED, {}", failed.mode, failed.reason);
        }
        text + &self.closing_lines()
    }

    fn closing_lines(&self) -> String {
        format!(
            "\n{} of values of 1 KiB; {} local, {} remote asked for; one request at a time.\n\
             {} values checked, {} wrong; {:.0} s in all.",
            ByteSize(self.dataset_bytes),
            ByteSize(self.local_bytes),
            ByteSize(self.remote_bytes),
            grouped(self.values_checked as f64),
            self.values_wrong,
            self.seconds,
        )
    }
}

fn share(value: f64, of: Option<f64>) -> String {
    of.map_or_else(|| "-".to_owned(), |of| format!("{:.0} %", 100.0 * value / of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(mode: Mode, wrong: u64) -> Outcome {
        let measured = Measured {
            requests: 10,
            ops_per_s: 50_000.0,
            p50_us: 12.5,
            p99_us: 30.0,
            checked: Checked { values: 12, wrong: 0 },
            cut_short: false,
        };
        let checked = Checked { values: 100, wrong };
        let report = ModeReport::new(mode, 1.5, checked, 4096, &measured, &measured);
        Outcome::Measured { report, held_bytes: 1 << 20 }
    }

    fn sample() -> DemoReport {
        let outcomes = vec![
            (Mode::Local, mode(Mode::Local, 0)),
            (Mode::VeniceShm, mode(Mode::VeniceShm, 2)),
            (Mode::VeniceUdp, Outcome::Failed { reason: "no wire".into() }),
            (Mode::SwapDisk, Outcome::Skipped { reason: "no root".into() }),
        ];
        let budget = Budget { local_bytes: 1 << 20, remote_bytes: 2 << 20 };
        summarize(&Dataset { count: 100 }, budget, outcomes, Duration::from_secs(3))
    }

    #[test]
    fn json_has_documented_names() {
        let json = serde_json::to_value(sample()).unwrap();
        for name in
            ["dataset_bytes", "local_bytes", "remote_bytes", "values_checked", "values_wrong"]
        {
            assert!(json[name].is_u64(), "{name}");
        }
        assert_eq!(json["values_checked"], 200);
        assert_eq!(json["values_wrong"], 2);
        assert_eq!(json["seconds"], 3.0);
        let modes = json["modes"].as_array().unwrap();
        assert_eq!(modes.len(), 2);
        assert_eq!(modes[1]["mode"], "venice-shm");
        for name in ["ops_per_s", "p50_us", "p99_us", "zipf_ops_per_s", "load_s"] {
            assert!(modes[1][name].is_f64(), "{name}");
        }
        assert_eq!(modes[1]["resident_bytes_peak"], 4096);
        assert_eq!(json["skipped"][0]["mode"], "swap-disk");
        assert_eq!(json["skipped"][0]["reason"], "no root");
        assert_eq!(json["failed"][0]["reason"], "no wire");
    }

    #[test]
    fn table_names_every_mode() {
        let text = sample().text();
        for wanted in ["local", "venice-shm", "swap-disk: SKIPPED, no root", "100 %", "2 wrong"] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
    }
}
