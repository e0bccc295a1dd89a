//! The experiments that come with Venice.

/// Lists experiments of the folder `experiments` by their names.
macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../experiments/", $name, ".toml")))),*]
    };
}

/// Names and texts of the experiments that come with Venice.
pub const SHIPPED: &[(&str, &str)] = shipped!["incast-1g", "incast-10g", "memcached-tail"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Coordinate, Experiment, Expression};
    use crate::warehouse::Warehouse;

    #[test]
    fn shipped_experiments_can_run() {
        for (name, text) in SHIPPED {
            let mut experiment = Experiment::from_toml(text).unwrap_or_else(|error| {
                panic!("{name}: {error}");
            });
            assert_eq!(experiment.name, *name);
            assert!(!experiment.title.is_empty() && !experiment.paper.is_empty(), "{name}");
            for size in ["whole", "quick"] {
                let points = experiment.points::<Warehouse>();
                let points = points.unwrap_or_else(|error| panic!("{name}, {size}: {error}"));
                assert!(points.len() > 1, "{name}, {size}");
                experiment.make_quick().unwrap();
            }
        }
    }

    #[test]
    fn shipped_curves_have_counterparts() {
        for (name, text) in SHIPPED {
            let experiment = Experiment::from_toml(text).unwrap();
            let points = experiment.points::<Warehouse>().unwrap();
            for figure in &experiment.figures {
                for curve in figure.paper.iter().filter_map(|curve| curve.of.as_ref()) {
                    let labels: Vec<String> =
                        points.iter().map(|point| figure.label(&point.coordinates)).collect();
                    assert!(labels.contains(curve), "{name}, {}: {curve}: {labels:?}", figure.name);
                }
            }
        }
    }

    #[test]
    fn shipped_findings_select_points() {
        for (name, text) in SHIPPED {
            let experiment = Experiment::from_toml(text).unwrap();
            let points = experiment.points::<Warehouse>().unwrap();
            let is_at = |coordinates: &[Coordinate], places: &[(String, String)]| {
                let at = |(name, value): &(String, String)| {
                    coordinates.iter().any(|place| place.name == *name && place.is(value))
                };
                places.iter().all(at)
            };
            for finding in &experiment.findings {
                let expression = Expression::parse(&finding.holds).unwrap();
                for (figure, places) in expression.selections() {
                    let found = points.iter().any(|point| is_at(&point.coordinates, places));
                    assert!(found, "{name}: {}: no point of {figure} {places:?}", finding.claim);
                }
            }
        }
    }
}
