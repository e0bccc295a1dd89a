//! Start and stop of an agent's parts.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use venice_control::server::{self, LocalSocket, ServeError, admit_group, serve_agent};
use venice_control::{NodeRegistration, Pong, ResourceKind, ResourceSpec};
use venice_memory::donor::{HandedOutGrants, MemoryDevice, SharedGrants, SlabPool};
use venice_observe::MetricsServer;
use venice_ports::PortError;
use venice_ports::shm::ShmServer;
use venice_ports::udp::UdpSocket;
use venice_ports::verbs::{Device, VerbsServer};
use venice_rack::agent_member::AgentMember;
use venice_service::{CacheConfig, SupervisorConfig};
use venice_wire::{ByteSize, SLAB_BYTES};

use crate::devices::DeviceWatch;
use crate::handler::Handler;
use crate::identity::{NodeIdentity, UserCertifier};
use crate::lender::Lender;
use crate::lent_blocks::LentBlocks;
use crate::member::Member;
use crate::memory_watch::MemoryWatch;
use crate::observed::Observed;
use crate::ports::{FramePorts, Ports};
use crate::relay_host::RelayHost;
use crate::services::{HostEvents, HostNetwork, Services};
use crate::slab_replacement;
use crate::udp_host::UdpHost;
use crate::{AgentConfig, AgentError, AgentReady};

/// Timeout of calls in progress when the agent stops.
const LAST_CALLS_WITHIN: Duration = Duration::from_secs(1);

/// Runs an agent until `shutdown` completes. Prints nothing; logs by `tracing`. Needs a tokio
/// runtime with time and I/O.
///
/// Raises this process's limit on open files as far as allowed: each slab is a file.
///
/// # Errors
/// Fails if the configuration is invalid, the memory is unavailable or cannot be locked, an address
/// is in use, or the Monitor Node refuses the first registration (later it keeps trying). A Monitor
/// Node that does not answer is no error: the agent waits for it.
pub async fn run(
    mut config: AgentConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), AgentError> {
    let on_ready = std::mem::take(&mut config.on_ready);
    let parts = start(config).await?;
    on_ready.call(parts.ready.clone());

    let (stop, stopped) = oneshot::channel::<()>();
    let identity = parts.identity;
    let metrics = parts.metrics.map(|server| (server, Arc::clone(&parts.member.observed)));
    let _tasks = BackgroundTasks::start(&identity, parts.socket, metrics);
    let service = serve_agent(parts.listener, identity.tls, parts.handler, async {
        let _ = stopped.await;
    });
    let lending = Lending::start(parts.lender, parts.memory, parts.devices, parts.hosts);
    let mut service = std::pin::pin!(service);
    let mut member = parts.member;
    let result = tokio::select! {
        () = shutdown => Ok(()),
        error = member.run() => Err(error),
        served = &mut service => served.map_err(AgentError::from),
    };
    // Notifies the Monitor Nodes and the recipients.
    if result.is_ok() {
        tokio::join!(member.leave(), lending.lender.say_goodbye());
    }
    drop(lending);
    drop(parts.blocks);
    drop(stop);
    if result.is_ok() {
        let _ = tokio::time::timeout(LAST_CALLS_WITHIN, service).await;
    }
    result
}

/// The lending tasks. Dropping this stops lending for all: connections and tasks that end later
/// still hold the lender.
struct Lending {
    lender: Arc<Lender>,
    deadlines: JoinHandle<()>,
    memory: JoinHandle<()>,
    devices: JoinHandle<()>,
    hosts: JoinHandle<()>,
}

impl Lending {
    fn start(
        lender: Arc<Lender>,
        memory: MemoryWatch,
        devices: DeviceWatch,
        hosts: HostEvents,
    ) -> Self {
        let deadlines = tokio::spawn(Arc::clone(&lender).watch_deadlines());
        let memory = match lender.pool.is_memory() {
            true => tokio::spawn(memory.run(Arc::clone(&lender))),
            // Device memory is not subject to this machine's memory pressure.
            false => tokio::spawn(slab_replacement::watch_devices(Arc::clone(&lender))),
        };
        let devices = tokio::spawn(devices.run(Arc::clone(&lender)));
        let hosts = tokio::spawn(Arc::clone(&lender).watch_hosts(hosts));
        Self { lender, deadlines, memory, devices, hosts }
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        self.deadlines.abort();
        self.memory.abort();
        self.devices.abort();
        self.hosts.abort();
        self.lender.close();
    }
}

/// Background tasks: renew the certificate, store revocations, serve metrics and the socket for
/// programs. End on drop.
struct BackgroundTasks {
    _tasks: JoinSet<()>,
}

