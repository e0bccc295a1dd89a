//! Starting an agent's parts, and stopping them.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use venice_control::server::{self, serve_agent};
use venice_control::{NodeRegistration, ResourceKind, ResourceSpec};
use venice_memory::donor::{SharedGrants, SlabPool};
use venice_ports::shm::ShmServer;
use venice_ports::udp::UdpSocket;
use venice_wire::SLAB_BYTES;

use crate::handler::Handler;
use crate::lender::Lender;
use crate::member::{Member, UdpHost};
use crate::{AgentConfig, AgentError, AgentReady};

/// How long calls in progress may take to end when the agent stops.
const FAREWELL: Duration = Duration::from_secs(1);

/// Runs an agent until `shutdown` completes. Prints nothing; logs by `tracing`. Needs a tokio
/// runtime with time and I/O.
///
/// Raises this process's limit on open files as far as it may: each slab is a file.
///
/// # Errors
/// When the configuration makes no sense, the memory cannot be had or locked, an address cannot
/// be listened on, or the Monitor Node refuses the agent at first (later it goes on trying). A
/// Monitor Node that does not answer is no error: the agent waits for it.
pub async fn run(
    mut config: AgentConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), AgentError> {
    let on_ready = std::mem::take(&mut config.on_ready);
    let parts = start(config).await?;
    on_ready.call(parts.ready.clone());

    let (stop, stopped) = oneshot::channel::<()>();
    let service = serve_agent(parts.listener, parts.handler, async {
        let _ = stopped.await;
    });
    let lending = Lending::start(parts.lender);
    let mut service = std::pin::pin!(service);
    let result = tokio::select! {
        () = shutdown => Ok(()),
        error = parts.member.run() => Err(error),
        served = &mut service => served.map_err(AgentError::from),
    };
    // The recipients notice at once.
    drop(lending);
    drop(stop);
    if result.is_ok() {
        let _ = tokio::time::timeout(FAREWELL, service).await;
    }
    result
}

/// Lending goes on as long as this lives, and stops for all when it is dropped, however that
/// comes: connections and tasks that end later still hold the lender.
struct Lending {
    lender: Arc<Lender>,
    deadlines: JoinHandle<()>,
}

impl Lending {
    fn start(lender: Arc<Lender>) -> Self {
        let deadlines = tokio::spawn(Arc::clone(&lender).watch_deadlines());
        Self { lender, deadlines }
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        self.deadlines.abort();
        self.lender.close();
    }
}

/// An agent's parts, listening and ready to go.
struct Parts {
    ready: AgentReady,
    listener: TcpListener,
    handler: Arc<Handler>,
    lender: Arc<Lender>,
    member: Member,
}

async fn start(config: AgentConfig) -> Result<Parts, AgentError> {
    let addresses = config.validate()?;
    let instance = venice_ports::random_u64().map_err(AgentError::Random)?;
    raise_open_files();

    // Cheap things first: who cannot listen need not lock gigabytes to find out.
    let listener = server::bind(&addresses.control.to_string()).await?;
    let control_addr = listener.local_addr().unwrap_or(addresses.control);
    let socket = UdpSocket::bind(addresses.udp)?;
    let udp_addr = socket.local_addr();
    let grants = SharedGrants::default();
    let shm_socket = config.shm_socket.as_deref();
    let shm = shm_socket.map(|path| ShmServer::start(path, grants.clone())).transpose()?;

    let lend_bytes = config.lend.0;
    let pool = tokio::task::spawn_blocking(move || SlabPool::new(lend_bytes));
    let pool = pool.await.expect("making slabs does not panic")?;
    let registration = registration(&config, instance, control_addr, udp_addr, &pool);

    let prepare_timeout = Duration::from_secs_f64(config.prepare_timeout_s);
    let lender = Arc::new(Lender::new(pool, grants.clone(), shm, prepare_timeout));
    let handler = Handler { lender: Arc::clone(&lender), name: config.name.clone(), instance };
    let member = Member {
        monitor: config.monitor.clone(),
        registration,
        lender: Arc::clone(&lender),
        udp: UdpHost::new(socket, grants),
    };
    let shm_socket = config.shm_socket.clone();
    tracing::info!(name = config.name, lend = %config.lend, "lending");
    let ready = AgentReady { control_addr, udp_addr, shm_socket };
    Ok(Parts { ready, listener, handler: Arc::new(handler), lender, member })
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
        resources: vec![memory],
        previous: None,
    }
}

/// Recipients have another working directory.
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
