//! `venice paper 14`: the system of the Venice paper's Figure 13 and the measurement of its Figure
//! 14.
//!
//! A client queries an application server ([`application_server`]), which looks into Redis and, on
//! a miss, reads a few [`entries`] from MariaDB ([`database`]). The cache gets more memory from
//! cell to cell: the same few bytes of it local, the rest borrowed, beside a cache that is all
//! local ([`run`]). The [`donors`] do work of their own meanwhile.

mod application_server;
mod database;
mod donors;
mod entries;
mod report;
mod run;
mod tables;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use venice_cli::failure::usage;
use venice_wire::ByteSize;

pub use report::{DonorRow, QueryCell, QueryReport};

use super::closing::Pictured;
use super::mode::Mode;
use super::setup::ModeSetup;
use entries::Entries;
use venice_measure::arguments::OutputArgs;
use venice_measure::interrupt;
use venice_measure::machine::Machine;
use venice_measure::progress::note;

/// The paper's sizes of the cache, in MiB.
const MEMORIES_MIB: [u64; 5] = [70, 140, 210, 280, 350];
/// The paper's local part of it, in MiB.
const LOCAL_MIB: u64 = 50;
/// Below it redis and the pager have too little for themselves.
const LEAST_LOCAL_BYTES: u64 = 8 << 20;
/// A smaller cache would consist mostly of redis's own tables.
const LEAST_MEMORY_BYTES: u64 = 4 << 20;
/// "the miss rate decreases to near 5% (the last set of results)".
const HIT_RATE_AT_MOST_MEMORY: f64 = 0.95;
/// Divisor of the entries' size that gives the database's buffer pool.
const POOL_SHARE: u64 = 16;
/// Smallest buffer pool that MariaDB accepts.
const LEAST_POOL_BYTES: u64 = 6 << 20;

/// Arguments of `venice paper 14`.
#[derive(Debug, Clone, Args)]
pub struct QueryArgs {
    /// A short run: a fifth of the paper's memory, 1000 queries a cell.
    #[arg(long)]
    pub quick: bool,

    /// Factor of the paper's amounts of memory, 70 to 350 MiB with 50 local [default: 1; --quick:
    /// 0.2].
    #[arg(long, value_name = "FACTOR", value_parser = venice_measure::arguments::positive,
          conflicts_with_all = ["memory", "local"])]
    pub scale: Option<f64>,

    /// Sizes of the cache, one measurement each; the database is sized for 95 % hits with the
    /// largest.
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...", requires = "local")]
    pub memory: Option<Vec<ByteSize>>,

    /// Local part of the cache where the rest is borrowed.
    #[arg(long, value_name = "SIZE", requires = "memory")]
    pub local: Option<ByteSize>,

    /// Queries of each measurement [default: 10000; --quick: 1000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub queries: Option<u64>,

    /// Source of the cache's memory, beside local memory.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE,...",
          default_values_t = [Mode::VeniceWindow, Mode::VeniceShm, Mode::VeniceUdp])]
    pub modes: Vec<Mode>,

    /// Folder on a local disk for the database (and the swap file of `swap-disk`).
    #[arg(long, default_value = "/var/tmp", value_name = "FOLDER")]
    pub database_dir: PathBuf,

    /// Output arguments.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The measurement plan.
#[derive(Debug, Clone, PartialEq)]
struct Plan {
    /// Cache sizes in bytes, rising.
    memories: Vec<u64>,
    local_bytes: u64,
    pool_bytes: u64,
    queries: u64,
    /// Modes, `local` first.
    modes: Vec<Mode>,
    database_dir: PathBuf,
    /// Size of the graph of the donors' own work, and the passes of a job over it.
    donor_scale: u32,
    donor_rounds: u64,
    quick: bool,
}

/// Measures the figure, prints its tables, writes its JSON, its plots and its page.
///
/// # Errors
/// On invalid arguments, on an interrupt, when MariaDB, Redis or the rack fail, and when any answer
/// was wrong. Everything set up is removed before it returns.
pub fn execute_queries(args: QueryArgs) -> Result<()> {
    let plan = plan(&args)?;
    interrupt::catch_signals()?;
    note(&format!("a cache on borrowed memory, on {}", Machine::describe().line()));
    let mut setup = ModeSetup::new(args.database_dir.clone());
    let report = run::run(&plan, &mut setup)?;
    drop(setup);
    let text = tables::text(&report);
    tables::closing(&report).publish(&args.output, (&report, &text), || pictured(&report))
}

