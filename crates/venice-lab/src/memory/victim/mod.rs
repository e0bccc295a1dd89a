//! `venice paper rack-9`: Figures 9 and 10 of the composable-rack paper and the system of its
//! Figure 8.
//!
//! A real memcached holds a share of the values, bounded by its `-m`. A [`proxy`] that speaks its
//! protocol stands between it and the clients ([`clients`]). The proxy moves what does not fit into
//! a victim store in borrowed memory, by Put and Get. The cost is compared with the same memcached
//! behind the same proxy with room for everything, in turns ([`run`]). The other modes are the
//! victim store in local memory, memcached's own memory paged by Venice, memcached without the
//! proxy, and memcached without either.

mod clients;
mod mode;
mod proxy;
mod report;
mod run;
mod server;
mod tables;
mod values;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use venice_cli::failure::usage;
use venice_wire::ByteSize;

pub use mode::SpillMode;
pub use proxy::{ProxyArgs, VictimMemory, execute_proxy};
pub use report::{VictimCell, VictimReport};

use super::MAX_VALUE_BYTES;
use super::closing::Pictured;
use super::setup::ModeSetup;
use venice_measure::arguments::OutputArgs;
use venice_measure::interrupt;
use venice_measure::machine::Machine;
use venice_measure::progress::note;

/// The paper's sizes of values in KiB, from the smallest to the largest.
const VALUES_KIB: [u64; 4] = [4, 16, 64, 512];
/// "when the local portion of data varies from 75% to 25%".
const SHARES: [f64; 3] = [0.75, 0.5, 0.25];
/// "100,000 operations (95% reads, 5% updates)".
const PAPER_REQUESTS: u64 = 100_000;
/// A smaller cache would consist mostly of memcached's own tables.
const LEAST_DATA_BYTES: u64 = 8 << 20;
/// Smallest value: it contains its number.
const LEAST_VALUE_BYTES: u64 = 64;

/// Arguments of `venice paper rack-9`.
#[derive(Debug, Clone, Args)]
pub struct VictimArgs {
    /// A short run: less data, values of 4 and 64 KiB, half of them local.
    #[arg(long)]
    pub quick: bool,

    /// Total size of the values, 8MiB at least [default: 128MiB; --quick: 32MiB].
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,

    /// Sizes of the values [default: 4KiB,16KiB,64KiB,512KiB; --quick: 4KiB,64KiB].
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...")]
    pub value_sizes: Option<Vec<ByteSize>>,

    /// Shares of the values that are local [default: 0.75,0.5,0.25; --quick: 0.5].
    #[arg(long, value_delimiter = ',', value_name = "SHARE,...",
          value_parser = venice_measure::arguments::share)]
    pub local: Option<Vec<f64>>,

    /// Factor of the paper's 100000 operations of each measurement [default: 0.1; --quick: 0.01].
    #[arg(long, value_name = "FACTOR", value_parser = venice_measure::arguments::positive)]
    pub scale: Option<f64>,

    /// Clients at a time: one measurement for each number of them. The fewest are reported as
    /// Figure 9, the most as Figure 10.
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [1, 10])]
    pub clients: Vec<usize>,

    /// Place of the values that are not local, beside `local`.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE,...",
          default_values_t = SpillMode::ALL)]
    pub modes: Vec<SpillMode>,

    /// End a measurement that takes longer than this, in seconds, and report it as cut short
    /// [default: 60; --quick: 15].
    #[arg(long, value_name = "SECONDS", value_parser = venice_measure::arguments::positive)]
    pub limit: Option<f64>,

    /// Output arguments.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The measurement plan.
#[derive(Debug, Clone, PartialEq)]
struct Plan {
    data_bytes: u64,
    /// Sizes of values in bytes, rising.
    value_sizes: Vec<u64>,
    /// Local shares, falling.
    shares: Vec<f64>,
    requests: u64,
    /// Number of parts of a measurement and of its local counterpart; the parts take turns.
    turns: u64,
    clients: Vec<usize>,
    /// Modes without `local`, which always runs.
    modes: Vec<SpillMode>,
    /// Time limit of a measurement and of its local counterpart.
    limit: Duration,
    quick: bool,
}

/// Measures the figures, prints their tables, writes their JSON, their plots and their page.
///
/// # Errors
/// On invalid arguments, on an interrupt (the figures so far are printed), when memcached, proxy or
/// rack fail, and when any value was wrong. Everything set up is removed before it returns.
pub fn execute_victim(args: VictimArgs) -> Result<()> {
    let plan = plan(&args)?;
    interrupt::catch_signals()?;
    note(&format!("memcached with a victim store, on {}", Machine::describe().line()));
    // No mode swaps to a disk here.
    let mut setup = ModeSetup::new(std::env::temp_dir());
    let report = run::run(&plan, &mut setup)?;
    drop(setup);
    let text = tables::text(&report);
    tables::closing(&report).publish(&args.output, (&report, &text), || pictured(&report))
}

