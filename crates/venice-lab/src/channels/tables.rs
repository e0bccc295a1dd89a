//! The tables of the report.

use std::collections::BTreeSet;

use super::aims::ChannelAim;
use super::contest::{self, Cell, Metric};
use super::figure17::Figure17;
use super::figure18::Figure18;
use super::report::ChannelsReport;
use super::series::{Medium, Operation, Point, Series, System};
use crate::plot::Unit;
use crate::report_table::ReportTable;

/// Size columns that fit a terminal.
const MAX_SIZES: usize = 8;

/// Renders the report as text for a terminal.
pub(super) fn text(report: &ChannelsReport) -> String {
    let tables: String = all(report).iter().map(|table| table.text() + "\n").collect();
    format!("{}\n\n{tables}{:.0} s in all", report.header().join("\n"), report.seconds)
}

/// Returns all tables, in print order.
pub(super) fn all(report: &ChannelsReport) -> Vec<ReportTable> {
    let mut tables = vec![aims(&report.aims)];
    for medium in Medium::ALL {
        tables.extend(latencies(report, medium));
        tables.extend(bandwidths(report, medium));
    }
    tables.extend(super::sweep::table(&report.links));
    tables.extend(super::emulation::table(&report.emulation));
    tables.extend(report.figure17.as_ref().map(Figure17::table));
    tables.extend(report.figure18.as_ref().map(Figure18::table));
    for metric in [Metric::Latency, Metric::Bandwidth] {
        tables.extend(beside(report, metric));
    }
    tables
}

fn aims(aims: &[ChannelAim]) -> ReportTable {
    let head = ["aim", "figures", "measured", "wanted", "met"];
    let mut table = ReportTable::new("Aims", &head, 2);
    for aim in aims {
        let bound =
            |bound| format!("{} {bound:.2}", if aim.at_least { "at least" } else { "at most" });
        let met = match (aim.met(), aim.bound) {
            (Some(true), _) => "met",
            (Some(false), _) => "MISSED",
            (None, Some(_)) => "not judged",
            (None, None) => "no aim",
        };
        table.rows.push(vec![
            aim.name.clone(),
            aim.detail.clone(),
            aim.measured.map_or("-".to_owned(), |value| format!("{value:.2}")),
            aim.bound.map_or("-".to_owned(), bound),
            met.to_owned(),
        ]);
    }
    table
}

fn latencies(report: &ChannelsReport, medium: Medium) -> Option<ReportTable> {
    let title = format!("Latency over {}: p50 / p99 by size", medium.title());
    let mut table = by_size(report, medium, &title, |point| {
        let latency = point.latency?;
        let write = |ns| Unit::Nanoseconds.write(ns);
        Some(match (latency.p50_ns, latency.p99_ns) {
            (Some(p50), Some(p99)) => format!("{} / {}", write(p50), write(p99)),
            (Some(p50), None) => write(p50),
            _ => format!("mean {}", write(latency.mean_ns)),
        })
    })?;
    table.notes.push(
        "CRMA write, QPair message and their counterparts: one way, half a round trip. All others: \
         until the answer arrives."
            .to_owned(),
    );
    Some(table)
}

fn bandwidths(report: &ChannelsReport, medium: Medium) -> Option<ReportTable> {
    let title = format!("Bandwidth over {} by size", medium.title());
    by_size(report, medium, &title, |point| {
        point.bandwidth_bytes_per_s.map(|rate| Unit::BytesPerSecond.write(rate))
    })
}

