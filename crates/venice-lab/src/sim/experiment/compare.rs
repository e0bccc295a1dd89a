//! `venice sim compare`: two runs side by side.

use anyhow::Result;
use serde::Serialize;
use venice_cli::terminal::{self, Align};
use venice_experiment::{PointResult, Results, State, keys};

use super::numbers::number;

/// Parts of a histogram that only a full list has.
const MINOR: [&str; 5] = [".p90", ".p95", ".p99_9", ".p99_99", ".count"];

/// Two runs side by side.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// Names of the runs' experiments.
    experiments: [String; 2],
    /// Versions and seeds that differ, and keys that were set differently.
    settings: Vec<Setting>,
    /// Figures of the points that both have.
    figures: Vec<Pair>,
    /// Points that one run alone has.
    alone: [Vec<String>; 2],
    /// Points with equal traces: the same run, event by event.
    equal_traces: usize,
    /// Points that both have.
    points: usize,
    /// Points that a run has not brought to its end, in a run each.
    unfinished: [Vec<String>; 2],
}

/// A setting that differs.
#[derive(Debug, Serialize)]
struct Setting {
    key: String,
    first: String,
    second: String,
}

/// A figure of a point in both runs.
#[derive(Debug, Serialize)]
struct Pair {
    point: String,
    figure: String,
    unit: String,
    first: f64,
    second: f64,
    /// The second by the first; `None` if the first is 0.
    ratio: Option<f64>,
}

impl Comparison {
    /// Compares two runs.
    pub(super) fn of(first: &Results, second: &Results) -> Result<Self> {
        let mut this = Self {
            experiments: [first.name.clone(), second.name.clone()],
            settings: settings(first, second)?,
            figures: Vec::new(),
            alone: [Vec::new(), Vec::new()],
            equal_traces: 0,
            points: 0,
            unfinished: [first, second].map(unfinished),
        };
        for point in done(first) {
            match done(second).find(|other| other.coordinates == point.coordinates) {
                Some(other) => this.add(point, other),
                None => this.alone[0].push(point.place()),
            }
        }
        let has =
            |point: &PointResult| done(first).any(|other| other.coordinates == point.coordinates);
        this.alone[1] = done(second).filter(|point| !has(point)).map(PointResult::place).collect();
        Ok(this)
    }

    fn add(&mut self, first: &PointResult, second: &PointResult) {
        let (Some(a), Some(b)) = (&first.outcome, &second.outcome) else { return };
        self.points += 1;
        self.equal_traces += usize::from(a.trace_hash == b.trace_hash);
        for figure in a.names() {
            let (Some((left, unit)), Some((right, _))) = (a.value(&figure), b.value(&figure))
            else {
                continue;
            };
            let ratio = (left != 0.0).then(|| right / left).filter(|ratio| ratio.is_finite());
            let (point, unit) = (first.place(), unit.to_owned());
            self.figures.push(Pair { point, figure, unit, first: left, second: right, ratio });
        }
    }

    /// Renders it; with `all`, equal figures and every percentile too.
    pub(super) fn text(&self, all: bool) -> String {
        let [first, second] = &self.experiments;
        let mut parts = vec![format!("{first} and {second}")];
        let (left, right) = (Align::Left, Align::Right);
        if !self.settings.is_empty() {
            let row = |one: &Setting| vec![one.key.clone(), one.first.clone(), one.second.clone()];
            let columns = [("setting", left), ("first", left), ("second", left)];
            parts.push(terminal::table(&columns, self.settings.iter().map(row).collect()));
        }
        let is_equal = |pair: &&Pair| pair.first == pair.second;
        let equal = self.figures.iter().filter(is_equal).count();
        let is_minor = |pair: &&Pair| MINOR.iter().any(|part| pair.figure.ends_with(part));
        let shown = self.figures.iter().filter(|pair| all || !is_equal(pair) && !is_minor(pair));
        let row = |pair: &Pair| {
            let ratio = pair.ratio.map_or("–".to_owned(), number);
            let values = [number(pair.first), number(pair.second), ratio];
            let texts = [pair.point.clone(), pair.figure.clone(), pair.unit.clone()];
            [texts, values].concat()
        };
        let rows: Vec<_> = shown.map(row).collect();
        if !rows.is_empty() {
            let columns = [
                ("point", left),
                ("figure", left),
                ("unit", left),
                ("first", right),
                ("second", right),
                ("ratio", right),
            ];
            parts.push(terminal::table(&columns, rows));
        }
        for (which, alone) in ["first", "second"].iter().zip(&self.alone) {
            if !alone.is_empty() {
                parts.push(format!("only the {which} run has: {}", alone.join("; ")));
            }
        }
        for (which, unfinished) in ["first", "second"].iter().zip(&self.unfinished) {
            if !unfinished.is_empty() {
                let places = unfinished.join("; ");
                parts.push(format!("interrupted in the {which} run, so not comparable: {places}"));
            }
        }
        parts.push(format!(
            "{equal} of {} figures are equal; {} of {} points have equal traces",
            self.figures.len(),
            self.equal_traces,
            self.points
        ));
        parts.join("\n\n")
    }
}

fn done(results: &Results) -> impl Iterator<Item = &PointResult> {
    results.points.iter().filter(|point| point.outcome.is_some())
}

/// Returns the points that were interrupted.
fn unfinished(results: &Results) -> Vec<String> {
    let points = done(results).filter(|point| point.state != State::Done);
    points.map(PointResult::place).collect()
}

fn settings(first: &Results, second: &Results) -> Result<Vec<Setting>> {
    let mut found = Vec::new();
    let mut add = |key: &str, first: String, second: String| {
        if first != second {
            found.push(Setting { key: key.to_owned(), first, second });
        }
    };
    add("venice version", first.version.clone(), second.version.clone());
    let (a, b) = (keys::leaves(&first.config), keys::leaves(&second.config));
    let text = |of: &[(String, &toml::Value)], key: &str| {
        let value = of.iter().find(|(name, _)| name == key).map(|(_, value)| keys::text_of(value));
        value.unwrap_or_else(|| "–".to_owned())
    };
    for (key, _) in &a {
        add(key, text(&a, key), text(&b, key));
    }
    for (key, _) in b.iter().filter(|(key, _)| !a.iter().any(|(name, _)| name == key)) {
        add(key, text(&a, key), text(&b, key));
    }
    let (a, b) = (first.experiment()?, second.experiment()?);
    for sweep in &a.sweeps {
        let other = b.sweep_named(sweep.name());
        let values = other.map_or_else(|| "–".to_owned(), |other| other.texts().join(","));
        add(&format!("sweep {}", sweep.name()), sweep.texts().join(","), values);
    }
    for sweep in b.sweeps.iter().filter(|sweep| a.sweep_named(sweep.name()).is_none()) {
        add(&format!("sweep {}", sweep.name()), "–".to_owned(), sweep.texts().join(","));
    }
    Ok(found)
}
