//! `venice demo`: an unmodified `redis-server` on borrowed memory, beside the same server on local
//! memory and on the kernel's swap.
//!
//! Every mode gets the same data ([`dataset`]) and the same requests in the same order
//! ([`workload`]); every value is checked against its key's bytes.

pub mod dataset;
mod mode;
pub mod redis;
mod report;
pub mod resp;
mod run;
pub mod workload;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use venice_cli::failure::usage;
use venice_wire::ByteSize;

pub use mode::Mode;
pub use report::{DemoReport, ModeReport, UnmeasuredMode};

use crate::interrupt;
use crate::kernel_swap;
use crate::machine::Machine;
use crate::progress::note;
use dataset::Dataset;
use mode::Budget;
use workload::Plan;

/// Smallest data set with meaningful figures.
const MIN_DATASET_BYTES: u64 = 1 << 20;

const DEMO_HELP: &str = "\
EXAMPLES:
  venice demo                                  1 GiB of values, a quarter of it local, all modes
  venice demo --size 256MiB --json demo.json   smaller, with the figures in a file
  venice demo --modes local,venice-shm         only these two";

/// Run Debian's unmodified redis-server on borrowed memory and compare.
#[derive(Debug, Clone, Args)]
#[command(after_help = DEMO_HELP)]
pub struct DemoArgs {
    /// Data to store, as values of 1 KiB.
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub size: ByteSize,

    /// Share of the data, as redis holds it, that may stay in local memory.
    #[arg(long, default_value_t = 0.25, value_name = "SHARE", value_parser = crate::arguments::share)]
    pub local_share: f64,

    /// Measured requests of each distribution, the same number in every mode.
    #[arg(long, default_value_t = 50_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub requests: u64,

    /// End a distribution that takes longer than this in one mode, in seconds, and report it as cut
    /// short.
    #[arg(long, default_value_t = 25.0, value_name = "SECONDS", value_parser = crate::arguments::positive)]
    pub seconds_per_mode: f64,

    /// Modes to run.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE,...",
          default_values_t = Mode::ALL)]
    pub modes: Vec<Mode>,

    /// Folder on a local disk for the swap file of `swap-disk`.
    #[arg(long, default_value = "/var/tmp", value_name = "FOLDER")]
    pub swap_dir: PathBuf,

    /// Write the figures to this file as JSON (`-` is standard output).
    #[arg(long, value_name = "FILE", value_parser = crate::arguments::output_file())]
    pub json: Option<PathBuf>,

    /// Keep the logs of redis and of the rack.
    #[arg(long)]
    pub keep: bool,
}

/// Runs the demo, prints its table and writes its JSON.
///
/// # Errors
/// On arguments out of range, when redis-server is missing, when a mode fails, on Ctrl-C, and when
/// any value came back wrong. Everything set up is removed before it returns.
pub fn execute(args: DemoArgs) -> Result<()> {
    check_arguments(&args)?;
    interrupt::catch_signals()?;
    kernel_swap::sweep(Some(&args.swap_dir));
    let started = Instant::now();
    let mut setting = Setting::prepare(args)?;
    note(&format!("venice demo on {}", Machine::describe().line()));

    let report = measure_modes(&mut setting, started)?;
    crate::report::publish(&report.text(), setting.args.json.as_deref(), &report)?;
    setting.folder.finish();
    if report.values_wrong > 0 {
        bail!("{} of {} values were wrong", report.values_wrong, report.values_checked);
    }
    if !report.failed.is_empty() {
        let names: Vec<&str> = report.failed.iter().map(|failed| failed.mode.name()).collect();
        bail!("failed: {}", names.join(", "));
    }
    Ok(())
}

/// Settings shared by all modes.
struct Setting {
    args: DemoArgs,
    redis_program: PathBuf,
    dataset: Dataset,
    plan: Plan,
    folder: LogFolder,
}

impl Setting {
    fn prepare(args: DemoArgs) -> Result<Self> {
        let redis_program = redis::find_program()?;
        let dataset = Dataset::of_bytes(args.size.0);
        let limit = Duration::from_secs_f64(args.seconds_per_mode);
        let plan = Plan::new(&dataset, args.requests, limit);
        Ok(Self { redis_program, dataset, plan, folder: LogFolder::new(args.keep)?, args })
    }
}

fn check_arguments(args: &DemoArgs) -> Result<()> {
    if args.size.0 < MIN_DATASET_BYTES {
        return Err(usage(format!("--size {} is too small: use 1MiB or more", args.size)));
    }
    let memory_bytes = Machine::describe().memory_bytes;
    // The rack's donors are on this machine too, and hold the part that redis does not.
    if memory_bytes > 0 && args.size.0.saturating_mul(2) > memory_bytes {
        bail!(
            "--size {} needs about twice as much memory on this machine, which has {}",
            args.size,
            ByteSize(memory_bytes)
        );
    }
    Ok(())
}

fn measure_modes(setting: &mut Setting, started: Instant) -> Result<DemoReport> {
    let mut modes = setting.args.modes.clone();
    modes.sort_unstable();
    modes.dedup();
    let mut outcomes = Vec::new();
    let held_bytes = if modes.first() == Some(&Mode::Local) {
        let outcome = run::run(Mode::Local, setting, Budget::NONE)?;
        let held_bytes = outcome.held_bytes();
        if matches!(outcome, report::Outcome::Failed { .. }) {
            bail!("redis failed on plain local memory");
        }
        outcomes.push((modes.remove(0), outcome));
        held_bytes
    } else {
        note("measuring the memory that redis needs for this data");
        run::size_of_data(setting)?
    };
    let budget = Budget::of(held_bytes, setting.args.local_share);
    for mode in modes {
        interrupt::check()?;
        outcomes.push((mode, run::run(mode, setting, budget)?));
    }
    Ok(report::summarize(&setting.dataset, budget, outcomes, started.elapsed()))
}

/// The folder of sockets and logs: kept on request, removed otherwise.
#[derive(Debug)]
struct LogFolder {
    folder: Option<tempfile::TempDir>,
    keep: bool,
}

impl LogFolder {
    fn new(keep: bool) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("venice-demo-").tempdir()?;
        Ok(Self { folder: Some(folder), keep })
    }

    fn path(&self) -> &std::path::Path {
        self.folder.as_ref().expect("the folder stays until it is finished").path()
    }

    fn finish(&mut self) {
        let Some(folder) = self.folder.take() else { return };
        if self.keep {
            note(&format!("logs kept in {}", folder.keep().display()));
        }
    }
}

impl Drop for LogFolder {
    fn drop(&mut self) {
        self.finish();
    }
}
