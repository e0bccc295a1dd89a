//! Plots for reports: scalable vector graphics that need no other file and no font of the machine.
//!
//! [`LineChart`] for figures by size, both axes logarithmic or both linear; [`BarChart`] for groups beside each
//! other; [`HeatMap`] for values by column and row. All give one SVG document as text. What an axis counts is a [`Unit`].

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
