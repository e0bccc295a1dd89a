//! Whole racks and real programs, tested from end to end. Nothing depends on it.
//!
//! - [`programs`]: real programs under `venice run`, checked against themselves without it.
//! - [`racks`]: the simulator's scenarios over real ports, between processes.
#![forbid(unsafe_code)]

pub mod programs;
pub mod racks;
