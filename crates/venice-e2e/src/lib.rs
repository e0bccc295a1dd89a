//! End-to-end tests of whole racks and real programs. No other crate depends on this one.
//!
//! - [`programs`]: real programs under `venice run`, compared with runs without it.
//! - [`racks`]: the simulator's scenarios over real ports, between processes.
#![forbid(unsafe_code)]

pub mod programs;
pub mod racks;
