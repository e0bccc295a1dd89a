//! `venice bench sim`: the simulator's speed, beside ns-3.
//!
//! Each measurement is a process of its own (`worker.rs`), so that its memory is that of one world.
//! The workloads ([`case`]) take turns. ns-3 is a program that is compiled at run time where ns-3 is
//! installed (`ns3.rs`).

mod aims;
mod case;
mod ns3;
mod report;
mod worker;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

pub use aims::Aim;
pub use case::{QueueKind, Transport, Workload};
pub use ns3::Ns3Choice;
pub use report::{RowReport, SimReport, System};
pub use worker::{Measured, WorkerArgs, execute_worker};

use crate::sim::huge_pages;
use ns3::Ns3;
use venice_cli::failure::usage;
use venice_measure::child::ChildGuard;
use venice_measure::machine::{Machine, load};
use venice_measure::progress::Phase;
use venice_measure::{interrupt, scratch};

/// Time limit of one measurement.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Requests of a client in ns-3: this part of those in Venice.
const NS3_REQUESTS: u32 = 5;
/// Most nodes of ns-3's world: its set-up grows, its rate does not.
const NS3_NODES: u32 = 2000;

/// Measure the simulator: events, packet-hops and requests a second, beside ns-3.
#[derive(Debug, Clone, Default, Args)]
pub struct SimArgs {
    /// Sizes of memcached's warehouses in nodes, to whole arrays of 496, or whole racks of 31 [default:
    /// 500,2000,10000; with --quick 500,2000]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(31..=100_000))]
    pub nodes: Option<Vec<u32>>,

    /// Threads of the simulator [default: 1,2, as far as there are processors]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<Vec<u16>>,

    /// Requests of each client of memcached [default: 50; with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests: Option<u32>,

    /// Measure small worlds, once each
    #[arg(long)]
    pub quick: bool,

    /// Measure ns-3 too: auto, if it is installed; yes, and fail without it; no
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Ns3Choice::Auto)]
    pub ns3: Ns3Choice,

    /// Write the figures to this file as JSON (`-` is standard output)
    #[arg(long, value_name = "FILE", value_parser = venice_measure::arguments::output_file())]
    pub json: Option<PathBuf>,
}

/// Examples of `venice bench sim`.
pub const HELP: &str = "\
EXAMPLES:
  venice bench sim
  venice bench sim --quick --ns3 no
  venice bench sim --nodes 2000 --threads 1,2,4 --requests 200 --json sim.json

ns-3 is measured where `apt-get install libns3-dev g++ pkg-config` has installed it: a program is
compiled against it into ~/.cache/venice. Exit code 1: a simulation had another trace on another
number of threads.";

/// A row to be measured, with its runs so far.
struct Row {
    system: System,
    workload: Workload,
    threads: usize,
    runs: Vec<Measured>,
}

impl Row {
    fn new(system: System, workload: Workload, threads: usize) -> Self {
        Self { system, workload, threads, runs: Vec::new() }
    }
}

/// Measures, prints the tables, writes JSON.
///
/// # Errors
/// On invalid arguments, if a measurement fails, if traces differ between threads or runs, and on an
/// interrupt, after the figures so far are printed.
pub fn execute(args: SimArgs) -> Result<()> {
    let threads = threads(&args)?;
    interrupt::catch_signals()?;
    let started = Instant::now();
    let (machine, load) = (Machine::describe(), load());
    let (ns3, ns3_missing) = ns3(args.ns3)?;
    let mut rows = rows(&args, &threads, ns3.is_some());
    let rounds = if args.quick { 1 } else { 3 };
    let measured = measure(&mut rows, rounds, ns3.as_ref());
    let reported =
        rows.iter().filter_map(|row| report::row(row.system, row.workload, row.threads, &row.runs));
    let mut reported: Vec<RowReport> = reported.collect();
    report::relate(&mut reported);
    let report = SimReport {
        machine,
        load,
        quick: args.quick,
        rounds,
        interrupted: measured.is_err() && interrupt::check().is_err(),
        ns3: ns3.map(|ns3| ns3.version),
        ns3_missing,
        different: different(&rows),
        aims: aims::evaluate(&reported),
        rows: reported,
        seconds: started.elapsed().as_secs_f64(),
    };
    venice_measure::report::publish(&report.to_string(), args.json.as_deref(), &report)?;
    measured?;
    match report.different.as_slice() {
        [] => Ok(()),
        different => bail!("the traces of runs of one seed differ: {}", different.join(", ")),
    }
}