impl BackgroundTasks {
    fn start(
        identity: &NodeIdentity,
        socket: Option<LocalSocket>,
        metrics: Option<(MetricsServer, Arc<Observed>)>,
    ) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(identity.clone().keep());
        tasks.spawn(identity.revoked_nodes.clone().keep());
        if let Some((server, observed)) = metrics {
            tasks.spawn(server.serve(observed));
        }
        if let Some(socket) = socket {
            let certifier = Arc::new(UserCertifier::new(identity));
            tasks.spawn(async move {
                if let Err(error) = socket.serve(certifier).await {
                    tracing::error!(%error, "the socket for this machine's programs failed");
                }
            });
        }
        Self { _tasks: tasks }
    }
}

/// The parts of an agent, listening and ready to run.
struct Parts {
    ready: AgentReady,
    identity: NodeIdentity,
    socket: Option<LocalSocket>,
    listener: TcpListener,
    metrics: Option<MetricsServer>,
    handler: Arc<Handler>,
    lender: Arc<Lender>,
    memory: MemoryWatch,
    devices: DeviceWatch,
    hosts: HostEvents,
    blocks: Option<LentBlocks>,
    member: Member,
}

async fn start(config: AgentConfig) -> Result<Parts, AgentError> {
    let config = config.with_pool_memory()?;
    let addresses = config.validate()?;
    let instance = venice_ports::random_u64().map_err(AgentError::Random)?;
    raise_open_files();

    // Cheap steps first: an agent that cannot listen need not lock gigabytes.
    let devices = DeviceWatch::begin(&config.offers()?)?;
    let identity = NodeIdentity::load(&config.identity, &config.name, &config.monitor)?;
    let bind_socket = |path: &PathBuf| LocalSocket::bind(path, &config.socket_group);
    let socket = config.local_socket.as_ref().map(bind_socket).transpose()?;
    let listener = server::bind(&addresses.control.to_string()).await?;
    let control_addr = listener.local_addr().unwrap_or(addresses.control);
    let metrics = match &config.metrics {
        Some(addr) => Some(MetricsServer::bind(addr).await?),
        None => None,
    };
    let metrics_addr = metrics.as_ref().map(MetricsServer::addr);
    if let Some(addr) = metrics_addr {
        tracing::info!(%addr, "metrics and health are served, at /metrics, /healthz, /readyz");
    }
    let sockets = UdpSocket::bind_queues(addresses.udp, config.queue_count())?;
    let udp_addr = sockets.first().expect("at least one").local_addr();
    let grants = SharedGrants::default();
    let shm_socket = config.shm_socket.as_deref();
    let serve = |path| ShmServer::start_behind(path, HandedOutGrants(grants.clone()), config.link);
    let shm = shm_socket.map(serve).transpose()?;
    if let Some(path) = shm_socket {
        let listen = |source| ServeError::Listen { addr: path.display().to_string(), source };
        admit_group(path, &config.socket_group).map_err(listen)?;
    }
    let verbs = start_verbs(&config, udp_addr, &grants)?;

    let (blocks, config) = tokio::task::spawn_blocking(move || (LentBlocks::take(&config), config))
        .await
        .expect("taking blocks does not panic");
    let blocks = blocks?;
    let pool = slab_pool(config.lend.0, config.memory_devices()?).await?;
    let lend = ByteSize(pool.total_slabs() as u64 * SLAB_BYTES);
    let relay = relay_host(&config, addresses.relay, &grants)?;
    let relay_addr = relay.as_ref().map(|(addr, _)| *addr);
    let relay = relay.map(|(_, relay)| relay);
    let resource = blocks.as_ref().map(LentBlocks::resource).transpose()?;
    let mut registration = NodeRegistration {
        relay: relay.as_ref().map(RelayHost::place),
        ..registration(&config, instance, control_addr, udp_addr, &pool)
    };
    registration.resources.extend(resource);
    registration.resources.extend(devices.specs().iter().cloned());

    let prepare_timeout = Duration::from_secs_f64(config.prepare_timeout_s);
    let mut udp = UdpHost::new(sockets, grants.clone());
    if let Some(interface) = config.xdp_interface()? {
        udp.use_xdp(&interface, !config.plain)?;
        tracing::info!(%interface, "single packets bypass the kernel");
    }
    let frames = FramePorts::new(udp, relay);
    let ports = Ports { shm, verbs, frames: Some(frames.clone()) };
    let network = host_network(&config, udp_addr);
    let (services, hosts) =
        Services::open((devices.host(), devices.specs()), supervisor_config(&config), network)?;
    let pong = Pong { name: config.name.clone(), instance };
    let lender = Lender::new(pool, grants, ports, services, (prepare_timeout, pong));
    let lender = Arc::new(lender);
    lender.offer_devices(&devices);
    let handler = Handler { lender: Arc::clone(&lender), tls: Arc::clone(&identity.tls) };
    let observed = Observed::new(identity.clone(), Arc::clone(&lender), frames.clone());
    let member = Member {
        state: AgentMember::new(registration, identity.at_each().len()),
        identity: identity.clone(),
        lender: Arc::clone(&lender),
        frames,
        busy_mbps: 0.0,
        observed: Arc::new(observed),
    };
    let memory = MemoryWatch::new(&config);
    let shm_socket = config.shm_socket.clone();
    tracing::info!(name = config.name, %lend, "lending");
    let ready = AgentReady { control_addr, udp_addr, relay_addr, metrics_addr, shm_socket };
    let handler = Arc::new(handler);
    Ok(Parts {
        ready,
        identity,
        socket,
        listener,
        metrics,
        handler,
        lender,
        memory,
        devices,
        hosts,
        blocks,
        member,
    })
}

