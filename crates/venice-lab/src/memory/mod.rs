//! `venice bench memory`: the cost of borrowed memory to whole applications.
//!
//! Every application ([`application`]) runs on local memory first, then with less of it and the
//! rest borrowed or swapped, in every mode that the machine supports ([`mode`], [`setup`]). The
//! built-in ones are processes of their own ([`work`]); redis and memcached are Debian's
//! ([`serve`]), and so is the library of the Berkeley DB program ([`berkeley_db`]). Results and
//! memory are compared with those of the run on local memory: a wrong byte anywhere fails the
//! benchmark.

mod application;
mod berkeley_db;
mod closing;
mod graph_job;
mod mode;
mod paper;
mod plots;
mod queries;
mod report;
mod run;
mod sample;
mod serve;
mod setup;
mod tables;
mod victim;
mod work;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use venice_cli::failure::usage;
use venice_wire::ByteSize;

pub use application::{Application, Sizes};
pub use graph_job::{JobArgs, JobCell, JobReport, execute_job};
pub use mode::Mode;
pub use paper::{
    Contest, Figure, Figure3Args, Figure15Args, FigureReport, execute_figure_3, execute_figure_15,
};
pub use queries::{DonorRow, QueryArgs, QueryCell, QueryReport, execute_queries};
pub use report::{Cell, Fate, MemoryReport, Unmeasured};
pub use victim::{
    ProxyArgs, SpillMode, VictimArgs, VictimCell, VictimMemory, VictimReport, execute_proxy,
    execute_victim,
};
pub use work::{Shape, Work, WorkArgs, WorkReport, execute_work};

use application::Load;
use closing::Pictured;
use run::Plan;
use setup::ModeSetup;
use venice_measure::arguments::OutputArgs;
use venice_measure::interrupt;
use venice_measure::machine::Machine;
use venice_measure::progress::note;

/// Largest value of memcached.
const MAX_VALUE_BYTES: u64 = 1 << 20;
const MAX_SCALE: i64 = 24;

/// Arguments of every command that runs applications in one mode after the other.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// End a run that takes longer than this, in seconds, and report it as too slow [default: 60;
    /// --quick: 15].
    #[arg(long, value_name = "SECONDS", value_parser = venice_measure::arguments::positive)]
    pub limit: Option<f64>,

    /// Folder on a local disk for the swap file of `swap-disk`.
    #[arg(long, default_value = "/var/tmp", value_name = "FOLDER")]
    pub swap_dir: PathBuf,

    /// Output arguments.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl RunArgs {
    /// Returns the time limit of one run of an application.
    fn limit(&self, quick: bool) -> Duration {
        Duration::from_secs_f64(self.limit.unwrap_or(if quick { 15.0 } else { 60.0 }))
    }
}

/// Arguments that `venice bench memory` shares with the paper's figures.
#[derive(Debug, Clone, Args)]
pub struct CommonArgs {
    /// A short run: small data; `venice bench memory` with half of it local.
    #[arg(long)]
    pub quick: bool,

    /// Data of redis, memcached, grep and berkeley-db [default: 128MiB; --quick: 40MiB].
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,

    /// Repetitions of the work of applications other than redis and memcached [default: 2; --quick:
    /// 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub rounds: Option<u64>,

    /// Time limit, swap folder and output arguments.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Sizes of applications that have their own, for commands that run all of them.
#[derive(Debug, Clone, Default, Args)]
pub struct SizeArgs {
    /// PageRank's graph: small is half of paper (1488712x8678566) [default: small].
    #[arg(long, value_name = "VERTICESxEDGES")]
    pub graph: Option<Shape>,

    /// Exponent of two of the breadth-first search's R-MAT vertices, with 14 edges for each (the
    /// paper: 22); the components' graph has four times as many, with the paper's 2.62 edges for
    /// each [default: 19; --quick: 18].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(8..=MAX_SCALE))]
    pub scale: Option<u32>,

    /// File that grep-file searches [default: 32MiB; --quick: 16MiB].
    #[arg(long, value_name = "SIZE")]
    pub file: Option<ByteSize>,

