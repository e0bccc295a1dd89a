//! The command line: commands, their help and their dispatch.

mod examples;
mod numbers;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use venice_bench::{
    channels, demo, fault, forecast as judging, memory, model, monitor as monitor_load, placement,
    shares,
};
use venice_model::{CostModel, LatencyModel, NetworkModel};

use crate::failure::Usage;
use crate::{
    daemon, doctor, drain, failure, forecast, get, host_port, identity, listing, man_pages, place,
    queue, quota, rack, run, runs, sim, swap, window,
};
use examples::*;

/// Memory of the other machines in the rack, for unchanged Linux programs.
#[derive(Parser, Debug)]
#[command(
    name = "venice",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = HELP_MAIN
)]
struct Cli {
    /// Monitor Node address, or several separated by commas [default: VENICE_MONITOR, else the rack
    /// of `venice up`]
    #[arg(long, global = true, value_name = "ADDR", value_parser = host_port::check_list)]
    monitor: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Start a rack on this machine, or restart its dead processes
    #[command(after_help = HELP_UP)]
    Up(rack::UpArgs),
    /// Show every process of the rack on this machine
    #[command(after_help = HELP_STATUS)]
    Status(rack::StatusArgs),
    /// Stop the rack on this machine and remove its files
    #[command(after_help = HELP_DOWN)]
    Down(rack::DownArgs),
    /// Run a program on borrowed memory
    #[command(after_help = HELP_RUN)]
    Run(Box<run::RunArgs>),
    /// List the programs of this machine that run on borrowed memory
    #[command(after_help = runs::HELP_PS)]
    Ps(runs::PsArgs),
    /// Change the local-memory budget of a running program
    #[command(after_help = runs::HELP_LIMIT)]
    Limit(runs::LimitArgs),
    /// Allocate memory, an accelerator, storage or a network card, and hold it
    #[command(after_help = get::HELP)]
    Get(Box<get::GetArgs>),
    /// Swap to borrowed memory
    #[command(after_help = swap::HELP)]
    Swap {
        #[command(subcommand)]
        what: Box<swap::SwapCommand>,
    },
    /// List the nodes of the rack
    #[command(after_help = HELP_NODES)]
    Nodes(listing::ListArgs),
    /// Drain a node for maintenance: its grants move elsewhere, it gets no new ones
    #[command(after_help = drain::HELP)]
    Drain(drain::DrainArgs),
    /// List lent resources (Resource Registration Table)
    #[command(after_help = HELP_RESOURCES)]
    Resources(listing::ListArgs),
    /// List grants: donor, owner, recipient (Resource Allocation Table)
    #[command(after_help = HELP_GRANTS)]
    Grants(listing::ListArgs),
    /// Set, remove or list the quotas of users
    #[command(after_help = quota::HELP)]
    Quota {
        #[command(subcommand)]
        what: quota::QuotaCommand,
    },
    /// Show where memory would be placed, and why, without granting it
    #[command(after_help = place::HELP)]
    Place(place::PlaceArgs),
    /// List queued requests for memory or devices
    #[command(after_help = queue::HELP)]
    Queue(listing::ListArgs),
    /// List the links between nodes and their state (Topology Status Table)
    #[command(after_help = HELP_LINKS)]
    Links(listing::ListArgs),
    /// List forecast needs of workloads and the memory reserved for them
    #[command(after_help = forecast::HELP)]
    Forecast(listing::ListArgs),
    /// Run an unmodified redis-server on borrowed memory and compare
    Demo(demo::DemoArgs),
    /// Measure Venice
    #[command(after_help = HELP_BENCH)]
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Reproduce a figure of the papers on this machine
    #[command(after_help = HELP_PAPER)]
    Paper {
        #[command(subcommand)]
        figure: Box<Paper>,
    },
    /// Compute what a composable rack costs, and how far away its parts may be
    #[command(after_help = HELP_MODEL)]
    Model {
        #[command(subcommand)]
        what: Box<ModelOf>,
    },
    /// Run racks in virtual time, under faults, watched by checkers
    #[command(after_help = sim::HELP)]
    Sim {
        #[command(subcommand)]
        what: Sim,
    },
    /// Use device memory (CXL, NVDIMM) as system memory of this machine
    #[command(after_help = HELP_WINDOW)]
    Window {
        #[command(subcommand)]
        what: window::Window,
    },
    /// Check this machine for Venice: what works, what is missing, how to fix it
    #[command(after_help = HELP_DOCTOR)]
    Doctor(doctor::DoctorArgs),
    /// Found a rack of several machines: an authority and the first join token
    #[command(after_help = identity::HELP_INIT)]
    Init(identity::InitArgs),
    /// Make this machine a node of a rack, with a join token
    #[command(after_help = identity::HELP_JOIN)]
    Join(identity::JoinArgs),
    /// Create, list and delete join tokens
    #[command(after_help = identity::HELP_TOKEN)]
    Token {
        #[command(subcommand)]
        what: identity::TokenCommand,
    },
    /// Revoke a node's membership
    #[command(after_help = identity::HELP_NODE)]
    Node {
        #[command(subcommand)]
        what: identity::NodeCommand,
    },
    /// Show this user's identity in the rack, revoked nodes and refused callers
    #[command(after_help = identity::HELP_IDENTITY)]
    Identity(identity::IdentityArgs),
    /// Run the Monitor Node in the foreground
    #[command(after_help = HELP_MONITOR)]
    Monitor(Box<daemon::MonitorArgs>),
    /// Run a node's agent in the foreground
    #[command(after_help = HELP_AGENT)]
    Agent(Box<daemon::AgentArgs>),
    /// Run the external router of a star-wired rack in the foreground
    #[command(after_help = HELP_ROUTER)]
    Router(Box<daemon::AgentArgs>),
    /// Print a completion script for a shell
    #[command(after_help = HELP_COMPLETIONS)]
    Completions(man_pages::CompletionsArgs),
    /// Print or write the manual pages
    #[command(after_help = HELP_MAN)]
    Man(man_pages::ManArgs),
}

