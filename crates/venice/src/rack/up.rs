//! `venice up`: starts a rack of processes on this machine, or restores it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use signal_hook::consts::signal::SIGINT;
use venice_control::Policy;
use venice_fabric::{LinkModel, Topology};
use venice_monitor::{MonitorConfig, MonitorError};
use venice_wire::ByteSize;

use super::memory_devices::{NodeDax, check_devices, devices_of, lent_bytes};
use super::network::{self, Network};
use super::offers::{NodeOffer, check_offers, offers_of};
use super::process::{self, Lives};
use super::record::{AgentRecord, MonitorRecord, PortKind, Record, port_parser};
use super::run_dir::{RunDir, RunDirLock, remove_file};
use super::start::Starter;
use crate::daemon::{MonitorSettings, known_group, lend_size};
use crate::doctor::available_bytes;
use crate::registry::block_on;
use crate::waiting::Signals;
use venice_cli::failure::Usage;
use venice_cli::terminal;
use venice_recipient::RecipientError;
use venice_recipient::local_rack::{
    FoundRack, RackSource, find_of_machine, is_run_dir_set, living_socket,
};

/// Interval between checks of the signals.
const SIGNAL_POLL: Duration = Duration::from_millis(20);
/// Default port of the Monitor Node.
const DEFAULT_MONITOR_PORT: u16 = 7470;
const DEFAULT_NODES: u32 = 4;
const DEFAULT_LEND_BYTES: u64 = 512 << 20;
/// Number of addresses in a /24.
const MAX_NODES: i64 = 250;

/// Most nodes with namespaces: every node talks to every other, and the kernel keeps 1024
/// neighbours in all.
const MAX_NETNS_NODES: u32 = 30;

/// `venice up`
#[derive(Args, Debug)]
pub struct UpArgs {
    /// Number of nodes [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_NODES))]
    pub nodes: Option<u32>,
    /// Number of pool nodes, the last ones: they only lend; programs that belong to them cannot
    /// borrow [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..MAX_NODES))]
    pub pool: Option<u32>,
    /// Memory that each node lends, for example 512MiB or 2GiB [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = lend_size)]
    pub lend: Option<ByteSize>,
    /// Default port of programs to the lent memory [default: shm]
    #[arg(long, value_parser = port_parser())]
    pub port: Option<PortKind>,
    /// Give each node its own network namespace, joined by veth pairs and a bridge (root only)
    #[arg(long)]
    pub netns: bool,
    /// With --netns and --port udp: single packets bypass each node's kernel (AF_XDP, Linux 6.6):
    /// faster short accesses, slower bulk writes
    #[arg(long, requires = "netns")]
    pub xdp: bool,
    /// Wiring of the nodes: all-to-all, mesh:XxYxZ, torus:XxYxZ, or router for a star around an
    /// external router [default: all-to-all]
    #[arg(long, value_name = "TOPOLOGY")]
    pub topology: Option<String>,
    /// With a --topology: write the whole route into each packet at its source, instead of routing
    /// by destination at each node
    #[arg(long)]
    pub source_routes: bool,
    /// Emulate a link: slow shared memory down to it, or each wire of a --topology:
    /// latency=1.4us,bandwidth=5Gbps[,router=300ns]
    #[arg(long, value_name = "LINK")]
    pub link: Option<LinkModel>,
    /// Do not encrypt and authenticate the UDP traffic between the nodes
    #[arg(long)]
    pub plain: bool,
    /// Default placement policy: nearest (near donors with much free memory), spread (evenly over
    /// all) or pack (as few as possible) [default: nearest]
    #[arg(long, value_name = "nearest|spread|pack")]
    pub placement: Option<Policy>,
    /// Lend a device of this machine at a node (default node1): as for `venice agent --offer`, or
    /// node2/accelerator:/dev/nvidia1; may be repeated
    #[arg(long, value_name = "[NODE/]DEVICE")]
    pub offer: Vec<NodeOffer>,
    /// Lend a memory device (DAX: CXL memory, an NVDIMM) at a node (default node1) instead of this
    /// machine's memory: dax0.0, node2/dax1.0; root only; may be repeated
    #[arg(long, value_name = "[NODE/]DEVICE")]
    pub lend_dax: Vec<NodeDax>,
    /// Each node keeps what devices' drivers have compiled for an owner, up to this size; 0 keeps
    /// nothing [default: 128MiB]
    #[arg(long, value_name = "SIZE", env = "VENICE_BUILD_CACHE")]
    pub build_cache: Option<ByteSize>,
    /// Each process serves /metrics (Prometheus), /healthz and /readyz; `venice status` shows where
    #[arg(long)]
    pub metrics: bool,
    /// Group that may use the rack besides its owner [default: venice, of root's racks]
    #[arg(long, value_name = "GROUP", env = "VENICE_SOCKET_GROUP", value_parser = known_group)]
    pub socket_group: Option<String>,
    /// Start the rack although this machine's programs use another one
    #[arg(long)]
    pub beside: bool,
    /// TCP port of the Monitor Node [default: 7470, or another one if that is taken]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub monitor_port: Option<u16>,
    /// Settings of the Monitor Node.
    #[command(flatten)]
    pub settings: MonitorSettings,
}

