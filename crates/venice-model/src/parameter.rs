//! A model's figures by name.

use crate::error::ModelError;
use crate::quantity::Quantity;
use crate::statement::Statement;

/// One figure that goes into a model.
#[derive(Debug)]
pub struct Parameter<M> {
    /// Its name, as a flag has it.
    pub name: &'static str,
    /// What it counts.
    pub quantity: Quantity,
    /// What it is, in a line.
    pub about: &'static str,
    /// Reads it.
    pub get: fn(&M) -> f64,
    /// Sets it.
    pub set: fn(&mut M, f64),
}

/// One figure that comes out.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// What it counts.
    pub quantity: Quantity,
    /// The figure, in the quantity's base unit.
    pub value: f64,
}

impl Outcome {
    pub(crate) fn new(name: impl Into<String>, quantity: Quantity, value: f64) -> Self {
        Self { name: name.into(), quantity, value }
    }
}

/// Figures in, figures out. Its default is the paper's.
pub trait Model: Default + Clone + 'static {
    /// What goes in. Those that set several figures at once come before those that set one of these.
    const PARAMETERS: &'static [Parameter<Self>];

    /// What comes out: the same figures in the same order, whatever goes in.
    ///
    /// # Errors
    /// When the model makes no sense of what goes in.
    fn outcomes(&self) -> Result<Vec<Outcome>, ModelError>;

    /// What the paper says in numbers, beside what its equations give of its own figures.
    fn statements() -> Vec<Statement>;

    /// The parameter of that name.
    #[must_use]
    fn parameter(name: &str) -> Option<&'static Parameter<Self>> {
        Self::PARAMETERS.iter().find(|parameter| parameter.name == name)
    }
}

/// That `value` is what `allowed` says.
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
