//! The stages of requests, from the fastest half to the slowest thousandth.

use venice_experiment::outcome::CauseRow;
use venice_experiment::{PointResult, Results};

use super::numbers::number;
use crate::report_table::ReportTable;

/// Stages named in a line.
const NAMED: usize = 3;

/// Returns a line for each point: where its slowest requests lost their time.
pub(super) fn lines(results: &Results) -> Vec<String> {
    let line = |point: &PointResult| {
        let slowest = rows_of(point).last()?;
        let mut stages: Vec<&(String, f64)> = slowest.stages.iter().collect();
        stages.sort_by(|one, other| other.1.total_cmp(&one.1));
        let total = total(slowest);
        let named = stages.iter().take(NAMED).filter(|(_, time)| *time > 0.0);
        let named = named.map(|(name, time)| format!("{name} {:.0} %", 100.0 * time / total));
        let named: Vec<String> = named.collect();
        let (from, _) = slowest.percent;
        let share = number(100.0 - from);
        let time = number(total);
        Some(format!("{}slowest {share} %: {time} us; {}", place(point), named.join(", ")))
    };
    results.points.iter().filter_map(line).collect()
}

/// Returns a table for each point, as HTML: stages by parts of all requests.
pub(super) fn html(results: &Results) -> String {
    let table = |point: &PointResult| {
        let rows = rows_of(point);
        let first = rows.first()?;
        let title = format!("{}time of requests in us, by stage", place(point));
        let mut table = ReportTable { title, texts: 1, ..ReportTable::default() };
        table.head.push("stage".to_owned());
        let part =
            |row: &CauseRow| format!("{} to {} %", number(row.percent.0), number(row.percent.1));
        table.head.extend(rows.iter().map(part));
        for (at, (name, _)) in first.stages.iter().enumerate() {
            let times = rows.iter().map(|row| row.stages.get(at).map_or(0.0, |(_, time)| *time));
            let times: Vec<f64> = times.collect();
            if times.iter().any(|time| *time > 0.0) {
                let figures = times.into_iter().map(number);
                table.rows.push([name.clone()].into_iter().chain(figures).collect());
            }
        }
        let totals = rows.iter().map(|row| number(total(row)));
        table.rows.push(["sum".to_owned()].into_iter().chain(totals).collect());
        Some(table.html())
    };
    let tables: String = results.points.iter().filter_map(table).collect();
    match tables.is_empty() {
        true => String::new(),
        false => format!(
            "<h2>Where requests lose their time</h2>\n<p>Means, from the fastest requests to the \
             slowest.</p>\n{}",
            tables.replace("<h2>", "<h3>").replace("</h2>", "</h3>")
        ),
    }
}

fn rows_of(point: &PointResult) -> &[CauseRow] {
    point.outcome.as_ref().map_or(&[], |outcome| &outcome.causes)
}

fn total(row: &CauseRow) -> f64 {
    row.stages.iter().map(|(_, time)| time).sum()
}

/// Returns the coordinates of a point, before a text about it.
pub(super) fn place(point: &PointResult) -> String {
    let places = point.coordinates.iter().map(|place| format!("{}={}", place.name, place.text()));
    let places: Vec<String> = places.collect();
    if places.is_empty() { String::new() } else { format!("{}: ", places.join(" ")) }
}
