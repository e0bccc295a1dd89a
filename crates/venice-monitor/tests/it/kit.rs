//! A Monitor Node and agents in this process, over loopback.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use venice_control::Caller;
use venice_control::client::{Access, AgentClient, MonitorClient};
use venice_control::server::{AgentHandler, bind, serve_agent};
use venice_control::{
    AllocationRequest, ControlError, Grant, HeartbeatReport, HeldState, Identity, LeaseState,
    NodeRegistration, Pong, PortReport, Refusal, ResourceKind, ResourceSpec, Want,
};
use venice_monitor::{MonitorConfig, MonitorError, OnReady};
use venice_rack::donor::DonorSettings;
use venice_rack::donor_node::DonorNode;
use venice_rack::monitor::Token;
use venice_rack::monitor_node::{DonorAnswer, DonorCall};
use venice_testkit::identity::{access, login, login_of};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

pub const LEASE_S: f64 = 3.0;
const HEARTBEAT: Duration = Duration::from_millis(100);
/// Limit for a wait, far longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A Monitor Node that does not listen yet.
pub struct StartingMonitor {
    is_ready: oneshot::Receiver<SocketAddr>,
    task: JoinHandle<Result<(), MonitorError>>,
    stop: oneshot::Sender<()>,
}

impl StartingMonitor {
    pub fn of(mut config: MonitorConfig) -> Self {
        let (ready, is_ready) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        config.on_ready = OnReady::new(move |at| ready.send(at.addr).unwrap());
        let task = tokio::spawn(async {
            let ended = venice_monitor::run(config, async {
                let _ = stopped.await;
            });
            // Printed into the output of the failed test.
            ended.await.inspect_err(|error| eprintln!("a Monitor Node ended: {error:?}"))
        });
        Self { is_ready, task, stop }
    }

    pub async fn ready(self) -> Monitor {
        let addr = bounded(self.is_ready).await.expect("the Monitor Node starts").to_string();
        Monitor { addr, task: self.task, stop: self.stop }
    }
}

/// A running Monitor Node.
pub struct Monitor {
    pub addr: String,
    task: JoinHandle<Result<(), MonitorError>>,
    stop: oneshot::Sender<()>,
}

pub fn config(state_dir: &Path, listen: &str) -> MonitorConfig {
    venice_testkit::identity::install(state_dir);
    MonitorConfig {
        listen: listen.to_owned(),
        state_dir: state_dir.to_owned(),
        heartbeat_interval_s: HEARTBEAT.as_secs_f64(),
        missed_heartbeats: 10,
        lease_s: LEASE_S,
        ..MonitorConfig::default()
    }
}

impl Monitor {
    pub async fn start(state_dir: &Path, listen: &str) -> Self {
        StartingMonitor::of(config(state_dir, listen)).ready().await
    }

    /// Ends the Monitor Node as `kill -9` does: nothing is finished.
    pub async fn kill(self) {
        self.task.abort();
        assert!(bounded(self.task).await.unwrap_err().is_cancelled());
    }

    pub async fn stop(self) {
        self.stop.send(()).unwrap();
        bounded(self.task).await.unwrap().unwrap();
    }

    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    pub async fn client(&self) -> MonitorClient {
        MonitorClient::connect(&access(&self.addr)).await.unwrap()
    }
}

/// An agent that only counts its slabs.
pub struct Agent {
    pub donor: Arc<Donor>,
    pub identity: Identity,
    tasks: JoinSet<()>,
}

pub struct Donor {
    name: String,
    instance: u64,
    node: Mutex<DonorNode>,
    started: tokio::time::Instant,
    /// Makes every prepare fail.
    pub is_broken: AtomicBool,
    pub prepares: AtomicU64,
}

impl Agent {
    pub async fn start(name: &str, monitor_addr: &str, slabs: u32) -> Self {
        Self::try_start(name, monitor_addr, slabs).await.unwrap()
    }

    pub async fn try_start(
        name: &str,
        monitor_addr: &str,
        slabs: u32,
    ) -> Result<Self, ControlError> {
        Self::try_start_at("127.0.0.1:0", name, monitor_addr, slabs).await
    }

