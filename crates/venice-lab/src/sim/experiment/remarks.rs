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
