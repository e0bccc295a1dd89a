//! What the paper says in numbers.

use serde::Serialize;

use crate::quantity::Quantity;

/// A figure of the paper, beside what its own equation gives of its own figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Statement {
    /// The section it stands in.
    pub section: &'static str,
    /// What it says.
    pub says: &'static str,
    /// What is counted.
    pub quantity: Quantity,
    /// The paper's figure, in the quantity's base unit.
    pub paper: f64,
    /// The equation's figure.
    pub ours: f64,
    /// Whether they are the same, within the paper's own rounding.
    pub agrees: bool,
    /// What there is to say of it.
    pub remark: &'static str,
}

impl Statement {
    /// `rounding`: by how much they may differ, in the base unit: the paper's last digit.
    pub(crate) fn new(
        (section, says): (&'static str, &'static str),
        quantity: Quantity,
        (paper, ours): (f64, f64),
        rounding: f64,
        remark: &'static str,
    ) -> Self {
        let agrees = (paper - ours).abs() <= rounding;
        Self { section, says, quantity, paper, ours, agrees, remark }
    }
}
