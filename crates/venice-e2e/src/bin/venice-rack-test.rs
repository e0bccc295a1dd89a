//! One rack of real processes after another, and what its processes are.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use venice_e2e::racks::plan::{Plan, Port};
use venice_e2e::racks::rack::{Run, run};
use venice_e2e::racks::{donor, fit, forwarder, program, relay};
use venice_sim::rack::Sabotage;
use venice_sim::scenario::Scenario;

#[derive(Parser)]
#[command(about = "Scenarios of the simulator over real ports, between processes")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs scenarios, one for each seed
    Run {
        /// shm, ring or udp (which needs root, for network namespaces)
        #[arg(long)]
        port: Port,
        /// Nodes relay for each other: router, mesh:XxYxZ or torus:XxYxZ (udp alone)
        #[arg(long, conflicts_with = "scenario")]
        topology: Option<String>,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// How many
        #[arg(long, default_value_t = 1)]
        seeds: u64,
        /// Runs this file's scenario as it stands, instead
        #[arg(long)]
        scenario: Option<PathBuf>,
        /// Breaks something on purpose, as `venice sim rack` does
        #[arg(long)]
        sabotage: Option<Sabotage>,
    },
    /// What lends on a node
    #[command(hide = true)]
    Donor(Process),
    /// What borrows on a node
    #[command(hide = true)]
    Program {
        #[command(flatten)]
        process: Process,
        #[arg(long)]
        accesses: u32,
    },
    /// The network between the nodes
    #[command(hide = true)]
    Forwarder(Network),
    /// An external router in it
    #[command(hide = true)]
    Router(Network),
}

#[derive(clap::Args)]
struct Network {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    port: Port,
}

#[derive(clap::Args)]
struct Process {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    port: Port,
    #[arg(long)]
    node: u16,
    #[arg(long)]
    life: u32,
    #[arg(long)]
    sabotage: Option<Sabotage>,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Command::Run { port, topology, seed, seeds, scenario, sabotage } => {
            if let Some(path) = scenario {
                let text = std::fs::read_to_string(&path)
                    .with_context(|| format!("reading {}", path.display()))?;
                let scenario = Scenario::from_toml(&text)?;
                return run_all(std::iter::once(Ok(scenario)), port, sabotage);
            }
            let draw = |n| match &topology {
                None => Ok(fit::scenario(seed.wrapping_add(n), port)),
                Some(topology) => Ok(fit::relayed(seed.wrapping_add(n), topology)?),
            };
            run_all((0..seeds).map(draw), port, sabotage)
        }
        Command::Donor(Process { folder, port, node, life, sabotage }) => {
            donor::run(Plan::read(&folder, port)?, node, life, sabotage)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Program { process, accesses } => {
            let Process { folder, port, node, life, sabotage } = process;
            program::run(&Plan::read(&folder, port)?, node, life, accesses, sabotage)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Forwarder(Network { folder, port }) => {
            forwarder::run(Plan::read(&folder, port)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Router(Network { folder, port }) => {
            let plan = Plan::read(&folder, port)?;
            let topology = plan.relays().context("no node relays here")?;
            relay::run_router(&plan, topology)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_all(
    scenarios: impl Iterator<Item = Result<Scenario>>,
    port: Port,
    sabotage: Option<Sabotage>,
) -> Result<ExitCode> {
    let program = std::env::current_exe().context("finding this program")?;
    for scenario in scenarios {
        let scenario = scenario?;
        let outcome = run(&Run { scenario, port, program: &program, sabotage, ignored: &[] })?;
        println!("{outcome}");
        if !outcome.is_ok() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
