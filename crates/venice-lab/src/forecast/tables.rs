//! Tables and plots of `venice bench forecast`.

use anyhow::Result;

use super::Predictor;
use super::report::{CurvePoint, ForecastReport, MethodReport, SeriesReport};
use crate::plot::{Line, LineChart, Plot, Scale, Stroke, Unit};
use crate::report_table::ReportTable;

pub(super) const TITLE: &str = "Forecasts of peaks: shortage and excess";
pub(super) const LEGEND: &str = "Each dot is a margin, from none (top left) up. Further down and further left is better. Thin: \
     persistence. Dashed: perfect foresight, which reserves each window's peak and no more.";

/// Renders the report as text for a terminal.
pub(super) fn text(report: &ForecastReport) -> String {
    let tables: Vec<String> = all(report).iter().map(ReportTable::text).collect();
    format!("{}\n\n{}", header(report).join("\n"), tables.join("\n").trim_end())
}

/// Returns the lines above the tables.
pub(super) fn header(report: &ForecastReport) -> Vec<String> {
    let ForecastReport { window, ahead, lags, errors, .. } = report;
    vec![format!(
        "Forecast: the peak of the next {ahead} samples from the last {window}, window after \
         window; {lags} past samples, {errors} past errors (ARMA)."
    )]
}

/// Returns every table.
pub(super) fn all(report: &ForecastReport) -> Vec<ReportTable> {
    let mut tables: Vec<ReportTable> =
        report.series.iter().map(|series| one(series, report.short)).collect();
    tables.push(verdicts(report));
    tables
}

/// Builds the table of one resource, with the methods beside each other.
fn one(series: &SeriesReport, short: f64) -> ReportTable {
    let at = format!("margin for {}", percent(short));
    let head = [
        "method",
        "short windows",
        "shortage",
        "excess",
        &at,
        "shortage",
        "excess",
        "learnt margin: late",
        "excess",
        "moved",
    ];
    let title = format!("{}, {}: {} windows", series.trace, series.resource, series.windows);
    let mut table = ReportTable::new(title, &head, 1);
    for method in &series.methods {
        let plain = method.curve[0];
        let mut row = vec![
            method.predictor.name().to_owned(),
            percent(plain.short_windows),
            percent(plain.under),
            percent(plain.over),
        ];
        let figures = |point: CurvePoint| [point.margin, point.under, point.over].map(percent);
        row.extend(method.at_short.map_or(["-"; 3].map(str::to_owned), figures));
        let ahead = method.ahead;
        row.extend([ahead.late_windows, ahead.over, ahead.moved].map(percent));
        table.rows.push(row);
    }
    table
}