    /// Starts an agent that listens at `addr`.
    pub async fn try_start_at(
        addr: &str,
        name: &str,
        monitor_addr: &str,
        slabs: u32,
    ) -> Result<Self, ControlError> {
        static INSTANCES: AtomicU64 = AtomicU64::new(1);
        let settings = DonorSettings { total_slabs: slabs, prepare_timeout_ns: 5_000_000_000 };
        let instance = INSTANCES.fetch_add(1, Ordering::Relaxed);
        let pong = Pong { name: name.to_owned(), instance };
        let donor = Arc::new(Donor {
            name: name.to_owned(),
            instance,
            node: Mutex::new(DonorNode::new(settings, pong, 0)),
            started: tokio::time::Instant::now(),
            is_broken: AtomicBool::new(false),
            prepares: AtomicU64::new(0),
        });
        let listener = bind(addr).await.unwrap();
        let control_addr = listener.local_addr().unwrap().to_string();
        let registration = donor.registration(control_addr, slabs);

        let login = login_of(&Caller::Node(name.to_owned()));
        let mut client = MonitorClient::connect(&Access::new(monitor_addr, login)).await?;
        let identity = client.register(registration.clone()).await?.identity;
        donor.node.lock().unwrap().core_mut().set_epoch(identity.epoch);
        let mut tasks = JoinSet::new();
        let (handler, door) = (Arc::clone(&donor), venice_testkit::identity::door(name));
        tasks.spawn(async move {
            serve_agent(listener, door, handler, std::future::pending()).await.unwrap();
        });
        drop(client);
        for monitor in monitor_addr.split(',') {
            let access = Access::new(monitor, login_of(&Caller::Node(name.to_owned())));
            let (donor, registration) = (Arc::clone(&donor), registration.clone());
            tasks.spawn(report_forever(donor, access, identity, registration));
        }
        Ok(Self { donor, identity, tasks })
    }

    /// Ends the agent: its port refuses connections, and its reports stop.
    pub async fn kill(mut self) {
        self.tasks.shutdown().await;
    }

    /// Returns the number of committed slabs.
    pub fn lent_slabs(&self) -> u32 {
        let report = self.donor.node.lock().unwrap().report();
        let lent = report.held.iter().filter(|held| held.state == HeldState::Committed);
        lent.map(|held| held.share.slabs()).sum()
    }

    pub fn held(&self) -> Vec<(GrantId, u32)> {
        let report = self.donor.node.lock().unwrap().report();
        report.held.iter().map(|held| (held.id, held.share.slabs())).collect()
    }
}

async fn report_forever(
    donor: Arc<Donor>,
    access: Access,
    identity: Identity,
    registration: NodeRegistration,
) {
    let mut client = loop {
        match MonitorClient::connect(&access).await {
            Ok(client) => break client,
            Err(_) => tokio::time::sleep(HEARTBEAT).await,
        }
    };
    loop {
        let memory = {
            let now_ns = donor.now_ns();
            let mut node = donor.node.lock().unwrap();
            node.handle_timeout(now_ns);
            node.perform_without_memory(now_ns);
            node.report()
        };
        let report = HeartbeatReport {
            usage: Vec::new(),
            peers_version: 0,
            door: Default::default(),
            identity,
            instance: donor.instance,
            memory,
            links: vec![],
            port: PortReport::default(),
            pressure: Default::default(),
        };
        let answer = match client.heartbeats().await {
            Ok(mut heartbeats) => heartbeats.send(report).await,
            Err(error) => Err(error),
        };
        if let Err(ControlError::Rack(_)) = answer {
            let previous = Some(identity);
            let again = NodeRegistration { previous, ..registration.clone() };
            if let Ok(registered) = client.register(again).await {
                assert_eq!(
                    registered.identity, identity,
                    "the agent was registered as a second node"
                );
            }
        }
        tokio::time::sleep(HEARTBEAT).await;
    }
}

