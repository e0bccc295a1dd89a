//! Tables of the report.

use venice_wire::ByteSize;

use super::closing::{Closing, load_line};
use super::mode::Mode;
use super::report::{Fate, MemoryReport, Unmeasured};
use crate::report_table::ReportTable;
use venice_measure::report::{grouped, micros};

/// Returns every table, in print order.
pub(super) fn all(report: &MemoryReport) -> Vec<ReportTable> {
    let mut tables = vec![slowdowns(report)];
    let requests = latencies(report);
    if !requests.rows.is_empty() {
        tables.push(requests);
    }
    tables.push(runs(report));
    tables
}

/// Renders the report as text for a terminal.
pub(super) fn text(report: &MemoryReport) -> String {
    let header = header(report).join("\n");
    let tables: Vec<String> = all(report).iter().map(ReportTable::text).collect();
    format!("{header}\n\n{}\n{}", tables.join("\n"), closing(report).line())
}

/// Returns the lines above the tables.
pub(super) fn header(report: &MemoryReport) -> Vec<String> {
    let sizes = &report.sizes;
    let mut lines = vec![
        report.machine.line(),
        format!(
            "Data of {}; graph of {} vertices and {} edges; R-MAT scale {}; file of {}; transform of \
             {}; {} requests a case{}.",
            ByteSize(sizes.data_bytes),
            grouped(f64::from(sizes.graph_vertices)),
            grouped(sizes.graph_edges as f64),
            sizes.r_mat_scale,
            ByteSize(sizes.file_bytes),
            ByteSize(sizes.fft_bytes),
            grouped(sizes.requests as f64),
            if report.quick { " (--quick: too short for reliable figures)" } else { "" },
        ),
    ];
    lines.extend(load_line(report.load, &report.machine));
    lines
}

/// Returns the end of the report: wrong and missing figures, duration.
pub(super) fn closing(report: &MemoryReport) -> Closing<'_> {
    Closing {
        what: "values and digests",
        checked: report.checked,
        wrong: report.wrong,
        unmeasured: &report.unmeasured,
        interrupted: report.interrupted,
        seconds: report.seconds,
    }
}

pub(super) fn unmeasured_line<M: std::fmt::Display>(one: &Unmeasured<M>) -> String {
    let what = match (&one.name, one.local_share) {
        (Some(name), Some(share)) => format!("{name}, {} local, {}", percent(share), one.mode),
        (Some(name), None) => format!("{name}, {}", one.mode),
        _ => one.mode.to_string(),
    };
    let fate = match one.fate {
        Fate::Skipped => "SKIPPED",
        Fate::TooSlow => "TOO SLOW",
        Fate::Killed => "KILLED",
        Fate::Failed => "FAILED",
    };
    format!("{what}: {fate}, {}", one.reason)
}

/// Builds the table of slowdowns by case and share, a column for each mode.
fn slowdowns(report: &MemoryReport) -> ReportTable {
    let modes = report.modes();
    let mut head = vec!["application", "local"];
    head.extend(modes.iter().map(|mode| mode.name()));
    let title = "Slowdown relative to all-local memory";
    let mut table = ReportTable::new(title, &head, 1);
    for case in report.cases() {
        for share in report.shares() {
            let mut row = vec![case.to_owned(), percent(share)];
            row.extend(modes.iter().map(|mode| slowdown(report, case, *mode, share)));
            table.rows.push(row);
        }
    }
    table.notes.push(
        "Time for an operation, as a multiple of the time on local memory in the same run. \
         local: share of what the application holds that may be resident."
            .to_owned(),
    );
    table.notes.push(format!(
        "Venice's modes keep {} cop{} of far memory, as their peers do.",
        report.copies,
        if report.copies == 1 { "y" } else { "ies" }
    ));
    if modes.contains(&Mode::VeniceWindow) {
        table.notes.push(
            "venice-window maps memory of this machine: its figures include no link latency."
                .to_owned(),
        );
    }
    table
}

fn slowdown(report: &MemoryReport, case: &str, mode: Mode, share: f64) -> String {
    let Some(cell) = report.cell(case, mode, share) else { return "-".to_owned() };
    match (cell.wrong, cell.cut_short) {
        (0, false) => times(cell.slowdown),
        // The figure still describes what was measured.
        (0, true) => format!("{} (cut short)", times(cell.slowdown)),
        (wrong, _) => format!("{wrong} WRONG"),
    }
}

/// Builds the table of operations a second and p99, for the cases that have requests.
fn latencies(report: &MemoryReport) -> ReportTable {
    let mut table = ReportTable::new(
        "Requests: thousands a second / p99 in µs",
        &["application", "local", "all local"],
        1,
    );
    let modes = report.modes();
    table.head.extend(modes.iter().map(ToString::to_string));
    for case in report.cases() {
        for share in report.shares() {
            let figure = |mode: Mode| {
                let cell = report.cell(case, mode, share)?;
                let rate = cell.operations as f64 / cell.seconds / 1e3;
                Some(format!("{rate:.1} / {}", micros(cell.p99_us?)))
            };
            let Some(local) = figure(Mode::Local) else { continue };
            let mut row = vec![case.to_owned(), percent(share), local];
            let far = modes.iter().map(|mode| figure(*mode).unwrap_or("-".to_owned()));
            row.extend(far);
            table.rows.push(row);
        }
    }
    table
}

/// Builds the table of the runs on local memory: bytes held and durations.
pub(super) fn runs(report: &MemoryReport) -> ReportTable {
    let head = ["application", "holds", "load s", "seconds", "operations"];
    let mut table = ReportTable::new("On local memory", &head, 1);
    for cell in report.cells.iter().filter(|cell| cell.mode == Mode::Local) {
        table.rows.push(vec![
            cell.case.clone(),
            ByteSize(cell.resident_bytes).to_string(),
            format!("{:.2}", cell.load_s),
            format!("{:.3}", cell.seconds),
            grouped(cell.operations as f64),
        ]);
    }
    table.notes.push(
        "Operations: requests, edges visited, bytes searched, points transformed.".to_owned(),
    );
    table
}

/// Formats a factor: `1.25 ×`, `43 ×`.
pub(super) fn times(factor: f64) -> String {
    match factor {
        ..10.0 => format!("{factor:.2} ×"),
        ..100.0 => format!("{factor:.1} ×"),
        _ => format!("{factor:.0} ×"),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;

    #[test]
    fn text_has_figures_and_missing_cases() {
        let mut report = sample();
        let text = super::text(&report);
        for wanted in [
            "2.00 ×",
            "40.0 ×",
            "50 %",
            "zram: SKIPPED, no zram here",
            "fft, 25 % local, swap-disk: TOO SLOW, it did not end",
            "30 values and digests checked, 0 wrong",
            "keep 1 copy of far memory",
        ] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
        assert!(!text.contains("Requests:"), "nothing here has requests\n{text}");
        report.interrupted = true;
        report.cells[2].wrong = 3;
        report.cells[1].cut_short = true;
        for cell in &mut report.cells {
            cell.p99_us = Some(12.5);
        }
        let text = super::text(&report);
        for wanted in ["3 WRONG", "INTERRUPTED", "1.25 × (cut short)", "1.0 / 12.5"] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
    }

    #[test]
    fn factors_have_significant_digits() {
        assert_eq!([1.034, 12.34, 123.4].map(times), ["1.03 ×", "12.3 ×", "123 ×"]);
    }
}