/// Asks before a rack is started on a machine that belongs to another: its programs would use the new
/// one from then on. A run directory that the environment names is asked for on purpose.
fn check_no_other(args: &UpArgs) -> anyhow::Result<()> {
    if args.beside || is_run_dir_set() {
        return Ok(());
    }
    let said = match find_of_machine() {
        Ok(FoundRack { source: RackSource::Record(_), .. })
        | Err(RecipientError::NoRack { .. }) => {
            return Ok(());
        }
        Ok(FoundRack { access, source, .. }) => format!(
            "this machine's programs use the rack whose Monitor Node is at {} (named by {source}), and \
             would use the new one",
            access.monitor
        ),
        Err(error) => format!(
            "this machine's programs use a rack that does not answer ({error}), and would use the new one"
        ),
    };
    match terminal::confirm(&format!("{said}. Start it?"))? {
        Some(true) => Ok(()),
        Some(false) => bail!("not started"),
        None => bail!("{said}: repeat with --beside, or set a VENICE_RUN_DIR for the new one"),
    }
}

/// Starts a rack, or restarts its dead processes.
pub fn execute(args: &UpArgs) -> anyhow::Result<i32> {
    if args.netns && args.nodes.is_some_and(|nodes| nodes > MAX_NETNS_NODES) {
        let said = format!(
            "--netns allows --nodes up to {MAX_NETNS_NODES}: the kernel's table of neighbours \
             holds no more"
        );
        return Err(Usage(said).into());
    }
    venice_cli::log::check()?;
    let dir = RunDir::locate()?;
    check_no_other(args)?;
    let lock = dir.lock()?;
    // From the first file on: a signal must not leave a part of a rack.
    let signals = Signals::catch()?;
    match Record::load(&dir)? {
        Some(record) => resume(args, &dir, &lock, record, &signals),
        None => begin(args, &dir, &lock, &signals),
    }?;
    Ok(0)
}

/// Restarts the dead processes of a rack that was started here before.
fn resume(
    args: &UpArgs,
    dir: &RunDir,
    lock: &RunDirLock,
    mut record: Record,
    signals: &Signals,
) -> anyhow::Result<()> {
    if let Some(difference) = difference(args, &record) {
        if !process::find_all(dir).is_empty() {
            bail!("a rack is up already {difference}: take it down first with `venice down`");
        }
        // All its processes are dead: the new rack replaces it.
        remove_file(&dir.record_path())?;
        return begin(args, dir, lock, signals);
    }
    if record.netns {
        network::check_possible()?;
    }
    let recorded = record.processes();
    process::wait_for_dying(&recorded, dir);
    // Daemons of a `venice up` that was killed before it recorded them.
    let daemons = process::find_all(dir).into_iter();
    let unrecorded: Vec<_> = daemons.filter(|process| !recorded.contains(process)).collect();
    process::stop_all(&unrecorded, dir)?;
    let network = prepare(args, dir, &mut record)?;
    check_monitor_port_again(&record, dir)?;
    // The agents have their Monitor Node's address.
    let any_monitor_port = record.agents.iter().all(|agent| agent.process.is_none());
    let mut starter =
        Starter { dir, record: &mut record, any_monitor_port, network, started: Vec::new() };
    let started = match block_on(uninterrupted(&mut starter, signals)) {
        Ok(started) => started,
        Err(error) => {
            starter.undo()?;
            return Err(error);
        }
    };
    if started.is_empty() {
        terminal::say(format!("The rack is up already: {}", summary(&record)))?;
    } else {
        let names = started.join(", ");
        terminal::say(format!("Restarted {names}. The rack is up: {}", summary(&record)))?;
    }
    Ok(())
}