/// Returns the configuration of the hosts of devices' services.
fn supervisor_config(config: &AgentConfig) -> SupervisorConfig {
    let ByteSize(owner_bytes) = config.build_cache;
    let caches = CacheConfig { dir: config.build_cache_dir.clone(), owner_bytes };
    SupervisorConfig {
        caches: (owner_bytes > 0).then_some(caches),
        ..SupervisorConfig::new(&config.hosts_dir)
    }
}

/// Returns the network of service hosts; `None` if all recipients are on this machine.
fn host_network(config: &AgentConfig, udp_addr: SocketAddr) -> Option<HostNetwork> {
    let advertised = config.advertise.unwrap_or_else(|| udp_addr.ip());
    (!advertised.is_loopback()).then_some(HostNetwork { bind: udp_addr.ip(), advertised })
}

/// Makes the slabs to lend.
async fn slab_pool(lend_bytes: u64, names: Vec<String>) -> Result<SlabPool, AgentError> {
    let pool = tokio::task::spawn_blocking(move || match (lend_bytes, names.is_empty()) {
        // An external router, or a node that lends only blocks.
        (0, true) => Ok(SlabPool::empty()),
        (_, true) => SlabPool::new(lend_bytes),
        _ => {
            let devices = names.iter().map(|name| MemoryDevice::open(name));
            SlabPool::of_devices(devices.collect::<Result<_, _>>()?)
        }
    });
    Ok(pool.await.expect("making slabs does not panic")?)
}

/// Returns the relay and its socket's address, if the rack has relays.
fn relay_host(
    config: &AgentConfig,
    listen: SocketAddr,
    grants: &SharedGrants,
) -> Result<Option<(SocketAddr, RelayHost)>, AgentError> {
    let Some(place) = config.place()? else { return Ok(None) };
    let socket = UdpSocket::bind(listen)?;
    let addr = socket.local_addr();
    let advertised = config.advertised(addr);
    Ok(Some((addr, RelayHost::new(socket, place, advertised, config.link, grants.clone()))))
}

/// Starts the verbs port, if configured, on the TCP port with the UDP port's number.
fn start_verbs(
    config: &AgentConfig,
    address: SocketAddr,
    grants: &SharedGrants,
) -> Result<Option<VerbsServer>, AgentError> {
    let Some(name) = &config.verbs else { return Ok(None) };
    let device = Device::open((name != "auto").then_some(name)).map_err(PortError::from)?;
    tracing::info!(device = device.name(), "lending over verbs");
    let server = VerbsServer::start(device, address, grants.clone()).map_err(PortError::from)?;
    Ok(Some(server))
}

fn registration(
    config: &AgentConfig,
    instance: u64,
    control_addr: SocketAddr,
    udp_addr: SocketAddr,
    pool: &SlabPool,
) -> NodeRegistration {
    let udp_addr = config.advertised(udp_addr);
    let mut capabilities = vec!["crma".to_owned(), "rdma".to_owned(), "udp".to_owned()];
    if config.shm_socket.is_some() {
        capabilities.push("shm".to_owned());
    }
    if !config.lend_dax.is_empty() {
        capabilities.push("dax".to_owned());
    }
    if config.xdp.is_some() {
        capabilities.push("xdp".to_owned());
    }
    if config.verbs.is_some() {
        capabilities.push("verbs".to_owned());
    }
    let memory = ResourceSpec {
        kind: ResourceKind::Memory,
        address: format!("udp:{udp_addr}"),
        bytes: pool.total_slabs() as u64 * SLAB_BYTES,
        slab_bytes: SLAB_BYTES,
        capabilities,
    };
    let shm_socket = config.shm_socket.as_deref().map(absolute).unwrap_or_default();
    NodeRegistration {
        name: config.name.clone(),
        instance,
        pid: Some(std::process::id()),
        control_addr: config.advertised(control_addr),
        udp_addr,
        shm_socket,
        resources: if memory.bytes == 0 { Vec::new() } else { vec![memory] },
        previous: None,
        secret: None,
        is_plain: config.plain,
        relay: None,
        link: config.link.map(|link| link.to_string()).unwrap_or_default(),
        is_pool: config.pool,
    }
}

/// Makes a path absolute: recipients have other working directories.
fn absolute(path: &std::path::Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string()
}

fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}
