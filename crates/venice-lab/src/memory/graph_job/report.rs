//! Report types of The figure in JSON; [`super::tables`] renders them as text.

use serde::{Deserialize, Serialize};

use super::super::mode::Mode;
use super::super::report::Unmeasured;
use venice_measure::machine::Machine;

/// Peak to average of a node's memory, and of the memory of all nodes together, in the paper.
pub(super) const PAPER_PEAKS: (f64, f64) = (2.78, 1.68);
/// Slowdown of the paper's job with a third of the memory, by swap target.
pub(super) const PAPER_SLOWDOWNS: [(Mode, f64); 2] =
    [(Mode::SwapDisk, 13.8), (Mode::RamDisk, 6.14)];

/// The report that `venice paper rack-11 --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// Machine it was measured on.
    pub machine: Machine,
    /// Seconds since 1970 at its start.
    pub started_unix_s: u64,
    /// Load average of the minute before.
    pub load: f64,
    /// True for a `--quick` run.
    pub quick: bool,
    /// Vertices of the graph.
    pub vertices: u32,
    /// Edges of the graph.
    pub edges: u64,
    /// Bytes of each partition, sample by sample, in the run on local memory.
    pub heat: Vec<Vec<u64>>,
    /// The greatest sum of a sample, in bytes.
    pub peak_bytes: u64,
    /// Bytes of that peak that stayed local in the other runs.
    pub local_bytes: u64,
    /// The run on local memory, then the others.
    pub cells: Vec<JobCell>,
    /// Cases without a figure, each with its reason.
    pub unmeasured: Vec<Unmeasured>,
    /// True if an interrupt ended the run early.
    pub interrupted: bool,
    /// Digests checked.
    pub checked: u64,
    /// Wrong ones among them.
    pub wrong: u64,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
}

/// The job in one mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobCell {
    /// Source of its memory.
    pub mode: Mode,
    /// Messages between partitions.
    pub messages: u64,
    /// Duration of the supersteps in seconds.
    pub seconds: f64,
    /// The same as a factor of the run on local memory.
    pub slowdown: f64,
    /// Resident anonymous memory at the end, in bytes.
    pub resident_bytes: u64,
    /// Digests that were wrong.
    pub wrong: u64,
}

/// Returns peak to average of the samples: of one partition's memory, and of all partitions'
/// together.
#[must_use]
pub(super) fn peaks(heat: &[Vec<u64>]) -> (f64, f64) {
    let sums: Vec<u64> = heat.iter().map(|sample| sample.iter().sum()).collect();
    let cells = heat.iter().map(Vec::len).sum::<usize>().max(1) as f64;
    let all = sums.iter().sum::<u64>().max(1) as f64;
    let most = |values: &mut dyn Iterator<Item = u64>| values.max().unwrap_or(0) as f64;
    let of_one = most(&mut heat.iter().flatten().copied()) / (all / cells);
    let of_all = most(&mut sums.iter().copied()) / (all / sums.len().max(1) as f64);
    (of_one, of_all)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn sample() -> JobReport {
        let cell = |mode, slowdown: f64| JobCell {
            mode,
            messages: 1000,
            seconds: slowdown / 10.0,
            slowdown,
            resident_bytes: 8 << 20,
            wrong: 0,
        };
        JobReport {
            machine: Machine::describe(),
            started_unix_s: 0,
            load: 0.0,
            quick: true,
            vertices: 1000,
            edges: 8000,
            heat: vec![vec![6 << 20, 2 << 20], vec![2 << 20, 2 << 20]],
            peak_bytes: 8 << 20,
            local_bytes: 8 << 20,
            cells: vec![
                cell(Mode::Local, 1.0),
                cell(Mode::VeniceShm, 2.0),
                cell(Mode::SwapDisk, 12.0),
            ],
            unmeasured: Vec::new(),
            interrupted: false,
            checked: 6,
            wrong: 0,
            seconds: 2.0,
        }
    }

    #[test]
    fn peaks_compare_with_averages() {
        // The averages are 3 and 6 MiB.
        let (of_one, of_all) = peaks(&sample().heat);
        assert_eq!(of_one, 2.0);
        assert!((of_all - 8.0 / 6.0).abs() < 1e-9, "{of_all}");
        assert_eq!(peaks(&[]), (0.0, 0.0));
    }

    #[test]
    fn report_survives_json() {
        let report = sample();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cells"][2]["mode"], "swap-disk");
        assert_eq!(serde_json::from_value::<JobReport>(json).unwrap(), report);
    }
}
