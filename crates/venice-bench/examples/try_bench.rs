//! Throwaway.
use clap::{Parser, Subcommand};
#[derive(Parser)]
enum Cli {
    Demo(venice_bench::demo::DemoArgs),
    #[command(subcommand)]
    Bench(Bench),
}
#[derive(Subcommand)]
enum Bench {
    Fault(venice_bench::fault::FaultArgs),
    FaultWorker(venice_bench::fault::WorkerArgs),
}
fn main() {
    let r = match Cli::parse() {
        Cli::Demo(a) => venice_bench::demo::execute(a),
        Cli::Bench(Bench::Fault(a)) => venice_bench::fault::execute(a),
        Cli::Bench(Bench::FaultWorker(a)) => venice_bench::fault::execute_worker(a),
    };
    if let Err(e) = r {
        eprintln!("venice: {e:#}");
        std::process::exit(1);
    }
}
