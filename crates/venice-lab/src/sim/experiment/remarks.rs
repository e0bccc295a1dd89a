//! Remarks on a run: what its tables do not show.

use venice_experiment::{Experiment, Results, State};

/// Figures named in a remark.
const MOST_NAMES: usize = 12;

/// Returns the remarks: work that failed, and figures without a curve.
pub(super) fn of(experiment: &Experiment, results: &Results) -> Vec<String> {
    failures(results).into_iter().chain(undrawn(experiment, results)).collect()
}

/// Points in which work failed: their latencies are those of the rest.
fn failures(results: &Results) -> Option<String> {
    let failed = results.points.iter().filter_map(|point| {
        let counts = &point.outcome.as_ref()?.counts;
        let count = |name| counts.get(name).copied().unwrap_or(0);
        (count("failed") > 0).then(|| (point.place(), count("failed"), count("done")))
    });
    let failed: Vec<_> = failed.collect();
    let (place, count, done) = failed.first()?;
    let of = count + done;
    let at = if place.is_empty() { String::new() } else { format!(" at {place}") };
    let more = match failed.len() {
        1 => String::new(),
        points => format!(", and at {} more points", points - 1),
    };
    Some(format!("{count} of {of} failed{at}{more}: latencies are of the others (count: failed)"))
}

/// Figures of which no point that ran has a value.
fn undrawn(experiment: &Experiment, results: &Results) -> Vec<String> {
    let done = || results.points.iter().filter(|point| point.state == State::Done);
    let mut remarks = Vec::new();
    for figure in &experiment.figures {
        if done().next().is_none() || !figure.curves(&results.points).is_empty() {
            continue;
        }
        let has_points = done().any(|point| figure.takes(&point.coordinates));
        let why = match has_points {
            false => "no point that ran is at its coordinates".to_owned(),
            true => format!("no point has a {} {}{}", figure.kind.what(), figure.y, there(results)),
        };
        remarks.push(format!("figure {} is empty: {why}", figure.name));
    }
    remarks
}

/// Lists what there is to draw.
fn there(results: &Results) -> String {
    let outcome = results.points.iter().find_map(|point| point.outcome.as_ref());
    let Some(outcome) = outcome else { return String::new() };
    let histograms = outcome.histograms.iter().map(|one| format!("{}.p99", one.name));
    let metrics = outcome.metrics.iter().map(|one| one.name.clone());
    let names: Vec<String> = histograms.chain(metrics).take(MOST_NAMES).collect();
    format!("; there are {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use venice_experiment::{Coordinate, Outcome, PointResult};

    use super::*;

    fn results(failed: u64) -> (Experiment, Results) {
        let text = "name = 'x'\n[[sweep]]\nkey = 'n'\nvalues = [1, 2]\n\
            [[figure]]\nname = 'f'\nx = 'n'\ny = 'events'\n\
            [[figure]]\nname = 'g'\nx = 'n'\ny = 'nope.mean'\n\
            [[figure]]\nname = 'h'\nkind = 'cdf'\ny = 'events'\nat = { n = 3 }";
        let counts = [("done".to_owned(), 90), ("failed".to_owned(), failed)];
        let point = |n: i64| PointResult {
            coordinates: vec![Coordinate { name: "n".into(), value: n.into() }],
            state: State::Done,
            outcome: Some(Outcome { counts: counts.clone().into(), ..Outcome::default() }),
            wall_s: 0.0,
        };
        let experiment = Experiment::from_toml(text).unwrap();
        let results = Results::not_run(&experiment, toml::Table::new(), &[]);
        (experiment, Results { points: vec![point(1), point(2)], ..results })
    }

    #[test]
    fn empty_figures_are_named() {
        let (experiment, results) = results(0);
        let remarks = of(&experiment, &results);
        assert_eq!(remarks.len(), 2, "{remarks:?}");
        assert!(remarks[0].starts_with("figure g is empty: no point has a figure nope.mean"));
        assert_eq!(remarks[1], "figure h is empty: no point that ran is at its coordinates");
    }

    #[test]
    fn failed_work_is_told() {
        let (experiment, results) = results(10);
        let first = &of(&experiment, &results)[0];
        assert!(first.starts_with("10 of 100 failed at n=1, and at 1 more points: "), "{first}");
    }
}
