//! `venice bench monitor`: the load of thousands of agents on their Monitor Node.
//!
//! The benchmark starts a Monitor Node ([`monitor_node`]), and the requested number of agents join it
//! ([`agent`]), each with a certificate, a connection and a gRPC service of its own, and the real
//! donor's logic behind that; only their memory is missing. All report once a second, and a
//! recipient borrows and gives back at a steady rate ([`load`]). The report shows the latencies of
//! agents and recipient and the processor time of the Monitor Node, also with etcd as its store
//! where that is installed.

mod agent;
mod disk;
mod etcd;
mod heartbeats;
mod load;
mod machines;
mod monitor_node;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

pub use report::{LatencyReport, MonitorReport, StoreReport};

use machines::Machines;
use monitor_node::MonitorUnderTest;
use venice_cli::failure::usage;
use venice_measure::machine::{Machine, load as machine_load};

/// Largest number of agents: each takes descriptors and memory.
const MAX_AGENTS: u32 = 50_000;

/// Arguments of `venice bench monitor`.
#[derive(Debug, Clone, Args)]
pub struct MonitorArgs {
    /// Agents that report once a second.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub agents: u32,

    /// Agents among them that lend memory; the others only report.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub donors: u32,

    /// Requests for memory a second, each released at once.
    #[arg(long, value_name = "N", default_value_t = 50.0, value_parser = venice_measure::arguments::positive)]
    pub requests: f64,

    /// Duration of the measurement in seconds, once all agents have joined.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0,
          value_parser = venice_measure::arguments::positive)]
    pub seconds: f64,

    /// Store of the Monitor Node's tables.
    #[arg(long, value_enum, value_name = "STORE,...", value_delimiter = ',',
          default_values_t = [StoreKind::File])]
    pub store: Vec<StoreKind>,

    /// Write the figures to this file as JSON (`-` is standard output).
    #[arg(long, value_name = "FILE", value_parser = venice_measure::arguments::output_file())]
    pub json: Option<PathBuf>,
}

/// Store of a Monitor Node's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// A file of its own.
    File,
    /// etcd: one member on this machine.
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
/// On an invalid command line, when descriptors do not suffice, when the Monitor Node or etcd does
/// not start, when an agent cannot join, and when a file cannot be written.
pub fn execute(args: MonitorArgs) -> Result<()> {
    check(&args)?;
    venice_measure::interrupt::catch_signals()?;
    let donors = args.donors.min(args.agents);
    monitor_node::make_room_for(args.agents, donors)?;
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
        return Err(usage(format!("--agents: expected 1 to {MAX_AGENTS}")));
    }
    if args.donors == 0 {
        return Err(usage("--donors: expected 1 or more: memory needs a donor"));
    }
    if args.seconds < 1.0 {
        return Err(usage("--seconds: expected 1 or more: agents report once a second"));
    }
    if args.requests > 10_000.0 {
        return Err(usage("--requests: expected 10000 or less"));
    }
    Ok(())
}

fn measure(args: &MonitorArgs, store: StoreKind) -> Result<StoreReport> {
    // Changes of scheduling and affinity end with the thread.
    std::thread::scope(|scope| scope.spawn(|| measure_apart(args, store)).join())
        .expect("the thread panicked")
}

fn measure_apart(args: &MonitorArgs, store: StoreKind) -> Result<StoreReport> {
    let mut monitor_node = MonitorUnderTest::prepare(store)?;
    let machines = Machines::start()?;
    let agents = machines.reporters.block_on(agent::join_all(
        &monitor_node,
        &machines,
        args.agents,
        args.donors,
    ))?;
    let span = Duration::from_secs_f64(args.seconds);
    let measured = load::run(&mut monitor_node, &machines, &agents, args.requests, span)?;
    // The agents stop before the Monitor Node: no agent calls a closed port.
    machines.stop();
    Ok(report::of(store, &agents, &measured))
}
