//! `venice agent`: a node's agent in the foreground.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;
use venice_agent::{AgentConfig, AgentError, AgentReady, Offer, OnReady};
use venice_fabric::{LinkModel, Topology};
use venice_recipient::local_rack::{AGENT_SOCKET, HELPER_SOCKET, SWAP_HELPER_SOCKET};
use venice_wire::ByteSize;

use super::detach::DetachArgs;
use super::helper;
use super::local_socket::{check_socket_dir, local_socket, make_socket_dir};
use super::{HelperThread, ObserveArgs, Ready, config_file, lend_size, mlock, run_daemon};
use crate::rack::{RunDir, explicit_address};
use crate::swap;
use venice_cli::failure::Usage;

/// `venice agent`
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// TOML file with settings not given by flag or environment
    #[arg(long, value_name = "FILE", env = "VENICE_CONFIG")]
    config: Option<PathBuf>,
    /// Name of the node, the same at every start [default: that of its certificate,
    /// else the host's name]
    #[arg(long, value_name = "NAME", env = "VENICE_NODE_NAME", value_parser = crate::name::check)]
    name: Option<String>,
    /// Directory of the node's certificate, made by `venice join` [default:
    /// /var/lib/venice/identity]
    #[arg(long, value_name = "DIR", env = "VENICE_IDENTITY")]
    identity: Option<PathBuf>,
    /// Socket for programs of this machine to enter the rack: for root, the agent's user and
    /// --socket-group; none disables it [default: agent.sock in the run directory]
    #[arg(long, value_name = "PATH", env = "VENICE_LOCAL_SOCKET")]
    local_socket: Option<PathBuf>,
    /// Socket by which users of this machine page, if the agent is root: for --socket-group; none
    /// disables it [default: helper.sock beside --local-socket]
    #[arg(long, value_name = "PATH", env = "VENICE_HELPER_SOCKET")]
    helper_socket: Option<PathBuf>,
    /// Socket by which users of this machine run programs on swap, if the agent is root: for
    /// --socket-group; none disables it [default: swap.sock beside --local-socket]
    #[arg(long, value_name = "PATH", env = "VENICE_SWAP_HELPER_SOCKET")]
    swap_helper_socket: Option<PathBuf>,
    /// Fewest copies of each page on a user's swap device, each on another node: 1 to 3 [default: 2]
    #[arg(long, value_name = "N", env = "VENICE_SWAP_LEAST_COPIES",
          value_parser = swap::helper::least_copies_parser())]
    swap_least_copies: Option<u32>,
    /// Group allowed at these sockets [default: venice]
    #[arg(long, value_name = "GROUP", env = "VENICE_SOCKET_GROUP")]
    socket_group: Option<String>,
    /// Memory to lend, for example 4GiB [default with --pool: this machine's available memory less
    /// twice --keep-free]
    #[arg(long, value_name = "SIZE", env = "VENICE_LEND", value_parser = lend_size)]
    lend: Option<ByteSize>,
    /// Lend a memory device (DAX: CXL memory, an NVDIMM) instead of this machine's memory, for
    /// example dax0.0 (see `venice window list`); root only; may be repeated
    #[arg(long, value_name = "DEVICE", conflicts_with = "lend")]
    lend_dax: Vec<String>,
    /// Address for the control plane; port 0 takes a free one [default: this machine's in the
    /// direction of the Monitor Node, port 0]
    #[arg(long, value_name = "ADDR", env = "VENICE_LISTEN", value_parser = crate::host_port::check)]
    listen: Option<String>,
    /// Address for fabric packets; port 0 takes a free one [default: the --listen address, port 0]
    #[arg(long, value_name = "ADDR", env = "VENICE_UDP_LISTEN", value_parser = crate::host_port::check)]
    udp_listen: Option<String>,
    /// Socket that hands memory to programs on this host [default: none]
    #[arg(long, value_name = "PATH", env = "VENICE_SHM_SOCKET")]
    shm_socket: Option<PathBuf>,
    /// Link to emulate for programs on this host and for the relay: latency=1.4us,bandwidth=5Gbps
    #[arg(long, value_name = "LINK", env = "VENICE_LINK")]
    link: Option<LinkModel>,
    /// RDMA device for access to the memory, or auto for the first active one; queue pairs connect
    /// on the TCP port with the UDP port's number [default: none]
    #[arg(long, value_name = "DEVICE", env = "VENICE_VERBS")]
    verbs: Option<String>,
    /// Network interface where single packets bypass the kernel (AF_XDP, Linux 6.6, root), for
    /// example eth0, or eth0:native for its driver: faster short accesses, slower bulk writes to
    /// this node [default: none]
    #[arg(long, value_name = "IFACE", env = "VENICE_XDP")]
    xdp: Option<String>,
    /// Address of this machine for others, if --listen is a wildcard (0.0.0.0)
    #[arg(long, value_name = "IP", env = "VENICE_ADVERTISE")]
    advertise: Option<IpAddr>,
    /// Do not encrypt and authenticate UDP; for a rack whose Monitor Node runs with --plain
    #[arg(long)]
    plain: bool,
    /// Threads that serve fabric packets [default: half the processors, 1 to 4]
    #[arg(long, value_name = "N", env = "VENICE_QUEUES")]
    queues: Option<usize>,
    /// Wiring of the rack, if not every node reaches every other directly: mesh:2x2x2, torus:4x4x4,
    /// router:8 (with the number of nodes)
    #[arg(long, value_name = "TOPOLOGY", env = "VENICE_TOPOLOGY")]
    topology: Option<String>,
    /// Position of this node in that topology, from 0
    #[arg(long, value_name = "N", env = "VENICE_POSITION")]
    position: Option<u32>,
    /// Write the whole route into each packet at its source, instead of routing by destination at
    /// each relay
    #[arg(long)]
    source_routes: bool,
    /// Address of its relay; port 0 takes a free one [default: the --listen address, port 0]
    #[arg(long, value_name = "ADDR", env = "VENICE_RELAY_LISTEN", value_parser = crate::host_port::check)]
    relay_listen: Option<String>,
    /// Take this much memory from the kernel, in whole memory blocks, and register it for machines
    /// on the same memory fabric (CXL); root only [default: none]
    #[arg(long, value_name = "SIZE", env = "VENICE_LEND_BLOCKS")]
    lend_blocks: Option<ByteSize>,
    /// Also lend this device (accelerator:opencl0, accelerator:/dev/nvidia0, nic:eth1,
    /// storage:/dev/sdb, storage:/srv/pool=100GiB); others are not lent; append ,CAPABILITY for
    /// capabilities that are not detected; may be repeated
    #[arg(long, value_name = "DEVICE")]
    offer: Vec<Offer>,
    /// Bring memory blocks online that a killed agent has left offline, and exit
    #[arg(long)]
    return_blocks: bool,
    /// Directory for the record of the blocks taken [default: /var/lib/venice/agent]
    #[arg(long, value_name = "DIR", env = "VENICE_AGENT_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Directory of the processes that serve granted devices, of this agent alone [default:
    /// /run/venice/hosts]
    #[arg(long, value_name = "DIR", env = "VENICE_HOSTS_DIR")]
    hosts_dir: Option<PathBuf>,
    /// Keep what devices' drivers have compiled for an owner, up to this size, for the owner's next
    /// grants; 0 keeps nothing [default: 128MiB]
    #[arg(long, value_name = "SIZE", env = "VENICE_BUILD_CACHE")]
    build_cache: Option<ByteSize>,
    /// Directory of what is kept, of this agent alone [default: /var/cache/venice/builds]
    #[arg(long, value_name = "DIR", env = "VENICE_BUILD_CACHE_DIR")]
    build_cache_dir: Option<PathBuf>,
    /// Be a pool node: it only lends (all it can, unless --lend limits it); its own programs cannot
    /// borrow
    #[arg(long)]
    pool: bool,
    /// Memory to keep available for this machine's own programs: below it, unlent memory returns to
    /// the kernel and nothing is offered; 0 disables this [default: 2 % of the memory, 64MiB to
    /// 1GiB]
    #[arg(long, value_name = "SIZE", env = "VENICE_KEEP_FREE")]
    keep_free: Option<ByteSize>,
    /// Below --keep-free without unlent memory, programs with the newest grants are asked to move
    /// their memory elsewhere while they run; after this many seconds the rest is taken and they
    /// lose it; inf: never [default: 600]
    #[arg(long, value_name = "SECONDS", env = "VENICE_TAKE_BACK_AFTER_S")]
    take_back_after_s: Option<f64>,
    /// Seconds that memory is reserved for an uncompleted grant [default: 10]
    #[arg(long, value_name = "SECONDS", env = "VENICE_PREPARE_TIMEOUT_S")]
    prepare_timeout_s: Option<f64>,
    #[command(flatten)]
    observe: ObserveArgs,
    #[command(flatten)]
    detach: DetachArgs,
}

