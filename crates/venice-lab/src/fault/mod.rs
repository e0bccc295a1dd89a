//! `venice bench fault`: the cost of one touch of a page.
//!
//! One program ([`worker`]) touches the pages of one region, at random and in order, reading and
//! writing, with one thread and with two. It is started again for each way to get the pages
//! ([`way`]): resident, through a bare userfaultfd handler ([`floor`]) or a bare handler of
//! `SIGBUS` ([`sigbus_floor`]), from donors of a Venice rack, and from the kernel's swap. A bare
//! datagram exchange over the same kind of wire ([`udp_round_trip`]) is the baseline of the udp
//! figures.

mod aims;
mod floor;
mod region;
mod report;
mod run;
mod sigbus_floor;
mod touch;
mod udp_round_trip;
mod umap;
mod way;
mod worker;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use venice_wire::ByteSize;

pub use aims::Aim;
pub use report::FaultReport;
pub use touch::{CaseReport, Operation, Pattern};
pub use udp_round_trip::{RoundTrip, TripLatency};
pub use way::{FailedWay, SkippedWay, Way, WayReport};
pub use worker::{WorkerArgs, WorkerReport, execute_worker};

use run::Outcome;
use venice_cli::failure::usage;
use venice_measure::interrupt;
use venice_measure::kernel_swap;
use venice_measure::machine::Machine;
use venice_measure::progress::{Phase, note};

/// Size of a page of the kernel, in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Measure page faults: Venice beside plain memory, a bare userfaultfd handler and kernel swap.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
EXAMPLES:
  venice bench fault                             1 GiB with 256 MiB local, every way there is
  venice bench fault --json fault.json           with the figures in a file
  venice bench fault --ways uffd-floor,venice-shm --seconds 5
  venice bench fault --ways venice-shm,venice-shm-two-copies,venice-shm-coded,venice-shm-coded-degraded
  venice bench fault --ways venice-shm,umap --umap umap/lib/libumap.so")]
pub struct FaultArgs {
    /// Memory to touch.
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    pub size: ByteSize,

    /// Memory that may be resident at a time, in the ways that page.
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    pub local: ByteSize,

    /// Duration of each case (pattern, operation, threads) in seconds.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS", value_parser = venice_measure::arguments::positive)]
    pub seconds: f64,

    /// Ways to run [default: all but venice-shm-huge and those with several replicas, with coded
    /// memory, and with write-behind].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WAY,...",
          default_values_t = Way::BY_DEFAULT)]
    pub ways: Vec<Way>,

    /// UMap's shared library, for the way `umap` (docs/benchmarks.md describes its build).
    #[arg(long, value_name = "LIBRARY")]
    pub umap: Option<PathBuf>,

    /// Queues of the swap devices [default: as `venice swap attach` chooses].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub swap_queues: Option<u16>,

    /// Write the figures to this file as JSON (`-` is standard output).
    #[arg(long, value_name = "FILE", value_parser = venice_measure::arguments::output_file())]
    pub json: Option<PathBuf>,
}

/// Runs the benchmark, prints its tables and writes its JSON.
///
/// # Errors
/// On invalid arguments, on Ctrl-C, when a way failed that this machine should support, and when a
/// page held a wrong word. Everything set up is removed before it returns.
pub fn execute(args: FaultArgs) -> Result<()> {
    check_arguments(&args)?;
    interrupt::catch_signals()?;
    kernel_swap::sweep(None);
    let started = Instant::now();
    let machine = Machine::describe();
    note(&format!("venice bench fault on {}", machine.line()));

    let udp_round_trip = bare_udp()?;
    let mut ways = args.ways.clone();
    ways.sort_unstable();
    ways.dedup();
    let mut report = FaultReport::new(&args, machine, udp_round_trip);
    for way in ways {
        interrupt::check()?;
        match run::run(way, &args)? {
            Outcome::Measured(measured) => report.ways.push(measured),
            Outcome::Skipped(skipped) => report.skipped.push(skipped),
            Outcome::Failed(failed) => report.failed.push(failed),
        }
    }
    report.aims = aims::evaluate(&report.ways, report.udp_round_trip.as_ref());
    report.seconds = started.elapsed().as_secs_f64();

    venice_measure::report::publish(&report.text(), args.json.as_deref(), &report)?;
    verdict(&report)
}

/// Measures the bare round trip; a failure leaves it out.
///
/// # Errors
/// On an interrupt only: the ways can be measured without it.
fn bare_udp() -> Result<Option<RoundTrip>> {
    let measured = {
        let _phase = Phase::waiting("bare UDP round trip");
        udp_round_trip::measure()
    };
    interrupt::check()?;
    Ok(measured.inspect_err(|error| note(&format!("FAILED bare UDP round trip: {error:#}"))).ok())
}

fn check_arguments(args: &FaultArgs) -> Result<()> {
    if args.local.0 < 1 << 20 || args.size.0 < 4 << 20 {
        return Err(usage("--size must be 4MiB or more, --local 1MiB or more"));
    }
    if args.local.0 >= args.size.0 {
        return Err(usage(format!(
            "--local {} must be smaller than --size {}",
            args.local, args.size
        )));
    }
    let memory_bytes = Machine::describe().memory_bytes;
    if memory_bytes > 0 && args.size.0.saturating_mul(2) > memory_bytes {
        return Err(usage(format!(
            "--size {} needs about twice as much memory on this machine, which has {}",
            args.size,
            ByteSize(memory_bytes)
        )));
    }
    Ok(())
}

fn verdict(report: &FaultReport) -> Result<()> {
    let wrong = report.ways.iter().flat_map(|way| &way.cases).map(|case| case.wrong).sum::<u64>();
    if wrong > 0 {
        bail!("{wrong} pages held a wrong word");
    }
    if !report.failed.is_empty() {
        let names: Vec<&str> = report.failed.iter().map(|failed| failed.way.name()).collect();
        bail!("failed: {}", names.join(", "));
    }
    Ok(())
}
