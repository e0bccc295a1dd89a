//! The command line: commands, their help and their dispatch.

mod completions;
mod examples;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use venice_cli::failure::{EXIT_RUNNER, Usage};
use venice_cli::{failure, help, manual, numbers, variables};
use venice_measure::demo;

use crate::{
    backup, daemon, doctor, drain, events, forecast, get, grants, host_port, identity, lab,
    listing, place, queue, quota, rack, run, runs, swap, top, window,
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
    /// Monitor Node address, or several separated by commas [default: VENICE_MONITOR, else the
    /// rack of this machine]
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
    /// Write the core dump of a running program, with its far pages
    #[command(after_help = runs::HELP_CORE)]
    Core(runs::CoreArgs),
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
    /// List grants: donor, owner, recipient (Resource Allocation Table); transfer and claim them
    #[command(after_help = HELP_GRANTS)]
    Grants(grants::GrantsArgs),
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
    /// List what has happened: who got, lost and released what, nodes that came and went
    #[command(after_help = events::HELP)]
    Events(events::EventsArgs),
    /// Show the rack live: nodes, programs, grants, queue, events
    #[command(after_help = top::HELP)]
    Top(top::TopArgs),
    /// List forecast needs of workloads and the memory reserved for them
    #[command(after_help = forecast::HELP)]
    Forecast(listing::ListArgs),
    /// Run an unmodified redis-server on borrowed memory and compare
    Demo(demo::DemoArgs),
    /// Measure Venice (runs venice-lab)
    #[command(after_help = lab::HELP)]
    Bench(lab::LabArgs),
    /// Reproduce a figure of the papers on this machine (runs venice-lab)
    #[command(after_help = lab::HELP)]
    Paper(lab::LabArgs),
    /// Compute the models of a composable rack (runs venice-lab)
    #[command(after_help = lab::HELP)]
    Model(lab::LabArgs),
    /// Run racks in virtual time, under faults, watched by checkers (runs venice-lab)
    #[command(after_help = lab::HELP)]
    Sim(lab::LabArgs),
    /// Memory of devices (CXL, NVDIMM) as this machine's own
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
    /// Back up the Monitor Node: its authority and its tables
    #[command(after_help = backup::HELP)]
    Backup(backup::BackupArgs),
    /// Restore a backup of the Monitor Node
    #[command(after_help = backup::HELP_RESTORE)]
    Restore(backup::RestoreArgs),
    /// Run the Monitor Node in the foreground
    #[command(after_help = HELP_MONITOR)]
    Monitor(Box<daemon::MonitorArgs>),
    /// Run a node's agent in the foreground
    #[command(after_help = HELP_AGENT)]
    Agent(Box<daemon::AgentArgs>),
    /// Run the external router of a star-wired rack in the foreground
    #[command(after_help = HELP_ROUTER)]
    Router(Box<daemon::AgentArgs>),
    /// Run the helper that lets ordinary users of this machine page, where the agent may not
    #[command(after_help = HELP_HELPER)]
    Helper(daemon::HelperArgs),
    /// Renew the leases of a stopped `venice run` (started by it)
    #[command(hide = true)]
    RenewLeases(run::StandInArgs),
    /// Print a completion script for a shell
    #[command(after_help = HELP_COMPLETIONS)]
    Completions(manual::CompletionsArgs),
    /// Print or write the manual pages
    #[command(after_help = HELP_MAN)]
    Man(manual::ManArgs),
}

/// Runs the command line; returns the exit code.
pub fn main() -> i32 {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(outcome) = lab::execute(&arguments) {
        return outcome.unwrap_or_else(|error| failure::report(&error));
    }
    let command = variables::without_empty(numbers::with_signs(Cli::command()));
    let parsed = help::with_flowing_text(command).try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let code = failure::report_clap(&error, numbers::unknown_flag(&error));
            return if code != 0 && would_run_program(&arguments) { EXIT_RUNNER } else { code };
        }
    };
    execute(&cli).unwrap_or_else(|error| match cli.command.runs_program() {
        true => failure::report_of_runner(&error),
        false => failure::report(&error),
    })
}

/// True if arguments that are wrong are those of a command that runs a program.
fn would_run_program(arguments: &[OsString]) -> bool {
    let is_value = |at: usize| at > 0 && arguments[at - 1] == "--monitor";
    let is_name = |(at, word): &(usize, &OsString)| {
        !word.to_string_lossy().starts_with('-') && !is_value(*at)
    };
    let name = arguments.iter().enumerate().find(is_name).map(|(_, word)| word);
    let has_command = || arguments.iter().any(|word| word == "--");
    name.is_some_and(|name| name == "run" || (name == "get" && has_command()))
}

impl Command {
    /// True if the command's exit code is that of a program which it runs.
    fn runs_program(&self) -> bool {
        let is_run = matches!(self, Command::Run(args) if args.runs_program());
        is_run || matches!(self, Command::Get(args) if args.runs_program())
    }
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
        Command::RenewLeases(args) => run::stand_in(args),
        Command::Core(args) => runs::core(args),
        Command::Get(args) => get::execute(args, monitor),
        Command::Swap { what } => swap::execute(what, monitor),
        Command::Nodes(args) => listing::nodes(args, monitor),
        Command::Drain(args) => drain::execute(args, monitor),
        Command::Resources(args) => listing::resources(args, monitor),
        Command::Grants(args) => grants::execute(args, monitor),
        Command::Quota { what } => quota::execute(what, monitor),
        Command::Place(args) => place::execute(args, monitor),
        Command::Queue(args) => queue::execute(args, monitor),
        Command::Links(args) => listing::links(args, monitor),
        Command::Events(args) => events::execute(args, monitor),
        Command::Top(args) => top::execute(args, monitor),
        Command::Forecast(args) => forecast::execute(args, monitor),
        Command::Demo(args) => demo::execute(args.clone()).map(|()| 0),
        // Without a flag in front, `lab::execute` has started them.
        Command::Bench(_) | Command::Paper(_) | Command::Model(_) | Command::Sim(_) => {
            Err(lab::refuse_flags())
        }
        Command::Window { what } => window::execute(what),
        Command::Doctor(args) => doctor::execute(args),
        Command::Init(args) => identity::init(args),
        Command::Join(args) => identity::join(args),
        Command::Token { what } => identity::token(what, monitor),
        Command::Node { what } => identity::node(what, monitor),
        Command::Identity(args) => identity::show(args, monitor),
        Command::Backup(args) => backup::execute(args),
        Command::Restore(args) => backup::restore(args),
        Command::Monitor(args) => daemon::monitor(args),
        Command::Agent(args) => daemon::agent(args, monitor),
        Command::Router(args) => daemon::router(args, monitor),
        Command::Helper(args) => daemon::helper(args),
        Command::Completions(args) => completions::print(args, Cli::command()),
        Command::Man(args) => manual::man(args, Cli::command()),
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
