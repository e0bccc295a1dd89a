//! What a model refuses.

/// Figures that a model makes no sense of.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A figure outside what it can be.
    #[error("{name} is {value}: expected {expected}")]
    OutOfRange {
        /// The figure's name, as its flag has it.
        name: String,
        /// What it is, with its unit.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// No module of any kind, or all of them free: nothing to compare.
    #[error("nothing costs anything: give at least one kind of modules a number and a cost")]
    NothingToPay,
}
