//! Table and plots of `venice bench placement`.

use anyhow::Result;
use venice_rack::placement::Policy;

use super::report::{PlacementReport, PolicyReport};
use crate::plot::{BarChart, BarSeries, Line, LineChart, Plot, Scale, Stroke, Unit};
use crate::report_table::ReportTable;

pub(super) const TITLE: &str = "Placement beside the optimum";
pub(super) const LEGEND: &str = "Cost above the optimum of requests placed one after the other. \
                                 Further left and lower is better.";

/// Renders the report as text for a terminal.
pub(super) fn text(report: &PlacementReport) -> String {
    format!("{}\n\n{}", header(report).join("\n"), table(report).text().trim_end())
}

/// Returns the lines above the table.
pub(super) fn header(report: &PlacementReport) -> Vec<String> {
    let PlacementReport { seed, seeds, racks, .. } = report;
    let mut lines = vec![format!(
        "{racks} racks, from seed {seed} on: 2 to 5 requests each, placed as they come, compared \
         with the least cost of placing them all together."
    )];
    if report.interrupted {
        lines.push(format!("Interrupted: {seeds} racks of each size were requested."));
    }
    lines
}

/// Builds the table of every policy by the size of the racks.
pub(super) fn table(report: &PlacementReport) -> ReportTable {
    let head =
        ["policy", "nodes", "racks", "refused", "median", "p90", "max", "aim", "within the aim"];
    let mut table = ReportTable::new("Cost above the optimum", &head, 2);
    for row in &report.rows {
        table.rows.push(vec![
            row.policy.to_string(),
            row.nodes.map_or("all".to_owned(), |nodes| nodes.to_string()),
            row.racks.to_string(),
            row.refused.to_string(),
            percent(row.median_above),
            percent(row.p90_above),
            percent(row.max_above),
            percent(Some(report.aim)),
            percent(row.within_aim),
        ]);
    }
    table.notes.extend([
        format!(
            "Aim: {} at the median, for nearest, the default policy. {}",
            percent(Some(report.aim)),
            verdict(report)
        ),
        "Cost: the sum over all slabs that nearest minimises: the donor's price for that recipient \
         (hops, busy links), and its shortfall in free slabs from the freest donor's initial \
         number. Spread and pack minimise other costs: each request's bandwidth, and the number of \
         donors."
            .to_owned(),
        "Refused: racks on which a request finds no room in pieces that its copies allow.".to_owned(),
    ]);
    table
}

fn verdict(report: &PlacementReport) -> &'static str {
    let of_all = |row: &&PolicyReport| row.policy == Policy::Nearest && row.nodes.is_none();
    match report.rows.iter().find(of_all).and_then(|row| row.median_above) {
        Some(above) if above <= report.aim => "Reached.",
        Some(_) => "Missed.",
        None => "Not measured.",
    }
}

/// Draws the distribution of the racks, and the medians by size.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn plots(report: &PlacementReport) -> Result<Vec<Plot>> {
    let charts = [("placement-racks", racks(report)?), ("placement-sizes", sizes(report)?)];
    let plot =
        |(name, svg): (&str, Option<String>)| Some(Plot { name: name.to_owned(), svg: svg? });
    Ok(charts.into_iter().filter_map(plot).collect())
}

fn racks(report: &PlacementReport) -> Result<Option<String>> {
    let line = |row: &PolicyReport| Line {
        name: row.policy.to_string(),
        stroke: Stroke::Own,
        points: (0..)
            .map(|at| f64::from(at) * 5.0)
            .zip(&row.above_by_twentieths)
            .map(point)
            .collect(),
    };
    let of_all = report.rows.iter().filter(|row| row.nodes.is_none());
    let mut lines: Vec<Line> = of_all.map(line).collect();
    let aim = 100.0 * report.aim;
    lines.push(Line {
        name: "the aim".to_owned(),
        stroke: Stroke::Raw,
        points: vec![(aim, 0.0), (aim, 100.0)],
    });
    let chart = LineChart {
        title: "Racks by cost above the optimum".to_owned(),
        scale: Scale::Linear,
        x: ("cost above the optimum", Unit::Percent),
        y: ("racks at or below it", Unit::Percent),
        lines,
    };
    chart.svg()
}

/// Returns a share of the racks in percent, and the cost of the worst of them.
fn point((percent, above): (f64, &f64)) -> (f64, f64) {
    (100.0 * above, percent)
}

fn sizes(report: &PlacementReport) -> Result<Option<String>> {
    let of_size = || report.rows.iter().filter(|row| row.nodes.is_some());
    let mut sizes: Vec<usize> = of_size().filter_map(|row| row.nodes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let series = |policy: Policy| {
        let value = |size: &usize| {
            let row = of_size().find(|row| row.policy == policy && row.nodes == Some(*size))?;
            row.median_above.map(|above| 100.0 * above)
        };
        BarSeries {
            name: policy.to_string(),
            values: sizes.iter().map(value).collect(),
            is_peer: policy != Policy::Nearest,
        }
    };
    let chart = BarChart {
        title: "Median cost above the optimum, by nodes".to_owned(),
        x: "nodes of the rack",
        y: ("above the optimum", Unit::Percent),
        groups: sizes.iter().map(usize::to_string).collect(),
        series: Policy::ALL.map(series).into(),
    };
    chart.svg()
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::xml;

    fn sample() -> PlacementReport {
        let row = |policy, nodes, above: f64| {
            PolicyReport::of(policy, nodes, vec![0.0, above, 2.0 * above], 1)
        };
        PlacementReport {
            seed: 7,
            seeds: 3,
            racks: 3,
            interrupted: true,
            aim: super::super::report::AIM,
            rows: vec![
                row(Policy::Nearest, None, 0.01),
                row(Policy::Nearest, Some(4), 0.01),
                row(Policy::Pack, None, 0.25),
                row(Policy::Pack, Some(4), 0.25),
            ],
        }
    }

    #[test]
    fn aim_stands_beside_each_policy() {
        let text = text(&sample());
        let row = text.lines().find(|line| line.contains("pack") && line.contains("all")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[3..9], ["3", "1", "25.0 %", "50.0 %", "50.0 %", "5.0 %"], "{text}");
        assert!(text.contains("Reached.") && text.contains("Interrupted: 3 racks"), "{text}");
    }

    #[test]
    fn plots_have_policies_and_aim() {
        let plots = plots(&sample()).unwrap();
        assert_eq!(plots.len(), 2);
        for (plot, wanted) in [(0, "the aim"), (0, "pack"), (1, "nearest"), (1, "4")] {
            let texts = xml::texts(&plots[plot].svg).unwrap();
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }

    #[test]
    fn report_survives_json() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["rows"][0]["policy"], "nearest");
        assert_eq!(serde_json::from_value::<PlacementReport>(json).unwrap(), sample());
    }
}