/// Runs the agent until it is stopped.
pub fn execute(args: &AgentArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    if args.return_blocks {
        let file: AgentConfig = config_file::read(args.config.as_deref())?;
        return return_blocks(args.state_dir.as_deref().unwrap_or(&file.state_dir));
    }
    serve(args, configuration(args, explicit_address(monitor)?)?)
}

fn return_blocks(state_dir: &Path) -> anyhow::Result<i32> {
    // The error's own text includes the kernel's.
    let count = venice_agent::return_blocks(state_dir).map_err(|error| anyhow!("{error}"))?;
    venice_cli::terminal::say(match count {
        0 => "No memory block was left offline.".to_string(),
        1 => "1 memory block is online again.".to_string(),
        _ => format!("{count} memory blocks are online again."),
    })?;
    Ok(0)
}

/// Runs the external router of a rack, which lends nothing, until it is stopped.
pub fn execute_router(args: &AgentArgs, monitor: Option<&str>) -> anyhow::Result<i32> {
    let mut config = merged(args, explicit_address(monitor)?)?;
    if config.lend.0 != 0 || !config.lend_dax.is_empty() {
        let said = "a router lends nothing: give no --lend or --lend-dax, or start `venice agent`";
        return Err(Usage(said.to_string()).into());
    }
    let topology = config.topology.as_deref().map(str::parse::<Topology>);
    let Some(Ok(Some(router))) = topology.map(|parsed| parsed.map(|topology| topology.router()))
    else {
        let said = "a router's --topology is router:N, with the number of nodes around it";
        return Err(Usage(said.to_string()).into());
    };
    let lends = config.lend_blocks.0 > 0 || !config.offer.is_empty();
    if config.pool || lends || args.return_blocks {
        let said =
            "a router lends nothing: give no --pool, --offer, --lend-blocks or --return-blocks";
        return Err(Usage(said.to_string()).into());
    }
    config.position = Some(router.0);
    serve(args, config)
}

