//! The experiments that come with Venice.

/// Names and texts of the experiments that come with Venice.
pub const SHIPPED: &[(&str, &str)] = &[];
