//! Throwaway.
use clap::Parser;
#[derive(Parser)]
enum Cli {
    Demo(venice_bench::demo::DemoArgs),
    Bench(venice_bench::command::BenchArgs),
}
fn main() {
    let r = match Cli::parse() {
        Cli::Demo(a) => venice_bench::demo::execute(a),
        Cli::Bench(a) => venice_bench::command::execute(a),
    };
    if let Err(e) = r {
        eprintln!("venice: {e:#}");
        std::process::exit(1);
    }
}
