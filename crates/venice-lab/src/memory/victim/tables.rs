//! Figures 9 and 10 as tables and plots.

use anyhow::Result;
use venice_wire::ByteSize;

use super::super::closing::{Closing, load_line};
use super::super::tables::percent;
use super::mode::SpillMode;
use super::report::{PAPER_SMALLEST_BYTES, PAPER_THROUGHPUT, VictimCell, VictimReport};
use crate::plot::{BarChart, BarSeries, Plot, Unit};
use crate::report_table::ReportTable;
use venice_measure::report::{grouped, micros};

pub(super) const TITLE: &str =
    "Composable-rack paper, Figures 9 and 10: memcached with a victim store in remote memory";

/// Renders the report as text for a terminal.
pub(super) fn text(report: &VictimReport) -> String {
    let tables: Vec<String> = all(report).iter().map(ReportTable::text).collect();
    format!("{}\n\n{}\n{}", header(report).join("\n"), tables.join("\n"), closing(report).line())
}

/// Returns every table, in print order.
pub(super) fn all(report: &VictimReport) -> Vec<ReportTable> {
    let mut tables = Vec::new();
    if let Some((fewest, most)) = report.clients() {
        tables.push(penalties(report, Figure::Nine, fewest));
        tables.push(penalties(report, Figure::Ten, most));
        tables.extend(distance(report, fewest, most));
    }
    tables.push(measurements(report));
    tables
}

/// Returns the lines above the tables.
pub(super) fn header(report: &VictimReport) -> Vec<String> {
    let mut lines = vec![
        report.machine.line(),
        format!(
            "memcached with {} of values behind a proxy; 95 reads to 5 writes, uniform; {} \
             operations a measurement, in {} turns with as many on local memory{}.",
            ByteSize(report.data_bytes),
            grouped(report.requests as f64),
            report.turns,
            if report.quick { " (--quick: too short for reliable figures)" } else { "" },
        ),
    ];
    lines.extend(load_line(report.load, &report.machine));
    lines
}

/// Returns the end of the report: wrong and missing figures, duration.
pub(super) fn closing(report: &VictimReport) -> Closing<'_, SpillMode> {
    Closing {
        what: "values",
        checked: report.checked,
        wrong: report.wrong,
        unmeasured: &report.unmeasured,
        interrupted: report.interrupted,
        seconds: report.seconds,
    }
}

/// The two figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// Extra time of a read.
    Nine,
    /// Loss of operations a second.
    Ten,
}

impl Figure {
    fn of(self, cell: &VictimCell) -> f64 {
        match self {
            Figure::Nine => cell.read_penalty,
            Figure::Ten => cell.throughput_penalty,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Figure::Nine => "Figure 9: latency of a read",
            Figure::Ten => "Figure 10: throughput",
        }
    }

    fn title(self, clients: usize) -> String {
        format!(
            "{}, {clients} client{}: penalty relative to all-local",
            self.name(),
            if clients == 1 { "" } else { "s" }
        )
    }

    /// Returns the value of the paper's text: for its smallest values, and for larger ones, which
    /// correspond to the largest here.
    fn papers(self, value_bytes: u64, largest_bytes: u64, share: f64) -> Option<f64> {
        let (_, [smallest, larger]) =
            PAPER_THROUGHPUT.iter().find(|(of, _)| self == Figure::Ten && *of == share)?;
        match value_bytes {
            PAPER_SMALLEST_BYTES => Some(*smallest),
            bytes if bytes == largest_bytes && bytes > PAPER_SMALLEST_BYTES => Some(*larger),
            _ => None,
        }
    }
}

/// Returns the modes that keep every value, some of them not local.
fn far_modes(report: &VictimReport) -> Vec<SpillMode> {
    let mut modes = report.modes();
    modes.retain(|mode| mode.has_shares() && mode.keeps_all());
    modes
}

