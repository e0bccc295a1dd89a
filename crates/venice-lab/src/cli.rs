//! The command line of `venice-lab`.

mod examples;
mod pages;

use std::rc::Rc;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use venice_cli::{failure, help, log, manual, numbers};
use venice_experiment::ranks::Leader;
use venice_model::{CostModel, LatencyModel, NetworkModel};

use crate::ranks::PROGRAM;
use crate::sim::experiment;
use crate::{
    accelerators, channels, fault, forecast, incast, memory, model, monitor, opencl, placement,
    shares, sim, simulator,
};
use examples::*;

/// Venice measured, simulated and modelled.
#[derive(Parser, Debug)]
#[command(
    name = "venice-lab",
    bin_name = "venice",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = HELP_MAIN
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measure Venice
    #[command(after_help = HELP_BENCH)]
    Bench {
        #[command(subcommand)]
        what: Box<Bench>,
    },
    /// Reproduce a figure of the papers on this machine
    #[command(after_help = HELP_PAPER)]
    Paper {
        #[command(subcommand)]
        figure: Box<Paper>,
    },
    /// Compute the cost of a composable rack, and the latency of its interconnects
    #[command(after_help = HELP_MODEL)]
    Model {
        #[command(subcommand)]
        what: Box<ModelOf>,
    },
    /// Run racks in virtual time, with faults and checkers, and experiments in simulated worlds
    #[command(after_help = sim::HELP)]
    Sim {
        #[command(subcommand)]
        what: Sim,
    },
    /// Print a completion script for a shell
    #[command(after_help = HELP_COMPLETIONS)]
    Completions(manual::CompletionsArgs),
    /// Print or write the manual pages
    #[command(after_help = HELP_MAN)]
    Man(manual::ManArgs),
}

#[derive(Subcommand, Debug)]
enum Sim {
    /// Run a rack: random accesses, faulty links, node failures
    #[command(after_help = sim::HELP_RACK)]
    Rack(Box<sim::RackArgs>),
    /// Run a rack's control plane: grants, renewals and returns, with crashes and partitions
    #[command(after_help = sim::HELP_CONTROL)]
    Control(Box<sim::ControlArgs>),
    /// List the experiments that come with Venice
    #[command(after_help = experiment::HELP_LIST)]
    List(experiment::ListArgs),
    /// Show an experiment: its sweeps, keys, figures and findings
    #[command(after_help = experiment::HELP_SHOW)]
    Show(experiment::ShowArgs),
    /// Run an experiment: tables, plots, findings and a report in a folder
    #[command(after_help = experiment::HELP_RUN)]
    Run(Box<experiment::RunArgs>),
    /// Compare the results of two runs
    #[command(after_help = experiment::HELP_COMPARE)]
    Compare(experiment::CompareArgs),
    /// Write the report of a run anew
    #[command(after_help = experiment::HELP_REPORT)]
    Report(experiment::ReportArgs),
    /// Measure the costs of this host's operating system, as a profile for experiments
    #[command(after_help = sim::calibrate::HELP)]
    Calibrate(sim::calibrate::CalibrateArgs),
    /// Record a program's accesses to memory, for experiments with remote memory
    #[command(after_help = sim::HELP_RECORD)]
    Record(sim::RecordArgs),
}

