//! Points and findings as rows, for the terminal and the report.

use venice_cli::terminal::{self, Align};
use venice_experiment::{
    Experiment, Expression, Figure, FigureKind, JudgedFinding, PointResult, Results, State, Verdict,
};

use super::causes;
use super::numbers::{number, with_unit};

/// A column of figures, and the paper's figure beside it.
pub(super) struct Column<'a> {
    /// Name of the figure.
    pub(super) name: String,
    /// Its unit.
    pub(super) unit: String,
    /// The figure of the experiment with the paper's values.
    pub(super) paper: Option<&'a Figure>,
}

impl Column<'_> {
    /// Returns the text of its head.
    pub(super) fn title(&self) -> String {
        if self.unit.is_empty() {
            self.name.clone()
        } else {
            format!("{} ({})", self.name, self.unit)
        }
    }

    /// Returns ours at a point.
    pub(super) fn own(&self, point: &PointResult) -> String {
        let outcome = point.outcome.as_ref();
        outcome
            .and_then(|outcome| outcome.value(&self.name))
            .map_or_else(none, |(it, _)| number(it))
    }
}

fn none() -> String {
    "–".to_owned()
}

/// Returns the columns that the experiment speaks of: those of its figures and findings; else all
/// metrics.
pub(super) fn columns<'a>(experiment: &'a Experiment, results: &Results) -> Vec<Column<'a>> {
    let mut names: Vec<String> = Vec::new();
    for figure in &experiment.figures {
        match figure.kind {
            FigureKind::Lines => names.push(figure.y.clone()),
            FigureKind::Cdf | FigureKind::Pmf => {
                names.extend(["p50", "p99", "p99_9"].map(|part| format!("{}.{part}", figure.y)));
            }
            FigureKind::Time => {}
        }
    }
    for finding in &experiment.findings {
        let Ok(expression) = Expression::parse(&finding.holds) else { continue };
        names.extend(expression.selections().into_iter().map(|(name, _)| name.to_owned()));
    }
    if names.is_empty() {
        let outcomes = results.points.iter().filter_map(|point| point.outcome.as_ref());
        names = outcomes.flat_map(|one| &one.metrics).map(|metric| metric.name.clone()).collect();
    }
    let mut columns: Vec<Column<'a>> = Vec::new();
    for name in names {
        if columns.iter().any(|column| column.name == name) {
            continue;
        }
        let outcomes = results.points.iter().filter_map(|point| point.outcome.as_ref());
        let mut units = outcomes.filter_map(|outcome| outcome.value(&name));
        let Some((_, unit)) = units.next() else { continue };
        let unit = unit.to_owned();
        let has_paper = |figure: &&Figure| {
            let here = |point: &PointResult| figure.paper_at(&point.coordinates).is_some();
            figure.y == name && results.points.iter().any(here)
        };
        let paper = experiment.figures.iter().find(has_paper);
        columns.push(Column { name, unit, paper });
    }
    columns
}

/// Returns head and rows of the points; the first `texts` columns are text.
pub(super) fn points(
    experiment: &Experiment,
    results: &Results,
) -> (Vec<String>, usize, Vec<Vec<String>>) {
    let columns = columns(experiment, results);
    let mut head: Vec<String> =
        experiment.sweeps.iter().map(|sweep| sweep.name().to_owned()).collect();
    let texts = head.len() + 1;
    head.push("state".to_owned());
    for column in &columns {
        head.push(column.title());
        head.extend(column.paper.map(|_| "paper".to_owned()));
    }
    head.extend(["events", "took"].map(str::to_owned));
    let row = |point: &PointResult| {
        let mut row: Vec<String> = point.coordinates.iter().map(|place| place.text()).collect();
        row.push(point.state.words().to_owned());
        for column in &columns {
            row.push(column.own(point));
            row.extend(
                column
                    .paper
                    .map(|figure| figure.paper_at(&point.coordinates).map_or_else(none, number)),
            );
        }
        row.push(point.outcome.as_ref().map_or_else(none, |outcome| outcome.events.to_string()));
        row.push(point.outcome.as_ref().map_or_else(none, |_| terminal::seconds(point.wall_s)));
        row
    };
    (head, texts, results.points.iter().map(row).collect())
}

/// Returns the numbers of a finding in a line: both sides of each comparison, and the figures.
pub(super) fn numbers(finding: &JudgedFinding) -> String {
    let numbers = &finding.numbers;
    if let (Verdict::NotRun, Some(first)) = (finding.verdict, numbers.missing.first()) {
        return match numbers.missing.len() {
            1 => format!("missing {first}"),
            more => format!("missing {first}; and {} more", more - 1),
        };
    }
    let sides = numbers
        .comparisons
        .iter()
        .map(|sides| format!("{} {} {}", number(sides.left), sides.order, number(sides.right)));
    let readings = numbers
        .readings
        .iter()
        .map(|reading| format!("{} = {}", reading.figure, with_unit(reading.value, &reading.unit)));
    let sides: Vec<String> = sides.collect();
    let readings: Vec<String> = readings.collect();
    match readings.len() {
        0 => sides.join(", "),
        1..=4 => format!("{}; {}", sides.join(", "), readings.join(", ")),
        more => format!("{}; {more} figures", sides.join(", ")),
    }
}

/// Counts the findings that hold: `2 of 3 findings hold, 1 not run`.
pub(super) fn verdicts(results: &Results) -> String {
    let count = |wanted| results.findings.iter().filter(|one| one.verdict == wanted).count();
    let all = results.findings.len();
    let mut text = format!("{} of {all} findings hold", count(Verdict::Holds));
    if count(Verdict::NotRun) > 0 {
        text.push_str(&format!(", {} not run", count(Verdict::NotRun)));
    }
    text
}

/// Renders the end of a run.
pub(super) fn summary(experiment: &Experiment, results: &Results) -> String {
    let paper = match experiment.paper.is_empty() {
        true => String::new(),
        false => format!(" ({})", experiment.paper),
    };
    let quick = if results.quick { ", small variant" } else { "" };
    let title = format!("{}: {}{paper}{quick}", experiment.name, experiment.title);
    let (head, texts, mut rows) = points(experiment, results);
    let mut states = results.points.iter().map(|point| point.state);
    rows.retain(|_| states.next() != Some(State::NotRun));
    let left_out = results.points.len() - rows.len();
    let align = |at| if at < texts { Align::Left } else { Align::Right };
    let columns: Vec<(&str, Align)> =
        head.iter().enumerate().map(|(at, title)| (&**title, align(at))).collect();
    let mut parts = vec![title, terminal::table(&columns, rows)];
    if left_out > 0 {
        parts.push(format!("{left_out} of {} points not run", results.points.len()));
    }
    let slowest = causes::lines(results);
    if !slowest.is_empty() {
        parts.push(slowest.join("\n"));
    }
    if !results.findings.is_empty() {
        let row = |finding: &JudgedFinding| {
            vec![finding.verdict.words().to_owned(), finding.claim.clone(), numbers(finding)]
        };
        let columns =
            [("verdict", Align::Left), ("finding", Align::Left), ("numbers", Align::Left)];
        parts.push(terminal::table(&columns, results.findings.iter().map(row).collect()));
        parts.push(verdicts(results));
    }
    parts.join("\n\n")
}