/// Builds the table of penalties, a row for each size and share, a column for each mode.
fn penalties(report: &VictimReport, figure: Figure, clients: usize) -> ReportTable {
    let modes = far_modes(report);
    let mut table = ReportTable::new(figure.title(clients), &["values", "local"], 1);
    table.head.extend(modes.iter().map(ToString::to_string));
    if figure == Figure::Ten {
        table.head.push("paper".to_owned());
    }
    let sizes = report.value_sizes();
    let largest_bytes = sizes.last().copied().unwrap_or(0);
    for &size in &sizes {
        for share in report.shares() {
            let mut row = vec![ByteSize(size).to_string(), percent(share)];
            row.extend(modes.iter().map(|mode| {
                let cell = report.cell(*mode, (size, share), clients);
                cell.map_or("-".to_owned(), |cell| formatted(cell, figure.of(cell)))
            }));
            if figure == Figure::Ten {
                let papers = figure.papers(size, largest_bytes, share);
                row.push(papers.map_or("-".to_owned(), signed));
            }
            table.rows.push(row);
        }
    }
    table.notes.push(
        "Medians of the turns. All local: the same memcached behind the same proxy, with room for \
         everything. Below 0: faster."
            .to_owned(),
    );
    table
        .notes
        .extend(report.paper.iter().filter(|line| line.contains(figure_word(figure))).cloned());
    table
}

fn figure_word(figure: Figure) -> &'static str {
    match figure {
        Figure::Nine => "Figure 9",
        Figure::Ten => "Figure 10",
    }
}

/// Compares borrowed memory with a victim store in the proxy's own memory: the difference is the
/// cost of the distance.
fn distance(report: &VictimReport, fewest: usize, most: usize) -> Option<ReportTable> {
    let modes: Vec<SpillMode> = [SpillMode::VictimShm, SpillMode::VictimUdp]
        .into_iter()
        .filter(|mode| report.modes().contains(mode))
        .collect();
    if modes.is_empty() || !report.modes().contains(&SpillMode::VictimLocal) {
        return None;
    }
    let title = "Cost of the distance: relative to the same victim store in local memory";
    let mut table = ReportTable::new(title, &["values", "local"], 1);
    for what in ["read", "throughput"] {
        table.head.extend(modes.iter().map(|mode| format!("{what}, {mode}")));
    }
    for size in report.value_sizes() {
        for share in report.shares() {
            let at = |mode, clients| report.cell(mode, (size, share), clients);
            let own = |clients| at(SpillMode::VictimLocal, clients);
            let reads = modes.iter().map(|mode| {
                let (far, own) = (at(*mode, fewest)?, own(fewest)?);
                Some((1.0 + far.read_penalty) / (1.0 + own.read_penalty) - 1.0)
            });
            let throughputs = modes.iter().map(|mode| {
                let (far, own) = (at(*mode, most)?, own(most)?);
                Some(1.0 - (1.0 - far.throughput_penalty) / (1.0 - own.throughput_penalty))
            });
            let mut row = vec![ByteSize(size).to_string(), percent(share)];
            row.extend(reads.chain(throughputs).map(|part| part.map_or("-".to_owned(), signed)));
            table.rows.push(row);
        }
    }
    table.notes.push(format!(
        "Reads with {fewest} at a time, throughput with {most}. A near value comes from memcached \
         through a socket, one in a victim store without it: the first two tables therefore show \
         less than the distance's cost, this one exactly that."
    ));
    Some(table)
}

/// Builds the table of measurements, a row for each.
fn measurements(report: &VictimReport) -> ReportTable {
    let head = [
        "values",
        "rest of the values in",
        "local",
        "near",
        "clients",
        "operations/s",
        "read µs",
        "p99 µs",
        "write µs",
        "penalty",
        "turns",
        "answered",
        "resident",
        "wrong",
    ];
    let mut table = ReportTable::new("All measurements", &head, 2);
    for cell in &report.cells {
        let (least, most) = cell.throughput_span;
        table.rows.push(vec![
            ByteSize(cell.value_bytes).to_string(),
            cell.mode.to_string(),
            percent(cell.local_share),
            percent(cell.near_share),
            cell.clients.to_string(),
            grouped(cell.operations_per_s) + if cell.cut_short { " (cut short)" } else { "" },
            micros(cell.read_us),
            micros(cell.read_p99_us),
            micros(cell.write_us),
            signed(cell.throughput_penalty),
            format!("{} to {}", signed(least), signed(most)),
            percent(1.0 - cell.missed_share),
            ByteSize(cell.resident_bytes).to_string(),
            cell.wrong.to_string(),
        ]);
    }
    table.notes.push(
        "near: share of the values in memcached. penalty: of throughput. resident: memcached's. bare: \
         memcached without the proxy. smaller: memcached alone with so much memory; evicted values \
         are not answered."
            .to_owned(),
    );
    table
}

