//! `venice sim list` and `venice sim show`.

use anyhow::Result;
use serde::Serialize;
use toml::Table;
use venice_cli::terminal::{self, Align};
use venice_experiment::{Catalogue, Experiment, Filter, Finding, Point, Sweep, WorldKind, keys};

use super::{ListArgs, ShowArgs, usage};

/// A row of the list.
#[derive(Serialize)]
struct Row {
    name: String,
    world: String,
    title: String,
    paper: String,
    points: usize,
    quick_points: usize,
    figures: usize,
    findings: usize,
}

/// Lists the experiments that come with Venice.
pub(super) fn list(args: &ListArgs, catalogue: &Catalogue) -> Result<i32> {
    let mut rows = Vec::new();
    for name in catalogue.names() {
        let experiment = catalogue.get(name).map_err(usage)?;
        let mut quick = experiment.clone();
        quick.make_quick().map_err(usage)?;
        let count = |sweeps: &[Sweep]| sweeps.iter().map(Sweep::len).product();
        rows.push(Row {
            points: count(&experiment.sweeps),
            quick_points: count(&quick.sweeps),
            figures: experiment.figures.len(),
            findings: experiment.findings.len(),
            name: experiment.name,
            world: experiment.world,
            title: experiment.title,
            paper: experiment.paper,
        });
    }
    if args.json {
        terminal::say_json(&rows)?;
        return Ok(0);
    }
    let (left, right) = (Align::Left, Align::Right);
    let columns = [
        ("name", left),
        ("world", left),
        ("points", right),
        ("quick", right),
        ("figures", right),
        ("findings", right),
        ("paper", left),
        ("title", left),
    ];
    let cells = |row: Row| {
        let counts = [row.points, row.quick_points, row.figures, row.findings];
        let counts = counts.map(|count| count.to_string());
        [&[row.name, row.world][..], &counts, &[row.paper, row.title]].concat()
    };
    terminal::say(terminal::table(&columns, rows.into_iter().map(cells).collect()))?;
    Ok(0)
}

/// An experiment with what the command line changes of it.
#[derive(Serialize)]
struct Shown<'a> {
    experiment: &'a Experiment,
    config: &'a Table,
    points: Vec<String>,
}

/// Shows an experiment.
pub(super) fn show(
    args: &ShowArgs,
    kind: &WorldKind,
    experiment: &Experiment,
    filter: &Filter,
) -> Result<i32> {
    let config = kind.whole_config(experiment).map_err(usage)?;
    let mut points = kind.points(experiment, filter).map_err(usage)?;
    points.retain(|point| filter.takes(&point.coordinates));
    if args.toml {
        terminal::say(experiment.to_toml().trim_end())?;
    } else if args.json {
        let points = points.iter().map(place).collect();
        terminal::say_json(&Shown { experiment, config: &config, points })?;
    } else {
        terminal::say(text(experiment, &config, points.len()))?;
    }
    Ok(0)
}

fn place(point: &Point) -> String {
    let one = |place: &venice_experiment::Coordinate| format!("{}={}", place.name, place.text());
    point.coordinates.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn text(experiment: &Experiment, config: &Table, points: usize) -> String {
    let paper = match experiment.paper.is_empty() {
        true => String::new(),
        false => format!("\n{}", experiment.paper),
    };
    let mut parts = vec![format!("{}: {}{paper}", experiment.name, experiment.title)];
    if !experiment.description.is_empty() {
        parts.push(experiment.description.trim_end().to_owned());
    }
    let left = Align::Left;
    let counted = if points == 1 { "1 point".to_owned() } else { format!("{points} points") };
    let sweep = |sweep: &Sweep| {
        let key = sweep.key().unwrap_or("(variants)").to_owned();
        vec![sweep.name().to_owned(), key, sweep.texts().join(", ")]
    };
    let sweeps: Vec<_> = experiment.sweeps.iter().map(sweep).collect();
    let columns = [("sweep", left), ("key", left), ("values", left)];
    match sweeps.is_empty() {
        true => parts.push(counted),
        false => parts.push(format!("{}\n{counted}", terminal::table(&columns, sweeps))),
    }
    let row = |(key, value): (String, &toml::Value)| {
        let origin = origin(experiment, &key);
        vec![key, keys::text_of(value), origin]
    };
    let rows = keys::leaves(config).into_iter().map(row).collect();
    parts.push(terminal::table(&[("key", left), ("value", left), ("set by", left)], rows));
    if !experiment.figures.is_empty() {
        let figure = |figure: &venice_experiment::Figure| {
            vec![figure.name.clone(), figure.y.clone(), figure.x.clone(), figure.title.clone()]
        };
        let rows = experiment.figures.iter().map(figure).collect();
        let columns = [("figure", left), ("y", left), ("x", left), ("title", left)];
        parts.push(terminal::table(&columns, rows));
    }
    if !experiment.findings.is_empty() {
        let finding = |finding: &Finding| vec![finding.claim.clone(), finding.holds.clone()];
        let rows = experiment.findings.iter().map(finding).collect();
        parts.push(terminal::table(&[("finding", left), ("holds if", left)], rows));
    }
    parts.join("\n\n")
}

/// Returns what gives a key its value: the sweep of a name, the experiment, or the default.
pub(super) fn origin(experiment: &Experiment, key: &str) -> String {
    match experiment.sweeps.iter().find(|sweep| sweep.changes(key)) {
        Some(sweep) => format!("sweep {}", sweep.name()),
        None if keys::get(&experiment.config, key).is_some() => "experiment".to_owned(),
        None => "default".to_owned(),
    }
}