/// Builds the table of the method with the least excess at the same risk, and of persistence.
fn verdicts(report: &ForecastReport) -> ReportTable {
    let head = ["trace", "resource", "least by", "excess", "persistence", "last peak", "foresight"];
    let title = format!(
        "Excess reserved, at a margin by which {} of the windows are short",
        percent(report.short)
    );
    let mut table = ReportTable::new(title, &head, 3);
    for series in &report.series {
        let over = |predictor| equal(series, predictor).map_or("-".to_owned(), percent);
        let predictors =
            || Predictor::ALL.into_iter().filter(|predictor| *predictor != Predictor::Foresight);
        let least = predictors()
            .filter_map(|predictor| Some((predictor, equal(series, predictor)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        table.rows.push(vec![
            series.trace.clone(),
            series.resource.clone(),
            least.map_or("-", |(predictor, _)| predictor.name()).to_owned(),
            least.map_or("-".to_owned(), |(_, over)| percent(over)),
            over(Predictor::LastValue),
            over(Predictor::LastPeak),
            over(Predictor::Foresight),
        ]);
    }
    table.notes.extend([
        "Short windows: those with a shortage at some time. Shortage: missing, relative to the \
         use. Excess: reserved and unused, relative to the use."
            .to_owned(),
        "The first three columns are without a margin. The margin beside them is the least that \
         keeps the share of short windows at the limit. It is the same for all windows and known \
         only afterwards: it gives all methods the same risk."
            .to_owned(),
        "Learnt: slabs reserved in advance, with a margin learnt from earlier windows. Late: \
         windows in which slabs were reserved only when needed. Moved: slabs reserved and released \
         in a window, relative to those held."
            .to_owned(),
        "Foresight reserves each window's peak: its excess is the rest of the window.".to_owned(),
    ]);
    table
}

fn equal(series: &SeriesReport, predictor: Predictor) -> Option<f64> {
    let method = series.methods.iter().find(|method| method.predictor == predictor)?;
    method.at_short.map(|point| point.over)
}

/// Draws a trade-off for each resource.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn plots(report: &ForecastReport) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    for series in &report.series {
        let chart = LineChart {
            title: format!("{}, {}: margins", series.trace, series.resource),
            scale: Scale::Linear,
            x: ("excess, relative to the use", Unit::Percent),
            y: ("short windows", Unit::Percent),
            lines: series.methods.iter().map(curve).collect(),
        };
        if let Some(svg) = chart.svg()? {
            let words = format!("forecast-{}-{}", series.trace, series.resource);
            let letter =
                |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
            plots.push(Plot { name: words.chars().map(letter).collect(), svg });
        }
    }
    Ok(plots)
}

fn curve(method: &MethodReport) -> Line {
    let stroke = match method.predictor {
        Predictor::LastValue | Predictor::LastPeak => Stroke::Peer,
        Predictor::Foresight => Stroke::Raw,
        Predictor::Ar | Predictor::Arma | Predictor::Var => Stroke::Own,
    };
    let point = |point: &CurvePoint| (100.0 * point.over, 100.0 * point.short_windows);
    let points = method.curve.iter().map(point).collect();
    Line { name: method.predictor.name().to_owned(), stroke, points }
}

/// Formats a share with enough digits to tell these apart.
fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::super::report::AheadReport;
    use super::*;
    use crate::plot::xml;

    fn sample() -> ForecastReport {
        let point = |margin, over| CurvePoint { margin, short_windows: 0.3, under: 0.01, over };
        let method = |predictor, over| MethodReport {
            predictor,
            curve: vec![point(0.0, over), point(0.1, over + 0.1)],
            at_short: (predictor != Predictor::Var).then_some(point(0.05, over + 0.05)),
            ahead: AheadReport { late_windows: 0.02, over: 0.4, moved: 0.1 },
        };
        ForecastReport {
            window: 288,
            ahead: 12,
            lags: 12,
            errors: 4,
            short: 0.01,
            slab: 0.01,
            remembered: 168,
            series: vec![SeriesReport {
                trace: "Mine & yours".into(),
                resource: "memory".into(),
                samples: 400,
                windows: 9,
                methods: vec![
                    method(Predictor::LastValue, 0.2),
                    method(Predictor::LastPeak, 0.3),
                    method(Predictor::Ar, 0.1),
                    method(Predictor::Var, 0.0),
                    method(Predictor::Foresight, 0.04),
                ],
            }],
        }
    }

    #[test]
    fn least_at_equal_risk_is_named() {
        let text = text(&sample());
        let verdict =
            text.lines().rfind(|line| line.contains("Mine & yours") && line.contains('|'));
        let cells: Vec<&str> = verdict.unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[3..8], ["AR", "15.00 %", "25.00 %", "35.00 %", "9.00 %"], "{text}");
    }

    #[test]
    fn each_resource_has_curves() {
        let plots = plots(&sample()).unwrap();
        assert_eq!(plots.len(), 1);
        assert_eq!(plots[0].name, "forecast-mine---yours-memory");
        let texts = xml::texts(&plots[0].svg).unwrap();
        for wanted in ["persistence", "VAR", "foresight", "short windows"] {
            assert!(texts.iter().any(|text| text == wanted), "{wanted} is not in {texts:?}");
        }
    }

    #[test]
    fn report_survives_json() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["series"][0]["methods"][0]["predictor"], "last-value");
        assert_eq!(serde_json::from_value::<ForecastReport>(json).unwrap(), sample());
    }
}