    /// Input of the transform (the paper: 512MiB) [default: 64MiB; --quick: 16MiB].
    #[arg(long, value_name = "SIZE")]
    pub fft: Option<ByteSize>,

    /// Requests of each measurement of redis and memcached [default: 20000; --quick: 3000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub requests: Option<u64>,
}

/// Measure whole applications with a part of their memory elsewhere, beside local swap and zram.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
EXAMPLES:
  venice bench memory                            all of it, from all-local to a quarter
  venice bench memory --quick --plots plots      a glance: half local; plots and a page in plots/
  venice bench memory --only pagerank,redis --local 0.5,0.25 --modes venice-shm,swap-disk
  venice bench memory --only pagerank --graph paper --rounds 3 --json pagerank.json
  venice bench memory --only bfs --scale 22      Graph500 as large as the paper's: minutes")]
pub struct MemoryArgs {
    /// Arguments shared with the paper's figures.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Arguments shared with the paper's Figure 15.
    #[command(flatten)]
    pub sizes: SizeArgs,

    /// Only these applications.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "APP,...",
          default_values_t = Application::ALL)]
    pub only: Vec<Application>,

    /// Only these modes, and local memory as the baseline.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE,...",
          default_values_t = Mode::USUAL)]
    pub modes: Vec<Mode>,

    /// Local shares of what an application holds [default: 1,0.75,0.5,0.25; --quick: 0.5].
    #[arg(long, value_delimiter = ',', value_name = "SHARE,...",
          value_parser = venice_measure::arguments::share)]
    pub local: Option<Vec<f64>>,

    /// Sizes of memcached's values [default: 4KiB,64KiB,512KiB; --quick: 4KiB].
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...")]
    pub value_sizes: Option<Vec<ByteSize>>,

    /// Clients of memcached: one measurement for each number.
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [1, 10])]
    pub clients: Vec<usize>,
}

/// Runs the benchmark, prints its tables, writes its JSON, its plots and its page.
///
/// # Errors
/// On invalid arguments, on Ctrl-C (the figures so far are printed), when an application fails
/// where this machine should support it, and when any result or value was wrong. Everything set up
/// is removed before it returns.
pub fn execute(args: MemoryArgs) -> Result<()> {
    let report = measure(&args)?;
    let text = tables::text(&report);
    tables::closing(&report)
        .publish(&args.common.run.output, (&report, &text), || pictured(&report))
}

/// Runs the plan of `args`.
fn measure(args: &MemoryArgs) -> Result<MemoryReport> {
    let plan = plan(args)?;
    interrupt::catch_signals()?;
    note(&format!("applications on borrowed memory, on {}", Machine::describe().line()));
    let mut setup = ModeSetup::new(args.common.run.swap_dir.clone());
    run::run(&plan, &mut setup)
}

fn pictured(report: &MemoryReport) -> Result<Pictured<'_>> {
    Ok(Pictured {
        title: "venice bench memory",
        header: tables::header(report),
        legend: "Coloured bars: Venice. Grey: its peers.",
        plots: plots::all(report)?,
        tables: tables::all(report),
    })
}

fn plan(args: &MemoryArgs) -> Result<Plan> {
    let sizes = sizes(args);
    check(args, &sizes)?;
    let mut applications = args.only.clone();
    applications.sort_unstable();
    applications.dedup();
    let loads = Load::all(&applications, &sizes);
    for load in &loads {
        // The machine holds it twice, with the donors' part, and some more for overhead.
        check_room(load.application().name(), load.held_bytes(&sizes))?;
    }
    let mut modes = args.modes.clone();
    modes.retain(|mode| *mode != Mode::Local);
    modes.sort_unstable();
    modes.dedup();
    let usual: &[f64] = if args.common.quick { &[0.5] } else { &[1.0, 0.75, 0.5, 0.25] };
    let mut shares = args.local.clone().unwrap_or(usual.to_vec());
    shares.sort_unstable_by(|one, other| other.total_cmp(one));
    shares.dedup();
    Ok(Plan {
        loads,
        sizes,
        modes,
        shares,
        limit: args.common.run.limit(args.common.quick),
        quick: args.common.quick,
    })
}