fn serve(args: &AgentArgs, mut config: AgentConfig) -> anyhow::Result<i32> {
    config.shm_socket.as_deref().map_or(Ok(()), check_socket_dir)?;
    args.detach.apply()?;
    args.observe.log.start()?;
    mlock::lock();
    make_socket_dir(config.local_socket.as_deref())?;
    let detach = args.detach.clone();
    config.on_ready = OnReady::new(move |ready: AgentReady| {
        detach.tell_ready(&Ready {
            control_addr: Some(ready.control_addr.to_string()),
            udp_addr: Some(ready.udp_addr.to_string()),
            relay_addr: ready.relay_addr.map(|addr| addr.to_string()),
            metrics_addr: ready.metrics_addr.map(|addr| addr.to_string()),
            ..Ready::default()
        });
    });
    let helper = config
        .helper_socket
        .as_deref()
        .and_then(|path| helper::start_if_allowed(path, &config.socket_group));
    let swap_helper = swap_helper(&config)?;
    run_daemon(|| {}, async |shutdown| venice_agent::run(config, shutdown).await.map_err(told))
        .inspect(|_| drop((helper, swap_helper)))
}

/// Starts the swap helper, if there is to be one.
fn swap_helper(config: &AgentConfig) -> anyhow::Result<Option<HelperThread>> {
    let Some(path) = config.swap_helper_socket.as_deref() else { return Ok(None) };
    let settings = swap::helper::Settings {
        monitor: Some(config.monitor.clone()),
        least_copies: config.swap_least_copies.unwrap_or(swap::helper::LEAST_COPIES),
        run_dir: RunDir::locate()?,
    };
    Ok(swap::helper::start_if_allowed(path, &config.socket_group, settings))
}

