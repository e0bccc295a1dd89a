//! Figures of a model, by name.

use crate::error::ModelError;
use crate::quantity::Quantity;
use crate::statement::Statement;

/// One input of a model.
#[derive(Debug)]
pub struct Parameter<M> {
    /// Name, as its flag.
    pub name: &'static str,
    /// Unit of the figure.
    pub quantity: Quantity,
    /// Description in one line.
    pub about: &'static str,
    /// Returns the figure.
    pub get: fn(&M) -> f64,
    /// Sets the figure.
    pub set: fn(&mut M, f64),
}

/// One result of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// Unit of the figure.
    pub quantity: Quantity,
    /// Value, in the quantity's base unit.
    pub value: f64,
}

impl Outcome {
    pub(crate) fn new(name: impl Into<String>, quantity: Quantity, value: f64) -> Self {
        Self { name: name.into(), quantity, value }
    }
}

/// Model with named inputs and results. Its default holds the paper's figures.
pub trait Model: Default + Clone + 'static {
    /// Inputs. Those that set several figures at once come before those that set one of these.
    const PARAMETERS: &'static [Parameter<Self>];

    /// Returns the results: the same figures in the same order, for any input.
    ///
    /// # Errors
    /// Fails if an input is invalid.
    fn outcomes(&self) -> Result<Vec<Outcome>, ModelError>;

    /// Returns the paper's numeric statements, beside the results of its equations with its own
    /// figures.
    fn statements() -> Vec<Statement>;

    /// Returns the parameter of that name.
    #[must_use]
    fn parameter(name: &str) -> Option<&'static Parameter<Self>> {
        Self::PARAMETERS.iter().find(|parameter| parameter.name == name)
    }
}

/// Checks that `value` satisfies `allowed`.
pub(crate) fn check(
    name: &str,
    quantity: Quantity,
    value: f64,
    allowed: impl Fn(f64) -> bool,
    expected: &'static str,
) -> Result<(), ModelError> {
    if value.is_finite() && allowed(value) {
        return Ok(());
    }
    Err(ModelError::OutOfRange { name: name.to_owned(), value: quantity.write(value), expected })
}