fn sizes(args: &MemoryArgs) -> Sizes {
    let (common, own) = (&args.common, &args.sizes);
    let quick = |short: u64, long: u64| if common.quick { short } else { long };
    let bytes = |given: Option<ByteSize>, usual: u64| given.map_or(usual, |size| size.0);
    let graph = own.graph.unwrap_or(Shape::SMALL);
    let value_bytes = match &args.value_sizes {
        Some(sizes) => sizes.iter().map(|size| size.0).collect(),
        None if common.quick => vec![4 << 10],
        None => vec![4 << 10, 64 << 10, 512 << 10],
    };
    Sizes {
        data_bytes: bytes(common.size, quick(40 << 20, 128 << 20)),
        graph_vertices: graph.vertices,
        graph_edges: graph.edges,
        r_mat_scale: own.scale.unwrap_or(quick(18, 19) as u32),
        file_bytes: bytes(own.file, quick(16 << 20, 32 << 20)),
        fft_bytes: bytes(own.fft, quick(16 << 20, 64 << 20)),
        value_bytes,
        clients: args.clients.clone(),
        requests: own.requests.unwrap_or(quick(3_000, 20_000)),
        rounds: common.rounds.unwrap_or(quick(1, 2)),
    }
}

fn check(args: &MemoryArgs, sizes: &Sizes) -> Result<()> {
    if [sizes.data_bytes, sizes.fft_bytes, sizes.file_bytes].iter().any(|bytes| *bytes < 1 << 20) {
        return Err(usage("--size, --file and --fft must be 1MiB or more"));
    }
    if sizes.clients.iter().any(|&clients| !(1..=64).contains(&clients)) {
        return Err(usage("--clients: expected 1 to 64"));
    }
    let values = &sizes.value_bytes;
    if let Some(&wrong) = values.iter().find(|bytes| !(64..=MAX_VALUE_BYTES).contains(*bytes)) {
        return Err(usage(format!(
            "--value-sizes: {} is not between 64 bytes and 1MiB",
            ByteSize(wrong)
        )));
    }
    if args.modes.is_empty() || args.only.is_empty() {
        return Err(usage("nothing to measure: name modes and applications"));
    }
    Ok(())
}

/// Checks the room for `bytes` of `what`.
///
/// # Errors
/// When this machine has not three times as much memory.
fn check_room(what: &str, bytes: u64) -> Result<()> {
    let memory_bytes = Machine::describe().memory_bytes;
    if memory_bytes > 0 && bytes.saturating_mul(3) > memory_bytes {
        return Err(usage(format!(
            "{what} of {} needs about three times as much memory on this machine, which has {}",
            ByteSize(bytes),
            ByteSize(memory_bytes)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use venice_cli::failure::Usage;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MemoryArgs,
    }

    fn planned(line: &[&str]) -> Result<Plan> {
        plan(&Line::try_parse_from([&["x"], line].concat())?.args)
    }

    #[test]
    fn oversized_data_names_its_application() {
        let memory_bytes = Machine::describe().memory_bytes;
        for (only, size, held_bytes) in [
            ("pagerank", ["--graph", "4000000000x4000000000"], 128_000_000_008),
            ("fft", ["--fft", "1000TiB"], 2000 << 40),
            ("grep", ["--size", "1000TiB"], 1000 << 40),
        ] {
            let line = [&["--only", only][..], &size].concat();
            match planned(&line) {
                Ok(_) => assert!(3 * held_bytes <= memory_bytes, "{line:?}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(error.is::<Usage>() && said.starts_with(only), "{said}");
                    assert!(3 * held_bytes > memory_bytes, "{said}");
                }
            }
        }
        // The graph's size does not keep an application without a graph from running.
        planned(&["--only", "redis", "--graph", "4000000000x4000000000"]).unwrap();
    }
}
