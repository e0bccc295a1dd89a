//! The queues of switches: the fullest of each point, and maps over virtual time.

use anyhow::Result;
use venice_experiment::outcome::{HeatMap, Outcome, QueueRow};
use venice_experiment::{PointResult, Results};

use super::causes::place;
use super::numbers::number;
use crate::plot::{self, Plot, Unit};
use crate::report_table::ReportTable;

/// First letters of the plots' names.
const MAP: &str = "heatmap-";

/// Draws the maps of each point.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn plots(results: &Results) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    for (at, point) in (1..).zip(&results.points) {
        for map in point.outcome.iter().flat_map(|outcome| &outcome.heatmaps) {
            let name = format!("{MAP}{at}-{}", map.name);
            plots.extend(svg(point, map)?.map(|svg| Plot { name, svg }));
        }
    }
    Ok(plots)
}

fn svg(point: &PointResult, map: &HeatMap) -> Result<Option<String>> {
    let columns = map.rows.first().map_or(0, |row| row.values.len());
    // The first row is the highest.
    let column = |at: usize| {
        let values = map.rows.iter().rev().map(|row| row.values.get(at).copied().unwrap_or(0));
        values.map(|value| value as f64).collect()
    };
    let unit = match &*map.unit {
        "B" => Unit::Bytes,
        _ => Unit::Plain,
    };
    plot::HeatMap {
        title: format!("{}{}", place(point), map.title),
        x: "virtual time",
        y: "",
        unit,
        columns: (0..columns).map(column).collect(),
        names: map.rows.iter().rev().map(|row| row.name.clone()).collect(),
        width: Some((map.column_s * 1e9, Unit::Nanoseconds)),
    }
    .svg()
}

/// True if a plot is a map of a point.
pub(super) fn is_map(plot: &Plot) -> bool {
    plot.name.starts_with(MAP)
}

/// Returns the maps, and a table for each point, as HTML.
pub(super) fn html(results: &Results, plots: &[Plot]) -> String {
    let table = |point: &PointResult| {
        let queues = point.outcome.as_ref().map_or(&[][..], |outcome: &Outcome| &outcome.queues);
        let title = format!("{}fullest queues of switches", place(point));
        let head = [
            "switch",
            "fullest link",
            "most B",
            "mean B",
            "packets",
            "queued",
            "marked",
            "dropped",
        ];
        let mut table = ReportTable::new(title, &head, 2);
        table.rows = queues.iter().map(cells).collect();
        (!queues.is_empty()).then(|| table.html().replace("h2>", "h3>"))
    };
    let tables: String = results.points.iter().filter_map(table).collect();
    let maps = plots.iter().filter(|plot| is_map(plot)).map(|plot| format!("{}\n", plot.svg));
    let maps: String = maps.collect();
    if tables.is_empty() && maps.is_empty() {
        return String::new();
    }
    format!(
        "<h2>Queues of switches</h2>\n<p>The most bytes are those of the fullest link at once; the \
         mean is over virtual time, of all links of the switch.</p>\n{maps}{tables}"
    )
}

fn cells(row: &QueueRow) -> Vec<String> {
    let QueueRow { name, link, most_bytes, mean_bytes, packets, queued, marked, dropped } = row;
    let figures = [most_bytes, packets, queued, marked, dropped].map(ToString::to_string);
    let [most, packets, queued, marked, dropped] = figures;
    let mean = number(*mean_bytes);
    vec![name.clone(), link.clone(), most, mean, packets, queued, marked, dropped]
}

#[cfg(test)]
pub(super) mod tests {
    use venice_experiment::outcome::HeatRow;

    use super::*;

    /// The queues of a switch.
    pub(crate) fn row(name: &str) -> QueueRow {
        QueueRow {
            name: name.to_owned(),
            link: "switch:3.31".to_owned(),
            most_bytes: 4096,
            mean_bytes: 12.5,
            packets: 100,
            queued: 60,
            marked: 0,
            dropped: 7,
        }
    }

    /// A map of one row.
    pub(crate) fn map(title: &str, row: &str) -> HeatMap {
        HeatMap {
            name: "levels".to_owned(),
            title: title.to_owned(),
            unit: "B".to_owned(),
            column_s: 1e-3,
            rows: vec![HeatRow { name: row.to_owned(), values: vec![0, 4096, 512] }],
        }
    }

    #[test]
    fn row_has_all_figures() {
        let cells = cells(&row("tor 3"));
        assert_eq!(cells, ["tor 3", "switch:3.31", "4096", "12.5", "100", "60", "0", "7"]);
    }
}