/// Starts a new rack.
fn begin(args: &UpArgs, dir: &RunDir, lock: &RunDirLock, signals: &Signals) -> anyhow::Result<()> {
    // Daemons without a record: their `venice up` was killed, or the file was removed. Their store
    // and their namespaces must not become the new rack's.
    process::stop_all(&process::find_all(dir), dir)?;
    if let Some(socket) = living_socket(dir.path()) {
        bail!(
            "a daemon that `venice up` has not started listens at {}: set a VENICE_RUN_DIR for the new \
             rack, or stop that daemon",
            socket.display()
        );
    }
    Network::remove(dir)?;
    dir.remove_processes(&dir.process_dirs())?;
    let mut record = match plan(args, dir) {
        Ok(record) => record,
        Err(error) => {
            clear(dir, lock, &[])?;
            return Err(error);
        }
    };
    let outcome = build(args, dir, &mut record, signals);
    if outcome.is_err() {
        clear(dir, lock, &record.process_names())?;
        return outcome;
    }
    terminal::say(format!("The rack is up: {}", summary(&record)))?;
    terminal::say("Run a program on it: venice run --local 256MiB -- COMMAND")?;
    for hint in hints_of_devices(&record) {
        terminal::say(hint)?;
    }
    Ok(())
}

/// Returns how programs use the devices that the nodes offer.
fn hints_of_devices(record: &Record) -> Vec<String> {
    let offers: Vec<_> = record.agents.iter().flat_map(|agent| &agent.offer).collect();
    let accelerators = offers.iter().filter(|it| it.starts_with("accelerator:")).count();
    let mut hints = Vec::new();
    if accelerators > 0 {
        let run = format!("venice run --accelerators {accelerators} -- COMMAND");
        hints.push(format!("With its accelerators: {run}"));
    }
    if offers.len() > accelerators {
        hints.push("With its devices: venice get WANT -- COMMAND (venice resources)".to_owned());
    }
    hints
}

fn build(
    args: &UpArgs,
    dir: &RunDir,
    record: &mut Record,
    signals: &Signals,
) -> anyhow::Result<()> {
    let network = prepare(args, dir, record)?;
    let any_monitor_port = args.monitor_port.is_none();
    let mut starter = Starter { dir, record, any_monitor_port, network, started: Vec::new() };
    match block_on(uninterrupted(&mut starter, signals)) {
        Ok(_) => Ok(()),
        Err(error) => {
            starter.undo()?;
            Err(error)
        }
    }
}

/// Creates the network and chooses the Monitor Node's address, as far as an earlier `venice up` has
/// not done so.
fn prepare(args: &UpArgs, dir: &RunDir, record: &mut Record) -> anyhow::Result<Option<Network>> {
    // Saved first, so that `venice down` and other racks find the namespaces.
    record.save(dir)?;
    let network = match (record.netns, record.subnet) {
        (false, _) => None,
        (true, None) => Some(Network::create(dir)?),
        (true, Some(subnet)) => Some(Network::restore(dir, subnet)?),
    };
    record.subnet = network.as_ref().map(Network::subnet);
    if record.monitor.addr.is_empty() {
        let ip = network.as_ref().map_or(Ipv4Addr::LOCALHOST, |n| n.subnet().bridge_address());
        record.monitor.addr = choose_monitor_address(ip.into(), args.monitor_port)?.to_string();
    }
    record.save(dir)?;
    Ok(network)
}