#[derive(Subcommand, Debug)]
enum Sim {
    /// Run a rack: random accesses, links that misbehave, nodes that die
    #[command(after_help = sim::HELP_RACK)]
    Rack(Box<sim::RackArgs>),
    /// Run a rack's control plane: grants, renewals and returns, while anybody dies or is cut off
    #[command(after_help = sim::HELP_CONTROL)]
    Control(Box<sim::ControlArgs>),
}

#[derive(Subcommand, Debug)]
enum Bench {
    /// Measure the fabric's channels beside raw memory and sockets, libfabric, UCX, iperf3
    Channels(channels::ChannelsArgs),
    /// Measure page faults: Venice, plain memory, a bare userfaultfd handler, kernel swap
    Fault(fault::FaultArgs),
    /// Measure whole applications with a part of their memory elsewhere, beside local swap and zram
    Memory(Box<memory::MemoryArgs>),
    /// Judge forecasts of what workloads will need, on traces of real data centres, beside persistence
    #[command(after_help = HELP_FORECAST)]
    Forecast(judging::ForecastArgs),
    /// Measure a Monitor Node under thousands of agents: its processor time, what requests wait for
    #[command(after_help = HELP_MONITOR_LOAD)]
    Monitor(monitor_load::MonitorArgs),
    /// Hold where memory is placed beside the best there is, on small racks
    #[command(after_help = HELP_PLACEMENT)]
    Placement(placement::PlacementArgs),
    /// Measure what several programs get of one donor, and how long a light one waits beside heavy ones
    #[command(after_help = HELP_SHARES)]
    Shares(shares::SharesArgs),
    /// What `venice bench memory` starts for each built-in application
    #[command(hide = true)]
    Work(memory::WorkArgs),
    /// What `venice paper rack-9` puts between its clients and memcached
    #[command(hide = true)]
    VictimProxy(memory::ProxyArgs),
    /// What `venice bench fault` starts for each way
    #[command(hide = true)]
    FaultWorker(fault::WorkerArgs),
    /// What `venice bench shares` starts for each program
    #[command(hide = true)]
    SharesProgram(shares::ProgramArgs),
}

#[derive(Subcommand, Debug)]
enum ModelOf {
    /// Effective cost of pooled modules and of those in servers of their own (Eq. 1)
    #[command(after_help = HELP_MODEL)]
    Cost(model::ModelArgs<CostModel>),
    /// How much longer work takes when its memory is further away (Eq. 2)
    #[command(after_help = HELP_MODEL)]
    Latency(model::ModelArgs<LatencyModel>),
    /// Which interconnect is fast enough for what, in the rack, the PoD, the data centre (Table 1)
    #[command(after_help = HELP_MODEL)]
    Network(model::ModelArgs<NetworkModel>),
}

#[derive(Subcommand, Debug)]
enum Paper {
    /// Random access to memory of which two thirds are local, over every way there is
    #[command(name = "3", after_help = HELP_PAPER)]
    Figure3(memory::Figure3Args),
    /// Remote memory directly and as swap, application by application, a quarter local
    #[command(name = "15", after_help = HELP_PAPER)]
    Figure15(memory::Figure15Args),
    /// A Redis cache with more and more borrowed memory, in front of MariaDB; Figure 13's system
    #[command(name = "14", visible_alias = "13", after_help = HELP_PAPER)]
    Figure14(memory::QueryArgs),
    /// Figure 11 of the composable-rack paper: a graph job over 50 partitions, memory cut to a third
    #[command(name = "rack-11", after_help = HELP_PAPER)]
    RackFigure11(memory::JobArgs),
    /// Figures 9 and 10 of the composable-rack paper: memcached with a victim store in remote memory
    #[command(name = "rack-9", visible_alias = "rack-10", after_help = HELP_PAPER)]
    RackFigure9(memory::VictimArgs),
}

