//! Sweep of one parameter from one value to another.

use serde::Serialize;

use crate::error::ModelError;
use crate::parameter::{Model, Outcome};
use crate::quantity::ParseQuantityError;

/// Default number of values of a sweep.
const USUAL_VALUES: usize = 11;
/// Most values of a sweep.
const MOST_VALUES: usize = 10_000;

/// Values of one parameter, evenly spaced.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// Name of the parameter.
    pub name: &'static str,
    /// Values, ends included.
    pub values: Vec<f64>,
}

/// Results at one value of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweptRow {
    /// Value of the parameter.
    pub value: f64,
    /// Results, in the order of [`Model::outcomes`].
    pub outcomes: Vec<f64>,
}

/// Error of a text that is no sweep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseSweepError {
    /// The form is wrong.
    #[error("{0:?} is not a sweep: write NAME=FROM..TO or NAME=FROM..TO:VALUES, for example {1}")]
    Form(String, String),
    /// There is no such parameter.
    #[error("there is no parameter {0:?} to sweep: {1}")]
    Unknown(String, String),
    /// An end is not a valid value of the parameter.
    #[error("in the sweep of {0}: {1}")]
    End(String, ParseQuantityError),
    /// The end is not above the start.
    #[error("the sweep of {0} must go from a lower value to a higher one")]
    NotRising(String),
    /// Too many values for a table, or too few for a sweep.
    #[error("the sweep of {0} has 2 to {MOST_VALUES} values")]
    Values(String),
}

impl Sweep {
    /// Parses the sweep of a parameter of `M`.
    ///
    /// # Errors
    /// Fails if `text` is not a sweep.
    pub fn parse<M: Model>(text: &str) -> Result<Self, ParseSweepError> {
        use ParseSweepError as E;
        let form = || E::Form(text.to_owned(), example::<M>());
        let (name, range) = text.split_once('=').ok_or_else(form)?;
        let parameter = M::parameter(name.trim())
            .ok_or_else(|| E::Unknown(name.trim().to_owned(), names::<M>()))?;
        let name = parameter.name;
        let (range, values) = match range.split_once(':') {
            Some((range, values)) => (range, values.trim().parse().map_err(|_| form())?),
            None => (range, USUAL_VALUES),
        };
        let (from, to) = range.split_once("..").ok_or_else(form)?;
        let end =
            |text| parameter.quantity.parse(text).map_err(|error| E::End(name.to_owned(), error));
        let (from, to) = (end(from)?, end(to)?);
        if from >= to {
            return Err(E::NotRising(name.to_owned()));
        }
        if !(2..=MOST_VALUES).contains(&values) {
            return Err(E::Values(name.to_owned()));
        }
        let step = (to - from) / (values - 1) as f64;
        let mut values: Vec<f64> = (0..values).map(|at| from + at as f64 * step).collect();
        // Exactly the requested end: it may be the last allowed value.
        values.last_mut().expect("a sweep has at least two values").clone_from(&to);
        Ok(Self { name, values })
    }

    /// Returns the results of `model` at every value.
    ///
    /// # Errors
    /// Fails if one of the values is invalid for the model.
    ///
    /// # Panics
    /// Panics if the sweep was parsed for another model.
    pub fn run<M: Model>(&self, model: &M) -> Result<Vec<SweptRow>, ModelError> {
        let parameter = M::parameter(self.name).expect("the sweep is of this model");
        let at = |&value: &f64| {
            let mut model = model.clone();
            (parameter.set)(&mut model, value);
            let outcomes = model.outcomes()?;
            let outcomes = outcomes.iter().map(|outcome: &Outcome| outcome.value).collect();
            Ok(SweptRow { value, outcomes })
        };
        self.values.iter().map(at).collect()
    }
}

fn names<M: Model>() -> String {
    M::PARAMETERS.iter().map(|parameter| parameter.name).collect::<Vec<_>>().join(", ")
}

fn example<M: Model>() -> String {
    use crate::quantity::Quantity;
    let parameter = &M::PARAMETERS[0];
    let ends = match parameter.quantity {
        Quantity::Share => "10%..100%",
        Quantity::Time => "75ns..10us",
        Quantity::Length => "1m..200m",
        _ => "1..10",
    };
    format!("{}={ends}", parameter.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CostModel, LatencyModel};

    #[test]
    fn sweep_is_even_and_includes_end() {
        let sweep = Sweep::parse::<CostModel>("utilization=10%..100%:10").unwrap();
        assert_eq!((sweep.name, sweep.values.len()), ("utilization", 10));
        assert_eq!((sweep.values[0], sweep.values[9]), (0.1, 1.0));
        let rows = sweep.run(&CostModel::default()).unwrap();
        let totals: Vec<f64> = rows.iter().map(|row| row.outcomes[0]).collect();
        assert!(totals.is_sorted_by(|a, b| a > b), "{totals:?}");
        assert!(rows.iter().all(|row| row.outcomes[1] == 8.0), "the other system stays");
        assert_eq!(Sweep::parse::<LatencyModel>("software=0..10us").unwrap().values.len(), 11);
    }

    #[test]
    fn parse_error_names_expected_form() {
        for (text, says) in [
            ("utilization", "NAME=FROM..TO"),
            ("utilization=10%", "NAME=FROM..TO"),
            ("utilization=10%..100%:many", "NAME=FROM..TO"),
            ("weather=1..2", "memory-modules"),
            ("utilization=10..100", "75%"),
            ("utilization=90%..10%", "higher"),
            ("utilization=10%..10%", "higher"),
            ("utilization=10%..100%:1", "2 to 10000"),
            ("utilization=10%..100%:99999", "2 to 10000"),
        ] {
            let refused = Sweep::parse::<CostModel>(text).unwrap_err().to_string();
            assert!(refused.contains(says), "{text}: {refused}");
        }
        let zero = Sweep::parse::<CostModel>("utilization=0..100%").unwrap();
        assert!(zero.run(&CostModel::default()).is_err(), "nothing in use has no price");
    }
}
