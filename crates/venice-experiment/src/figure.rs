//! Figures: curves over the points of an experiment, beside the paper's.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{
    Coordinate, Experiment, ExperimentError, PointResult, State, Sweep, is_name_letter, keys, part,
};

/// Bins of a decade in a figure of shares.
const BINS: u32 = 20;

/// A figure of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Figure {
    /// Its name in files: `6a` becomes `figure-6a.svg`.
    pub name: String,
    /// Its title.
    pub title: String,
    /// Its form.
    pub kind: FigureKind,
    /// The sweep along the x axis; only for lines.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub x: String,
    /// The figure on the y axis of lines; else the histogram or series that is drawn.
    pub y: String,
    /// Sweeps of which each value has a curve of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<String>,
    /// Sweeps of which only a value is drawn, or some in an array.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub at: Table,
    /// Title of the x axis; without it, the sweep's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub x_title: String,
    /// Title of the y axis; without it, the figure's name and unit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub y_title: String,
    /// Axes that are logarithmic: `x`, `y`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
    /// Curves of the paper.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paper: Vec<PaperCurve>,
}

/// The form of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureKind {
    /// A figure of each point over a sweep.
    #[default]
    Lines,
    /// The cumulative distribution of a histogram.
    Cdf,
    /// The share of values in bins of a logarithmic axis.
    Pmf,
    /// A series over virtual time.
    Time,
}

impl FigureKind {
    /// Returns what it draws, as a word.
    pub fn what(self) -> &'static str {
        match self {
            Self::Lines => "figure",
            Self::Cdf | Self::Pmf => "histogram",
            Self::Time => "series",
        }
    }
}

/// A curve of the paper.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperCurve {
    /// Its name in the legend.
    pub label: String,
    /// Label of the curve that it is compared with: the values of its series, with blanks between;
    /// without it, the one of the same label. Empty for the only curve of a figure without series.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The place of the figures: `figure 6a, read off the plot`.
    pub source: String,
    /// Pairs of x and y.
    pub points: Vec<(f64, f64)>,
}

/// One curve of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name in the legend; empty for the only one.
    pub label: String,
    /// Pairs of x and y, by rising x.
    pub points: Vec<(f64, f64)>,
}

impl Figure {
    /// True if the x axis is logarithmic.
    pub fn is_log_x(&self) -> bool {
        self.log.iter().any(|axis| axis == "x") || self.kind == FigureKind::Pmf
    }

    /// True if the y axis is logarithmic.
    pub fn is_log_y(&self) -> bool {
        self.log.iter().any(|axis| axis == "y")
    }

