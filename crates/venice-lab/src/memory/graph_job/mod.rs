//! `venice paper rack-11`: Figure 11 of the composable-rack paper and the text of its section 9b.
//!
//! A graph job over 50 partitions ([`super::work`], `topk`) runs on local memory first, which gives
//! the heat map of its partitions' memory. It runs again with a third of that memory local; the
//! rest is swapped to the local disk, to a RAM disk or to zram, or lies in borrowed memory over shm
//! and over udp.

mod report;
mod run;
mod tables;

use std::time::Duration;

use anyhow::Result;
use clap::Args;

pub use report::{JobCell, JobReport};

use super::RunArgs;
use super::closing::Pictured;
use super::mode::Mode;
use super::setup::ModeSetup;
use super::work::{self, Shape, Work};
use venice_measure::interrupt;
use venice_measure::machine::Machine;
use venice_measure::progress::note;

const QUICK: Shape = Shape { vertices: 400_000, edges: 3_200_000 };
const USUAL: Shape = Shape { vertices: 1_000_000, edges: 8_000_000 };
/// "The memory per node is then reduced by a factor of 3".
const SHARE: f64 = 1.0 / 3.0;

/// Arguments of `venice paper rack-11`.
#[derive(Debug, Clone, Args)]
pub struct JobArgs {
    /// A short run: a smaller graph.
    #[arg(long)]
    pub quick: bool,

    /// The graph [default: 1000000x8000000; --quick: 400000x3200000].
    #[arg(long, value_name = "VERTICESxEDGES")]
    pub graph: Option<Shape>,

    /// Share of the job's peak memory that stays local.
    #[arg(long, default_value_t = SHARE, value_name = "SHARE",
          value_parser = venice_measure::arguments::share)]
    pub local: f64,

    /// Places for the rest of the memory.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE,...",
          default_values_t = [Mode::SwapDisk, Mode::RamDisk, Mode::Zram, Mode::VeniceShm,
                              Mode::VeniceUdp, Mode::VeniceWindow, Mode::VeniceSwapShm])]
    pub modes: Vec<Mode>,

    /// Time limit, swap folder and output arguments.
    #[command(flatten)]
    pub run: RunArgs,
}

/// The measurement plan.
#[derive(Debug, Clone)]
struct Plan {
    graph: Shape,
    share: f64,
    /// Without `local`, which always runs.
    modes: Vec<Mode>,
    limit: Duration,
    quick: bool,
}

/// Measures the figure, prints its tables, writes its JSON, its plots and its page.
///
/// # Errors
/// When the graph does not fit this machine, on an interrupt, when the job fails where this machine
/// should support it, and when a result was wrong. Everything set up is removed before it returns.
pub fn execute_job(args: JobArgs) -> Result<()> {
    let mut modes = args.modes.clone();
    modes.retain(|mode| *mode != Mode::Local);
    modes.sort_unstable();
    modes.dedup();
    let plan = Plan {
        graph: args.graph.unwrap_or(if args.quick { QUICK } else { USUAL }),
        share: args.local,
        modes,
        limit: args.run.limit(args.quick),
        quick: args.quick,
    };
    super::check_room("the graph job", work::graph_bytes(Work::Topk, plan.graph, 0))?;
    interrupt::catch_signals()?;
    note(&format!("a graph job on borrowed memory, on {}", Machine::describe().line()));
    let mut setup = ModeSetup::new(args.run.swap_dir.clone());
    let report = run::run(&plan, &mut setup)?;
    drop(setup);
    let text = tables::text(&report);
    tables::closing(&report).publish(&args.run.output, (&report, &text), || pictured(&report))
}

fn pictured(report: &JobReport) -> Result<Pictured<'_>> {
    Ok(Pictured {
        title: tables::TITLE,
        header: tables::header(report),
        legend: "The heat map is of the run on local memory. Coloured bars: pooled memory. Grey: \
                 other modes, and the paper's figures.",
        plots: tables::plots(report)?,
        tables: tables::all(report),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn default_modes_cover_ports_and_swap() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: JobArgs,
        }
        let modes = Line::parse_from(["x"]).args.modes;
        let missing: Vec<Mode> =
            Mode::ALL.into_iter().filter(|mode| !modes.contains(mode)).collect();
        assert_eq!(missing, [Mode::Local, Mode::VeniceSwapUdp, Mode::FuseLoop]);
    }
}