impl Donor {
    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn answer(&self, call: impl FnOnce(&mut DonorNode, u64)) -> Result<DonorAnswer, Refusal> {
        let (mut node, now_ns) = (self.node.lock().unwrap(), self.now_ns());
        call(&mut node, now_ns);
        node.perform_without_memory(now_ns).pop().expect("it answers at once").1
    }

    fn registration(&self, control_addr: String, slabs: u32) -> NodeRegistration {
        NodeRegistration {
            name: self.name.clone(),
            instance: self.instance,
            pid: Some(std::process::id()),
            control_addr,
            udp_addr: "127.0.0.1:9".to_owned(),
            shm_socket: format!("/nowhere/{}/shm.sock", self.name),
            resources: vec![ResourceSpec {
                kind: ResourceKind::Memory,
                address: "udp:127.0.0.1:9".to_owned(),
                bytes: u64::from(slabs) * SLAB_BYTES,
                slab_bytes: SLAB_BYTES,
                capabilities: vec!["crma".to_owned(), "rdma".to_owned()],
            }],
            previous: None,
            secret: None,
            is_plain: false,
            relay: None,
            link: String::new(),
            is_pool: false,
        }
    }
}

impl AgentHandler for Donor {
    async fn call(&self, call: DonorCall) -> Result<DonorAnswer, Refusal> {
        let is_prepare = matches!(call, DonorCall::Prepare(_));
        self.prepares.fetch_add(u64::from(is_prepare), Ordering::Relaxed);
        let is_transfer = matches!(call, DonorCall::PrepareTransfer(_));
        if (is_prepare || is_transfer) && self.is_broken.load(Ordering::Relaxed) {
            return Err(Refusal::Failed("no memory could be locked".to_owned()));
        }
        self.answer(|node, now_ns| node.handle_call(now_ns, Token(0), call))
    }

    async fn give_back(
        &self,
        _: Caller,
        leases: Vec<(GrantId, GrantKey)>,
    ) -> Result<DonorAnswer, Refusal> {
        self.answer(|node, now_ns| node.handle_give_back(now_ns, Token(0), &leases))
    }

    async fn renew(&self, _: Caller, leases: Vec<(GrantId, GrantKey)>) -> Vec<LeaseState> {
        self.node.lock().unwrap().handle_renew(self.now_ns(), &leases)
    }
}

pub fn request(client_id: u128, slabs: u64, donors: &[&str]) -> AllocationRequest {
    AllocationRequest {
        wants: vec![Want::memory(slabs * SLAB_BYTES, 1)],
        client_id,
        recipient: format!("recipient{client_id}"),
        donors: donors.iter().map(|name| (*name).to_owned()).collect(),
        home: String::new(),
        placement: None,
        purpose: "test".to_owned(),
        queueing: Default::default(),
    }
}

/// Renews the leases at the donors until dropped, as a recipient does.
pub fn keep(grants: &[Grant]) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for grant in grants.iter().cloned() {
        tasks.spawn(async move {
            let timeout = Duration::from_secs(1);
            loop {
                let (login, addr) = (login(), &grant.control_addr);
                let client = AgentClient::connect(&login, &grant.donor, addr, timeout);
                if let Ok(mut client) = client.await {
                    let _ = client.renew(&[(grant.id, grant.key)]).await;
                }
                tokio::time::sleep(Duration::from_secs_f64(LEASE_S / 10.0)).await;
            }
        });
    }
    tasks
}

/// Returns the leases of the grants, for a release.
pub fn leases(grants: &[Grant]) -> Vec<(GrantId, GrantKey)> {
    grants.iter().map(|grant| (grant.id, grant.key)).collect()
}

/// Returns the grants' states, ordered by number.
pub async fn states(client: &mut MonitorClient) -> Vec<String> {
    client.grants().await.unwrap().into_iter().map(|row| row.state).collect()
}

pub async fn bounded<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, wait).await.expect("the step timed out")
}

/// Repeats `ask` until the answer satisfies `wanted`.
pub async fn until<T, F>(mut ask: impl FnMut() -> F, wanted: impl Fn(&T) -> bool) -> T
where
    T: std::fmt::Debug,
    F: Future<Output = T>,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "still {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
