//! Checks of the experiments that come with a world.

use crate::{Coordinate, Experiment, ExperimentError, Expression, Filter, Point, World};

/// Checks the experiments of a world, whole and small: every point can run, every curve of a paper has
/// one of ours beside it, every finding refers to points.
///
/// # Errors
/// With the experiment and what is wrong in it.
pub fn check<W: World>() -> Result<(), String> {
    W::EXPERIMENTS.iter().try_for_each(|(name, text)| {
        check_one::<W>(name, text).map_err(|problem| format!("{name}: {problem}"))
    })
}

fn check_one<W: World>(name: &str, text: &str) -> Result<(), String> {
    let text_of = |error: ExperimentError| error.to_string();
    let mut experiment = Experiment::from_toml(text).map_err(text_of)?;
    if experiment.name != name || experiment.world != W::NAME {
        return Err(format!("is named {} of {}", experiment.name, experiment.world));
    }
    if experiment.title.is_empty() || experiment.paper.is_empty() {
        return Err("lacks title or paper".to_owned());
    }
    let points = experiment.points::<W>(&Filter::default()).map_err(text_of)?;
    check_curves(&experiment, &points)?;
    check_findings(&experiment, &points)?;
    experiment.make_quick().map_err(text_of)?;
    match experiment.points::<W>(&Filter::default()).map_err(text_of)?.len() {
        0 | 1 => Err("the small variant has no sweep".to_owned()),
        _ => Ok(()),
    }
}

fn check_curves(experiment: &Experiment, points: &[Point]) -> Result<(), String> {
    for figure in &experiment.figures {
        for curve in figure.paper.iter().filter_map(|curve| curve.of.as_ref()) {
            if !points.iter().any(|point| figure.label(&point.coordinates) == *curve) {
                return Err(format!("figure {}: no curve is labelled {curve}", figure.name));
            }
        }
    }
    Ok(())
}

fn check_findings(experiment: &Experiment, points: &[Point]) -> Result<(), String> {
    let is_at = |coordinates: &[Coordinate], places: &[(String, String)]| {
        places.iter().all(|(name, value)| {
            coordinates.iter().any(|place| place.name == *name && place.is(value))
        })
    };
    for finding in &experiment.findings {
        let expression = Expression::parse(&finding.holds).map_err(|error| error.to_string())?;
        for (figure, places) in expression.selections() {
            if !points.iter().any(|point| is_at(&point.coordinates, places)) {
                return Err(format!("{}: no point of {figure} {places:?}", finding.claim));
            }
        }
    }
    Ok(())
}
