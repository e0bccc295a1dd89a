//! Numeric statements of the paper.

use serde::Serialize;

use crate::quantity::Quantity;

/// A figure of the paper, beside the result of its own equation with its own figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Statement {
    /// Section of the paper.
    pub section: &'static str,
    /// Text of the statement.
    pub says: &'static str,
    /// Quantity of the figure.
    pub quantity: Quantity,
    /// The paper's figure, in the quantity's base unit.
    pub paper: f64,
    /// Result of the equation.
    pub ours: f64,
    /// True if both are equal, within the paper's own rounding.
    pub agrees: bool,
    /// Remark on a difference.
    pub remark: &'static str,
}

impl Statement {
    /// Makes a statement. `rounding`: largest difference that counts as equal, in the base unit:
    /// the paper's last digit.
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