/// Plans the rack; checks everything that can be checked without starting a process.
fn plan(args: &UpArgs, dir: &RunDir) -> anyhow::Result<Record> {
    let topology = topology(args)?;
    let nodes = topology.nodes();
    let port = port(args, topology)?;
    check_link(args.link.as_ref(), port, topology)?;
    if args.source_routes && !topology.has_relays() {
        let said = "--source-routes needs a --topology (mesh:4, say) whose nodes relay";
        return Err(Usage(said.to_string()).into());
    }
    check_xdp(args, port, topology)?;
    let pool = args.pool.unwrap_or(0);
    if pool >= nodes {
        let said = format!("--pool {pool} leaves no node of {nodes} to run programs");
        return Err(Usage(said).into());
    }
    check_offers(args, nodes)?;
    check_devices(args, nodes)?;
    check_settings(&args.settings)?;
    let lend_bytes = args.lend.map_or(DEFAULT_LEND_BYTES, |size| size.0);
    check_socket_path(dir, nodes)?;
    if args.netns {
        network::check_possible()?;
    }
    let agent = |number| {
        let name = format!("node{number}");
        let lend_dax = devices_of(args, &name);
        let lend_bytes = match lend_dax.is_empty() {
            true => lend_bytes,
            false => lent_bytes(&lend_dax)?,
        };
        let (pool, offer) = (number > nodes - pool, offers_of(args, &name));
        Ok(AgentRecord { lend_dax, pool, offer, ..AgentRecord::new(name, lend_bytes) })
    };
    let agents = (1..=nodes).map(agent).collect::<anyhow::Result<Vec<_>>>()?;
    check_memory(agents.iter().filter(|agent| agent.lend_dax.is_empty()).count(), lend_bytes)?;
    let router = topology.router().map(|_| AgentRecord::new("router".into(), 0));
    Ok(Record {
        monitor: MonitorRecord {
            addr: String::new(),
            process: None,
            settings: args.settings.clone(),
            metrics_addr: String::new(),
        },
        port,
        netns: args.netns,
        plain: args.plain,
        placement: args.placement,
        xdp: args.xdp,
        link: args.link,
        subnet: None,
        topology: shape(&topology),
        source_routes: args.source_routes,
        build_cache: args.build_cache,
        socket_group: args.socket_group.clone(),
        metrics: args.metrics,
        agents: agents.into_iter().chain(router).collect(),
    })
}

/// Returns the requested topology, with the requested number of nodes or its own.
fn topology(args: &UpArgs) -> anyhow::Result<Topology> {
    let text = args.topology.as_deref().unwrap_or("all-to-all");
    let shaped = Topology::shaped(text).ok().map(|topology| topology.nodes());
    let nodes = args.nodes.or(shaped).unwrap_or(DEFAULT_NODES);
    let topology =
        Topology::for_nodes(text, nodes).map_err(|error| Usage(format!("--topology: {error}")))?;
    let (switches, limit) = (topology.switches(), limit(args));
    if switches > limit {
        let said = format!("--topology {text} has {switches} nodes: the limit here is {limit}");
        return Err(Usage(said).into());
    }
    Ok(topology)
}

fn limit(args: &UpArgs) -> u32 {
    if args.netns { MAX_NETNS_NODES } else { MAX_NODES as u32 }
}

/// Topology in the record's form.
fn shape(topology: &Topology) -> Option<String> {
    topology.has_relays().then(|| topology.with_size())
}

/// Returns the port; relays forward datagrams only.
fn port(args: &UpArgs, topology: Topology) -> anyhow::Result<PortKind> {
    match args.port {
        Some(port) if topology.has_relays() && !port.capabilities().leaves_machine => {
            let text = args.topology.as_deref().unwrap_or_default();
            let said = format!(
                "--topology {text} needs --port udp: over {port} every node reaches every other \
                 directly"
            );
            Err(Usage(said).into())
        }
        None if topology.has_relays() => Ok(PortKind::Udp),
        port => Ok(port.unwrap_or_default()),
    }
}

