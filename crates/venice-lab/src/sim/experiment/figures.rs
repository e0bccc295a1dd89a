//! Plots of an experiment's figures, the paper's curves beside ours.

use anyhow::Result;
use venice_experiment::{Curve, Experiment, Figure, FigureKind, Results};

use super::queues;
use crate::plot::{Line, LineChart, Plot, Scale, Stroke, Unit};

/// Draws every figure that has a curve of ours or of the paper, and the maps of each point.
///
/// # Errors
/// When the drawing library fails.
pub(super) fn plots(experiment: &Experiment, results: &Results) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    for figure in &experiment.figures {
        let name = format!("figure-{}", figure.name);
        plots.extend(svg(figure, results)?.map(|svg| Plot { name, svg }));
    }
    plots.extend(queues::plots(results)?);
    Ok(plots)
}

/// Unit and title of an axis, and the factor from values to that unit.
struct Axis {
    title: String,
    unit: Unit,
    factor: f64,
}

impl Axis {
    fn new(title: &str, name: &str, unit: &str) -> Self {
        let title = if title.is_empty() { name } else { title };
        let factor = match unit {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "" => return Self { title: title.to_owned(), unit: Unit::Plain, factor: 1.0 },
            _ => {
                return Self { title: format!("{title} ({unit})"), unit: Unit::Plain, factor: 1.0 };
            }
        };
        Self { title: title.to_owned(), unit: Unit::Nanoseconds, factor }
    }

    /// The axis of a share of all values.
    fn share(title: &str) -> Self {
        let title = if title.is_empty() { "share of all" } else { title };
        Self { title: title.to_owned(), unit: Unit::Percent, factor: 100.0 }
    }
}

fn svg(figure: &Figure, results: &Results) -> Result<Option<String>> {
    let unit = figure.unit(&results.points);
    let (x, y, stroke) = match figure.kind {
        FigureKind::Lines => (
            Axis::new(&figure.x_title, &figure.x, ""),
            Axis::new(&figure.y_title, &figure.y, unit),
            Stroke::Own,
        ),
        FigureKind::Cdf | FigureKind::Pmf => (
            Axis::new(&figure.x_title, &figure.y, unit),
            Axis::share(&figure.y_title),
            Stroke::Smooth,
        ),
        FigureKind::Time => (
            Axis::new(&figure.x_title, "virtual time", "s"),
            Axis::new(&figure.y_title, &figure.y, unit),
            Stroke::Smooth,
        ),
    };
    let scaled = |points: &[(f64, f64)]| {
        points.iter().map(|(left, up)| (left * x.factor, up * y.factor)).collect()
    };
    let own = figure.curves(&results.points);
    let mut lines: Vec<Line> = own
        .iter()
        .map(|Curve { label, points }| Line {
            name: if label.is_empty() { "Venice".to_owned() } else { label.clone() },
            stroke,
            points: thinned(scaled(points)),
        })
        .collect();
    lines.extend(figure.paper.iter().map(|curve| Line {
        name: format!("{}, paper", curve.label),
        stroke: Stroke::Peer,
        points: scaled(&curve.points),
    }));
    LineChart {
        title: figure.title.clone(),
        scale: Scale::of(figure.is_log_x(), figure.is_log_y()),
        x: (&x.title, x.unit),
        y: (&y.title, y.unit),
        lines,
    }
    .svg()
}

/// Drops points that would be drawn on the one before: of a distribution there are thousands.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let highest = points.iter().map(|point| point.1.abs()).fold(0.0, f64::max);
    let last = points.len().saturating_sub(1);
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for (at, point) in points.into_iter().enumerate() {
        let is_near = kept.last().is_some_and(|before| {
            point.0 - before.0 < 0.02 * point.0.abs()
                && (point.1 - before.1).abs() < highest / 200.0
        });
        if !is_near || at == last {
            kept.push(point);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinned_curve_keeps_its_ends() {
        let points: Vec<(f64, f64)> =
            (1..=100_000).map(|n| (f64::from(n), f64::from(n) / 1e5)).collect();
        let kept = thinned(points.clone());
        assert!(kept.len() < 1000, "{}", kept.len());
        assert_eq!((kept.first(), kept.last()), (points.first(), points.last()));
        let few = vec![(1.0, 5.0), (2.0, 0.0), (4.0, 5.0)];
        assert_eq!(thinned(few.clone()), few);
    }
}
