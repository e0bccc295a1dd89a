//! Report types of Figures 9 and 10 in JSON; [`super::tables`] renders them as text.

use serde::{Deserialize, Serialize};

use super::super::report::Unmeasured;
use super::mode::SpillMode;
use venice_measure::machine::Machine;

/// Figure 10 in the paper's text: the throughput penalty with three quarters and with a quarter
/// local, of the smallest and of larger values.
pub(super) const PAPER_THROUGHPUT: [(f64, [f64; 2]); 2] =
    [(0.75, [0.0, 0.04]), (0.25, [0.02, 0.06])];
/// The paper's smallest value, in bytes.
pub(super) const PAPER_SMALLEST_BYTES: u64 = 4 << 10;
/// The same as sentences, with the rest of the text.
pub(super) const PAPER_STATEMENTS: [&str; 2] = [
    "paper, Figure 9 (1 thread): more local data always means less penalty, with less difference \
     between the shares for values of more than 64 KiB.",
    "paper, Figure 10 (10 threads): at 4 KiB next to nothing with 75 % local, 2 % with 25 %; with \
     larger values 4 % and 6 %.",
];

/// The report that `venice paper rack-9 --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VictimReport {
    /// Machine it was measured on.
    pub machine: Machine,
    /// Seconds since 1970 at its start.
    pub started_unix_s: u64,
    /// Load average of the minute before.
    pub load: f64,
    /// True for a `--quick` run.
    pub quick: bool,
    /// Bytes of values.
    pub data_bytes: u64,
    /// Operations of each measurement.
    pub requests: u64,
    /// Number of turns, each with a turn of the run on local memory beside it.
    pub turns: u64,
    /// Statements of the paper's text.
    pub paper: Vec<String>,
    /// Each size of values in each mode, with each share and number of clients.
    pub cells: Vec<VictimCell>,
    /// Cases without a figure, each with its reason.
    pub unmeasured: Vec<Unmeasured<SpillMode>>,
    /// True if an interrupt ended the run early.
    pub interrupted: bool,
    /// Values checked.
    pub checked: u64,
    /// Values that were wrong, or missing where they had to be there.
    pub wrong: u64,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VictimCell {
    /// Place of the values that do not fit.
    pub mode: SpillMode,
    /// Bytes of each value.
    pub value_bytes: u64,
    /// Share of the values that was to be local.
    pub local_share: f64,
    /// Share of them in memcached at the end, if the proxy reports it; otherwise the same.
    pub near_share: f64,
    /// Clients at a time.
    pub clients: usize,
    /// Measured operations.
    pub operations: u64,
    /// Operations a second, in the median turn.
    pub operations_per_s: f64,
    /// Mean time of a read, in the median turn, in microseconds.
    pub read_us: f64,
    /// 99th percentile of the reads of all turns, in microseconds.
    pub read_p99_us: f64,
    /// Mean time of the writes of all turns, in microseconds.
    pub write_us: f64,
    /// Extra time of a read, as a share of the time on local memory: the median of the turns.
    pub read_penalty: f64,
    /// Loss of operations a second, as a share of the rate on local memory: the median of the
    /// turns.
    pub throughput_penalty: f64,
    /// Least and greatest of the turns' throughput penalties.
    pub throughput_span: (f64, f64),
    /// Share of the reads without an answer.
    pub missed_share: f64,
    /// Anonymous memory that memcached had resident, in bytes.
    pub resident_bytes: u64,
    /// Values that were wrong, or missing where they had to be there.
    pub wrong: u64,
    /// True if a time limit ended it early.
    pub cut_short: bool,
}

impl VictimReport {
    pub(super) fn value_sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.cells.iter().map(|cell| cell.value_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Returns the local shares, falling, of the modes that have some.
    pub(super) fn shares(&self) -> Vec<f64> {
        let shared = self.cells.iter().filter(|cell| cell.mode.has_shares());
        let mut shares: Vec<f64> = shared.map(|cell| cell.local_share).collect();
        shares.sort_unstable_by(|one, other| other.total_cmp(one));
        shares.dedup();
        shares
    }

    /// Returns the measured modes.
    pub(super) fn modes(&self) -> Vec<SpillMode> {
        let measured = |mode: &SpillMode| self.cells.iter().any(|cell| cell.mode == *mode);
        SpillMode::ALL.into_iter().filter(measured).collect()
    }

    /// Returns the fewest clients and the most.
    pub(super) fn clients(&self) -> Option<(usize, usize)> {
        let counts = self.cells.iter().map(|cell| cell.clients);
        Some((counts.clone().min()?, counts.max()?))
    }

    pub(super) fn cell(
        &self,
        mode: SpillMode,
        (value_bytes, share): (u64, f64),
        clients: usize,
    ) -> Option<&VictimCell> {
        self.cells.iter().find(|cell| {
            (cell.mode, cell.value_bytes, cell.clients) == (mode, value_bytes, clients)
                && (cell.local_share == share || !mode.has_shares())
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::report::Fate;
    use super::*;

    fn cell(mode: SpillMode, value_bytes: u64, clients: usize, penalty: f64) -> VictimCell {
        VictimCell {
            mode,
            value_bytes,
            local_share: if mode.has_shares() { 0.25 } else { 1.0 },
            near_share: 0.25,
            clients,
            operations: 1000,
            operations_per_s: 50_000.0 * (1.0 - penalty),
            read_us: 20.0 * (1.0 + penalty),
            read_p99_us: 55.0,
            write_us: 30.0,
            read_penalty: penalty,
            throughput_penalty: penalty,
            throughput_span: (penalty - 0.01, penalty + 0.01),
            missed_share: if mode == SpillMode::Smaller { 0.75 } else { 0.0 },
            resident_bytes: 32 << 20,
            wrong: 0,
            cut_short: false,
        }
    }

    pub(in super::super) fn sample() -> VictimReport {
        let penalties = [
            (SpillMode::Local, 0.0),
            (SpillMode::Bare, -0.5),
            (SpillMode::VictimLocal, 0.04),
            (SpillMode::VictimShm, 0.088),
            (SpillMode::Smaller, -0.1),
        ];
        let mut cells = Vec::new();
        for value_bytes in [4 << 10, 64 << 10] {
            for (mode, penalty) in penalties {
                cells.extend([1, 10].map(|clients| cell(mode, value_bytes, clients, penalty)));
            }
        }
        VictimReport {
            machine: Machine::describe(),
            started_unix_s: 0,
            load: 0.0,
            quick: true,
            data_bytes: 128 << 20,
            requests: 1000,
            turns: 5,
            paper: PAPER_STATEMENTS.map(str::to_owned).into(),
            cells,
            unmeasured: vec![Unmeasured {
                name: Some("values of 4KiB".into()),
                mode: SpillMode::VictimUdp,
                local_share: Some(0.25),
                fate: Fate::Failed,
                reason: "no such rack".into(),
            }],
            interrupted: false,
            checked: 5000,
            wrong: 0,
            seconds: 2.0,
        }
    }

    #[test]
    fn report_survives_json() {
        let report = sample();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cells"][6]["mode"], "victim-shm");
        assert_eq!(json["unmeasured"][0]["mode"], "victim-udp");
        assert_eq!(serde_json::from_value::<VictimReport>(json).unwrap(), report);
        assert_eq!((report.value_sizes(), report.shares()), (vec![4 << 10, 64 << 10], vec![0.25]));
        assert_eq!(report.clients(), Some((1, 10)));
        let bare = report.cell(SpillMode::Bare, (4 << 10, 0.25), 10).unwrap();
        assert_eq!(bare.read_penalty, -0.5);
    }
}