/// Refuses --link where it cannot work. Datagrams between two programs take tens of microseconds,
/// which no emulation can remove. The relays of a topology add the link's time to their own.
fn check_link(link: Option<&LinkModel>, port: PortKind, topology: Topology) -> anyhow::Result<()> {
    if link.is_some() && !port.capabilities().mapped && !topology.has_relays() {
        let said = "--link needs --port shm, or a --topology (mesh:4, say) whose relays can delay \
                    datagrams: UDP and verbs between two programs cannot be slowed to a link";
        return Err(Usage(said.to_string()).into());
    }
    Ok(())
}

/// Refuses --xdp where no datagrams arrive, or only from relays.
fn check_xdp(args: &UpArgs, port: PortKind, topology: Topology) -> anyhow::Result<()> {
    if args.xdp && (port != PortKind::Udp || topology.has_relays()) {
        let said =
            "--xdp needs --port udp, and nodes that reach each other directly: no --topology";
        return Err(Usage(said.to_string()).into());
    }
    Ok(())
}

/// Validates the settings as the Monitor Node would at its start.
fn check_settings(settings: &MonitorSettings) -> anyhow::Result<()> {
    let mut config = MonitorConfig::default();
    settings.apply(&mut config);
    config.validate().map_err(|error| match error {
        MonitorError::Config(text) => Usage(MonitorSettings::by_its_flag(&text)).into(),
        other => other.into(),
    })
}

fn check_memory(nodes: usize, lend_bytes: u64) -> anyhow::Result<()> {
    let wanted = (nodes as u64).saturating_mul(lend_bytes);
    match available_bytes() {
        Some(available) if wanted > available => bail!(
            "{nodes} nodes that lend {} each need {}, but this machine has {} available: give \
             fewer --nodes or a smaller --lend",
            terminal::bytes(lend_bytes),
            terminal::bytes(wanted),
            terminal::bytes(available)
        ),
        _ => Ok(()),
    }
}

/// Checks the length of socket paths: at most 107 bytes.
fn check_socket_path(dir: &RunDir, nodes: u32) -> anyhow::Result<()> {
    let longest = dir.shm_socket_path(&format!("node{nodes}"));
    if longest.as_os_str().len() > 107 {
        let said =
            format!("{} is too long for a socket: set a shorter VENICE_RUN_DIR", longest.display());
        return Err(Usage(said).into());
    }
    Ok(())
}

/// Chooses the Monitor Node's address: a port the user gave must be free; the default one is only
/// preferred.
fn choose_monitor_address(ip: IpAddr, wanted: Option<u16>) -> anyhow::Result<SocketAddr> {
    let address = SocketAddr::new(ip, wanted.unwrap_or(DEFAULT_MONITOR_PORT));
    match TcpListener::bind(address) {
        Ok(_) => Ok(address),
        Err(error) if wanted.is_some() => Err(error).with_context(|| {
            format!(
                "port {} is unavailable (give another --monitor-port, or none for a free one)",
                address.port()
            )
        }),
        Err(_) => Ok(SocketAddr::new(ip, 0)),
    }
}

/// Checks that the Monitor Node's address is free again: the agents have only that address.
fn check_monitor_port_again(record: &Record, dir: &RunDir) -> anyhow::Result<()> {
    if record.monitor.process.is_some_and(|process| process.is_alive(dir)) {
        return Ok(());
    }
    let Ok(address) = record.monitor.addr.parse::<SocketAddr>() else { return Ok(()) };
    if address.port() == 0 {
        return Ok(());
    }
    TcpListener::bind(address).map(drop).with_context(|| {
        format!(
            "the Monitor Node died and its address {address} is taken by another program (free \
             it, or run `venice down` and `venice up`)"
        )
    })
}

