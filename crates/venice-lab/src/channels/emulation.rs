//! Accuracy of an emulated link: configured beside measured figures.

use serde::{Deserialize, Serialize};
use venice_fabric::LinkModel;
use venice_wire::{HEADER_BYTES, MAX_PAYLOAD_BYTES};

use super::contest::Metric;
use super::series::{Medium, Operation, Series};
use crate::plot::Unit;
use crate::report_table::ReportTable;

/// Variant of accesses to mapped memory that wait for the link's latency.
pub(super) const MAPPED: &str = "mapped memory";
/// Variant of accesses in frames, each held back until its arrival time.
pub(super) const FRAMES: &str = "frames";

/// One figure of the link, configured and measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// The measured operation.
    pub name: String,
    /// Nanoseconds or bytes per second.
    pub metric: Metric,
    /// Figure computed from the link: frames' headers counted, processors taking no time.
    pub asked: f64,
    /// Measured figure.
    pub measured: f64,
}

impl Accuracy {
    /// Returns the deviation, in percent.
    #[must_use]
    pub fn error_percent(&self) -> f64 {
        (self.measured / self.asked - 1.0) * 100.0
    }
}

/// Computes every figure for which both the formula and `series` have a value.
pub(super) fn accuracy(series: &[Series]) -> Vec<Accuracy> {
    let model = LinkModel::PAPER;
    let paper = series.iter().filter(|one| one.medium == Medium::Paper);
    let mut found = Vec::new();
    for one in paper {
        for point in &one.points {
            let size = Unit::Bytes.write(point.size_bytes as f64);
            let name = format!("{} of {size}", one.name());
            let mut add = |metric, asked: Option<f64>, measured: Option<f64>| {
                if let (Some(asked), Some(measured)) = (asked, measured) {
                    found.push(Accuracy { name: name.clone(), metric, asked, measured });
                }
            };
            let latency = point.latency.map(|latency| latency.typical_ns());
            add(Metric::Latency, asked_ns(&model, one.operation, point.size_bytes), latency);
            // Small ones keep the processors busier than the link.
            let is_bulk = matches!(one.operation, Operation::BulkRead | Operation::BulkWrite);
            if is_bulk && point.size_bytes >= 1 << 20 {
                let asked = asked_bytes_per_s(&model);
                add(Metric::Bandwidth, asked, point.bandwidth_bytes_per_s);
            }
        }
    }
    found
}

/// Returns the expected latency of a single access as the report defines it: for a write half of
/// the round trip.
pub(super) fn asked_ns(model: &LinkModel, operation: Operation, size_bytes: u64) -> Option<f64> {
    let frame = HEADER_BYTES + size_bytes as usize;
    match operation {
        Operation::Read => Some(model.round_trip_ns(HEADER_BYTES, frame) as f64),
        Operation::Write => Some(model.round_trip_ns(frame, HEADER_BYTES) as f64 / 2.0),
        _ => None,
    }
}

/// Returns the payload bandwidth of full frames.
pub(super) fn asked_bytes_per_s(model: &LinkModel) -> Option<f64> {
    let share = MAX_PAYLOAD_BYTES as f64 / (MAX_PAYLOAD_BYTES + HEADER_BYTES) as f64;
    Some(model.bandwidth_bps?.get() as f64 / 8.0 * share)
}

/// Builds the table; `None` without figures.
pub(super) fn table(found: &[Accuracy]) -> Option<ReportTable> {
    if found.is_empty() {
        return None;
    }
    let title = format!("Accuracy of the emulated link ({})", LinkModel::PAPER);
    let mut table = ReportTable::new(title, &["figure", "asked", "measured", "error"], 1);
    for one in found {
        let unit = match one.metric {
            Metric::Latency => Unit::Nanoseconds,
            Metric::Bandwidth => Unit::BytesPerSecond,
        };
        table.rows.push(vec![
            one.name.clone(),
            unit.write(one.asked),
            unit.write(one.measured),
            format!("{:+.1} %", one.error_percent()),
        ]);
    }
    table.notes.push(format!(
        "Asked: computed from the link, headers counted. {MAPPED}: the accessing processor waits \
         for the link's latency. {FRAMES}: each frame is held back; the time of two processors \
         adds to it."
    ));
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::super::series::{Latency, Point, System};
    use super::*;

    #[test]
    fn expected_figures_follow_from_the_link() {
        let latency = Latency { mean_ns: 3300.0, p50_ns: Some(3262.35), p99_ns: None };
        let point =
            Point { size_bytes: 64, latency: Some(latency), bandwidth_bytes_per_s: Some(1.0) };
        let series = Series::new(System::Venice, Medium::Paper, Operation::Read, MAPPED);
        let found = accuracy(&[Series { points: vec![point], ..series }]);
        // Expected: twice 1.4 µs, 64 bytes there and 128 back at 5 Gb/s.
        assert_eq!((found.len(), found[0].asked), (1, 2.0 * 1400.0 + 103.0 + 205.0));
        assert!((found[0].error_percent() - 4.96).abs() < 0.1, "{found:?}");
        let text = table(&found).unwrap().text();
        assert!(text.contains("+5.0 %") && text.contains("CRMA read, mapped memory of 64 B"));
        assert!(table(&[]).is_none());
    }
}