fn formatted(cell: &VictimCell, penalty: f64) -> String {
    match (cell.wrong, cell.cut_short) {
        (0, false) => signed(penalty),
        // The figure still describes what was measured.
        (0, true) => format!("{} (cut short)", signed(penalty)),
        (wrong, _) => format!("{wrong} WRONG"),
    }
}

/// Formats a penalty: `+2.5 %`.
fn signed(share: f64) -> String {
    // A figure that rounds to zero has no sign.
    let percents = (1000.0 * share).round() / 10.0;
    if percents == 0.0 { "0.0 %".to_owned() } else { format!("{percents:+.1} %") }
}

/// Draws both figures, one plot for each mode, beside the paper's figures.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn plots(report: &VictimReport) -> Result<Vec<Plot>> {
    let Some((fewest, most)) = report.clients() else { return Ok(Vec::new()) };
    let mut plots = Vec::new();
    for (figure, number, clients) in [(Figure::Nine, 9, fewest), (Figure::Ten, 10, most)] {
        for mode in far_modes(report) {
            let svg = chart(report, figure, mode, clients).svg()?;
            plots.extend(svg.map(|svg| Plot { name: format!("rack-{number}-{mode}"), svg }));
        }
    }
    Ok(plots)
}

/// Draws a group of bars for each size, a bar for each share, as in the paper.
fn chart(report: &VictimReport, figure: Figure, mode: SpillMode, clients: usize) -> BarChart {
    let sizes = report.value_sizes();
    let largest_bytes = sizes.last().copied().unwrap_or(0);
    let by_size = |value: &dyn Fn(u64) -> Option<f64>| -> Vec<Option<f64>> {
        sizes.iter().map(|size| value(*size).map(|share| 100.0 * share)).collect()
    };
    let mut series = Vec::new();
    for share in report.shares() {
        let here = by_size(&|size| Some(figure.of(report.cell(mode, (size, share), clients)?)));
        let papers = by_size(&|size| figure.papers(size, largest_bytes, share));
        let named = |name: String, values: Vec<Option<f64>>, is_peer| {
            values.iter().any(Option::is_some).then_some(BarSeries { name, values, is_peer })
        };
        series.extend(named(format!("{} local", percent(share)), here, mode.is_peer()));
        series.extend(named(format!("the paper's, {} local", percent(share)), papers, true));
    }
    BarChart {
        title: format!("{mode}: {}", figure.title(clients)),
        x: "size of values",
        y: ("penalty", Unit::Percent),
        groups: sizes.iter().map(|size| ByteSize(*size).to_string()).collect(),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;
    use crate::plot::xml;

    #[test]
    fn penalties_stand_beside_the_paper() {
        let mut report = sample();
        let text = super::text(&report);
        // Expected: 0.088 against all local; against 0.04 in local memory: 1.088 / 1.04, 1 - 0.912
        // / 0.96.
        for wanted in [
            "Figure 9: latency of a read, 1 client:",
            "Figure 10: throughput, 10 clients:",
            "+8.8 %",
            "+4.6 %",
            "+5.0 %",
            "+6.0 %",
            "-50.0 %",
            "values of 4KiB, 25 % local, victim-udp: FAILED, no such rack",
            "5 000 values checked, 0 wrong",
        ] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
        report.cells[6].wrong = 2;
        report.interrupted = true;
        let text = super::text(&report);
        assert!(text.contains("2 WRONG") && text.contains("INTERRUPTED"), "{text}");
        report.cells.clear();
        super::text(&report);
        assert_eq!(plots(&report).unwrap().len(), 0);
    }

    #[test]
    fn each_mode_has_both_plots() {
        let plots = plots(&sample()).unwrap();
        let names: Vec<&str> = plots.iter().map(|plot| plot.name.as_str()).collect();
        let wanted = [
            "rack-9-victim-local",
            "rack-9-victim-shm",
            "rack-10-victim-local",
            "rack-10-victim-shm",
        ];
        assert_eq!(names, wanted);
        let texts = xml::texts(&plots[3].svg).unwrap();
        for wanted in ["25 % local", "the paper's, 25 % local", "64KiB"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }

    #[test]
    fn nonzero_penalties_have_a_sign() {
        assert_eq!([0.0254, -0.1, -0.0001].map(signed), ["+2.5 %", "-10.0 %", "0.0 %"]);
    }
}