fn plan(args: &QueryArgs) -> Result<Plan> {
    let scale = args.scale.unwrap_or(if args.quick { 0.2 } else { 1.0 });
    let scaled = |mib: u64| ((mib << 20) as f64 * scale) as u64 / 4096 * 4096;
    let mut memories: Vec<u64> = match &args.memory {
        Some(sizes) => sizes.iter().map(|size| size.0).collect(),
        None => MEMORIES_MIB.map(scaled).into(),
    };
    memories.sort_unstable();
    memories.dedup();
    let local_bytes = match args.local {
        Some(size) => size.0,
        None => scaled(LOCAL_MIB).max(LEAST_LOCAL_BYTES),
    };
    let mut modes: Vec<Mode> = [&[Mode::Local], args.modes.as_slice()].concat();
    modes.sort_unstable();
    modes.dedup();
    check(&memories, local_bytes)?;
    let most_bytes = memories.iter().copied().max().unwrap_or(0);
    let entry_bytes = Entries::for_cache(most_bytes, HIT_RATE_AT_MOST_MEMORY).rows() * 64;
    Ok(Plan {
        memories,
        local_bytes,
        pool_bytes: (entry_bytes / POOL_SHARE).max(LEAST_POOL_BYTES) >> 20 << 20,
        queries: args.queries.unwrap_or(if args.quick { 1_000 } else { 10_000 }),
        modes,
        database_dir: args.database_dir.clone(),
        donor_scale: if args.quick { 13 } else { 15 },
        donor_rounds: if args.quick { 4 } else { 8 },
        quick: args.quick,
    })
}

fn check(memories: &[u64], local_bytes: u64) -> Result<()> {
    let (Some(&least), Some(&most)) = (memories.first(), memories.last()) else {
        return Err(usage("--memory: name at least one amount"));
    };
    if least < LEAST_MEMORY_BYTES {
        let floor = ByteSize(LEAST_MEMORY_BYTES);
        return Err(usage(format!(
            "a cache of {} is too small: give {floor} at least",
            ByteSize(least)
        )));
    }
    if local_bytes < LEAST_LOCAL_BYTES {
        let floor = ByteSize(LEAST_LOCAL_BYTES);
        return Err(usage(format!("--local {}: give {floor} at least", ByteSize(local_bytes))));
    }
    if local_bytes >= most {
        let said = "nothing would be borrowed: --local must be less than the cache's memory";
        return Err(usage(said));
    }
    // The cache, the donors' part of it, and the database's loading pool.
    super::check_room("a cache", most)
}

fn pictured(report: &QueryReport) -> Result<Pictured<'_>> {
    Ok(Pictured {
        title: tables::TITLE,
        header: tables::header(report),
        legend: "Coloured bars: borrowed memory. Grey: local memory and the paper's figures.",
        plots: tables::plots(report)?,
        tables: tables::all(report),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use venice_cli::failure::Usage;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: QueryArgs,
    }

    fn planned(line: &[&str]) -> Result<Plan> {
        plan(&Line::try_parse_from([&["x"], line].concat())?.args)
    }

    #[test]
    fn paper_amounts_are_scaled() {
        let plan = planned(&[]).unwrap();
        assert_eq!(plan.memories, MEMORIES_MIB.map(|mib| mib << 20));
        assert_eq!((plan.local_bytes, plan.queries), (50 << 20, 10_000));
        assert_eq!(plan.modes[0], Mode::Local);
        assert_eq!(planned(&["--quick"]).unwrap().memories[4], 70 << 20);
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for line in [
            &["--memory", "32MiB", "--local", "64MiB"][..],
            &["--memory", "1MiB,64MiB", "--local", "16MiB"],
            &["--memory", "64MiB", "--local", "1MiB"],
            &["--scale", "0.01"],
        ] {
            assert!(planned(line).unwrap_err().is::<Usage>(), "{line:?}");
        }
    }
}