/// Describes how the rack differs from the explicit arguments, if it does.
fn difference(args: &UpArgs, record: &Record) -> Option<String> {
    let nodes = record.node_count();
    let of_memory = record.agents.iter().find(|agent| agent.lend_dax.is_empty());
    let lend_bytes = of_memory.map_or(0, |agent| agent.lend_bytes);
    let port = record.monitor.addr.parse::<SocketAddr>().map_or(0, |address| address.port());
    if args.nodes.is_some_and(|n| n as usize != nodes) {
        return Some(format!("with {nodes} nodes"));
    }
    if args.pool.is_some_and(|n| n as usize != record.pool_count()) {
        return Some(format!("with {} pool nodes", record.pool_count()));
    }
    if args.lend.is_some_and(|size| size.0 != lend_bytes) {
        return Some(format!("with nodes that lend {}", terminal::bytes(lend_bytes)));
    }
    if args.port.is_some_and(|kind| kind != record.port) {
        return Some(format!("with port {}", record.port));
    }
    if args.netns && !record.netns {
        return Some("without network namespaces".to_string());
    }
    if let Some(wanted) = &args.topology
        && topology(args).map_or(true, |wanted| shape(&wanted) != record.topology)
    {
        let is = record.topology.as_deref().unwrap_or("all-to-all");
        return Some(format!("wired as {is}, not {wanted}"));
    }
    if args.source_routes && !record.source_routes {
        return Some("without --source-routes".to_string());
    }
    if args.link.is_some() && args.link != record.link {
        let is = record.link.map_or_else(
            || "without an emulated link".into(),
            |link| format!("with the link {link}"),
        );
        return Some(is);
    }
    if args.plain && !record.plain {
        return Some("without --plain".to_string());
    }
    let placement = record.placement.unwrap_or_default();
    if args.placement.is_some_and(|wanted| wanted != placement) {
        return Some(format!("with placement {placement}"));
    }
    if args.socket_group.is_some() && args.socket_group != record.socket_group {
        let is = record.socket_group.as_deref();
        return Some(
            is.map_or("without a --socket-group".into(), |it| format!("for the group {it}")),
        );
    }
    if let Some((flag, has)) = args.settings.difference(&record.monitor.settings) {
        return Some(format!("with {flag} {has}"));
    }
    if args.xdp && !record.xdp {
        return Some("without --xdp".to_string());
    }
    if args.metrics && !record.metrics {
        return Some("without --metrics".to_string());
    }
    if args.build_cache.is_some() && args.build_cache != record.build_cache {
        let is = record.build_cache.map_or_else(|| "its default".into(), |size| size.to_string());
        return Some(format!("with --build-cache {is}"));
    }
    let other = |agent: &&AgentRecord| agent.offer != offers_of(args, &agent.name);
    if let Some(agent) = record.agents.iter().find(other).filter(|_| !args.offer.is_empty()) {
        return Some(match agent.offer.join(" ").as_str() {
            "" => format!("in which {} offers no device", agent.name),
            offers => format!("in which {} offers {offers}", agent.name),
        });
    }
    let other = |agent: &&AgentRecord| agent.lend_dax != devices_of(args, &agent.name);
    if let Some(agent) = record.agents.iter().find(other).filter(|_| !args.lend_dax.is_empty()) {
        return Some(match agent.lend_dax.join(" ").as_str() {
            "" => format!("in which {} lends this machine's memory", agent.name),
            devices => format!("in which {} lends {devices}", agent.name),
        });
    }
    if args.monitor_port.is_some_and(|wanted| wanted != port) {
        return Some(format!("with its Monitor Node on port {port}"));
    }
    None
}

/// Starts missing processes; an interrupt is an error like any other, so that cleanup runs.
async fn uninterrupted(
    starter: &mut Starter<'_>,
    signals: &Signals,
) -> anyhow::Result<Vec<String>> {
    let caught = async {
        loop {
            if let Some(signal) = signals.caught() {
                return signal;
            }
            tokio::time::sleep(SIGNAL_POLL).await;
        }
    };
    tokio::select! {
        biased;
        signal = caught => {
            let what = if signal == SIGINT { "interrupted" } else { "terminated" };
            // Donors that lock their memory take seconds to end.
            terminal::remark(format!("venice: {what}: stopping the started processes"));
            bail!("{what}: stopped the started processes")
        }
        result = starter.start_missing() => result,
    }
}

