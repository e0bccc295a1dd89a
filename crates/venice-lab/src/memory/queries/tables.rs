//! Figures 13 and 14 as tables and plots.

use anyhow::Result;
use venice_wire::ByteSize;

use super::super::closing::{Closing, load_line};
use super::super::mode::Mode;
use super::super::tables::{percent, times};
use super::report::{PAPER_SECONDS, QueryReport};
use crate::plot::{BarChart, BarSeries, Plot, Unit};
use crate::report_table::ReportTable;
use venice_measure::report::{grouped, micros};

pub(super) const TITLE: &str = "Figure 14: random queries to a database behind a cache";

/// Renders the report as text for a terminal.
pub(super) fn text(report: &QueryReport) -> String {
    let tables: Vec<String> = all(report).iter().map(ReportTable::text).collect();
    format!("{}\n\n{}\n{}", header(report).join("\n"), tables.join("\n"), closing(report).line())
}

/// Returns every table, in print order.
pub(super) fn all(report: &QueryReport) -> Vec<ReportTable> {
    vec![executions(report), shape(report), donors(report)]
}

/// Returns the lines above the tables: the system of Figure 13.
pub(super) fn header(report: &QueryReport) -> Vec<String> {
    let mut lines = vec![
        report.machine.line(),
        format!(
            "Figure 13's system on this machine: client, application server, Redis (allkeys-lru), \
             MariaDB with {} entries of 64 B ({} on the disk, buffer pool {}), {} different \
             queries; {} random ones a cell{}.",
            grouped(report.rows as f64),
            ByteSize(report.database_bytes),
            ByteSize(report.pool_bytes),
            grouped(report.owners as f64),
            grouped(report.queries as f64),
            if report.quick { " (--quick: too short for reliable figures)" } else { "" },
        ),
        format!(
            "{} of the cache are local, the rest is borrowed; in mode local all of it is local.",
            ByteSize(report.local_bytes)
        ),
    ];
    lines.push(if report.service_processors.is_empty() {
        "Donors and service share the one processor.".to_owned()
    } else {
        format!(
            "The donors and their own work run on processors {:?}, all others on {:?}.",
            report.donor_processors, report.service_processors
        )
    });
    lines.extend(load_line(report.load, &report.machine));
    lines
}

/// Returns the end of the report: wrong and missing figures, duration.
pub(super) fn closing(report: &QueryReport) -> Closing<'_> {
    Closing {
        what: "answers and digests",
        checked: report.checked,
        wrong: report.wrong,
        unmeasured: &report.unmeasured,
        interrupted: report.interrupted,
        seconds: report.seconds,
    }
}

/// Builds the table of executions, a row for each amount of memory and mode.
fn executions(report: &QueryReport) -> ReportTable {
    let head = [
        "memory",
        "cache",
        "seconds",
        "local = 1",
        "hit rate",
        "hit µs",
        "miss µs",
        "resident",
        "wrong",
    ];
    let mut table = ReportTable::new(TITLE, &head, 2);
    for memory in report.memories() {
        let local = report.cell(Mode::Local, memory);
        for cell in report.modes().into_iter().filter_map(|mode| report.cell(mode, memory)) {
            table.rows.push(vec![
                ByteSize(memory).to_string(),
                cell.mode.to_string(),
                format!("{:.3}", cell.seconds),
                local.map_or("-".to_owned(), |local| times(cell.seconds / local.seconds)),
                format!("{:.1} %", 100.0 * cell.hit_rate()),
                micros(cell.hit_us),
                micros(cell.miss_us),
                ByteSize(cell.resident_bytes).to_string(),
                cell.wrong.to_string(),
            ]);
        }
    }
    table
        .notes
        .push("hit, miss: mean time of a query answered by the cache, by the database.".to_owned());
    table
}

/// Builds the table of the figure's shape beside the paper's, a row for each mode.
fn shape(report: &QueryReport) -> ReportTable {
    let title = "Shape of Figure 14: gain by more memory";
    let memories = report.memories();
    let (Some(&least), Some(&most)) = (memories.first(), memories.last()) else {
        return ReportTable::new(title, &["cache"], 1);
    };
    let spans = [ByteSize(least), ByteSize(most)].map(|size| format!("seconds, {size}"));
    let head = ["cache", &spans[0], &spans[1], "gain", "local faster by", "hit rate, most"];
    let mut table = ReportTable::new(title, &head, 1);
    let local_s = report.cell(Mode::Local, most).map(|cell| cell.seconds);
    for mode in report.modes() {
        let (Some(low), Some(high)) = (report.cell(mode, least), report.cell(mode, most)) else {
            continue;
        };
        let ahead = local_s.filter(|_| mode != Mode::Local);
        table.rows.push(vec![
            mode.to_string(),
            format!("{:.3}", low.seconds),
            format!("{:.3}", high.seconds),
            times(low.seconds / high.seconds),
            ahead.map_or("-".to_owned(), |s| format!("{:.0} %", 100.0 * (high.seconds / s - 1.0))),
            percent(high.hit_rate()),
        ]);
    }
    table.rows.push(vec![
        "paper".into(),
        format!("{:.0}", PAPER_SECONDS.0),
        format!("{:.0}", PAPER_SECONDS.1),
        times(PAPER_SECONDS.0 / PAPER_SECONDS.1),
        "7 %".into(),
        "95 %".into(),
    ]);
    table.notes.extend(report.paper.iter().cloned());
    table
}