/// Returns the configuration of an agent that lends something.
fn configuration(args: &AgentArgs, monitor: Option<String>) -> anyhow::Result<AgentConfig> {
    let config = merged(args, monitor)?;
    let lends_else = config.lend_blocks.0 > 0 || !config.offer.is_empty() || config.pool;
    if config.lend.0 == 0 && config.lend_dax.is_empty() && !lends_else {
        let said = "nothing to lend: give --lend SIZE, for example 4GiB, or set lend in the --config file \
                    (or lend_dax, or offer)";
        return Err(Usage(said.to_string()).into());
    }
    Ok(config)
}

/// Merges settings; precedence: flag, environment, file, default.
fn merged(args: &AgentArgs, monitor: Option<String>) -> anyhow::Result<AgentConfig> {
    let mut config: AgentConfig = config_file::read(args.config.as_deref())?;
    config.name = args.name.clone().unwrap_or(config.name);
    config.identity = args.identity.clone().unwrap_or(config.identity);
    let socket = args.local_socket.clone().or(config.local_socket);
    config.local_socket = local_socket(socket, AGENT_SOCKET)?;
    let own = config.local_socket.as_deref();
    let or_beside = |given: Option<PathBuf>, name| {
        let path = given.or_else(|| own.map(|it| it.with_file_name(name)));
        path.filter(|path| path.as_os_str() != "none")
    };
    let helper = args.helper_socket.clone().or(config.helper_socket);
    config.helper_socket = or_beside(helper, HELPER_SOCKET);
    let swap_helper = args.swap_helper_socket.clone().or(config.swap_helper_socket);
    config.swap_helper_socket = or_beside(swap_helper, SWAP_HELPER_SOCKET);
    config.swap_least_copies = args.swap_least_copies.or(config.swap_least_copies);
    config.socket_group = args.socket_group.clone().unwrap_or(config.socket_group);
    config.monitor = monitor.unwrap_or(config.monitor);
    config.lend = args.lend.unwrap_or(config.lend);
    if !args.lend_dax.is_empty() {
        config.lend_dax = args.lend_dax.clone();
    }
    config.listen = args.listen.clone().or(config.listen);
    config.udp_listen = args.udp_listen.clone().or(config.udp_listen);
    config.shm_socket = args.shm_socket.clone().or(config.shm_socket);
    config.link = args.link.or(config.link);
    config.verbs = args.verbs.clone().or(config.verbs);
    config.xdp = args.xdp.clone().or(config.xdp);
    config.advertise = args.advertise.or(config.advertise);
    config.topology = args.topology.clone().or(config.topology);
    config.position = args.position.or(config.position);
    config.source_routes |= args.source_routes;
    config.relay_listen = args.relay_listen.clone().or(config.relay_listen);
    config.plain |= args.plain;
    config.queues = args.queues.or(config.queues);
    config.lend_blocks = args.lend_blocks.unwrap_or(config.lend_blocks);
    if !args.offer.is_empty() {
        config.offer = args.offer.iter().map(ToString::to_string).collect();
    }
    config.state_dir = args.state_dir.clone().unwrap_or(config.state_dir);
    config.hosts_dir = args.hosts_dir.clone().unwrap_or(config.hosts_dir);
    config.build_cache = args.build_cache.unwrap_or(config.build_cache);
    config.build_cache_dir = args.build_cache_dir.clone().unwrap_or(config.build_cache_dir);
    config.pool |= args.pool;
    config.keep_free = args.keep_free.or(config.keep_free);
    config.take_back_after_s = args.take_back_after_s.unwrap_or(config.take_back_after_s);
    config.metrics = args.observe.metrics(config.metrics);
    config.prepare_timeout_s = args.prepare_timeout_s.unwrap_or(config.prepare_timeout_s);
    Ok(config.with_joined())
}

