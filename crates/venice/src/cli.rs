//! The command line: what there is to say, and who does it.

use clap::{CommandFactory, Parser, Subcommand};

use venice_bench::{
    channels, demo, fault, forecast as judging, memory, model, monitor as monitor_load, placement,
    shares,
};
use venice_model::{CostModel, LatencyModel, NetworkModel};

use crate::failure::Usage;
use crate::{
    daemon, doctor, drain, failure, forecast, get, host_port, identity, listing, paperwork, place,
    queue, quota, rack, run, runs, sim, swap, window,
};

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
    /// Address of the Monitor Node, or those of several with commas between [default:
    /// VENICE_MONITOR, else the rack of `venice up`]
    #[arg(long, global = true, value_name = "ADDR", value_parser = host_port::check_list)]
    monitor: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Start a rack of processes on this machine, or what died of one
    #[command(after_help = HELP_UP)]
    Up(rack::UpArgs),
    /// Show every process of the rack on this machine
    #[command(after_help = HELP_STATUS)]
    Status(rack::StatusArgs),
    /// Stop the rack on this machine and remove what it made
    #[command(after_help = HELP_DOWN)]
    Down(rack::DownArgs),
    /// Run a program on borrowed memory
    #[command(after_help = HELP_RUN)]
    Run(Box<run::RunArgs>),
    /// List the programs of this machine that run on borrowed memory
    #[command(after_help = runs::HELP_PS)]
    Ps(runs::PsArgs),
    /// Change how much a program that runs keeps resident
    #[command(after_help = runs::HELP_LIMIT)]
    Limit(runs::LimitArgs),
    /// Get memory, an accelerator, storage or a network card, and hold it
    #[command(after_help = get::HELP)]
    Get(Box<get::GetArgs>),
    /// Have the kernel swap to borrowed memory
    #[command(after_help = swap::HELP)]
    Swap {
        #[command(subcommand)]
        what: Box<swap::SwapCommand>,
    },
    /// List the nodes of the rack
    #[command(after_help = HELP_NODES)]
    Nodes(listing::ListArgs),
    /// Empty a node for maintenance: nothing more is placed on it
    #[command(after_help = drain::HELP)]
    Drain(drain::DrainArgs),
    /// List what the nodes lend (Resource Registration Table)
    #[command(after_help = HELP_RESOURCES)]
    Resources(listing::ListArgs),
    /// List who has borrowed what from whom (Resource Allocation Table)
    #[command(after_help = HELP_GRANTS)]
    Grants(listing::ListArgs),
    /// Say how much each user may have borrowed, and list it
    #[command(after_help = quota::HELP)]
    Quota {
        #[command(subcommand)]
        what: quota::QuotaCommand,
    },
    /// Say where memory would be borrowed from, and why; nothing is granted
    #[command(after_help = place::HELP)]
    Place(place::PlaceArgs),
    /// List who waits for memory, and for how much
    #[command(after_help = queue::HELP)]
    Queue(listing::ListArgs),
    /// List the links between nodes and how they do (Topology Status Table)
    #[command(after_help = HELP_LINKS)]
    Links(listing::ListArgs),
    /// List what workloads are foretold to need, and what is kept for them
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
    /// Memory of devices (CXL, NVDIMM) as this machine's own
    #[command(after_help = HELP_WINDOW)]
    Window {
        #[command(subcommand)]
        what: window::Window,
    },
    /// Look at what this machine has for Venice, what it lacks, and how to mend it
    #[command(after_help = HELP_DOCTOR)]
    Doctor(doctor::DoctorArgs),
    /// Found a rack of several machines: an authority, and the first join token
    #[command(after_help = identity::HELP_INIT)]
    Init(identity::InitArgs),
    /// Make this machine a node of a rack, by a join token
    #[command(after_help = identity::HELP_JOIN)]
    Join(identity::JoinArgs),
    /// Make join tokens, list them, take them back
    #[command(after_help = identity::HELP_TOKEN)]
    Token {
        #[command(subcommand)]
        what: identity::TokenCommand,
    },
    /// Turn a node out of the rack
    #[command(after_help = identity::HELP_NODE)]
    Node {
        #[command(subcommand)]
        what: identity::NodeCommand,
    },
    /// Show who one is to the rack, and who was refused
    #[command(after_help = identity::HELP_IDENTITY)]
    Identity(identity::IdentityArgs),
    /// Run the Monitor Node in the foreground
    #[command(after_help = HELP_MONITOR)]
    Monitor(Box<daemon::MonitorArgs>),
    /// Run a node's agent in the foreground
    #[command(after_help = HELP_AGENT)]
    Agent(Box<daemon::AgentArgs>),
    /// Run the external router of a rack that is wired as a star, in the foreground
    #[command(after_help = HELP_ROUTER)]
    Router(Box<daemon::AgentArgs>),
    /// Print a completion script for a shell
    #[command(after_help = HELP_COMPLETIONS)]
    Completions(paperwork::CompletionsArgs),
    /// Print or write the manual pages
    #[command(after_help = HELP_MAN)]
    Man(paperwork::ManArgs),
}

