//! Models of *Composable Architecture for Rack Scale Big Data Computing*: the cost of a composable
//! rack, the time lost to memory further away, and the networks that are fast enough.
//!
//! [`CostModel`] is its Eq. 1, [`LatencyModel`] its Eq. 2, [`NetworkModel`] its Table 1. Each
//! starts with the paper's figures. Every figure is a [`Parameter`] by name, which a command line
//! can set and a [`Sweep`] can vary. Each can list the paper's numeric statements
//! ([`Model::statements`]) beside the results of its equations.
//!
//! Pure functions: nothing here does I/O or keeps state. Times are in nanoseconds, lengths in metres,
//! shares in parts of 1.
//!
//! ```
//! use venice_model::{CostModel, Model};
//!
//! let cost = CostModel::default();
//! assert!((cost.cheaper().unwrap() - 1.0 / 3.0).abs() < 1e-12);
//! assert_eq!(cost.outcomes().unwrap().len(), 3);
//! ```
#![forbid(unsafe_code)]

mod cost;
mod error;
mod latency;
mod network;
mod parameter;
mod quantity;
mod statement;
mod sweep;

pub use cost::{CostModel, CostOfKind, Kind, effective_cost};
pub use error::ModelError;
pub use latency::{
    LatencyModel, PAPER_WORKLOADS, Workload, execution_time_increase,
    memory_fraction_of_performance,
};
pub use network::{Cell, Distance, Fit, Interconnect, NetworkModel, Reach, Resource, Span};
pub use parameter::{Model, Outcome, Parameter};
pub use quantity::{ParseQuantityError, Quantity};
pub use statement::Statement;
pub use sweep::{ParseSweepError, Sweep, SweptRow};