#[derive(Subcommand, Debug)]
enum Bench {
    /// Measure the fabric's channels beside raw memory and sockets, libfabric, UCX, iperf3
    Channels(channels::ChannelsArgs),
    /// Measure an OpenCL program on granted accelerators beside the local driver
    #[command(after_help = HELP_ACCEL)]
    Accel(opencl::AccelArgs),
    /// Measure page faults: Venice, plain memory, a bare userfaultfd handler, kernel swap
    Fault(fault::FaultArgs),
    /// Measure whole applications with a part of their memory borrowed, beside local swap and zram
    Memory(Box<memory::MemoryArgs>),
    /// Compare forecasts of workloads' needs with persistence, on traces of real data centres
    #[command(after_help = HELP_FORECAST)]
    Forecast(forecast::ForecastArgs),
    /// Measure incast on Linux, in network namespaces, beside the simulator's
    #[command(after_help = incast::HELP)]
    Incast(Box<incast::IncastArgs>),
    /// Measure a Monitor Node under thousands of agents: processor time and latencies
    #[command(after_help = HELP_MONITOR_LOAD)]
    Monitor(monitor::MonitorArgs),
    /// Compare the placement of memory with the optimum, on small racks
    #[command(after_help = HELP_PLACEMENT)]
    Placement(placement::PlacementArgs),
    /// Measure the throughput and latency of several programs at one donor
    #[command(after_help = HELP_SHARES)]
    Shares(shares::SharesArgs),
    /// Measure the simulator: events, packet-hops and requests a second, beside ns-3
    #[command(after_help = simulator::HELP)]
    Sim(simulator::SimArgs),
    /// Worker of `venice bench memory` for a built-in application
    #[command(hide = true)]
    Work(memory::WorkArgs),
    /// Proxy of `venice paper rack-9` between its clients and memcached
    #[command(hide = true)]
    VictimProxy(memory::ProxyArgs),
    /// Worker of `venice bench fault` for one way
    #[command(hide = true)]
    FaultWorker(fault::WorkerArgs),
    /// Program of `venice bench accel`
    #[command(hide = true)]
    AccelProgram(opencl::ProgramArgs),
    /// Program of `venice paper 16a` that uses remote accelerators
    #[command(hide = true)]
    AcceleratorsProgram(accelerators::ProgramArgs),
    /// Worker of `venice bench shares` for one program
    #[command(hide = true)]
    SharesProgram(shares::ProgramArgs),
    /// Worker of `venice bench sim` for one workload
    #[command(hide = true)]
    SimWorker(simulator::WorkerArgs),
}

#[derive(Subcommand, Debug)]
enum ModelOf {
    /// Effective cost of pooled modules and of modules in servers (Eq. 1)
    #[command(after_help = HELP_MODEL)]
    Cost(model::ModelArgs<CostModel>),
    /// Slowdown of work whose memory is further away (Eq. 2)
    #[command(after_help = HELP_MODEL)]
    Latency(model::ModelArgs<LatencyModel>),
    /// Interconnects that are fast enough for each resource in the rack, the PoD, the data centre
    /// (Table 1)
    #[command(after_help = HELP_MODEL)]
    Network(model::ModelArgs<NetworkModel>),
}

#[derive(Subcommand, Debug)]
enum Paper {
    /// Random access to memory of which two thirds are local, in every mode
    #[command(name = "3", after_help = HELP_PAPER)]
    Figure3(memory::Figure3Args),
    /// Remote memory directly and as swap, application by application, a quarter local
    #[command(name = "15", after_help = HELP_PAPER)]
    Figure15(memory::Figure15Args),
    /// A Redis cache with growing borrowed memory, in front of MariaDB; also the system of Figure
    /// 13
    #[command(name = "14", visible_alias = "13", after_help = HELP_PAPER)]
    Figure14(memory::QueryArgs),
    /// Fourier transforms on one to four accelerators, local and remote
    #[command(name = "16a", visible_alias = "16", after_help = HELP_PAPER)]
    Figure16a(accelerators::Figure16aArgs),
    /// Figure 11 of the composable-rack paper: a graph job over 50 partitions, memory cut to a third
    #[command(name = "rack-11", after_help = HELP_PAPER)]
    RackFigure11(memory::JobArgs),
    /// Figures 9 and 10 of the composable-rack paper: memcached with a victim store in remote memory
    #[command(name = "rack-9", visible_alias = "rack-10", after_help = HELP_PAPER)]
    RackFigure9(memory::VictimArgs),
}