fn told(error: AgentError) -> anyhow::Error {
    match error {
        AgentError::Config(_) | AgentError::Device { .. } => Usage(error.to_string()).into(),
        // The error's own text suffices; the transport's causes are dropped.
        AgentError::Control(error) => anyhow!("{error}"),
        other => anyhow!(other),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: AgentArgs,
    }

    fn configured(words: &[&str], monitor: Option<&str>) -> anyhow::Result<AgentConfig> {
        let line = Line::try_parse_from([&["agent"], words].concat())?;
        configuration(&line.args, monitor.map(str::to_string))
    }

    #[test]
    fn flags_override_file_and_defaults() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("agent.toml");
        let text = "name = \"a\"\nlend = \"64MiB\"\nmonitor = \"10.0.0.1:1\"\n";
        std::fs::write(&path, text).unwrap();
        let file = path.to_str().unwrap();
        let config = configured(&["--config", file, "--lend", "32MiB"], None).unwrap();
        assert_eq!((config.name.as_str(), config.lend), ("a", ByteSize(32 << 20)));
        assert_eq!(config.monitor, "10.0.0.1:1");
        let config = configured(&["--config", file], Some("10.0.0.2:2")).unwrap();
        assert_eq!((config.lend, config.monitor.as_str()), (ByteSize(64 << 20), "10.0.0.2:2"));
    }

    #[test]
    fn missing_lend_is_usage_error() {
        let error = configured(&["--name", "a"], None).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("--lend"), "{error:#}");
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("agent.toml");
        std::fs::write(&path, "name = \"a\"\nlent = \"64MiB\"\n").unwrap();
        let error = configured(&["--config", path.to_str().unwrap()], None).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("lent"), "{error:#}");
    }

    #[test]
    fn pressure_settings_come_from_flag_or_file() {
        let words = ["--lend", "32MiB", "--pool", "--keep-free", "2GiB"];
        let config = configured(&words, None).unwrap();
        assert!(config.pool && config.take_back_after_s == 600.0);
        assert_eq!(configured(&["--pool"], None).unwrap().lend, ByteSize(0), "the agent decides");
        assert_eq!(config.keep_free, Some(ByteSize(2 << 30)));
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("agent.toml");
        let text = "lend = \"64MiB\"\npool = true\nkeep_free = 0\ntake_back_after_s = 5.0\n";
        std::fs::write(&path, text).unwrap();
        let config = configured(&["--config", path.to_str().unwrap()], None).unwrap();
        assert!(config.pool && config.keep_free == Some(ByteSize(0)));
        assert_eq!(config.take_back_after_s, 5.0);
        std::fs::write(&path, "lend = \"64MiB\"\ntake_back_after_s = inf\n").unwrap();
        let config = configured(&["--config", path.to_str().unwrap()], None).unwrap();
        assert_eq!(config.take_back_after_s, f64::INFINITY);
    }

    #[test]
    fn joined_agent_needs_no_address() {
        let temp = tempfile::tempdir().unwrap();
        let (authority, own) = (temp.path().join("authority"), temp.path().join("own"));
        let words = ["--lend", "32MiB", "--identity", own.to_str().unwrap()];
        let host = configured(&words, None).unwrap();
        assert!(!host.name.is_empty());
        assert_eq!(host.monitor, "127.0.0.1:7470");
        let authority = venice_control::identity::Authority::create(&authority).unwrap();
        let node7 = venice_control::Caller::Node("node7".into());
        authority.credential(&node7).unwrap().save(&own).unwrap();
        venice_agent::record_monitor(&own, "10.0.0.1:7470").unwrap();
        let joined = configured(&words, None).unwrap();
        assert_eq!((&*joined.name, &*joined.monitor), ("node7", "10.0.0.1:7470"));
        let told = configured(&[&words[..], &["--name", "a"]].concat(), Some("b:1")).unwrap();
        assert_eq!((&*told.name, &*told.monitor), ("a", "b:1"));
    }

    #[test]
    fn example_file_parses() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/examples/agent.toml");
        let refused = configured(&["--config", path], None).unwrap_err();
        assert!(refused.to_string().contains("nothing to lend"), "{refused}");
        let config = configured(&["--config", path, "--lend", "1GiB"], None).unwrap();
        assert_eq!(config.shm_socket, Some("/run/venice-agent/shm.sock".into()));
    }
}
