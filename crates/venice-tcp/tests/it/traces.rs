//! Traces that are computed by hand.

mod endings;
mod opening;
mod receiving;
mod recovery;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
