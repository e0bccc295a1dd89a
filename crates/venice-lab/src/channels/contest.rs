//! Comparison of each peer's figures with Venice's best counterpart.

use serde::{Deserialize, Serialize};

use super::series::{Latency, Medium, Operation, PAST_KERNEL, Series, System};

/// Compared quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Nanoseconds; less is better.
    Latency,
    /// Bytes per second; more is better.
    Bandwidth,
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The peer.
    pub peer: System,
    /// The peer's transport and test.
    pub variant: String,
    /// The medium.
    pub medium: Medium,
    /// The operation.
    pub operation: Operation,
    /// Bytes of one access or message.
    pub size_bytes: u64,
    /// The compared quantity.
    pub metric: Metric,
    /// Venice's figure.
    pub ours: f64,
    /// The peer's figure.
    pub theirs: f64,
}

impl Cell {
    /// Returns the factor by which Venice is better; below 1 it is worse.
    #[must_use]
    pub fn lead(&self) -> f64 {
        match self.metric {
            Metric::Latency => self.theirs / self.ours,
            Metric::Bandwidth => self.ours / self.theirs,
        }
    }

    /// Returns the outcome.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self.lead() {
            lead if lead > 1.0 + NOISE => Outcome::Won,
            lead if lead < 1.0 - NOISE => Outcome::Lost,
            _ => Outcome::Even,
        }
    }
}

/// Relative distance below which two figures count as equal: another run may reverse them.
const NOISE: f64 = 0.05;

/// Outcome of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Venice is ahead.
    Won,
    /// Neither is ahead by more than the noise.
    Even,
    /// The peer is ahead.
    Lost,
}

impl Outcome {
    /// Returns the word for tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Won => "won",
            Outcome::Even => "even",
            Outcome::Lost => "LOST",
        }
    }
}

/// Formats the number of cells won, even and lost.
pub(super) fn tally(cells: &[&Cell]) -> String {
    let count = |outcome| cells.iter().filter(|cell| cell.outcome() == outcome).count();
    format!(
        "{} won, {} even, {} lost of {}",
        count(Outcome::Won),
        count(Outcome::Even),
        count(Outcome::Lost),
        cells.len()
    )
}

/// Lists all comparisons with both figures. The peers neither encrypt nor authenticate nor use
/// AF_XDP, so Venice is compared without its seal and without AF_XDP.
pub(super) fn cells(series: &[Series]) -> Vec<Cell> {
    let peers = series.iter().filter(|one| matches!(one.system, System::Libfabric | System::Ucx));
    peers.flat_map(|peer| cells_of(peer, series)).collect()
}

fn cells_of(peer: &Series, all: &[Series]) -> Vec<Cell> {
    let ours: Vec<&Series> = all
        .iter()
        .filter(|one| {
            one.system == System::Venice
                && (one.medium, one.operation) == (peer.medium, peer.operation)
                && !one.variant.contains("sealed")
                && !one.variant.contains("just written")
                && !one.variant.contains(PAST_KERNEL)
        })
        .collect();
    let mut found = Vec::new();
    for point in &peer.points {
        let size_bytes = point.size_bytes;
        let mut compare = |metric, ours: Option<f64>, theirs: Option<f64>| {
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                found.push(Cell {
                    peer: peer.system,
                    variant: peer.variant.clone(),
                    medium: peer.medium,
                    operation: peer.operation,
                    size_bytes,
                    metric,
                    ours,
                    theirs,
                });
            }
        };
        let points = || ours.iter().filter_map(|one| one.at(size_bytes));
        if let Some(theirs) = point.latency {
            // A median is compared with a median, a mean with a mean.
            let figure = |own: Latency| match theirs.p50_ns {
                Some(_) => own.typical_ns(),
                None => own.mean_ns,
            };
            let best = points().filter_map(|own| own.latency).map(figure).reduce(f64::min);
            compare(Metric::Latency, best, Some(theirs.typical_ns()));
        }
        let best = points().filter_map(|own| own.bandwidth_bytes_per_s).reduce(f64::max);
        compare(Metric::Bandwidth, best, point.bandwidth_bytes_per_s);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::series::Point;
    use super::*;

    fn series(system: System, variant: &str, p50_ns: Option<f64>, rate: f64) -> Series {
        let latency = Latency { mean_ns: 100.0, p50_ns, p99_ns: None };
        let point =
            Point { size_bytes: 64, latency: Some(latency), bandwidth_bytes_per_s: Some(rate) };
        let series = Series::new(system, Medium::Shm, Operation::Message, variant);
        Series { points: vec![point], ..series }
    }

    #[test]
    fn best_of_venice_meets_each_peer() {
        let all = [
            series(System::Venice, "sleeping", Some(80.0), 5e9),
            series(System::Venice, "spinning", Some(40.0), 6e9),
            series(System::Venice, "sealed", Some(1.0), 9e9),
            series(System::Ucx, "posix tag", Some(50.0), 12e9),
            series(System::Libfabric, "shm rdm", None, 1e9),
            series(System::Raw, "memcpy", Some(1.0), 1e9),
        ];
        let cells = cells(&all);
        let leads: Vec<_> = cells.iter().map(|cell| (cell.lead(), cell.outcome())).collect();
        // libfabric reports a mean only, so it is compared with Venice's mean.
        let (won, even, lost) = (Outcome::Won, Outcome::Even, Outcome::Lost);
        assert_eq!(leads, [(1.25, won), (0.5, lost), (1.0, even), (6.0, won)]);
    }

    #[test]
    fn missing_figure_gives_no_cell() {
        assert!(cells(&[series(System::Ucx, "posix tag", Some(1.0), 1.0)]).is_empty());
    }
}
