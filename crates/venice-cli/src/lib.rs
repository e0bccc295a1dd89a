//! The terminal side that the binaries `venice` and `venice-lab` share.
//!
//! - [`failure`]: one-line errors and exit codes.
//! - [`help`]: the texts below `--help`.
//! - [`log`]: the log of daemons.
//! - [`terminal`]: results on stdout, tables, JSON, progress bars.
//! - [`numbers`]: negative numbers on the command line, as values and not as flags.
//! - [`manual`]: shell completions and manual pages.
//! - [`variables`]: environment variables, of which empty ones count as unset.
#![forbid(unsafe_code)]

pub mod failure;
pub mod help;
pub mod log;
pub mod manual;
pub mod numbers;
pub mod terminal;
pub mod variables;
