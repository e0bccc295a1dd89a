//! Plots for reports: self-contained scalable vector graphics without the machine's fonts.
//!
//! [`LineChart`] for figures by size, both axes logarithmic or both linear; [`BarChart`] for groups
//! beside each other; [`HeatMap`] for values by column and row. Each gives one SVG document as
//! text. A [`Unit`] is the unit of an axis.

mod bars;
mod file;
mod heat;
mod lines;
mod paint;
mod unit;

pub(crate) use bars::{BarChart, BarSeries};
pub(crate) use file::{Plot, write};
pub(crate) use heat::HeatMap;
pub(crate) use lines::{Line, LineChart, Scale, Stroke};
pub(crate) use unit::Unit;

#[cfg(test)]
pub(crate) mod xml;
