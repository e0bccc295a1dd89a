//! The command line of `venice bench`.

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::fault::{self, FaultArgs, WorkerArgs};

/// Arguments of `venice bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum BenchCommand {
    /// What one touch of a page costs: Venice, plain memory, a bare userfaultfd handler, kernel swap
    Fault(FaultArgs),
    /// One process of `venice bench fault`
    #[command(hide = true)]
    FaultWorker(WorkerArgs),
}

/// Runs the benchmark that was asked for.
///
/// # Errors
/// As [`fault::execute`] and [`fault::execute_worker`].
pub fn execute(args: BenchArgs) -> Result<()> {
    match args.command {
        BenchCommand::Fault(args) => fault::execute(args),
        BenchCommand::FaultWorker(args) => fault::execute_worker(args),
    }
}