/// Runs the command line; returns the exit code.
pub fn main() -> i32 {
    let parsed = numbers::with_signs(Cli::command()).try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return failure::report_clap(&error, numbers::unknown_flag(&error)),
    };
    execute(&cli).unwrap_or_else(|error| failure::report(&error))
}

fn execute(cli: &Cli) -> anyhow::Result<i32> {
    let monitor = cli.monitor.as_deref();
    if let (Some(_), Command::Up(_) | Command::Monitor(_)) = (monitor, &cli.command) {
        let said = "--monitor does not apply to a command that starts a Monitor Node: use --monitor-port \
                    (venice up) or --listen (venice monitor)";
        return Err(Usage(said.to_string()).into());
    }
    match &cli.command {
        Command::Up(args) => rack::up(args),
        Command::Status(args) => rack::status(args),
        Command::Down(args) => rack::down(args),
        Command::Run(args) => run::execute(args, monitor),
        Command::Ps(args) => runs::ps(args),
        Command::Limit(args) => runs::limit(args),
        Command::Get(args) => get::execute(args, monitor),
        Command::Swap { what } => swap::execute(what, monitor),
        Command::Nodes(args) => listing::nodes(args, monitor),
        Command::Drain(args) => drain::execute(args, monitor),
        Command::Resources(args) => listing::resources(args, monitor),
        Command::Grants(args) => listing::grants(args, monitor),
        Command::Quota { what } => quota::execute(what, monitor),
        Command::Place(args) => place::execute(args, monitor),
        Command::Queue(args) => queue::execute(args, monitor),
        Command::Links(args) => listing::links(args, monitor),
        Command::Forecast(args) => forecast::execute(args, monitor),
        Command::Demo(args) => demo::execute(args.clone()).map(|()| 0),
        Command::Bench { what: Bench::Channels(args) } => {
            daemon::start_log_if_asked();
            channels::execute(args.clone()).map(|()| 0)
        }
        Command::Bench { what: Bench::Fault(args) } => fault::execute(args.clone()).map(|()| 0),
        Command::Bench { what: Bench::FaultWorker(args) } => {
            fault::execute_worker(args.clone()).map(|()| 0)
        }
        Command::Bench { what: Bench::Memory(args) } => {
            memory::execute(args.as_ref().clone()).map(|()| 0)
        }
        Command::Bench { what: Bench::Forecast(args) } => {
            judging::execute(args.clone()).map(|()| 0)
        }
        Command::Bench { what: Bench::Monitor(args) } => {
            monitor_load::execute(args.clone()).map(|()| 0)
        }
        Command::Bench { what: Bench::Placement(args) } => {
            placement::execute(args.clone()).map(|()| 0)
        }
        Command::Bench { what: Bench::Shares(args) } => shares::execute(args.clone()).map(|()| 0),
        Command::Bench { what: Bench::SharesProgram(args) } => {
            shares::execute_program(args.clone()).map(|()| 0)
        }
        Command::Bench { what: Bench::Work(args) } => {
            memory::execute_work(args.clone()).map(|()| 0)
        }
        Command::Bench { what: Bench::VictimProxy(args) } => {
            memory::execute_proxy(args.clone()).map(|()| 0)
        }
        Command::Paper { figure } => paper(figure),
        Command::Model { what } => compute(what),
        Command::Sim { what: Sim::Rack(args) } => sim::rack(args),
        Command::Sim { what: Sim::Control(args) } => sim::control(args),
        Command::Window { what } => window::execute(what),
        Command::Doctor(args) => doctor::execute(args),
        Command::Init(args) => identity::init(args),
        Command::Join(args) => identity::join(args),
        Command::Token { what } => identity::token(what, monitor),
        Command::Node { what } => identity::node(what, monitor),
        Command::Identity(args) => identity::show(args, monitor),
        Command::Monitor(args) => daemon::monitor(args),
        Command::Agent(args) => daemon::agent(args, monitor),
        Command::Router(args) => daemon::router(args, monitor),
        Command::Completions(args) => man_pages::completions(args, Cli::command()),
        Command::Man(args) => man_pages::man(args, Cli::command()),
    }
}

fn compute(what: &ModelOf) -> anyhow::Result<i32> {
    match what {
        ModelOf::Cost(args) => model::execute_cost(args.clone()),
        ModelOf::Latency(args) => model::execute_latency(args.clone()),
        ModelOf::Network(args) => model::execute_network(args.clone()),
    }
    .map(|()| 0)
}

fn paper(figure: &Paper) -> anyhow::Result<i32> {
    match figure {
        Paper::Figure3(args) => memory::execute_figure_3(args.clone()),
        Paper::Figure15(args) => memory::execute_figure_15(args.clone()),
        Paper::Figure14(args) => memory::execute_queries(args.clone()),
        Paper::RackFigure9(args) => memory::execute_victim(args.clone()),
        Paper::RackFigure11(args) => memory::execute_job(args.clone()),
    }
    .map(|()| 0)
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
