//! Experiments in simulated worlds, as data: a configuration, what is swept, figures, and findings of a
//! paper.
//!
//! An experiment is read from TOML ([`Experiment::from_toml`]), changed in layers
//! ([`Experiment::lay`], [`Experiment::make_quick`], [`Experiment::set`], [`Experiment::sweep`]), and
//! expanded to points ([`Experiment::points`]). A [`Simulation`] of a [`World`] runs each to an
//! [`Outcome`]; [`Results`] has them all.
//!
//! - [`keys`]: paths into the configuration.
//! - [`Expression`]: comparisons of findings.
//! - [`checkpoint`]: the state of a point that runs, as a file.
//! - [`run`]: simulations in steps.
//! - [`ranks`]: simulations on several processes.
//! - [`outcome`]: figures, histograms, series and counts of a point.
//! - [`shipped`]: checks of the experiments that come with a world.
#![forbid(unsafe_code)]

mod catalogue;
pub mod checkpoint;
mod experiment;
mod expression;
mod figure;
mod finding;
pub mod keys;
mod kind;
pub mod outcome;
pub mod ranks;
mod results;
pub mod run;
pub mod shipped;
mod sweep;
mod world;

#[cfg(test)]
mod tests;

use experiment::{is_name_letter, part};

pub use catalogue::Catalogue;
pub use experiment::{Experiment, ExperimentError, Quick, nearest};
pub use expression::{Comparison, Evaluation, Expression, ExpressionError, Reading};
pub use figure::{Curve, Figure, FigureKind, PaperCurve};
pub use finding::{Finding, Verdict};
pub use kind::WorldKind;
pub use outcome::Outcome;
pub use results::{Host, JudgedFinding, PointResult, Results, State};
pub use sweep::{Coordinate, Filter, Point, Sweep};
pub use world::{BadConfig, BadState, Simulation, World};
