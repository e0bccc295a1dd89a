//! Errors of a model.

/// Invalid figures of a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A figure is out of range.
    #[error("{name} is {value}: expected {expected}")]
    OutOfRange {
        /// Name of the figure, as its flag.
        name: String,
        /// Value, with its unit.
        value: String,
        /// Allowed range.
        expected: &'static str,
    },
    /// There is no module of any kind, or all of them are free: nothing to compare.
    #[error("total cost is 0: give at least one kind of modules a number and a cost")]
    NothingToPay,
}
