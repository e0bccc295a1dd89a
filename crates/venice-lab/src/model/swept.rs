//! A sweep as a table and as plots.

use anyhow::Result;
use venice_model::Quantity;

use super::report::SweptReport;
use crate::plot::{Line, LineChart, Plot, Scale, Stroke, Unit};
use crate::report_table::ReportTable;

/// Largest number of lines in one chart.
const MOST_LINES: usize = 6;
/// Ratio of an axis' ends above which it is logarithmic.
const DECADES_FROM: f64 = 20.0;

/// Builds the table, value by value.
pub(super) fn table(sweep: &SweptReport) -> ReportTable {
    let mut head = vec![sweep.name];
    head.extend(sweep.columns.iter().map(|(name, _)| name.as_str()));
    let mut table = ReportTable::new(format!("Along --{}", sweep.name), &head, 0);
    for row in &sweep.rows {
        let figures = sweep.columns.iter().zip(&row.outcomes);
        let mut cells = vec![sweep.quantity.write(row.value)];
        cells.extend(figures.map(|((_, quantity), value)| quantity.write(*value)));
        table.rows.push(cells);
    }
    table
}

/// Draws a chart for each resulting quantity, or several for many lines.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn plots(model: &str, sweep: &SweptReport) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    let columns: Vec<usize> = (0..sweep.columns.len()).collect();
    let alike = |a: &usize, b: &usize| sweep.columns[*a].1 == sweep.columns[*b].1;
    for columns in columns.chunk_by(alike).flat_map(|alike| alike.chunks(MOST_LINES)) {
        if let Some(svg) = chart(sweep, columns).svg()? {
            let name = format!("model-{model}-sweep-{}", plots.len() + 1);
            plots.push(Plot { name, svg });
        }
    }
    Ok(plots)
}

fn chart(sweep: &SweptReport, columns: &[usize]) -> LineChart<'static> {
    let (x_unit, x_factor) = axis(sweep.quantity);
    let (y_unit, y_factor) = axis(sweep.columns[columns[0]].1);
    let line = |&column: &usize| Line {
        name: sweep.columns[column].0.clone(),
        stroke: Stroke::Own,
        points: sweep
            .rows
            .iter()
            .map(|row| (row.value * x_factor, row.outcomes[column] * y_factor))
            .collect(),
    };
    let lines: Vec<Line> = columns.iter().map(line).collect();
    LineChart {
        title: format!("Along --{}", sweep.name),
        scale: scale(&lines),
        x: (sweep.name, x_unit),
        y: ("", y_unit),
        lines,
    }
}

/// Chooses a logarithmic axis if all values are positive and far apart.
fn scale(lines: &[Line]) -> Scale {
    let points = || lines.iter().flat_map(|line| &line.points);
    let wide = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        low > 0.0 && high / low > DECADES_FROM
    };
    let above = points().all(|(x, y)| *x > 0.0 && *y > 0.0);
    let decades =
        wide(&mut points().map(|point| point.0)) || wide(&mut points().map(|point| point.1));
    if above && decades { Scale::Logarithmic } else { Scale::Linear }
}

/// Returns the unit of an axis for a quantity, and the factor of its figures.
pub(super) fn axis(quantity: Quantity) -> (Unit, f64) {
    match quantity {
        Quantity::Time => (Unit::Nanoseconds, 1.0),
        Quantity::Length => (Unit::Metres, 1.0),
        Quantity::Share => (Unit::Percent, 100.0),
        Quantity::TimePerLength | Quantity::Times | Quantity::Count | Quantity::Cost => {
            (Unit::Plain, 1.0)
        }
    }
}