#[derive(Subcommand, Debug)]
enum Sim {
    /// Run a rack: random accesses, links that misbehave, nodes that die
    #[command(after_help = sim::HELP_RACK)]
    Rack(Box<sim::RackArgs>),
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
    Figure3(memory::PaperArgs),
    /// Remote memory directly and as swap, application by application, a quarter local
    #[command(name = "15", after_help = HELP_PAPER)]
    Figure15(memory::PaperArgs),
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

/// Does what the command line says; the exit code.
pub fn main() -> i32 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::report_clap(&error),
    };
    execute(&cli).unwrap_or_else(|error| failure::report(&error))
}

fn execute(cli: &Cli) -> anyhow::Result<i32> {
    let monitor = cli.monitor.as_deref();
    if let (Some(_), Command::Up(_) | Command::Monitor(_)) = (monitor, &cli.command) {
        let said = "this command starts a Monitor Node: say where with --monitor-port (venice up) \
                    or --listen (venice monitor)";
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
        Command::Completions(args) => paperwork::completions(args, Cli::command()),
        Command::Man(args) => paperwork::man(args, Cli::command()),
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
    let (figure, args) = match figure {
        Paper::Figure3(args) => (memory::Figure::Three, args),
        Paper::Figure15(args) => (memory::Figure::Fifteen, args),
        Paper::RackFigure9(args) => return memory::execute_victim(args.clone()).map(|()| 0),
        Paper::RackFigure11(args) => return memory::execute_job(args.clone()).map(|()| 0),
        Paper::Figure14(args) => return memory::execute_queries(args.clone()).map(|()| 0),
    };
    memory::execute_figure(figure, args.clone()).map(|()| 0)
}

const HELP_RUN: &str = "\
EXAMPLES:
  venice run --local 256MiB -- redis-server --save ''
  venice run --local 1GiB --remote 6GiB --stats -- python3 job.py
  venice run --local 512MiB --port udp --donor node2 --donor node3 -- sort big.txt
  venice run --local 1GiB --faults in-thread -- ./simulate
                                              numbers in large arrays: no switch at a fault
  venice run --local 1GiB --coding 4+2 -- ./simulate
                                              two nodes may die, for half as much memory again
  venice run --local 1GiB --page-size 64k -- ./stencil
                                              pages of 64 KiB: long runs, wherever they begin
  venice run --local 4GiB --page-size 2m -- ./simulate
                                              pages of 2 MiB: large arrays, most of them local
  venice run --local 1GiB --port udp --compress 25% -- redis-server
                                              a quarter of --local holds what left, compressed
  venice run --local 1GiB --reclaim-to donors,local,disk:/srv/tmp -- redis-server
  venice run --local 1GiB --placement spread -- ./simulate
                                              something on every node, for their bandwidth together
  venice run --local 1GiB --remote 4GiB --wait 10m -- ./simulate
                                              wait in line where the rack is full (`venice queue`)
  venice run --local 512MiB --node node3 -- sort big.txt
                                              in a mesh: as a program of node3

The program keeps at most --local of its anonymous memory resident; the rest is on the donors.
Its exit code is this command's. With --stats a summary is printed on stderr at the end.";

const HELP_MAIN: &str = "\
EXAMPLES:
  venice up                                   a rack of four nodes on this machine
  venice run --local 1GiB -- redis-server     Redis with 1 GiB of its memory here, the rest there
  venice ps                                   how the programs on borrowed memory do
  venice nodes                                who lends how much
  venice down                                 the end of it

EXIT CODES: 0 done, 1 failed, 2 the command line or a configuration file makes no sense.
ENVIRONMENT: VENICE_MONITOR, VENICE_RUN_DIR, VENICE_LOG (for example venice_agent=debug).";

const HELP_UP: &str = "\
EXAMPLES:
  venice up                                   four nodes that lend 512 MiB each
  venice up --nodes 2 --lend 2GiB             two larger ones
  sudo venice up --port udp --netns           each node behind a virtual wire of its own
  venice up --topology mesh:2x2x2             eight nodes in a cube, which relay for each other
  venice up --topology torus:3x3 --source-routes
                                              nine, whose packets carry their whole way
  venice up --nodes 6 --pool 2                the last two lend and borrow nothing
  venice up --offer node2/storage:/srv/pool=10GiB
                                              node2 lends storage too, for `venice get io`
  venice up --reserve-ahead 20%               keep up to a fifth of it for who is foretold to need it
  VENICE_RUN_DIR=/tmp/lab venice up --monitor-port 7480
                                              a second rack beside the first

On a rack that is up it does nothing; on one with dead processes it starts just those again, with
their names, addresses and tables. To change its shape, `venice down` first.";

const HELP_STATUS: &str = "\
EXAMPLES:
  venice status
  venice status --json | jq '.agents[] | {name, pid, state}'

States: up, dead (no such process), starting (not registered yet), unresponsive (the Monitor Node
runs but does not answer), unknown (there is no Monitor Node to ask). Exit code 1 without a rack.";

const HELP_DOWN: &str = "\
EXAMPLES:
  venice down
  VENICE_RUN_DIR=/tmp/lab venice down

Programs that hold memory of the rack lose it. Without a rack there is nothing to do: exit code 0.";

const HELP_NODES: &str = "\
EXAMPLES:
  venice nodes
  venice nodes --json | jq 'map(.free_bytes) | add'
  venice nodes --json | jq '.[] | select(.pressure != \"none\") | {name, available_bytes}'
  venice nodes --monitor 10.0.0.1:7470

Columns that say nothing are left out: role, where no node is a pool node; pressure, where no node
is short of memory itself. A node under pressure is lent nothing from: low means that it has given
what it had not lent back to its machine, high that this was not enough. A node that is to be empty
is draining, and drained once it is (`venice drain`).";

const HELP_RESOURCES: &str = "\
EXAMPLES:
  venice resources
  venice resources --json | jq '.[] | {node, bytes, capabilities}'
  venice resources --json | jq '.[] | select(.kind == \"accelerator\" and .available)'

Kinds: memory; window, blocks of physical memory; accelerator, nic and storage, devices that the
operators of nodes have named (`venice agent --offer`). Free of a device that is lent whole is whole
or -; health is ok, or what is wrong with it.";

const HELP_GRANTS: &str = "\
EXAMPLES:
  venice grants
  venice grants --json | jq '.[] | select(.donor == \"node1\") | .bytes'
  venice grants --json | jq 'map(select(.owner_user == \"alice\") | .bytes) | add'

Owner is the user whose program borrowed, and the node that says so; recipient is what the program
says of itself, priority what its request had (`venice run --priority`). A grant is leaving
that is called back for a request of higher priority (`--preempt`). Where nodes relay for each other, home is the recipient's node and hops the distance to the donor;
near donors lend first.";

const HELP_LINKS: &str = "\
EXAMPLES:
  venice links
  venice links --json | jq 'max_by(.latency_us)'
  venice links --json | jq '.[] | select(.forged + .replayed + .unsealed > 0)'

Latency is a round trip, traffic what goes to and fro at present. Port hop is a link between the
relays of two neighbours. The last lines are the recipients of grants, as their donors see them;
over shm (protection: a descriptor that nobody else has) their traffic cannot be counted.
Columns without anything in them are left out: bandwidth; emulated, the link asked for by --link;
hops; via, the relays on the short way. Bandwidth is the most that one program has been seen to have
of the link, in bursts of 50 ms at most, made seldom and never while programs use it.";

const HELP_BENCH: &str = "\
EXAMPLES:
  venice bench channels --quick --plots plots
  venice bench memory --quick
  venice bench fault
  venice bench fault --size 512MiB --local 128MiB --json fault.json
  venice bench forecast --plots plots         fetches public traces with pip, once
  venice bench forecast --trace usage.csv --columns memory,io --window 96 --ahead 4
  venice bench monitor --agents 1000 --store file,etcd
  venice bench placement --plots plots
  venice bench shares --json shares.json";

const HELP_FORECAST: &str = "\
EXAMPLES:
  venice bench forecast --plots plots         fetches public traces with pip, once
  venice bench forecast --trace usage.csv --columns memory,io --window 96 --ahead 4";

const HELP_MONITOR_LOAD: &str = "\
EXAMPLES:
  venice bench monitor
  venice bench monitor --store file,etcd      beside etcd, where etcd-server is installed
  venice bench monitor --agents 1000 --requests 200 --seconds 10 --json monitor.json

A Monitor Node of its own is started; each agent has a certificate, a connection over TLS and a service
of its own, all real; the memory that is lent is not there. 10000 agents with 2000 donors among them
take about 15000 open files.";

const HELP_PLACEMENT: &str = "\
EXAMPLES:
  venice bench placement
  venice bench placement --seeds 200 --nodes 4,8,16 --json - --plots plots

Each rack is drawn from a seed: a row or a ring of nodes with some memory left, some links busy, and two
to five requests. Interrupted, it tells what it has found by then.";

const HELP_SHARES: &str = "\
EXAMPLES:
  venice bench shares
  venice bench shares --seconds 5 --repetitions 5 --json shares.json

Programs are processes with links of their own at one donor of one thread: with root over a veth pair
between two network namespaces, else over loopback. A link has up to 64 pages on their way, as those of
a pager have.";

const HELP_PAPER: &str = "\
EXAMPLES:
  venice paper 3 --quick
  venice paper 14 --quick --plots plots
  venice paper 14 --modes venice-shm --queries 2000 --json figure14.json
  venice paper 15 --quick --plots plots
  venice paper rack-9 --quick --plots plots
  venice paper rack-9 --scale 1 --modes victim-shm,victim-udp --json rack-9.json
  venice paper rack-11 --quick --plots plots
  venice paper 15 --only pagerank,redis --json figure15.json

Each way to the memory runs beside the others in one run, the paper's figures beside ours. Figures 17
and 18 are in `venice bench channels`.";

const HELP_MODEL: &str = "\
EXAMPLES:
  venice model cost --sweep utilization=30%..90%
  venice model cost --memory-modules 384 --memory-cost 90 --gpu-modules 8 --gpu-cost 9000
  venice model latency --software 2us --local 95%
  venice model latency --sweep software=0..10us --plots plots
  venice model network --fabric 20us --crossings 2
  venice model network --sweep fabric=150ns..10us:50 --json network.json

The models of the composable-rack paper. Every figure is the paper's unless a flag gives another, and
every figure can be swept. What the paper says in numbers stands beside what its equations give.";

const HELP_WINDOW: &str = "\
EXAMPLES:
  venice window list
  venice window attach dax0.0
  venice window detach dax0.0

The recipient's side of memory that is reached by hardware. The donor's is
`venice agent --lend-blocks SIZE`.";

const HELP_DOCTOR: &str = "\
EXAMPLES:
  venice doctor
  venice doctor --json | jq '.[] | select(.state != \"ok\")'

Exit code 1 when something that `venice run` cannot do without is missing.";

const HELP_MONITOR: &str = "\
EXAMPLES:
  venice monitor --listen 10.0.0.1:7470 --state-dir /var/lib/venice/monitor
  venice monitor --config /etc/venice/monitor.toml
  venice monitor --reserve-ahead 20%          keep memory for workloads that are foretold to need it

A flag comes before the environment, that before the file, and that before the default. In the file
the keys are the flags' names with underscores (state_dir = \"...\"); unknown keys are errors.
SIGTERM and SIGINT end it in an orderly way.";

const HELP_AGENT: &str = "\
EXAMPLES:
  venice agent --name node7 --monitor 10.0.0.1:7470 --lend 64GiB --listen 10.0.0.7:7471
  venice agent --name pool1 --monitor 10.0.0.1:7470 --lend 500GiB --listen 10.0.0.8:7471 --pool
  venice agent --lend 16GiB --lend-blocks 64GiB
                                              and memory blocks, for machines on the same CXL fabric
  venice agent --lend 16GiB --offer accelerator:/dev/nvidia0 --offer storage:/srv/pool=100GiB
                                              and these devices, for `venice get`
  venice agent --return-blocks                bring back what a killed agent took
  venice agent --lend 16GiB --keep-free 4GiB --take-back-after-s 30
  venice agent --config /etc/venice/agent.toml

A flag comes before the environment, that before the file, and that before the default. In the file
the keys are the flags' names with underscores (lend = \"64GiB\"); unknown keys are errors.
SIGTERM and SIGINT end it in an orderly way: what it lent is taken back.";

const HELP_ROUTER: &str = "\
EXAMPLES:
  venice router --name router --monitor 10.0.0.1:7470 --listen 10.0.0.9:7471 --topology router:8

It lends nothing and passes on what the nodes around it send each other. Its flags and its file are
an agent's; the nodes are started with `venice agent --topology router:8 --position 0` to 7.";

const HELP_COMPLETIONS: &str = "\
EXAMPLES:
  venice completions bash > /usr/share/bash-completion/completions/venice
  venice completions zsh > ~/.zfunc/_venice";

const HELP_MAN: &str = "\
EXAMPLES:
  venice man | man -l -
  venice man --out /usr/local/share/man/man1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
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