/// Removes all files of a rack whose processes have ended.
pub fn clear(dir: &RunDir, lock: &RunDirLock, names: &[String]) -> anyhow::Result<()> {
    Network::remove(dir)?;
    // Killed agents leave control groups.
    for name in names {
        venice_service::sweep_dead_hosts(&dir.hosts_dir(name));
    }
    dir.remove(names, lock)
}

fn summary(record: &Record) -> String {
    let nodes = record.node_count();
    let lent: u64 = record.agents.iter().map(|agent| agent.lend_bytes).sum();
    let namespaces = if record.netns { ", each in its own network namespace" } else { "" };
    let wired = record.topology.as_ref().map_or_else(String::new, |t| format!(", wired as {t}"));
    let routed = if record.source_routes { ", routed at the source" } else { "" };
    let link = record.link.map_or_else(String::new, |link| format!(", emulating {link}"));
    let plain = if record.plain { ", UDP without protection (--plain)" } else { "" };
    let xdp = if record.xdp { ", single packets past the kernel" } else { "" };
    let pool = match record.pool_count() {
        0 => String::new(),
        count => format!(" ({count} of them pool nodes)"),
    };
    format!(
        "Monitor Node at {}, {nodes} node{}{pool} lending {} over {}{wired}{routed}{link}{namespaces}{plain}{xdp}",
        record.monitor.addr,
        if nodes == 1 { "" } else { "s" },
        terminal::bytes(lent),
        record.port,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> UpArgs {
        UpArgs {
            nodes: None,
            pool: None,
            lend: None,
            port: None,
            netns: false,
            topology: None,
            source_routes: false,
            link: None,
            plain: false,
            placement: None,
            xdp: false,
            offer: Vec::new(),
            lend_dax: Vec::new(),
            build_cache: None,
            socket_group: None,
            metrics: false,
            beside: false,
            monitor_port: None,
            settings: MonitorSettings::default(),
        }
    }

    fn record() -> Record {
        let json = r#"{"monitor": {"addr": "127.0.0.1:7470"}, "port": "shm", "netns": false,
            "agents": [{"name": "node1", "lend_bytes": 33554432},
                       {"name": "node2", "lend_bytes": 33554432}]}"#;
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn difference_ignores_unset_arguments() {
        assert_eq!(difference(&asked(), &record()), None);
        let same = UpArgs {
            nodes: Some(2),
            lend: Some(ByteSize(32 << 20)),
            port: Some(PortKind::Shm),
            monitor_port: Some(7470),
            ..asked()
        };
        assert_eq!(difference(&same, &record()), None);
        for other in [
            UpArgs { nodes: Some(3), ..asked() },
            UpArgs { pool: Some(1), ..asked() },
            UpArgs { lend: Some(ByteSize(1 << 30)), ..asked() },
            UpArgs { port: Some(PortKind::Udp), ..asked() },
            UpArgs { netns: true, ..asked() },
            UpArgs { plain: true, ..asked() },
            UpArgs { source_routes: true, ..asked() },
            UpArgs { netns: true, xdp: true, ..asked() },
            UpArgs { link: Some(LinkModel::PAPER), ..asked() },
            UpArgs { topology: Some("mesh:2".into()), ..asked() },
            UpArgs { offer: vec!["nic:eth1".parse().unwrap()], ..asked() },
            UpArgs { monitor_port: Some(7471), ..asked() },
            UpArgs { build_cache: Some(ByteSize(0)), ..asked() },
            UpArgs { socket_group: Some("staff".into()), ..asked() },
            UpArgs { metrics: true, ..asked() },
            UpArgs {
                settings: MonitorSettings { reserve_ahead: Some(0.2), ..Default::default() },
                ..asked()
            },
        ] {
            assert!(difference(&other, &record()).is_some(), "{other:?}");
        }
    }

    #[test]
    fn explicit_port_must_be_free() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = choose_monitor_address(Ipv4Addr::LOCALHOST.into(), Some(port)).unwrap_err();
        assert!(format!("{error:#}").contains(&port.to_string()), "{error:#}");
    }

    #[test]
    fn excess_memory_is_refused() {
        assert!(check_memory(4, u64::MAX / 2).is_err());
        assert!(check_memory(1, 16 << 20).is_ok());
    }
}