/// Builds the table of the donors' own work.
fn donors(report: &QueryReport) -> ReportTable {
    let title = "Figure 13's donors: connected components while they lend";
    let head = ["beside", "jobs", "median s", "alone = 1", "beside local = 1"];
    let mut table = ReportTable::new(title, &head, 1);
    let alone = report.donors_beside(None).map(|row| row.median_s);
    let local = report.donors_beside(Some(Mode::Local)).map(|row| row.median_s);
    for row in &report.donors {
        let against =
            |base: Option<f64>| base.map_or("-".to_owned(), |base| times(row.median_s / base));
        table.rows.push(vec![
            row.beside.map_or("no load".to_owned(), |mode| format!("queries, {mode}")),
            row.jobs.to_string(),
            format!("{:.4}", row.median_s),
            against(alone),
            if row.beside.is_none() { "-".to_owned() } else { against(local) },
        ]);
    }
    table.notes.push(
        "beside local = 1: the cost of lending, without the cost of sharing this one machine. It \
         includes filling the cache."
            .to_owned(),
    );
    table
}

/// Draws execution time and hit rate by memory.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn plots(report: &QueryReport) -> Result<Vec<Plot>> {
    let memories = report.memories();
    let Some(&least) = memories.first() else { return Ok(Vec::new()) };
    let local_least = report.cell(Mode::Local, least).map(|cell| cell.seconds);
    // The paper's 70 and 350 MB correspond to the first and the last amount here.
    let at_ends = |first: Option<f64>, last: Option<f64>| -> Vec<Option<f64>> {
        let inner = (1..memories.len().saturating_sub(1)).map(|_| None);
        let end = (memories.len() > 1).then_some(last);
        [first].into_iter().chain(inner).chain(end).collect()
    };
    let share = 100.0 * PAPER_SECONDS.1 / PAPER_SECONDS.0;
    let times = BarChart {
        title: format!("{TITLE}: execution time"),
        x: "cache memory",
        y: ("time relative to the least memory, local", Unit::Percent),
        groups: memories.iter().map(|memory| ByteSize(*memory).to_string()).collect(),
        series: series(report, at_ends(Some(100.0), Some(share)), |mode, memory| {
            Some(100.0 * report.cell(mode, memory)?.seconds / local_least?)
        }),
    };
    let hits = BarChart {
        title: format!("{TITLE}: hit rate"),
        y: ("queries answered by the cache", Unit::Percent),
        series: series(report, at_ends(None, Some(95.0)), |mode, memory| {
            Some(100.0 * report.cell(mode, memory)?.hit_rate())
        }),
        ..times.clone()
    };
    let named = [("figure-14-time", times), ("figure-14-hits", hits)];
    let mut plots = Vec::new();
    for (name, chart) in named {
        plots.extend(chart.svg()?.map(|svg| Plot { name: name.to_owned(), svg }));
    }
    Ok(plots)
}

fn series(
    report: &QueryReport,
    paper: Vec<Option<f64>>,
    value: impl Fn(Mode, u64) -> Option<f64>,
) -> Vec<BarSeries> {
    let memories = report.memories();
    let ours = report.modes().into_iter().map(|mode| BarSeries {
        name: mode.to_string(),
        values: memories.iter().map(|memory| value(mode, *memory)).collect(),
        is_peer: mode.is_peer(),
    });
    let paper = BarSeries { name: "the paper's".to_owned(), values: paper, is_peer: true };
    ours.chain([paper]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;
    use crate::plot::xml;

    #[test]
    fn shape_stands_beside_the_paper() {
        let mut report = sample();
        let text = super::text(&report);
        // Gains 15 and 15; local 10 % faster; donors 1.5 of alone, 1.2 of beside local.
        for wanted in ["15.0 ×", "15.7 ×", "10 %", "19.0 %", "1.50 ×", "1.20 ×", "4 000 answers"]
        {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
        report.interrupted = true;
        report.cells.truncate(1);
        assert!(super::text(&report).contains("INTERRUPTED"));
        report.cells.clear();
        super::text(&report);
        assert_eq!(plots(&report).unwrap().len(), 0);
    }

    #[test]
    fn plots_include_the_papers_ends() {
        let plots = plots(&sample()).unwrap();
        assert_eq!(plots.len(), 2);
        for (plot, wanted) in plots.iter().zip(["6", "95"]) {
            let texts = xml::texts(&plot.svg).unwrap();
            for wanted in ["the paper's", "venice-shm", "350MiB", wanted] {
                assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
            }
        }
    }
}