/// Returns the numbers of threads, rising.
fn threads(args: &SimArgs) -> Result<Vec<usize>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let Some(asked) = &args.threads else { return Ok((1..=cores.min(2)).collect()) };
    let mut threads: Vec<usize> = asked.iter().copied().map(usize::from).collect();
    threads.sort_unstable();
    threads.dedup();
    // Threads of one world wait for each other every few microseconds: each needs a processor.
    match threads.last() {
        Some(most) if *most > cores => {
            Err(usage(format!("--threads {most}: this machine has {cores} processors")))
        }
        _ => Ok(threads),
    }
}

/// Prepares ns-3; the second is the reason why it is not measured.
fn ns3(choice: Ns3Choice) -> Result<(Option<Ns3>, Option<String>)> {
    match choice {
        Ns3Choice::No => Ok((None, Some("by --ns3 no".to_owned()))),
        Ns3Choice::Yes => Ok((Some(Ns3::prepare().context("--ns3 yes")?), None)),
        Ns3Choice::Auto => match Ns3::prepare() {
            Ok(ns3) => Ok((Some(ns3), None)),
            Err(error) => {
                interrupt::check()?;
                Ok((None, Some(format!("{error:#}"))))
            }
        },
    }
}

/// Returns the rows in the order of the table, which is that of the turns.
fn rows(args: &SimArgs, threads: &[usize], with_ns3: bool) -> Vec<Row> {
    let sizes: &[u32] = if args.quick { &[500, 2000] } else { &[500, 2000, 10_000] };
    let mut sizes = args.nodes.clone().unwrap_or_else(|| sizes.to_vec());
    sizes.sort_unstable();
    sizes.dedup();
    let requests = args.requests.unwrap_or(if args.quick { 5 } else { 50 });
    let mut rows = Vec::new();
    for transport in [Transport::Udp, Transport::Tcp] {
        for nodes in sizes.iter().copied() {
            let workload = Workload::Memcached { transport, nodes, requests };
            rows.extend(threads.iter().map(|n| Row::new(System::Venice, workload, *n)));
            if with_ns3 && transport == Transport::Udp && nodes <= NS3_NODES {
                let requests = requests.div_ceil(NS3_REQUESTS);
                let workload = Workload::Memcached { transport, nodes, requests };
                rows.push(Row::new(System::Ns3, workload, 1));
            }
        }
    }
    let (iterations, accesses, events) =
        if args.quick { (4, 20, 200_000) } else { (40, 400, 4_000_000) };
    // A single switch is one part of the world, and a rack has one thread.
    let incast = Workload::Incast { iterations };
    rows.push(Row::new(System::Venice, incast, 1));
    if with_ns3 {
        rows.push(Row::new(System::Ns3, incast, 1));
    }
    rows.push(Row::new(System::Venice, Workload::Mesh { accesses }, 1));
    for pending in [1_000, 10_000, 100_000, 1_000_000] {
        for queue in [QueueKind::Wheels, QueueKind::BinaryHeap] {
            let workload = Workload::Queue { queue, pending, events };
            rows.push(Row::new(System::Venice, workload, 1));
        }
    }
    rows
}

