//! Report types of Figures 13 and 14 in JSON; [`super::tables`] renders them as text.

use serde::{Deserialize, Serialize};

use super::super::mode::Mode;
use super::super::report::Unmeasured;
use venice_measure::machine::Machine;

/// Figure 14 in the paper's text: seconds for 10 000 queries with the least and the most memory,
/// and the lead of local memory with the most.
pub const PAPER_SECONDS: (f64, f64) = (11_900.0, 758.0);
/// The same as sentences, with the rest of the text.
pub(super) const PAPER_STATEMENTS: [&str; 2] = [
    "paper: 10 000 queries in 11 900 s with 70 MB, in 758 s with 350 MB, 15.7 times less; a miss \
     rate near 5 % then; local memory at most 7 % faster.",
    "paper: the work of the donors is not disturbed.",
];

/// The report that `venice paper 14 --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueryReport {
    /// Machine it was measured on.
    pub machine: Machine,
    /// Seconds since 1970 at its start.
    pub started_unix_s: u64,
    /// Load average of the minute before.
    pub load: f64,
    /// True for a `--quick` run.
    pub quick: bool,
    /// Rows of the database.
    pub rows: u64,
    /// Number of different queries.
    pub owners: u64,
    /// The table and its index on the disk, in bytes.
    pub database_bytes: u64,
    /// The database's buffer pool in bytes.
    pub pool_bytes: u64,
    /// Local part of the cache where the rest is borrowed, in bytes.
    pub local_bytes: u64,
    /// Queries of each cell.
    pub queries: u64,
    /// Processors of client, application server, cache and database; empty: all.
    pub service_processors: Vec<usize>,
    /// Processors of the donors and their own work; empty: all.
    pub donor_processors: Vec<usize>,
    /// Statements of the paper's text.
    pub paper: Vec<String>,
    /// Each amount of memory in each mode.
    pub cells: Vec<QueryCell>,
    /// The donors' own work, alone first.
    pub donors: Vec<DonorRow>,
    /// Cases without a figure, each with its reason.
    pub unmeasured: Vec<Unmeasured>,
    /// True if an interrupt ended the run early.
    pub interrupted: bool,
    /// Answers and digests checked.
    pub checked: u64,
    /// Wrong ones among them.
    pub wrong: u64,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
}

/// One amount of memory in one mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueryCell {
    /// Source of the cache's memory.
    pub mode: Mode,
    /// Size of the cache, in bytes.
    pub memory_bytes: u64,
    /// Resident anonymous memory of the cache at the end, in bytes.
    pub resident_bytes: u64,
    /// Duration of the queries in seconds.
    pub seconds: f64,
    /// Queries that the cache answered.
    pub hits: u64,
    /// Queries that the database answered.
    pub misses: u64,
    /// Mean time of a query that the cache answered, in microseconds.
    pub hit_us: f64,
    /// Mean time of a query that the database answered, in microseconds.
    pub miss_us: f64,
    /// Answers that were wrong.
    pub wrong: u64,
}

impl QueryCell {
    /// Returns the share of hits among all queries, 0 to 1.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// The donors' own work beside the queries of one mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DonorRow {
    /// Source of the cache's memory meanwhile; `None`: no queries beside the work.
    pub beside: Option<Mode>,
    /// Jobs that ended.
    pub jobs: u64,
    /// The median of their times in seconds.
    pub median_s: f64,
}

impl QueryReport {
    /// Returns the measured amounts of memory, rising.
    pub(super) fn memories(&self) -> Vec<u64> {
        let mut memories: Vec<u64> = self.cells.iter().map(|cell| cell.memory_bytes).collect();
        memories.sort_unstable();
        memories.dedup();
        memories
    }

    /// Returns the measured modes.
    pub(super) fn modes(&self) -> Vec<Mode> {
        let measured = |mode: &Mode| self.cells.iter().any(|cell| cell.mode == *mode);
        Mode::ALL.into_iter().filter(measured).collect()
    }

    pub(super) fn cell(&self, mode: Mode, memory_bytes: u64) -> Option<&QueryCell> {
        self.cells.iter().find(|cell| cell.mode == mode && cell.memory_bytes == memory_bytes)
    }

    /// Returns the donors' work beside a mode, or alone.
    pub(super) fn donors_beside(&self, beside: Option<Mode>) -> Option<&DonorRow> {
        self.donors.iter().find(|row| row.beside == beside)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn cell(mode: Mode, memory_bytes: u64, seconds: f64, hits: u64) -> QueryCell {
        QueryCell {
            mode,
            memory_bytes,
            resident_bytes: 50 << 20,
            seconds,
            hits,
            misses: 1000 - hits,
            hit_us: 40.0,
            miss_us: 2000.0,
            wrong: 0,
        }
    }

    pub(in super::super) fn sample() -> QueryReport {
        let donors = |beside, median_s| DonorRow { beside, jobs: 5, median_s };
        QueryReport {
            machine: Machine::describe(),
            started_unix_s: 0,
            load: 0.0,
            quick: true,
            rows: 15_000,
            owners: 1000,
            database_bytes: 1 << 20,
            pool_bytes: 5 << 20,
            local_bytes: 50 << 20,
            queries: 1000,
            service_processors: vec![0],
            donor_processors: vec![1],
            paper: PAPER_STATEMENTS.map(str::to_owned).into(),
            cells: vec![
                cell(Mode::Local, 350 << 20, 0.1, 950),
                cell(Mode::VeniceShm, 350 << 20, 0.11, 950),
                cell(Mode::Local, 70 << 20, 1.5, 190),
                cell(Mode::VeniceShm, 70 << 20, 1.65, 190),
            ],
            donors: vec![
                donors(None, 1.0),
                donors(Some(Mode::Local), 1.25),
                donors(Some(Mode::VeniceShm), 1.5),
            ],
            unmeasured: Vec::new(),
            interrupted: false,
            checked: 4000,
            wrong: 0,
            seconds: 4.0,
        }
    }

    #[test]
    fn report_survives_json() {
        let report = sample();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cells"][1]["mode"], "venice-shm");
        assert_eq!(json["donors"][0]["beside"], serde_json::Value::Null);
        assert_eq!(serde_json::from_value::<QueryReport>(json).unwrap(), report);
        assert_eq!(report.memories(), [70 << 20, 350 << 20]);
        assert_eq!(report.cells[2].hit_rate(), 0.19);
    }
}
