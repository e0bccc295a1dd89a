//! `venice bench channels`: the fabric's channels, compared with peers and with the bare machine.
//!
//! [`run`] has the order of a run. Venice's own channels are measured by [`venice`], the bare
//! machine by [`raw`], third-party benchmarks by [`peers`]; each gives [`series`] of figures by
//! size. [`aims`] and [`contest`] evaluate them; [`tables`], [`plots`] and [`page`] show them.

mod aims;
mod buffer;
mod contest;
mod emulation;
mod figure17;
mod figure18;
mod measure;
mod page;
mod path;
mod peers;
mod plots;
mod raw;
mod report;
mod run;
mod series;
mod sweep;
mod tables;
mod turns;
mod venice;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use venice_wire::ByteSize;

pub use aims::ChannelAim;
pub use contest::{Cell, Metric, Outcome};
pub use emulation::Accuracy;
pub use figure17::{ChannelRates, Figure17, PatternRates};
pub use figure18::{CreditPace, CreditPoint, CreditRates, Figure18};
pub use peers::Peer;
pub use report::{ChannelsReport, Conditions};
pub use series::{Latency, Medium, Operation, Point, Series, System};
pub use sweep::Emulated;
pub use turns::{Placement, Turn, Turns};
pub use venice::{Adaptive, AppPattern, ChannelKind};

use venice_measure::interrupt;

/// Largest measured access.
const MAX_BYTES: u64 = 16 << 20;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The bare machine: memcpy, a cache line, UDP and TCP.
    Raw,
    /// Single reads, writes and atomics.
    Crma,
    /// Bulk transfers.
    Rdma,
    /// Messages.
    Qpair,
    /// Figures 17 and 18 of the paper.
    Figures,
    /// libfabric's, UCX's and iperf3's own benchmarks.
    Peers,
}

/// Measure the fabric's channels beside raw memory and sockets, libfabric, UCX and iperf3.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "\
EXAMPLES:
  venice bench channels                          all of it: less than ten minutes
  venice bench channels --quick --plots plots    a glance, with plots and a page in plots/
  venice bench channels --only raw,crma --port udp --sizes 64,4KiB --json crma.json")]
pub struct ChannelsArgs {
    /// A short run: few sizes, one short repetition each.
    #[arg(long)]
    pub quick: bool,

    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,...")]
    pub only: Vec<Part>,

    /// Only these media: shared memory, the wire, the emulated link of the Venice paper.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PORT,...")]
    pub port: Vec<Medium>,

    /// Sizes of accesses and messages, up to 16MiB [default: 4 B to 16 MiB in powers of four].
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...")]
    pub sizes: Option<Vec<ByteSize>>,

    /// Write the figures to this file as JSON (`-` is standard output).
    #[arg(long, value_name = "FILE", value_parser = venice_measure::arguments::output_file())]
    pub json: Option<PathBuf>,

    /// Write the plots as SVG, and a page with tables and plots, into this folder.
    #[arg(long, value_name = "DIR", value_parser = venice_measure::arguments::output_folder())]
    pub plots: Option<PathBuf>,
}

/// Runs the benchmark, prints its tables, writes its JSON, its plots and its page.
///
/// # Errors
/// On invalid arguments, when Venice or the bare machine fails, and on Ctrl-C, after the figures so
/// far are printed. Everything set up is removed before it returns.
pub fn execute(args: ChannelsArgs) -> Result<()> {
    if let Some(wrong) = args.sizes.iter().flatten().find(|size| !(1..=MAX_BYTES).contains(&size.0))
    {
        bail!("--sizes: {wrong} is not between 1 byte and 16MiB");
    }
    interrupt::catch_signals()?;
    let report = run::run(&args)?;
    if let Some(folder) = &args.plots {
        let plots = plots::all(&report)?;
        page::page(&report, &plots).publish(folder)?;
    }
    venice_measure::report::publish(&tables::text(&report), args.json.as_deref(), &report)?;
    interrupt::check()
}