/// Runs all rows in turns, so that an interrupted run has figures of each.
fn measure(rows: &mut [Row], rounds: u32, ns3: Option<&Ns3>) -> Result<()> {
    let phase = Phase::new("the simulator's speed", u64::from(rounds) * rows.len() as u64);
    for _ in 0..rounds {
        for row in &mut *rows {
            interrupt::check()?;
            row.runs.push(run(row, ns3).with_context(|| format!("{} failed", row.workload))?);
            phase.advance(1);
        }
    }
    Ok(())
}

/// Runs one row in a process of its own.
fn run(row: &Row, ns3: Option<&Ns3>) -> Result<Measured> {
    let folder = scratch::folder(scratch::FOLDER)?;
    let (json, log) = (folder.path().join("figures.json"), folder.path().join("log"));
    let command = match row.system {
        System::Venice => worker(row, &json)?,
        System::Ns3 => {
            ns3.and_then(|ns3| ns3.command(&row.workload)).context("ns-3 has no such workload")?
        }
    };
    ChildGuard::spawn("the measurement", command, &log)?.wait_success(PATIENCE)?;
    match row.system {
        System::Venice => {
            let text = std::fs::read_to_string(&json).context("a worker left no figures")?;
            serde_json::from_str(&text).context("a worker's figures cannot be read")
        }
        System::Ns3 => ns3::figures(&log),
    }
}

fn worker(row: &Row, json: &Path) -> Result<Command> {
    let own = std::env::current_exe().context("cannot find the running program")?;
    let mut command = Command::new(own);
    command
        .args(["bench", "sim-worker", "--workload", &serde_json::to_string(&row.workload)?])
        .args(["--threads", &row.threads.to_string(), "--json"])
        .arg(json)
        .envs(huge_pages::for_heap());
    Ok(command)
}

/// Returns the workloads of which two of Venice's runs had different traces, on any numbers of threads.
fn different(rows: &[Row]) -> Vec<String> {
    let own: Vec<&Row> = rows.iter().filter(|row| row.system == System::Venice).collect();
    let mut found = Vec::new();
    for (at, row) in own.iter().enumerate() {
        let is_same = |other: &&&Row| other.workload == row.workload;
        let mut hashes = own[at..].iter().filter(is_same).flat_map(|row| &row.runs);
        let first = hashes.next();
        let is_other = |run: &Measured| {
            first.is_some_and(|first| {
                (&run.trace_hash, run.events) != (&first.trace_hash, first.events)
            })
        };
        if !own[..at].iter().any(|other| is_same(&other)) && hashes.any(is_other) {
            found.push(format!("{} at {} nodes", row.workload, row.workload.nodes()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(threads: &[u16]) -> SimArgs {
        SimArgs { quick: true, threads: Some(threads.to_vec()), ..SimArgs::default() }
    }

    #[test]
    fn threads_need_processors() {
        assert_eq!(threads(&asked(&[1, 1])).unwrap(), [1]);
        let error = threads(&asked(&[1, 1024])).unwrap_err().to_string();
        assert!(error.starts_with("--threads 1024: this machine has"), "{error}");
    }

    #[test]
    fn ns3_has_rows_of_its_workloads() {
        let count = |with_ns3| {
            let rows = rows(&asked(&[1]), &[1, 2], with_ns3);
            rows.iter().filter(|row| row.system == System::Ns3).count()
        };
        assert_eq!((count(false), count(true)), (0, 3));
    }

    #[test]
    fn other_trace_is_found() {
        let mut rows = rows(&asked(&[1]), &[1, 2], true);
        for row in &mut rows {
            // ns-3 has no trace, also where its workload is the same.
            let trace_hash = (row.system == System::Venice).then(|| "a".to_owned());
            row.runs = vec![Measured { events: 1, trace_hash, ..Measured::default() }; 2];
        }
        assert_eq!(different(&rows), [""; 0]);
        rows[1].runs[1].trace_hash = Some("b".to_owned());
        assert_eq!(different(&rows), ["memcached, UDP at 496 nodes"]);
    }
}
