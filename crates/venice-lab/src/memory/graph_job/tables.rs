//! The figure as tables and plots.

use anyhow::Result;
use venice_wire::ByteSize;

use super::super::closing::{Closing, load_line};
use super::super::mode::Mode;
use super::super::tables::{percent, times};
use super::report::{JobReport, PAPER_PEAKS, PAPER_SLOWDOWNS, peaks};
use crate::plot::{BarChart, BarSeries, HeatMap, Plot, Unit};
use crate::report_table::ReportTable;
use venice_measure::report::grouped;

pub(super) const TITLE: &str =
    "Composable-rack paper, Figure 11: a graph job over 50 partitions, memory cut to a third";

/// Renders the report as text for a terminal.
pub(super) fn text(report: &JobReport) -> String {
    let tables: Vec<String> = all(report).iter().map(ReportTable::text).collect();
    format!("{}\n\n{}\n{}", header(report).join("\n"), tables.join("\n"), closing(report).line())
}

/// Returns every table, in print order.
pub(super) fn all(report: &JobReport) -> Vec<ReportTable> {
    vec![need(report), slowdowns(report)]
}

/// Returns the lines above the tables.
pub(super) fn header(report: &JobReport) -> Vec<String> {
    let mut lines = vec![
        report.machine.line(),
        format!(
            "Graph of {} vertices and {} edges; peak {}, of which {} ({}) are local in the runs below{}.",
            grouped(f64::from(report.vertices)),
            grouped(report.edges as f64),
            ByteSize(report.peak_bytes),
            ByteSize(report.local_bytes),
            percent(report.local_bytes as f64 / report.peak_bytes.max(1) as f64),
            if report.quick { " (--quick: too short for reliable figures)" } else { "" },
        ),
    ];
    lines.extend(load_line(report.load, &report.machine));
    lines
}

/// Returns the end of the report: wrong and missing figures, duration.
pub(super) fn closing(report: &JobReport) -> Closing<'_> {
    Closing {
        what: "digests",
        checked: report.checked,
        wrong: report.wrong,
        unmeasured: &report.unmeasured,
        interrupted: report.interrupted,
        seconds: report.seconds,
    }
}

/// Builds the table of peak to average, beside the paper's.
fn need(report: &JobReport) -> ReportTable {
    let head = ["memory", "peak", "average", "peak : average", "paper"];
    let mut table = ReportTable::new("Memory of the partitions, all local", &head, 1);
    let (of_one, of_all) = peaks(&report.heat);
    let most = report.heat.iter().flatten().copied().max().unwrap_or(0) as f64;
    let rows = [
        ("of a partition", most, of_one, PAPER_PEAKS.0),
        ("of all together", report.peak_bytes as f64, of_all, PAPER_PEAKS.1),
    ];
    for (name, peak, ratio, paper) in rows {
        let average = if ratio > 0.0 { peak / ratio } else { 0.0 };
        table.rows.push(vec![
            name.to_owned(),
            ByteSize(peak as u64).to_string(),
            ByteSize(average as u64).to_string(),
            format!("{ratio:.2}"),
            format!("{paper:.2}"),
        ]);
    }
    table.notes.push(
        "Of a partition: the greatest of any at any time, relative to the average of all. The \
         vertices' popularity and the least change sent are chosen to match the paper's ratios."
            .to_owned(),
    );
    table
}

/// Builds the table of slowdowns, a row for each mode.
fn slowdowns(report: &JobReport) -> ReportTable {
    let head = ["rest of the memory in", "seconds", "local = 1", "paper", "resident", "wrong"];
    let mut table = ReportTable::new(TITLE, &head, 1);
    for cell in &report.cells {
        table.rows.push(vec![
            cell.mode.to_string(),
            format!("{:.3}", cell.seconds),
            times(cell.slowdown),
            paper(cell.mode).map_or("-".to_owned(), times),
            ByteSize(cell.resident_bytes).to_string(),
            cell.wrong.to_string(),
        ]);
    }
    table.notes.push(
        "paper: 13.8 times slower with swap to disk, 6.14 times with swap to a RAM disk, each of \
         50 nodes cut to a third of the largest node's need; it has no figure of pooled memory."
            .to_owned(),
    );
    let neediest = report.heat.iter().flatten().copied().max().unwrap_or(0);
    let partitions = report.heat.first().map_or(0, Vec::len) as u64;
    let papers = (neediest * partitions) as f64 / 3.0 / report.peak_bytes.max(1) as f64;
    table.notes.push(format!(
        "Here one process has all partitions and one budget, relative to their joint peak. A third \
         of the largest need, for each, would be {} of it (--local).",
        percent(papers)
    ));
    if report.cells.iter().any(|cell| cell.mode == Mode::VeniceWindow) {
        table.notes.push(
            "venice-window maps memory of this machine: its figures include no link latency."
                .to_owned(),
        );
    }
    table
}

fn paper(mode: Mode) -> Option<f64> {
    PAPER_SLOWDOWNS.iter().find(|(of, _)| *of == mode).map(|(_, slowdown)| *slowdown)
}

/// Draws the heat map, and the slowdowns beside the paper's.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn plots(report: &JobReport) -> Result<Vec<Plot>> {
    let heat = HeatMap {
        title: "Memory of each partition over time".to_owned(),
        x: "time in half supersteps",
        y: "partition",
        unit: Unit::Bytes,
        columns: report
            .heat
            .iter()
            .map(|sample| sample.iter().map(|bytes| *bytes as f64).collect())
            .collect(),
        names: Vec::new(),
        width: None,
    };
    let far = || report.cells.iter().filter(|cell| cell.mode != Mode::Local);
    let here = |wants_peer: bool| BarSeries {
        name: if wants_peer { "without a pool" } else { "pooled memory" }.to_owned(),
        values: far()
            .map(|cell| (cell.mode.is_peer() == wants_peer).then_some(100.0 * cell.slowdown))
            .collect(),
        is_peer: wants_peer,
    };
    let papers = BarSeries {
        name: "the paper's".to_owned(),
        values: far().map(|cell| paper(cell.mode).map(|slowdown| 100.0 * slowdown)).collect(),
        is_peer: true,
    };
    let bars = BarChart {
        title: TITLE.to_owned(),
        x: "place of the rest of the memory",
        y: ("time relative to local memory", Unit::Percent),
        groups: far().map(|cell| cell.mode.to_string()).collect(),
        series: vec![here(false), here(true), papers],
    };
    let named = [("rack-11-heat", heat.svg()?), ("rack-11-slowdown", bars.svg()?)];
    Ok(named
        .into_iter()
        .filter_map(|(name, svg)| Some(Plot { name: name.to_owned(), svg: svg? }))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;
    use crate::plot::xml;

    #[test]
    fn peaks_and_slowdowns_match_the_paper() {
        let mut report = sample();
        let text = super::text(&report);
        for wanted in ["2.00", "2.78", "1.33", "1.68", "12.0 ×", "13.8 ×", "2.00 ×"] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
        report.interrupted = true;
        report.heat.clear();
        report.cells.clear();
        assert!(super::text(&report).contains("INTERRUPTED"));
        assert_eq!(plots(&report).unwrap().len(), 0);
    }

    #[test]
    fn plots_have_heat_map_and_bars() {
        let plots = plots(&sample()).unwrap();
        assert_eq!(plots.len(), 2);
        for (plot, wanted) in plots.iter().zip(["partition", "the paper's"]) {
            let texts = xml::texts(&plot.svg).unwrap();
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }
}