    pub(super) fn check(&self, of: &Experiment, place: &str) -> Result<(), ExperimentError> {
        let wrong = |why: String| Err(part(place, why));
        if self.name.is_empty() || !self.name.chars().all(is_name_letter) {
            return wrong("its name may have letters, digits, - and _".into());
        }
        if self.y.is_empty() {
            return wrong("y is missing: the figure, histogram or series that it draws".into());
        }
        if let Some(axis) = self.log.iter().find(|axis| !["x", "y"].contains(&&***axis)) {
            return wrong(format!("log: no axis {axis}: write x, y or both"));
        }
        let is_lines = self.kind == FigureKind::Lines;
        if is_lines == self.x.is_empty() {
            return wrong(
                "lines need an x, the sweep along the axis; other kinds have none".into(),
            );
        }
        let axis = is_lines.then_some(&self.x);
        let names: Vec<&String> = axis.into_iter().chain(&self.series).collect();
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) || axis == Some(*name) && self.at.contains_key(*name) {
                return wrong(format!("{name} is there twice, in x, series or at"));
            }
        }
        for name in names.iter().copied().chain(self.at.keys()) {
            if !of.sweeps.iter().any(|sweep| sweep.name() == *name) {
                return Err(of.no_sweep(place, name));
            }
        }
        let mut paper = self.paper.iter().flat_map(|curve| &curve.points);
        if let Some((x, y)) = paper.find(|(x, y)| !(x.is_finite() && y.is_finite())) {
            return wrong(format!("paper: [{x}, {y}] is no point"));
        }
        let is_drawn = |sweep: &&Sweep| {
            let is_one = self.at.get(sweep.name()).is_some_and(|value| !value.is_array());
            sweep.len() == 1 || is_one || names.iter().any(|name| **name == sweep.name())
        };
        match of.sweeps.iter().find(|sweep| !is_drawn(sweep)) {
            Some(sweep) => wrong(format!("{} varies: name it in x, series or at", sweep.name())),
            None => Ok(()),
        }
    }

    /// Returns the curves of points that were run to their end.
    pub fn curves(&self, points: &[PointResult]) -> Vec<Curve> {
        let mut curves: Vec<Curve> = Vec::new();
        let done = points.iter().filter(|point| point.state == State::Done);
        for point in done.filter(|point| self.takes(&point.coordinates)) {
            let drawn = self.points_of(point);
            if drawn.is_empty() {
                continue;
            }
            let label = self.label(&point.coordinates);
            match curves.iter_mut().find(|curve| curve.label == label) {
                Some(curve) => curve.points.extend(drawn),
                None => curves.push(Curve { label, points: drawn }),
            }
        }
        for curve in &mut curves {
            curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        curves
    }

    /// True if it draws the point at these places.
    pub fn takes(&self, coordinates: &[Coordinate]) -> bool {
        self.at.iter().all(|(name, wanted)| {
            let is_one = |value: &Value| {
                coordinates.iter().any(|at| at.name == *name && at.is(&keys::text_of(value)))
            };
            match wanted {
                Value::Array(values) => values.iter().any(is_one),
                value => is_one(value),
            }
        })
    }

    /// Returns the label of the curve that a point is on.
    pub fn label(&self, coordinates: &[Coordinate]) -> String {
        let named = |name: &String| coordinates.iter().find(|place| place.name == *name);
        let text = |place: &Coordinate| match &place.value {
            Value::String(text) => text.clone(),
            value => format!("{} {value}", place.name),
        };
        let texts: Vec<String> = self.series.iter().filter_map(named).map(text).collect();
        texts.join(" ")
    }

    fn points_of(&self, point: &PointResult) -> Vec<(f64, f64)> {
        let Some(outcome) = &point.outcome else { return Vec::new() };
        match self.kind {
            FigureKind::Lines => {
                let x = self.x_of(&point.coordinates);
                x.zip(outcome.value(&self.y).map(|(value, _)| value)).into_iter().collect()
            }
            FigureKind::Cdf => {
                outcome.histogram(&self.y).map(|histogram| histogram.cdf()).unwrap_or_default()
            }
            FigureKind::Pmf => {
                outcome.histogram(&self.y).map(|histogram| histogram.pmf(BINS)).unwrap_or_default()
            }
            FigureKind::Time => {
                let series = outcome.series.iter().find(|series| series.name == self.y);
                series.map(|series| series.points.clone()).unwrap_or_default()
            }
        }
    }

    /// Returns the place on the x axis: a number, with or without a unit behind it.
    fn x_of(&self, coordinates: &[Coordinate]) -> Option<f64> {
        let text = coordinates.iter().find(|place| place.name == self.x)?.text();
        let number = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        number.trim().parse().ok()
    }

    /// Returns the paper's value at a point: that of the curve to compare with.
    pub fn paper_at(&self, coordinates: &[Coordinate]) -> Option<f64> {
        if self.kind != FigureKind::Lines || !self.takes(coordinates) {
            return None;
        }
        let (x, label) = (self.x_of(coordinates)?, self.label(coordinates));
        let compared = |curve: &&PaperCurve| curve.of.as_ref().unwrap_or(&curve.label) == &label;
        let points = self.paper.iter().filter(compared).flat_map(|curve| &curve.points);
        points.into_iter().find(|(at, _)| (at - x).abs() <= 1e-9 * x.abs()).map(|(_, y)| *y)
    }

    /// Returns the unit of the values that it draws, if a point has them.
    pub fn unit<'a>(&self, points: &'a [PointResult]) -> &'a str {
        let units = points.iter().filter_map(|point| point.outcome.as_ref()).filter_map(
            |outcome| match self.kind {
                FigureKind::Lines => outcome.value(&self.y).map(|(_, unit)| unit),
                FigureKind::Cdf | FigureKind::Pmf => {
                    outcome.histogram(&self.y).map(|histogram| &*histogram.unit)
                }
                FigureKind::Time => {
                    outcome.series.iter().find(|one| one.name == self.y).map(|one| &*one.unit)
                }
            },
        );
        units.into_iter().next().unwrap_or_default()
    }
}
