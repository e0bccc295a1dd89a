//! `venice bench monitor`: what a rack of thousands of agents asks of its Monitor Node.
//!
//! A Monitor Node of its own is started ([`ground`]), as many agents as asked for join it ([`agent`]):
//! each with a certificate, a connection and a gRPC service of its own, and the real donor's logic
//! behind that; only the memory that they lend is not there. All report once a second, and a recipient
//! borrows and gives back at a steady rate ([`load`]). What is printed is what the agents and the
//! recipient waited for, and the processor time that the Monitor Node took; the same over etcd beside it
//! where that is installed.

mod agent;
mod beats;
mod disk;
mod etcd;
mod ground;
mod load;
mod machines;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

pub use report::{LatencyReport, MonitorReport, StoreReport};

use ground::Ground;
use machines::Machines;
use venice_cli::failure::usage;
use venice_measure::machine::{Machine, load as machine_load};

/// Most agents: each takes descriptors and memory.
const MAX_AGENTS: u32 = 50_000;

/// Arguments of `venice bench monitor`.
#[derive(Debug, Clone, Args)]
pub struct MonitorArgs {
    /// Agents that report once a second.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub agents: u32,

    /// How many of them lend memory; the others only report.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub donors: u32,

    /// Requests for memory in a second, each given back at once.
    #[arg(long, value_name = "N", default_value_t = 50.0, value_parser = venice_measure::arguments::positive)]
    pub requests: f64,

    /// How long to measure, once all agents are there.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0,
          value_parser = venice_measure::arguments::positive)]
    pub seconds: f64,

    /// Where the Monitor Node keeps its tables.
    #[arg(long, value_enum, value_name = "STORE,...", value_delimiter = ',',
          default_values_t = [StoreKind::File])]
    pub store: Vec<StoreKind>,

    /// Write the figures to this file as JSON (`-` is standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Where a Monitor Node keeps its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// In its own file.
    File,
    /// In etcd: one member on this machine.
    Etcd,
}

impl StoreKind {
    fn name(self) -> &'static str {
        match self {
            Self::File => "file (redb)",
            Self::Etcd => "etcd, one member",
        }
    }
}

/// Measures, prints the tables, writes JSON and page.
///
/// # Errors
/// When the command line makes no sense, descriptors do not suffice, the Monitor Node or etcd does not
/// start, an agent cannot join, and when a file cannot be written.
pub fn execute(args: MonitorArgs) -> Result<()> {
    check(&args)?;
    venice_measure::interrupt::catch_signals()?;
    let donors = args.donors.min(args.agents);
    ground::make_room_for(args.agents, donors)?;
    let mut report = MonitorReport {
        machine: Machine::describe(),
        load: machine_load(),
        agents: args.agents,
        donors,
        requests_per_s: args.requests,
        seconds: args.seconds,
        durable_write: report::LatencyReport::of(&disk::durable_writes()?),
        stores: Vec::new(),
    };
    for store in &args.store {
        report.stores.push(measure(&args, *store)?);
    }
    venice_measure::report::publish(&report::text(&report), args.json.as_deref(), &report)
}

fn check(args: &MonitorArgs) -> Result<()> {
    if !(1..=MAX_AGENTS).contains(&args.agents) {
        return Err(usage(format!("--agents takes 1 to {MAX_AGENTS}")));
    }
    if args.donors == 0 {
        return Err(usage("--donors takes 1 at least: somebody has to lend"));
    }
    if args.seconds < 1.0 {
        return Err(usage("--seconds takes 1 at least: agents report once a second"));
    }
    if args.requests > 10_000.0 {
        return Err(usage("--requests takes 10000 at most"));
    }
    Ok(())
}

fn measure(args: &MonitorArgs, store: StoreKind) -> Result<StoreReport> {
    // Whatever it does to the processors ends with it.
    std::thread::scope(|scope| scope.spawn(|| measure_apart(args, store)).join())
        .expect("a panic is ours to show")
}

fn measure_apart(args: &MonitorArgs, store: StoreKind) -> Result<StoreReport> {
    let mut ground = Ground::prepare(store)?;
    let machines = Machines::start()?;
    let herd = machines.reporters.block_on(agent::join_all(
        &ground,
        &machines,
        args.agents,
        args.donors,
    ))?;
    let span = Duration::from_secs_f64(args.seconds);
    let measured = load::run(&mut ground, &machines, &herd, args.requests, span)?;
    // Before the Monitor Node goes: nobody is to knock at a door that is not there any more.
    machines.stop();
    Ok(report::of(store, &herd, &measured))
}