fn plan(args: &VictimArgs) -> Result<Plan> {
    let data_bytes = args.size.map_or(if args.quick { 32 << 20 } else { 128 << 20 }, |size| size.0);
    let mut value_sizes: Vec<u64> = match &args.value_sizes {
        Some(sizes) => sizes.iter().map(|size| size.0).collect(),
        None if args.quick => vec![4 << 10, 64 << 10],
        None => VALUES_KIB.map(|kib| kib << 10).into(),
    };
    value_sizes.sort_unstable();
    value_sizes.dedup();
    let usual: &[f64] = if args.quick { &[0.5] } else { &SHARES };
    let mut shares = args.local.clone().unwrap_or(usual.to_vec());
    shares.sort_unstable_by(|one, other| other.total_cmp(one));
    shares.dedup();
    let mut clients = args.clients.clone();
    clients.sort_unstable();
    clients.dedup();
    let mut modes = args.modes.clone();
    modes.retain(|mode| *mode != SpillMode::Local);
    modes.sort_unstable();
    modes.dedup();
    let scale = args.scale.unwrap_or(if args.quick { 0.01 } else { 0.1 });
    let limit_s = args.limit.unwrap_or(if args.quick { 15.0 } else { 60.0 });
    let plan = Plan {
        data_bytes,
        value_sizes,
        shares,
        requests: (PAPER_REQUESTS as f64 * scale) as u64,
        turns: if args.quick { 3 } else { 5 },
        clients,
        modes,
        limit: Duration::from_secs_f64(limit_s),
        quick: args.quick,
    };
    check(&plan)?;
    Ok(plan)
}

fn check(plan: &Plan) -> Result<()> {
    if plan.data_bytes < LEAST_DATA_BYTES {
        let floor = ByteSize(LEAST_DATA_BYTES);
        return Err(usage(format!("--size {}: give {floor} at least", ByteSize(plan.data_bytes))));
    }
    let sizes = LEAST_VALUE_BYTES..=MAX_VALUE_BYTES;
    if let Some(&wrong) = plan.value_sizes.iter().find(|bytes| !sizes.contains(bytes)) {
        return Err(usage(format!(
            "--value-sizes: {} is not between 64 bytes and 1MiB",
            ByteSize(wrong)
        )));
    }
    if plan.clients.iter().any(|&clients| !(1..=64).contains(&clients)) {
        return Err(usage("--clients: expected 1 to 64"));
    }
    if plan.value_sizes.is_empty() || plan.shares.is_empty() || plan.clients.is_empty() {
        return Err(usage("nothing to measure: name sizes of values, shares and clients"));
    }
    if plan.shares.contains(&1.0) {
        return Err(usage("--local 1 is always measured: name shares below 1"));
    }
    let most = *plan.clients.last().expect("there are some") as u64;
    if plan.requests < plan.turns * most {
        return Err(usage(format!(
            "--scale: {} operations are too few for {} turns of {most} clients",
            plan.requests, plan.turns
        )));
    }
    // Room for memcached on local memory, a second one in parts, and a victim store with reserve.
    super::check_room("data", plan.data_bytes.saturating_mul(2))
}

fn pictured(report: &VictimReport) -> Result<Pictured<'_>> {
    Ok(Pictured {
        title: tables::TITLE,
        header: tables::header(report),
        legend: "Coloured bars: borrowed memory. Grey: a victim store in local memory, and the \
                 paper's figures.",
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
        args: VictimArgs,
    }

    fn planned(line: &[&str]) -> Result<Plan> {
        plan(&Line::try_parse_from([&["x"], line].concat())?.args)
    }

    #[test]
    fn paper_amounts_are_accepted() {
        let usual = planned(&[]).unwrap();
        assert_eq!((usual.requests, usual.shares.len(), usual.value_sizes.len()), (10_000, 3, 4));
        assert_eq!(usual.modes.len(), SpillMode::ALL.len() - 1);
        let papers = planned(&["--scale", "1", "--clients", "10,1"]).unwrap();
        assert_eq!((papers.requests, papers.clients), (PAPER_REQUESTS, vec![1, 10]));
        assert_eq!(planned(&["--quick"]).unwrap().value_sizes, [4 << 10, 64 << 10]);
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for line in [
            &["--size", "1MiB"][..],
            &["--size", "1000TiB"],
            &["--value-sizes", "4KiB,2MiB"],
            &["--value-sizes", "10"],
            &["--clients", "0"],
            &["--clients", "10,100"],
            &["--local", "0.5,1"],
            &["--scale", "0.0001"],
        ] {
            assert!(planned(line).unwrap_err().is::<Usage>(), "{line:?}");
        }
    }
}
