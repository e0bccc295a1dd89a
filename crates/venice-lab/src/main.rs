//! The binary `venice-lab`: benchmarks, paper figures, the simulator and the models.
//!
//! `venice bench|paper|sim|model` start it, as git starts its subcommands.

fn main() {
    std::process::exit(venice_lab::cli::main());
}
