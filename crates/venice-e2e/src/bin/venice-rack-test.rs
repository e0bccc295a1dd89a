//! Runs racks of real processes one after another; the same binary is each of their processes.
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
    /// Run scenarios, one for each seed
    Run {
        /// shm, ring or udp (which needs root, for network namespaces)
        #[arg(long)]
        port: Port,
        /// Topology of nodes that relay: router, mesh:XxYxZ or torus:XxYxZ (udp only)
        #[arg(long, conflicts_with = "scenario")]
        topology: Option<String>,
        /// First seed
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Number of seeds
        #[arg(long, default_value_t = 1)]
        seeds: u64,
        /// Run this file's scenario instead, unchanged
        #[arg(long)]
        scenario: Option<PathBuf>,
        /// Inject a bug, the same as `venice sim rack --sabotage`
        #[arg(long)]
        sabotage: Option<Sabotage>,
    },
    /// The donor of a node
    #[command(hide = true)]
    Donor(Process),
    /// The program of a node
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
    /// The external router of that network
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
                    .with_context(|| format!("cannot read {}", path.display()))?;
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
            let topology = plan.relays().context("this scenario has no relays")?;
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
    let program = std::env::current_exe().context("cannot find the running program")?;
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
