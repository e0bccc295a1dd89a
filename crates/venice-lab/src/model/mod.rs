//! `venice model`: the composable-rack paper's models, with every figure a flag.
//!
//! The equations are in [`venice_model`]. Here each gets its command line ([`flags`]), its tables
//! and plots ([`cost`], [`latency`], [`network`]), and the shared parts: a sweep along one figure
//! ([`swept`]), the paper's statements beside the equations' results, JSON and a page ([`report`]).

mod cost;
mod flags;
mod latency;
mod network;
mod report;
mod swept;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use venice_model::{Model, ModelError, Sweep};

pub use flags::Figures;
pub use report::{ModelReport, SweptReport};

use crate::page::Page;
use crate::plot::Plot;
use crate::report_table::ReportTable;
use venice_cli::failure::usage;
use venice_measure::arguments::OutputArgs;

/// Arguments of `venice model cost`, `latency`, `network`.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs<M: Model> {
    /// Sweep one of the figures: NAME is a flag of this command, the values are evenly spaced, 11
    /// by default.
    #[arg(long, value_name = "NAME=FROM..TO[:VALUES]")]
    pub sweep: Option<String>,

    /// Output arguments.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Inputs of the model.
    #[command(flatten)]
    pub figures: Figures<M>,
}

/// Presentation of a model.
trait Presentation: Model {
    /// Name of its command.
    const NAME: &'static str;
    /// Title of its page.
    const TITLE: &'static str;
    /// Text that explains its plots.
    const LEGEND: &'static str;
    /// Further results for JSON.
    type Detail: Serialize;

    fn detail(&self) -> Result<Self::Detail, ModelError>;
    fn tables(&self) -> Result<Vec<ReportTable>, ModelError>;
    fn plots(&self) -> Result<Vec<Plot>>;
}

/// Computes and prints the cost model: `venice model cost`.
///
/// # Errors
/// On invalid figures, and when a file cannot be written.
pub fn execute_cost(args: ModelArgs<venice_model::CostModel>) -> Result<()> {
    execute(args)
}

/// Computes and prints the latency model: `venice model latency`.
///
/// # Errors
/// The same as [`execute_cost`].
pub fn execute_latency(args: ModelArgs<venice_model::LatencyModel>) -> Result<()> {
    execute(args)
}

/// Computes and prints the network model: `venice model network`.
///
/// # Errors
/// The same as [`execute_cost`].
pub fn execute_network(args: ModelArgs<venice_model::NetworkModel>) -> Result<()> {
    execute(args)
}

fn execute<M: Presentation>(args: ModelArgs<M>) -> Result<()> {
    let ModelArgs { sweep, output, figures: Figures(model) } = args;
    let sweep = sweep
        .map(|text| Sweep::parse::<M>(&text))
        .transpose()
        .map_err(|error| usage(error.to_string()))?;
    let refused = |error: ModelError| usage(error.to_string());
    let report = ModelReport::of(&model, sweep.as_ref()).map_err(refused)?;
    let mut tables = model.tables().map_err(refused)?;
    tables.extend(report.sweep.as_ref().map(swept::table));
    tables.push(report::papers(&report.paper));
    if let Some(folder) = &output.plots {
        let mut plots = model.plots()?;
        if let Some(sweep) = &report.sweep {
            plots.extend(swept::plots(M::NAME, sweep)?);
        }
        let page = Page {
            title: M::TITLE,
            header: Vec::new(),
            legend: M::LEGEND,
            plots: &plots,
            tables: tables.clone(),
            closing: Vec::new(),
        };
        page.publish(folder)?;
    }
    let text: Vec<String> = tables.iter().map(ReportTable::text).collect();
    venice_measure::report::publish(text.join("\n").trim_end(), output.json.as_deref(), &report)
}

#[cfg(test)]
mod tests {
    use venice_model::{CostModel, LatencyModel, NetworkModel};

    use super::*;
    use crate::plot::xml;

    /// Returns a model's terminal output and plots, with a sweep.
    fn presented<M: Presentation>(sweep: &str) -> (String, Vec<Plot>) {
        let model = M::default();
        let sweep = Sweep::parse::<M>(sweep).unwrap();
        let report = ModelReport::of(&model, Some(&sweep)).unwrap();
        let mut tables = model.tables().unwrap();
        tables.extend(report.sweep.as_ref().map(swept::table));
        tables.push(report::papers(&report.paper));
        let mut plots = model.plots().unwrap();
        plots.extend(swept::plots(M::NAME, report.sweep.as_ref().unwrap()).unwrap());
        for plot in &plots {
            xml::texts(&plot.svg).unwrap_or_else(|wrong| panic!("{}: {wrong}", plot.name));
        }
        (tables.iter().map(ReportTable::text).collect(), plots)
    }

    #[test]
    fn costs_stand_beside_the_paper() {
        let (text, plots) = presented::<CostModel>("utilization=30%..90%:4");
        for wanted in ["33.3 %", "50 %", "differs", "5.33", "4.44"] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
        assert_eq!(plots.len(), 3, "one for the model, one for money, one for shares");
    }

    #[test]
    fn latencies_stand_beside_the_paper() {
        let (text, plots) = presented::<LatencyModel>("software=0..10us:3");
        for wanted in ["150 ns", "267 %", "2667 %", "SPEC FP, 1 thread", "differs"] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
        assert_eq!(plots.len(), 3);
    }

    #[test]
    fn networks_stand_beside_the_paper() {
        let (text, plots) = presented::<NetworkModel>("fabric=150ns..10us:3");
        for wanted in ["spine-leaf network", "250 ns", "too slow", "PCIe switch", "your own"] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
        assert_eq!(plots.len(), 5, "one for the model, one for each resource");
    }
}