/// Builds a row for each series with the figure or a reason; `None` without any.
fn by_size(
    report: &ChannelsReport,
    medium: Medium,
    title: &str,
    figure: impl Fn(&Point) -> Option<String>,
) -> Option<ReportTable> {
    let mut rows: Vec<&Series> = report
        .series
        .iter()
        .filter(|one| one.medium == medium)
        .filter(|one| {
            one.points.is_empty() || one.points.iter().any(|point| figure(point).is_some())
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    rows.sort_by_key(|one| (one.operation, one.system));
    let sizes =
        shown_sizes(by_column(&rows).flat_map(|one| &one.points).map(|point| point.size_bytes));
    let mut head = vec!["operation".to_owned(), "by".to_owned()];
    head.extend(sizes.iter().map(|size| Unit::Bytes.write(*size as f64)));
    let mut table =
        ReportTable { title: title.to_owned(), head, texts: 2, ..ReportTable::default() };
    for series in rows {
        // iperf3 has sizes of its own, each of which would take a column.
        if series.system == System::Iperf3 {
            let figures = series.points.iter().filter_map(|point| {
                let size = Unit::Bytes.write(point.size_bytes as f64);
                Some(format!("{}, {size} a call: {}", by(series), figure(point)?))
            });
            table.notes.extend(figures);
            table.notes.extend(series.absent.iter().map(|why| format!("{}: {why}", by(series))));
            continue;
        }
        let mut row = vec![series.operation.title().to_owned(), by(series)];
        row.extend(
            sizes
                .iter()
                .map(|size| series.at(*size).and_then(&figure).unwrap_or_else(|| "-".to_owned())),
        );
        table.rows.push(row);
        if let Some(reason) = &series.absent {
            let one = format!("{}, {}: {reason}", series.operation.title(), by(series));
            table.notes.push(one);
        }
    }
    Some(table)
}

fn by_column<'a>(rows: &'a [&'a Series]) -> impl Iterator<Item = &'a Series> {
    rows.iter().copied().filter(|one| one.system != System::Iperf3)
}

fn by(series: &Series) -> String {
    match (series.system, series.variant.as_str()) {
        (System::Raw, variant) => variant.to_owned(),
        (system, "") => system.name().to_owned(),
        (system, variant) => format!("{} {variant}", system.name()),
    }
}

/// Returns all sizes if they fit, else an even selection with the first and the last.
fn shown_sizes(sizes: impl Iterator<Item = u64>) -> Vec<u64> {
    let sizes: Vec<u64> = sizes.collect::<BTreeSet<_>>().into_iter().collect();
    if sizes.len() <= MAX_SIZES {
        return sizes;
    }
    let step = |at: usize| at * (sizes.len() - 1) / (MAX_SIZES - 1);
    (0..MAX_SIZES).map(|at| sizes[step(at)]).collect()
}

fn beside(report: &ChannelsReport, metric: Metric) -> Option<ReportTable> {
    let cells: Vec<&Cell> = report.contest.iter().filter(|cell| cell.metric == metric).collect();
    if cells.is_empty() {
        return None;
    }
    let word = if metric == Metric::Latency { "latency" } else { "bandwidth" };
    let sizes = shown_sizes(cells.iter().map(|cell| cell.size_bytes));
    let mut head = vec!["over".to_owned(), "operation".to_owned(), "beside".to_owned()];
    head.extend(sizes.iter().map(|size| Unit::Bytes.write(*size as f64)));
    let title = format!("Venice beside its peers by {word}: factor of advantage");
    let mut table = ReportTable { title, head, texts: 3, ..ReportTable::default() };
    let mut kinds: Vec<_> = cells.iter().map(|cell| kind(cell)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for wanted in kinds {
        let (medium, operation, peer, variant) = wanted;
        let mut row = vec![
            medium.title().to_owned(),
            operation.title().to_owned(),
            format!("{} {variant}", peer.name()),
        ];
        row.extend(sizes.iter().map(|size| {
            let cell = cells.iter().find(|cell| cell.size_bytes == *size && kind(cell) == wanted);
            cell.map_or("-".to_owned(), |cell| {
                format!("{} {:.2}×", cell.outcome().word(), cell.lead())
            })
        }));
        table.rows.push(row);
    }
    table.notes.push(format!(
        "{}, the sizes not shown here included; even: within 5 %.",
        contest::tally(&cells)
    ));
    Some(table)
}

fn kind(cell: &Cell) -> (Medium, Operation, System, &str) {
    (cell.medium, cell.operation, cell.peer, cell.variant.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_size_are_shown() {
        let shown = shown_sizes((2..25).map(|bit| 1u64 << bit));
        assert_eq!((shown.len(), shown[0], shown[7]), (MAX_SIZES, 4, 1 << 24));
        assert_eq!(shown_sizes([64, 4, 64].into_iter()), [4, 64]);
    }
}
