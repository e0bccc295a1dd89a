//! The report as tables.

use venice_wire::ByteSize;

use super::closing::{Closing, load_line};
use super::mode::Mode;
use super::report::{Fate, MemoryReport, Unmeasured};
use crate::sheet::Sheet;
use venice_measure::report::{grouped, micros};

/// Every table, in order.
pub(super) fn all(report: &MemoryReport) -> Vec<Sheet> {
    let mut sheets = vec![slowdowns(report)];
    let requests = latencies(report);
    if !requests.rows.is_empty() {
        sheets.push(requests);
    }
    sheets.push(runs(report));
    sheets
}

/// All of it for a terminal.
pub(super) fn text(report: &MemoryReport) -> String {
    let header = header(report).join("\n");
    let sheets: Vec<String> = all(report).iter().map(Sheet::text).collect();
    format!("{header}\n\n{}\n{}", sheets.join("\n"), closing(report).line())
}

/// The lines above the tables.
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
            if report.quick { " (--quick: a glance, not a measurement)" } else { "" },
        ),
    ];
    lines.extend(load_line(report.load, &report.machine));
    lines
}

/// What was wrong or missing, and how long it took.
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

/// Slowdown by case and share, a column for each mode.
fn slowdowns(report: &MemoryReport) -> Sheet {
    let modes = report.modes();
    let mut head = vec!["application", "local"];
    head.extend(modes.iter().map(|mode| mode.name()));
    let title = "Slowdown against all of the memory being local";
    let mut sheet = Sheet::new(title, &head, 1);
    for case in report.cases() {
        for share in report.shares() {
            let mut row = vec![case.to_owned(), percent(share)];
            row.extend(modes.iter().map(|mode| slowdown(report, case, *mode, share)));
            sheet.rows.push(row);
        }
    }
    sheet.notes.push(
        "Time for an operation, as a multiple of the time on local memory in the same run. \
         local: share of what the application holds that may be resident."
            .to_owned(),
    );
    sheet.notes.push(format!(
        "Venice's modes keep {} cop{} of far memory, as those beside them do.",
        report.copies,
        if report.copies == 1 { "y" } else { "ies" }
    ));
    if modes.contains(&Mode::VeniceWindow) {
        sheet.notes.push(
            "venice-window maps memory of this very machine: it has no link's latency in it."
                .to_owned(),
        );
    }
    sheet
}

fn slowdown(report: &MemoryReport, case: &str, mode: Mode, share: f64) -> String {
    let Some(cell) = report.cell(case, mode, share) else { return "-".to_owned() };
    match (cell.wrong, cell.cut_short) {
        (0, false) => times(cell.slowdown),
        // Still a figure of what was measured.
        (0, true) => format!("{} (cut short)", times(cell.slowdown)),
        (wrong, _) => format!("{wrong} WRONG"),
    }
}

/// Operations a second and p99 of the cases that have requests.
fn latencies(report: &MemoryReport) -> Sheet {
    let mut sheet = Sheet::new(
        "Requests: thousands a second / p99 in µs",
        &["application", "local", "all local"],
        1,
    );
    let modes = report.modes();
    sheet.head.extend(modes.iter().map(ToString::to_string));
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
            sheet.rows.push(row);
        }
    }
    sheet
}

/// What was held, and how long it took, on local memory.
pub(super) fn runs(report: &MemoryReport) -> Sheet {
    let head = ["application", "holds", "load s", "seconds", "operations"];
    let mut sheet = Sheet::new("On local memory", &head, 1);
    for cell in report.cells.iter().filter(|cell| cell.mode == Mode::Local) {
        sheet.rows.push(vec![
            cell.case.clone(),
            ByteSize(cell.resident_bytes).to_string(),
            format!("{:.2}", cell.load_s),
            format!("{:.3}", cell.seconds),
            grouped(cell.operations as f64),
        ]);
    }
    sheet.notes.push(
        "Operations: requests, edges looked at, bytes searched, points transformed.".to_owned(),
    );
    sheet
}

/// `1.25 ×`, `43 ×`
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
    fn the_text_has_every_figure_and_names_what_is_missing() {
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
    fn factors_have_the_digits_that_count() {
        assert_eq!([1.034, 12.34, 123.4].map(times), ["1.03 ×", "12.3 ×", "123 ×"]);
    }
}