/// Runs the command line; returns the exit code.
pub fn main() -> i32 {
    run(execute)
}

/// Runs the command line at rank 0 of several; returns the exit code.
pub fn main_on(leader: &Rc<Leader>) -> i32 {
    run(|command| match command {
        Command::Sim { what: Sim::Run(args) } => experiment::run(&args, Some(leader)),
        _ => {
            let why = format!("{PROGRAM} has one command, sim run: start others by venice");
            Err(failure::usage(why))
        }
    })
}

fn run(execute: impl FnOnce(Command) -> anyhow::Result<i32>) -> i32 {
    let parsed = help::with_flowing_text(numbers::with_signs(Cli::command())).try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return failure::report_clap(&error, numbers::unknown_flag(&error)),
    };
    execute(cli.command).unwrap_or_else(|error| failure::report(&error))
}

fn execute(command: Command) -> anyhow::Result<i32> {
    match command {
        Command::Bench { what } => bench(*what).map(|()| 0),
        Command::Paper { figure } => paper(*figure).map(|()| 0),
        Command::Model { what } => compute(*what).map(|()| 0),
        Command::Sim { what } => simulate(what),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
        Command::Man(args) => pages::write(&args),
    }
}

fn simulate(what: Sim) -> anyhow::Result<i32> {
    match what {
        Sim::Rack(args) => sim::rack(&args),
        Sim::Control(args) => sim::control(&args),
        Sim::List(args) => experiment::list(&args),
        Sim::Show(args) => experiment::show(&args),
        Sim::Run(args) => experiment::run(&args, None),
        Sim::Compare(args) => experiment::compare(&args),
        Sim::Report(args) => experiment::report(&args),
        Sim::Calibrate(args) => sim::calibrate::calibrate(&args),
        Sim::Record(args) => sim::record(&args),
    }
}

fn bench(what: Bench) -> anyhow::Result<()> {
    match what {
        Bench::Accel(args) => opencl::execute(args),
        Bench::AccelProgram(args) => opencl::execute_program(args),
        Bench::AcceleratorsProgram(args) => accelerators::execute_program(args),
        Bench::Channels(args) => {
            log::start_log_if_asked()?;
            channels::execute(args)
        }
        Bench::Fault(args) => fault::execute(args),
        Bench::FaultWorker(args) => fault::execute_worker(args),
        Bench::Memory(args) => memory::execute(*args),
        Bench::Forecast(args) => forecast::execute(args),
        Bench::Incast(args) => incast::execute(*args),
        Bench::Monitor(args) => monitor::execute(args),
        Bench::Placement(args) => placement::execute(args),
        Bench::Shares(args) => shares::execute(args),
        Bench::SharesProgram(args) => shares::execute_program(args),
        Bench::Sim(args) => simulator::execute(args),
        Bench::SimWorker(args) => simulator::execute_worker(args),
        Bench::Work(args) => memory::execute_work(args),
        Bench::VictimProxy(args) => memory::execute_proxy(args),
    }
}

fn paper(figure: Paper) -> anyhow::Result<()> {
    match figure {
        Paper::Figure3(args) => memory::execute_figure_3(args),
        Paper::Figure15(args) => memory::execute_figure_15(args),
        Paper::Figure14(args) => memory::execute_queries(args),
        Paper::Figure16a(args) => accelerators::execute(args),
        Paper::RackFigure9(args) => memory::execute_victim(args),
        Paper::RackFigure11(args) => memory::execute_job(args),
    }
}

fn compute(what: ModelOf) -> anyhow::Result<()> {
    match what {
        ModelOf::Cost(args) => model::execute_cost(args),
        ModelOf::Latency(args) => model::execute_latency(args),
        ModelOf::Network(args) => model::execute_network(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("EXAMPLES:"), "{} has no examples", command.get_name());
            command.get_subcommands().filter(|inner| !inner.is_hide_set()).for_each(check);
        }
        check(&Cli::command());
    }
}
